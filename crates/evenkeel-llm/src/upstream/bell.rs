//! Who is woken for a connection: its user while it is in use, the keeper while it is idle, nobody while it is polled.
//!
//! A connection is polled by whoever uses it, and much of what wakes it is that user's own doing: handing over a
//! request, taking a chunk. Such wake-ups are heard by the poll that is going on, and cost no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Wake, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Being polled, and nothing happened since the poll began.
const QUIET: u8 = 0;
/// Something happened.
const RUNG: u8 = 1;
/// Its user waits.
const AWAITED: u8 = 2;
/// Nobody uses it.
const IDLE: u8 = 4;

#[derive(Debug)]
pub(super) struct Bell {
    state: AtomicU8,
    user: Mutex<Option<Waker>>,
    keeper: Arc<Notify>,
}

impl Bell {
    pub(super) fn new(keeper: Arc<Notify>) -> Self {
        Self { state: AtomicU8::new(QUIET), user: Mutex::new(None), keeper }
    }

    /// Begins a poll, which will see whatever happened so far.
    pub(super) fn hush(&self) {
        // Read and written in one: whoever rang before must be seen by this poll, whoever rings later sees it.
        self.state.swap(QUIET, Ordering::AcqRel);
    }

    /// Ends a poll that came to nothing: from here on the user is woken.
    ///
    /// `false` when something happened during the poll, which then begins again.
    pub(super) fn wait(&self, user: &Waker) -> bool {
        let mut slot = self.user.lock();
        if !slot.as_ref().is_some_and(|known| known.will_wake(user)) {
            *slot = Some(user.clone());
        }
        drop(slot);
        self.state.compare_exchange(QUIET, AWAITED, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Ends the use: from here on the keeper is woken, and the user forgotten.
    pub(super) fn rest(&self) {
        *self.user.lock() = None;
        if self.state.compare_exchange(QUIET, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_err() {
            self.state.store(IDLE, Ordering::Release);
            self.keeper.notify_one();
        }
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        match self.state.fetch_or(RUNG, Ordering::AcqRel) {
            // The user may have begun another poll since; then it is woken once too often, which harms nobody.
            AWAITED => {
                if let Some(user) = &*self.user.lock() {
                    user.wake_by_ref();
                }
            }
            IDLE => self.keeper.notify_one(),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread::{self, Thread};

    use super::*;

    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    fn is_woken(keeper: &Notify) -> bool {
        use core::future::Future;
        let mut notified = std::pin::pin!(keeper.notified());
        notified.as_mut().poll(&mut core::task::Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn what_happens_at_any_moment_of_a_poll_is_not_missed() {
        const TIMES: u32 = 20_000;
        let bell = Arc::new(Bell::new(Arc::default()));
        let (happened, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        let user = Waker::from(Arc::new(Unpark(thread::current())));
        thread::scope(|scope| {
            scope.spawn(|| {
                for nth in 1..=TIMES {
                    happened.store(nth, Ordering::Relaxed);
                    bell.wake_by_ref();
                    while seen.load(Ordering::Relaxed) < nth {
                        thread::yield_now();
                    }
                }
            });
            for nth in 1..=TIMES {
                loop {
                    bell.hush();
                    if happened.load(Ordering::Relaxed) == nth {
                        break;
                    }
                    if bell.wait(&user) {
                        thread::park();
                    }
                }
                seen.store(nth, Ordering::Relaxed);
            }
        });
    }

    #[test]
    fn the_keeper_hears_of_what_is_idle_and_of_nothing_else() {
        let keeper = Arc::new(Notify::new());
        let bell = Arc::new(Bell::new(keeper.clone()));
        bell.hush();
        bell.wake_by_ref();
        assert!(!bell.wait(Waker::noop()), "what happens during a poll begins it anew");
        bell.hush();
        assert!(bell.wait(Waker::noop()));
        bell.wake_by_ref();
        assert!(!is_woken(&keeper));
        bell.hush();
        bell.rest();
        assert!(!is_woken(&keeper));
        bell.wake_by_ref();
        assert!(is_woken(&keeper));
        bell.hush();
        bell.wake_by_ref();
        bell.rest();
        assert!(is_woken(&keeper), "what happened while it was let go is looked after");
    }
}
