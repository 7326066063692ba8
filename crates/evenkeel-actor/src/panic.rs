//! Converts panics in actor code into errors.

use crate::guardian::ActorError;
#[cfg(feature = "std")]
use crate::ignore_panic::ignore_panic;

/// Runs actor code and converts a panic into an [`ActorError`].
#[cfg(feature = "std")]
pub(crate) fn catch_panic<R>(work: impl FnOnce() -> R) -> Result<R, ActorError> {
    use alloc::string::String;

    std::panic::catch_unwind(core::panic::AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| String::from(*text));
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        // The payload's `Drop` may itself panic.
        ignore_panic(|| drop(panic));
        ActorError::panicked(text.unwrap_or_else(|| "panic without a message".into()))
    })
}

/// Runs actor code; without `std` a panic cannot be caught and goes to the panic handler.
#[cfg(not(feature = "std"))]
pub(crate) fn catch_panic<R>(work: impl FnOnce() -> R) -> Result<R, ActorError> {
    Ok(work())
}
