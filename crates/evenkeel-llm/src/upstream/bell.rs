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
        self.state.store(QUIET, Ordering::Release);
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
