//! Isolates panics of user code that runs outside any handler.
//!
//! A panic in a handler fails its actor. A panic in a waker, or in the drop of a user's value, belongs to no
//! actor and must not stop the worker or the timer driver on which it happens.

use core::task::Waker;

/// Runs user code and discards its panic.
#[cfg(all(feature = "std", not(loom)))]
#[inline]
pub(crate) fn ignore_panic(work: impl FnOnce()) {
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;

    let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else { return };
    // The panic payload is a user's value too, and its drop may panic.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        core::mem::forget(another);
    }
}

/// Runs user code; without `std` a panic cannot be caught and goes to the panic handler.
#[cfg(not(all(feature = "std", not(loom))))]
pub(crate) fn ignore_panic(work: impl FnOnce()) {
    work();
}

/// Wakes a task; if it is not an actor, asks the current worker to yield at the end of its slice.
///
/// The host runtime may have queued that task where only this thread can run it.
#[inline]
pub(crate) fn wake_and_request_yield(waker: Waker) {
    #[cfg(all(feature = "std", not(loom)))]
    if !crate::raw::waker::is_cell_waker(&waker) {
        crate::raw::current::require_yield();
    }
    waker.wake();
}

/// Wakes all tasks, even if one of the wakers panics.
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
            std::panic::panic_any(PanicsOnDrop);
        });
        assert!(reached.get());
    }

    struct PanicsOnDrop;

    impl Drop for PanicsOnDrop {
        #[allow(clippy::panic, reason = "the panic is the point of the test")]
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
}
