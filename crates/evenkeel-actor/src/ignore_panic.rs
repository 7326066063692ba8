//! Code of others that runs where nobody can fail for it: its panic ends there.
//!
//! A handler's panic is its actor's failure. That of a waker, or of a value that is dropped by whoever
//! held it last, has nothing to do with the worker or the clock it happens on.

use core::task::Waker;

/// Runs somebody's code; a panic of it is dropped.
#[cfg(all(feature = "std", not(loom)))]
#[inline]
pub(crate) fn ignore_panic(work: impl FnOnce()) {
    use core::panic::AssertUnwindSafe;
    use std::panic::catch_unwind;

    let Err(panic) = catch_unwind(AssertUnwindSafe(work)) else { return };
    // What was thrown is somebody's value too.
    if let Err(another) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
        core::mem::forget(another);
    }
}

/// Runs somebody's code; without std a panic ends the program.
#[cfg(not(all(feature = "std", not(loom))))]
pub(crate) fn ignore_panic(work: impl FnOnce()) {
    work();
}

/// Wakes whoever `waker` is of; a worker that wakes a task of its host's owes that a turn.
///
/// The host may have put it where only this thread takes it from.
#[inline]
pub(crate) fn wake_and_yield(waker: Waker) {
    #[cfg(all(feature = "std", not(loom)))]
    if !crate::raw::waker::is_of_cell(&waker) {
        crate::raw::current::owe_turn();
    }
    waker.wake();
}

/// Wakes everybody, also after one whose waker panics.
pub(crate) fn wake_all(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(|waker| ignore_panic(|| wake_and_yield(waker)));
}

#[cfg(all(test, feature = "std", not(loom)))]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_panic_that_panics_when_it_is_dropped_is_dropped_too() {
        let reached = Cell::new(false);
        ignore_panic(|| {
            reached.set(true);
            std::panic::panic_any(Burning);
        });
        assert!(reached.get());
    }

    struct Burning;

    impl Drop for Burning {
        #[allow(clippy::panic, reason = "that is what is tested")]
        fn drop(&mut self) {
            panic!("dropped");
        }
    }
}
