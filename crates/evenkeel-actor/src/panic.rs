//! Conversion of panics in actor code into errors.

use crate::guardian::ActorError;
#[cfg(feature = "std")]
use crate::ignore_panic::ignore_panic;

/// Runs code of an actor and turns a panic into an error.
#[cfg(feature = "std")]
pub(crate) fn catch<R>(work: impl FnOnce() -> R) -> Result<R, ActorError> {
    use alloc::string::String;

    std::panic::catch_unwind(core::panic::AssertUnwindSafe(work)).map_err(|panic| {
        let text = panic.downcast_ref::<&str>().map(|text| String::from(*text));
        let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
        ignore_panic(|| drop(panic));
        ActorError::panicked(text.unwrap_or_else(|| "panic without a message".into()))
    })
}

/// Runs code of an actor; without std a panic aborts the program.
#[cfg(not(feature = "std"))]
pub(crate) fn catch<R>(work: impl FnOnce() -> R) -> Result<R, ActorError> {
    Ok(work())
}
