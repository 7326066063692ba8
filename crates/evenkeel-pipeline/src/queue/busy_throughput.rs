//! How much a model's nodes get done per second, measured only while somebody waits for them.
//!
//! Bound: time without load counts for nothing, so a pool that was idle is never taken for a slow one.

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::RateWindow;
use evenkeel_policy::time::{Duration, Instant};

/// A rate over loaded time.
///
/// Throughput is capacity only under load: an hour with one request in it would read as a pool that takes an hour per
/// request, and turn the next away. So the window's clock runs only while there is a queue.
#[derive(Clone, Debug)]
pub(crate) struct BusyThroughput {
    window: RateWindow,
    loaded: Duration,
    seen: Instant,
}

/// Whether anybody waits whose turn could come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueLoad {
    Idle,
    Queued,
}

impl BusyThroughput {
    pub(crate) fn new(now: Instant) -> Self {
        Self { window: RateWindow::default(), loaded: Duration::ZERO, seen: now }
    }

    /// Lets time pass that went by under `load`.
    pub(crate) fn pass(&mut self, now: Instant, load: QueueLoad) {
        if load == QueueLoad::Queued {
            self.loaded += now.since(self.seen);
        }
        self.seen = now;
    }

    /// Feeds work that was completed just now, under load.
    pub(crate) fn record(&mut self, cost: Cost) {
        self.window.record(self.clock(), cost);
    }

    /// Units per second of load; `None` while there is nothing to tell it from.
    pub(crate) fn per_second(&self) -> Option<f64> {
        self.window.per_second(self.clock())
    }

    /// Forgets what was measured, because there is more capacity than there was.
    pub(crate) fn forget(&mut self) {
        self.window = RateWindow::default();
    }

    fn clock(&self) -> Instant {
        Instant::ORIGIN + self.loaded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request of 1000 units a second for ten seconds, then an idle hour, then a queue again.
    #[test]
    fn an_idle_hour_does_not_slow_a_pool_down() {
        let mut ours = BusyThroughput::new(Instant::ORIGIN);
        let mut defective = RateWindow::new(Duration::from_secs(7_200)).unwrap();
        for second in 1..=10 {
            let now = Instant::from_secs(second);
            ours.pass(now, QueueLoad::Queued);
            ours.record(Cost(1_000));
            defective.record(now, Cost(1_000));
        }
        let later = Instant::from_secs(3_610);
        ours.pass(later, QueueLoad::Idle);
        assert_eq!(ours.per_second().map(f64::round), Some(1_000.0));
        assert!(defective.per_second(later).unwrap() < 3.0, "by the wall clock it is slow");
    }

    #[test]
    fn what_is_forgotten_is_unknown() {
        let mut rate = BusyThroughput::new(Instant::ORIGIN);
        for second in 1..=3 {
            rate.pass(Instant::from_secs(second), QueueLoad::Queued);
            rate.record(Cost(10));
        }
        assert!(rate.per_second().is_some());
        rate.forget();
        assert_eq!(rate.per_second(), None);
    }
}
