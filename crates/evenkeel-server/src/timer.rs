//! hyper's timer for one connection: a single timer entry serves the read timeouts of all its heads.
//!
//! hyper creates a sleep for every head and drops it afterwards, which takes the timer wheel's shared lock twice. Here
//! the entry stays registered, and is reset only when it fires too early, which is rare.
//!
//! Limits: one entry per connection, created with its first head.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;
use std::time::Duration;

use hyper::rt::{Sleep, Timer};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// Timer of a connection.
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

/// Read timeout of one head.
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

    /// Awaits a sleep as hyper does, and returns how long it took.
    async fn sleep_time(mut sleep: Pin<Box<dyn Sleep>>) -> Duration {
        let began = Instant::now();
        sleep.as_mut().await;
        began.elapsed()
    }

    /// Polls a sleep once, as for a head that arrives in time; reports whether it is pending.
    async fn is_pending(sleep: &mut Pin<Box<dyn Sleep>>) -> bool {
        poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_pending())).await
    }

    fn about(duration: Duration) -> core::ops::RangeInclusive<Duration> {
        // Timers are rounded up to milliseconds.
        duration..=duration + SECOND / 100
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_ends_at_its_own_deadline_regardless_of_earlier_sleeps() {
        let timer = ConnectionTimer::default();
        assert!(is_pending(&mut timer.sleep(10 * SECOND)).await);
        tokio::time::advance(9 * SECOND).await;
        assert!(about(10 * SECOND).contains(&sleep_time(timer.sleep(10 * SECOND)).await));
        assert!(about(3 * SECOND).contains(&sleep_time(timer.sleep(3 * SECOND)).await));
        assert!(is_pending(&mut timer.sleep(10 * SECOND)).await);
        assert!(
            about(SECOND).contains(&sleep_time(timer.sleep(SECOND)).await),
            "the entry was set for later"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_sleep_whose_deadline_has_passed_ends_at_once() {
        let timer = ConnectionTimer::default();
        assert!(is_pending(&mut timer.sleep(SECOND)).await);
        tokio::time::advance(2 * SECOND).await;
        assert!(about(Duration::ZERO).contains(&sleep_time(timer.sleep(Duration::ZERO)).await));
    }
}
