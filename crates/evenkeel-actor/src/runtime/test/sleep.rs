//! The futures of the test runtime: sleep and yield.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_policy::time::Instant;

use super::schedule::{Schedule, SleepKey};

/// Future that completes at a point in virtual time.
pub(super) struct Sleep {
    schedule: Arc<Schedule>,
    deadline: Instant,
    key: Option<SleepKey>,
}

impl Sleep {
    pub(super) fn new(schedule: Arc<Schedule>, deadline: Instant) -> Self {
        Self { schedule, deadline, key: None }
    }

    fn cancel(&mut self) {
        if let Some(key) = self.key.take() {
            self.schedule.cancel_sleep(key);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.cancel();
        if self.deadline <= self.schedule.now() {
            return Poll::Ready(());
        }
        self.key = self.schedule.register_sleep(self.deadline, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// Future that yields once: pending on the first poll, ready on the second.
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
