//! Ratio of bad outcomes (errors, timeouts, losses) over a sliding window.

use super::slices::{SliceCounter, Slices, WindowTooShort};
use crate::time::{Duration, Instant};

/// Outcome of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The attempt succeeded.
    Good,
    /// The attempt failed; the caller defines failure (error, timeout, loss).
    Bad,
}

/// Sliding window of outcomes.
///
/// Recording is O(1). Outcomes expire slice by slice, so an outcome may expire up to one twelfth of the window early.
#[derive(Clone, Debug)]
pub struct RatioWindow {
    slices: Slices<Outcomes, 12>,
}

/// The default window is one minute.
impl Default for RatioWindow {
    fn default() -> Self {
        Self { slices: Slices::with_slice(Duration::from_secs(5)) }
    }
}

impl RatioWindow {
    /// Creates an empty window of twelve equal slices, rounded down to whole nanoseconds.
    ///
    /// Fails if a slice would be shorter than a nanosecond.
    pub fn new(window: Duration) -> Result<Self, WindowTooShort> {
        Ok(Self { slices: Slices::new(window)? })
    }

    /// Records the outcome of an attempt that ended at `now`.
    pub fn record(&mut self, now: Instant, outcome: Outcome) {
        self.slices.record(now, |outcomes| match outcome {
            Outcome::Good => outcomes.good += 1,
            Outcome::Bad => outcomes.bad += 1,
        });
    }

    /// Returns the bad fraction of all outcomes, 0..=1; `None` while the window is empty.
    pub fn ratio(&self, now: Instant) -> Option<f64> {
        let Outcomes { good, bad } = self.outcomes(now);
        match good + bad {
            0 => None,
            total => Some(bad as f64 / total as f64),
        }
    }

    /// Returns the number of bad outcomes in the window that ends at `now`.
    pub fn bad(&self, now: Instant) -> u64 {
        self.outcomes(now).bad
    }

    /// Returns the number of outcomes in the window that ends at `now`.
    pub fn total(&self, now: Instant) -> u64 {
        let Outcomes { good, bad } = self.outcomes(now);
        good + bad
    }

    fn outcomes(&self, now: Instant) -> Outcomes {
        let mut sum = Outcomes::default();
        self.slices.live(now).for_each(|outcomes| sum.add(outcomes));
        sum
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Outcomes {
    good: u64,
    bad: u64,
}

impl Outcomes {
    fn add(&mut self, other: &Self) {
        self.good += other.good;
        self.bad += other.bad;
    }
}

impl SliceCounter for Outcomes {
    fn subtract(&mut self, other: &Self) {
        self.good -= other.good;
        self.bad -= other.bad;
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratio_is_bad_outcomes_over_all_outcomes() {
        let window =
            window_with(&[(0, Outcome::Good), (1, Outcome::Bad), (1, Outcome::Good), (9, Outcome::Good)]);
        let now = Instant::from_secs(9);
        assert_eq!(window.ratio(now), Some(0.25));
        assert_eq!((window.bad(now), window.total(now)), (1, 4));
    }

    #[test]
    fn the_ratio_is_none_when_all_outcomes_have_expired() {
        let window = window_with(&[(0, Outcome::Bad)]);
        assert_eq!(window.ratio(Instant::from_secs(59)), Some(1.0));
        assert_eq!(window.ratio(Instant::from_secs(60)), None);
        assert_eq!(window.bad(Instant::from_secs(60)), 0);
    }

    #[test]
    fn recording_drops_expired_outcomes() {
        let window =
            window_with(&[(0, Outcome::Bad), (1, Outcome::Good), (60, Outcome::Bad), (61, Outcome::Good)]);
        let now = Instant::from_secs(61);
        assert_eq!((window.bad(now), window.total(now)), (1, 2));
    }

    #[test]
    fn outcomes_expire_after_the_configured_window() {
        let mut window = RatioWindow::new(Duration::from_secs(12)).unwrap();
        window.record(Instant::from_secs(1), Outcome::Bad);
        assert_eq!(window.bad(Instant::from_millis(12_999)), 1);
        assert_eq!(window.bad(Instant::from_secs(13)), 0);
    }

    fn window_with(outcomes: &[(u64, Outcome)]) -> RatioWindow {
        let mut window = RatioWindow::default();
        for &(secs, outcome) in outcomes {
            window.record(Instant::from_secs(secs), outcome);
        }
        window
    }
}
