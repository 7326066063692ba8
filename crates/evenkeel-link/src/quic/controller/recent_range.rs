//! Values of a sliding window: all of them, or the smallest and the largest.

use evenkeel_policy::time::{Duration, Instant};

/// One value for each of `N` slices of time; the newest slice is still being filled.
///
/// A value counts for at least `N − 1` and at most `N` slices.
#[derive(Clone, Debug)]
pub(super) struct RecentSlices<T, const N: usize> {
    /// Length of a slice in nanoseconds.
    slice: u64,
    /// Number of the newest slice; slice `n` is stored in `ring[n % N]`.
    newest: u64,
    ring: [Option<T>; N],
}

impl<T: Copy, const N: usize> RecentSlices<T, N> {
    pub(super) const fn new(slice: Duration) -> Self {
        Self { slice: slice.as_nanos() as u64, newest: 0, ring: [None; N] }
    }

    /// Returns the place of the slice that contains `now`.
    pub(super) fn slot(&mut self, now: Instant) -> &mut Option<T> {
        self.advance(now);
        &mut self.ring[Self::index(self.newest)]
    }

    /// Returns the values of the window that ends at `now`.
    pub(super) fn values(&mut self, now: Instant) -> impl Iterator<Item = T> {
        self.advance(now);
        self.ring.iter().flatten().copied()
    }

    fn advance(&mut self, now: Instant) {
        let number = now.as_nanos() / self.slice;
        for step in 1..=number.saturating_sub(self.newest).min(N as u64) {
            self.ring[Self::index(self.newest + step)] = None;
        }
        self.newest = self.newest.max(number);
    }

    const fn index(number: u64) -> usize {
        (number % N as u64) as usize
    }
}

/// Smallest and largest value of a window of `N` slices.
#[derive(Clone, Debug)]
pub(super) struct RecentRange<const N: usize>(RecentSlices<Range, N>);

/// Smallest and largest value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) min: u64,
    pub(super) max: u64,
}

impl<const N: usize> RecentRange<N> {
    pub(super) const fn new(slice: Duration) -> Self {
        Self(RecentSlices::new(slice))
    }

    pub(super) fn record(&mut self, now: Instant, value: u64) {
        let slot = self.0.slot(now);
        let range = slot.unwrap_or(Range { min: value, max: value });
        *slot = Some(Range { min: range.min.min(value), max: range.max.max(value) });
    }

    /// Returns the range of the window that ends at `now`; `None` without values.
    pub(super) fn range(&mut self, now: Instant) -> Option<Range> {
        self.0.values(now).reduce(|a, b| Range { min: a.min.min(b.min), max: a.max.max(b.max) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_leave_with_their_slice() {
        let mut recent = RecentRange::<3>::new(Duration::from_secs(1));
        assert_eq!(recent.range(Instant::ORIGIN), None);
        for (millis, value) in [(500, 9), (1_500, 1), (2_500, 5)] {
            recent.record(Instant::from_millis(millis), value);
        }
        assert_eq!(recent.range(Instant::from_millis(2_999)), Some(Range { min: 1, max: 9 }));
        assert_eq!(recent.range(Instant::from_millis(3_000)), Some(Range { min: 1, max: 5 }));
        assert_eq!(recent.range(Instant::from_millis(4_000)), Some(Range { min: 5, max: 5 }));
        assert_eq!(recent.range(Instant::from_millis(5_000)), None);
    }

    #[test]
    fn a_long_pause_empties_the_window_and_time_never_runs_back() {
        let mut recent = RecentRange::<3>::new(Duration::from_secs(1));
        recent.record(Instant::from_secs(1), 1);
        assert_eq!(recent.range(Instant::FAR_FUTURE), None);
        recent.record(Instant::from_secs(1), 2);
        assert_eq!(recent.range(Instant::from_secs(1)), Some(Range { min: 2, max: 2 }));
    }
}
