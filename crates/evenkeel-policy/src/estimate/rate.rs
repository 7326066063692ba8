//! Throughput in units per second over a sliding window.

use super::slices::{SliceCounter, Slices, WindowTooShort};
use crate::cost::Cost;
use crate::time::{Duration, Instant};

/// Sliding window of completed work, read as units per second.
///
/// It measures throughput, which equals capacity only while work is waiting. Recording is O(1) amortised.
#[derive(Clone, Debug)]
pub struct RateWindow {
    slices: Slices<Cost, 10>,
    /// First record after the window was empty.
    first: Option<First>,
}

#[derive(Clone, Copy, Debug)]
struct First {
    at: Instant,
    cost: Cost,
}

/// The default window is ten seconds.
impl Default for RateWindow {
    fn default() -> Self {
        Self { slices: Slices::with_slice(Duration::from_secs(1)), first: None }
    }
}

impl RateWindow {
    /// Creates an empty window of ten equal slices, rounded down to whole nanoseconds.
    ///
    /// Fails if a slice would be shorter than a nanosecond.
    pub fn new(window: Duration) -> Result<Self, WindowTooShort> {
        Ok(Self { slices: Slices::new(window)?, first: None })
    }

    /// Records work completed at `now`.
    pub fn record(&mut self, now: Instant, cost: Cost) {
        if self.completed(now) == Cost::ZERO {
            self.first = Some(First { at: self.slices.not_before_latest(now), cost });
        }
        self.slices.record(now, |completed| *completed += cost);
    }

    /// Returns the units completed per second; `None` until more work was completed and at least a slice's duration has
    /// passed after the first record.
    ///
    /// While the first record after an empty window is in the window, the rate is measured from that record's time and
    /// without its cost, because it is unknown how long that work took. So the rate of a pool that is new or was idle
    /// is not underestimated.
    pub fn per_second(&self, now: Instant) -> Option<f64> {
        let first = self.first?;
        let now = self.slices.not_before_latest(now);
        let oldest = self.slices.oldest(now);
        let (completed, elapsed) = if oldest <= first.at {
            (self.completed(now) - first.cost, now.since(first.at))
        } else {
            (self.completed(now), now.since(oldest))
        };
        if completed == Cost::ZERO || elapsed < self.slices.slice() {
            return None;
        }
        Some(completed.0 as f64 / elapsed.as_secs_f64())
    }

    fn completed(&self, now: Instant) -> Cost {
        self.slices.live(now).copied().sum()
    }
}

impl SliceCounter for Cost {
    fn subtract(&mut self, other: &Self) {
        *self = *self - *other;
    }

    fn clear(&mut self) {
        *self = Self::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_pool_is_measured_over_the_time_it_has_worked() {
        let mut rate = RateWindow::default();
        complete(&mut rate, 100_000..=102_000, 500);
        assert_eq!(rate.per_second(Instant::from_secs(102)), Some(2_000.0));
    }

    #[test]
    fn a_pool_that_was_idle_is_measured_like_a_new_one() {
        let mut rate = RateWindow::default();
        complete(&mut rate, 0..=5_000, 500);
        complete(&mut rate, 100_000..=102_000, 500);
        assert_eq!(rate.per_second(Instant::from_secs(102)), Some(2_000.0));
    }

    #[test]
    fn a_single_completion_gives_no_rate() {
        let mut rate = RateWindow::default();
        assert_eq!(rate.per_second(Instant::from_secs(1)), None);
        complete(&mut rate, 1_000..=1_000, 1);
        assert_eq!(rate.per_second(Instant::from_secs(1)), None);
        assert_eq!(rate.per_second(Instant::from_secs(3)), None);
    }

    #[test]
    fn a_burst_within_a_slice_gives_no_rate_yet() {
        let mut rate = RateWindow::default();
        complete(&mut rate, 1_000..=1_002, 1);
        assert_eq!(rate.per_second(Instant::from_millis(1_999)), None);
        assert_eq!(rate.per_second(Instant::from_millis(2_000)), Some(2_000.0));
    }

    #[test]
    fn an_old_pool_is_measured_over_its_window() {
        let mut rate = RateWindow::default();
        complete(&mut rate, 0..=50_000, 1_000);
        complete(&mut rate, 50_000..=99_999, 100);
        assert_eq!(rate.per_second(Instant::from_secs(100)), Some(10_000.0));
    }

    #[test]
    fn a_clock_that_steps_back_keeps_the_rate() {
        let mut rate = RateWindow::new(Duration::from_secs(10)).unwrap();
        complete(&mut rate, 100_000..=102_000, 500);
        assert_eq!(rate.per_second(Instant::ORIGIN), Some(2_000.0));
    }

    #[test]
    fn the_first_completion_is_left_out_up_to_the_edge_of_the_window() {
        let mut rate = RateWindow::default();
        complete(&mut rate, 100_000..=105_000, 5_000);
        assert_eq!(rate.per_second(Instant::from_millis(109_500)), Some(1_000.0 / 9.5));
        assert_eq!(rate.per_second(Instant::from_secs(110)), Some(1_000.0 / 9.0));
    }

    #[test]
    fn backdated_work_counts_at_the_time_of_the_newest_record() {
        let mut rate = RateWindow::default();
        rate.record(Instant::from_secs(100), Cost::ZERO);
        complete(&mut rate, 1_000..=1_001, 1);
        assert_eq!(rate.per_second(Instant::from_secs(102)), Some(500.0));
    }

    /// Completes a message every `step` milliseconds.
    fn complete(rate: &mut RateWindow, millis: core::ops::RangeInclusive<u64>, step: usize) {
        for at in millis.step_by(step) {
            rate.record(Instant::from_millis(at), Cost::MESSAGE);
        }
    }
}
