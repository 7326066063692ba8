//! Throughput of a model's nodes, measured only while requests are queued for them.
//!
//! Guarantees: idle time does not count, so a pool that was idle never looks slow.

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::RateWindow;
use evenkeel_policy::time::{Duration, Instant};

/// Throughput over busy time.
///
/// Throughput equals capacity only under load: after an hour with one request, a plain rate would read as one request
/// per hour and get the next one rejected. So the window's clock runs only while requests are queued.
#[derive(Clone, Debug)]
pub(crate) struct BusyThroughput {
    window: RateWindow,
    busy: Duration,
    updated_at: Instant,
}

/// Load of a model queue: idle, or with queued requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueLoad {
    Idle,
    Queued,
}

impl BusyThroughput {
    pub(crate) fn new(now: Instant) -> Self {
        Self { window: RateWindow::default(), busy: Duration::ZERO, updated_at: now }
    }

    /// Advances the clock; the time since the last call passed under `load`.
    pub(crate) fn advance_time(&mut self, now: Instant, load: QueueLoad) {
        if load == QueueLoad::Queued {
            self.busy += now.since(self.updated_at);
        }
        self.updated_at = now;
    }

    /// Records work completed now, under load.
    pub(crate) fn record(&mut self, cost: Cost) {
        self.window.record(self.clock(), cost);
    }

    /// Returns cost units per busy second; `None` without enough samples.
    pub(crate) fn per_second(&self) -> Option<f64> {
        self.window.per_second(self.clock())
    }

    /// Discards the measurements, because capacity has grown.
    pub(crate) fn reset(&mut self) {
        self.window = RateWindow::default();
    }

    fn clock(&self) -> Instant {
        Instant::ORIGIN + self.busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One request of 1000 units per second for ten seconds, then an idle hour.
    #[test]
    fn an_idle_hour_does_not_lower_the_measured_throughput() {
        let mut throughput = BusyThroughput::new(Instant::ORIGIN);
        let mut by_wall_clock = RateWindow::new(Duration::from_secs(7_200)).unwrap();
        for second in 1..=10 {
            let now = Instant::from_secs(second);
            throughput.advance_time(now, QueueLoad::Queued);
            throughput.record(Cost(1_000));
            by_wall_clock.record(now, Cost(1_000));
        }
        let later = Instant::from_secs(3_610);
        throughput.advance_time(later, QueueLoad::Idle);
        assert_eq!(throughput.per_second().map(f64::round), Some(1_000.0));
        assert!(by_wall_clock.per_second(later).unwrap() < 3.0, "by the wall clock the pool looks slow");
    }

    #[test]
    fn after_a_reset_the_throughput_is_unknown() {
        let mut throughput = BusyThroughput::new(Instant::ORIGIN);
        for second in 1..=3 {
            throughput.advance_time(Instant::from_secs(second), QueueLoad::Queued);
            throughput.record(Cost(10));
        }
        assert!(throughput.per_second().is_some());
        throughput.reset();
        assert_eq!(throughput.per_second(), None);
    }
}
