//! What tasks of a test wait for.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_policy::time::Instant;

use super::schedule::{Schedule, SleepKey};

/// A wait for a virtual time.
pub(super) struct Sleep {
    schedule: Arc<Schedule>,
    at: Instant,
    key: Option<SleepKey>,
}

impl Sleep {
    pub(super) fn new(schedule: Arc<Schedule>, at: Instant) -> Self {
        Self { schedule, at, key: None }
    }

    fn leave(&mut self) {
        if let Some(key) = self.key.take() {
            self.schedule.wake_up(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.leave();
        if self.at <= self.schedule.now() {
            return Poll::Ready(());
        }
        self.key = self.schedule.sleep(self.at, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.leave();
    }
}

/// A wait for one turn of the others.
#[derive(Default)]
pub(super) struct Yield {
    yielded: bool,
}

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.yielded {
            return Poll::Ready(());
        }
        self.yielded = true;
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
