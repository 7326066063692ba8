//! hyper's timer for one connection: one entry in the runtime's wheel for all the heads it waits for.
//!
//! hyper makes a sleep for every head, and drops it with the head: twice the lock that all timers share. Here the entry
//! stays, and is moved when it goes off too early, which is once in many requests.
//!
//! Bound: one entry per connection, made with its first head.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// The timer of a connection.
#[derive(Clone, Default)]
pub(crate) struct ConnectionTimer(SharedSleep);

type SharedSleep = Arc<Mutex<Option<Pin<Box<tokio::time::Sleep>>>>>;

impl Timer for ConnectionTimer {
    fn sleep(&self, duration: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + duration)
    }

    fn sleep_until(&self, deadline: std::time::Instant) -> Pin<Box<dyn Sleep>> {
        Box::pin(HeadSleep { entry: self.0.clone(), deadline: deadline.into() })
    }

    fn now(&self) -> std::time::Instant {
        Instant::now().into_std()
    }
}

/// The time in which one head must come.
struct HeadSleep {
    entry: SharedSleep,
    deadline: Instant,
}

impl Sleep for HeadSleep {}

impl Future for HeadSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut entry = self.entry.lock();
        let entry = entry.get_or_insert_with(|| Box::pin(sleep_until(self.deadline)));
        if self.deadline < entry.deadline() || entry.is_elapsed() {
            entry.as_mut().reset(self.deadline);
        }
        loop {
            ready!(entry.as_mut().poll(cx));
            if self.deadline <= Instant::now() {
                return Poll::Ready(());
            }
            entry.as_mut().reset(self.deadline);
        }
    }
}

#[cfg(test)]
mod tests {
    use core::future::poll_fn;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// Waits for a sleep as hyper does, and tells how long it took.
    async fn slept(mut sleep: Pin<Box<dyn Sleep>>) -> Duration {
        let began = Instant::now();
        sleep.as_mut().await;
        began.elapsed()
    }

    /// Polls a sleep once, as one whose head comes in time.
    async fn begun(sleep: &mut Pin<Box<dyn Sleep>>) -> bool {
        poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_pending())).await
    }

    fn about(span: Duration) -> core::ops::RangeInclusive<Duration> {
        // Timers are rounded up to milliseconds.
        span..=span + SECOND / 100
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_at_its_own_time_whatever_was_slept_before() {
        let timer = ConnectionTimer::default();
        assert!(begun(&mut timer.sleep(10 * SECOND)).await);
        tokio::time::advance(9 * SECOND).await;
        assert!(about(10 * SECOND).contains(&slept(timer.sleep(10 * SECOND)).await));
        assert!(about(3 * SECOND).contains(&slept(timer.sleep(3 * SECOND)).await));
        assert!(begun(&mut timer.sleep(10 * SECOND)).await);
        assert!(about(SECOND).contains(&slept(timer.sleep(SECOND)).await), "the entry was set for later");
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_has_passed_ends_at_once() {
        let timer = ConnectionTimer::default();
        assert!(begun(&mut timer.sleep(SECOND)).await);
        tokio::time::advance(2 * SECOND).await;
        assert!(about(Duration::ZERO).contains(&slept(timer.sleep(Duration::ZERO)).await));
    }
}
