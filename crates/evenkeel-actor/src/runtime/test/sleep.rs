//! The futures of the test runtime: sleep and yield.

use alloc::sync::Arc;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_policy::time::Instant;

use super::schedule::{Schedule, SleepKey};

/// A sleep until a virtual time.
pub(super) struct Sleep {
    schedule: Arc<Schedule>,
    at: Instant,
    key: Option<SleepKey>,
}

impl Sleep {
    pub(super) fn new(schedule: Arc<Schedule>, at: Instant) -> Self {
        Self { schedule, at, key: None }
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
        if self.at <= self.schedule.now() {
            return Poll::Ready(());
        }
        self.key = self.schedule.sleep(self.at, cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.cancel();
    }
}

/// A future that is pending once.
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
