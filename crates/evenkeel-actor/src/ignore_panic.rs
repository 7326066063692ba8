//! Isolates panics of foreign code that runs where no actor can fail for it.
//!
//! A panic in a handler is its actor's failure. A panic in a waker, or in the drop of a value by its last
//! holder, has nothing to do with the worker or the timer driver on which it happens.

use core::task::Waker;

/// Runs foreign code and discards its panic.
#[cfg(all(feature = "std", not(loom)))]
#[inline]
pub(crate) fn ignore_panic(work: impl FnOnce()) {
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;

    let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else { return };
    // The panic payload is a foreign value too, and its drop may panic.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        core::mem::forget(another);
    }
}

/// Runs foreign code; without `std` a panic ends the program.
#[cfg(not(all(feature = "std", not(loom))))]
pub(crate) fn ignore_panic(work: impl FnOnce()) {
    work();
}

/// Wakes a task. A worker that wakes a task of its host must yield afterwards.
///
/// The host may have queued that task where only this thread takes it from.
#[inline]
pub(crate) fn wake_and_request_yield(waker: Waker) {
    #[cfg(all(feature = "std", not(loom)))]
    if !crate::raw::waker::is_cell_waker(&waker) {
        crate::raw::current::require_yield();
    }
    waker.wake();
}

/// Wakes all, even if one of the wakers panics.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| ignore_panic(|| wake_and_request_yield(waker)));
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_panic_payload_that_panics_on_drop_is_discarded_too() {
        let reached = Cell::new(false);
        ignore_panic(|| {
            reached.set(true);
            std::panic::panic_any(Burning);
        });
        assert!(reached.get());
    }

    struct Burning;

    impl Drop for Burning {
        #[allow(clippy::panic, reason = "the panic is the point of the test")]
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
}
