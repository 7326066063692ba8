//! Rotating slices of a sliding window, with their running total.
//!
//! Limits: rotation takes one [`SliceCounter::subtract`] per expired slice, at most `N` after any pause.

use crate::time::{Duration, Instant, nanos};

/// Counter of one slice; the default is an empty slice.
pub(super) trait SliceCounter: Default {
    fn subtract(&mut self, other: &Self);
    fn clear(&mut self);
}

/// `N` consecutive slices; the newest is still being filled.
#[derive(Clone, Debug)]
pub(super) struct Slices<S, const N: usize> {
    /// Length of a slice in nanoseconds, never 0.
    slice: u64,
    /// Number of the newest slice; slice `n` is stored in `ring[n % N]`.
    newest: u64,
    /// Time of the newest sample.
    latest: Instant,
    ring: [S; N],
    total: S,
}

impl<S: SliceCounter, const N: usize> Slices<S, N> {
    pub(super) fn new(window: Duration) -> Result<Self, WindowTooShort> {
        let slice = nanos(window) / N as u64;
        if slice == 0 {
            return Err(WindowTooShort { window, slices: N });
        }
        Ok(Self::with_slice(Duration::from_nanos(slice)))
    }

    pub(super) fn with_slice(slice: Duration) -> Self {
        Self {
            slice: nanos(slice).max(1),
            newest: 0,
            latest: Instant::ORIGIN,
            ring: core::array::from_fn(|_| S::default()),
            total: S::default(),
        }
    }

    pub(super) const fn slice(&self) -> Duration {
        Duration::from_nanos(self.slice)
    }

    /// Applies one sample to the newest slice and to the total.
    pub(super) fn record(&mut self, now: Instant, count: impl Fn(&mut S)) {
        self.advance(now);
        count(&mut self.ring[Self::index(self.newest)]);
        count(&mut self.total);
    }

    fn advance(&mut self, now: Instant) {
        if now <= self.latest {
            return;
        }
        self.latest = now;
        let number = self.number(now);
        for step in 1..=(number - self.newest).min(N as u64) {
            let expired = &mut self.ring[Self::index(self.newest + step)];
            self.total.subtract(expired);
            expired.clear();
        }
        self.newest = number;
    }

    /// Iterates over counters whose sum is the count of the window that ends at `now`.
    ///
    /// That is the running total alone, unless slices have expired since the last sample.
    pub(super) fn live(&self, now: Instant) -> impl Iterator<Item = &S> + Clone {
        let is_whole = self.number(now) == self.newest;
        let whole = is_whole.then_some(&self.total);
        let slices = self.each(now).take(if is_whole { 0 } else { N });
        whole.into_iter().chain(slices)
    }

    /// Iterates over the slices of the window that ends at `now`, the newest first.
    pub(super) fn each(&self, now: Instant) -> impl Iterator<Item = &S> + Clone {
        let expired = (self.number(now) - self.newest).min(N as u64);
        let numbers = (0..N as u64 - expired).filter_map(|age| self.newest.checked_sub(age));
        numbers.map(|number| &self.ring[Self::index(number)])
    }

    /// Returns the start of the oldest slice of the window that ends at `now`.
    pub(super) fn oldest(&self, now: Instant) -> Instant {
        Instant::from_nanos(self.number(now).saturating_sub(N as u64 - 1) * self.slice)
    }

    /// Returns the later of `now` and the newest sample's time.
    pub(super) fn not_before_latest(&self, now: Instant) -> Instant {
        now.max(self.latest)
    }

    /// Adds the slices of `other` that this window still holds, each to its slice and to the total.
    pub(super) fn merge(&mut self, other: &Self, add: impl Fn(&mut S, &S)) -> Result<(), WindowMismatch> {
        if self.slice != other.slice {
            return Err(WindowMismatch { ours: self.slice(), theirs: other.slice() });
        }
        self.advance(other.latest);
        for number in (0..N as u64).filter_map(|age| other.newest.checked_sub(age)) {
            if self.newest - number >= N as u64 {
                break;
            }
            let theirs = &other.ring[Self::index(number)];
            add(&mut self.ring[Self::index(number)], theirs);
            add(&mut self.total, theirs);
        }
        Ok(())
    }

    fn number(&self, now: Instant) -> u64 {
        let nanos = self.not_before_latest(now).as_nanos();
        // Most calls fall into the newest slice, which needs no division.
        if nanos - self.newest * self.slice < self.slice { self.newest } else { nanos / self.slice }
    }

    const fn index(number: u64) -> usize {
        (number % N as u64) as usize
    }
}

/// Error for a window too short to be divided into slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("window of {window:?} has no room for {slices} slices")]
pub struct WindowTooShort {
    /// The rejected window.
    pub window: Duration,
    /// Number of slices, each at least a nanosecond long.
    pub slices: usize,
}

/// Error for two windows whose slices differ in length, so that they cannot be merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("windows of {ours:?} and {theirs:?} per slice do not merge")]
pub struct WindowMismatch {
    /// Slice length of the window that was to receive the samples.
    pub ours: Duration,
    /// Slice length of the window that was to be added.
    pub theirs: Duration,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[derive(Debug, Default)]
    struct Count(u64);

    impl SliceCounter for Count {
        fn subtract(&mut self, other: &Self) {
            self.0 -= other.0;
        }

        fn clear(&mut self) {
            self.0 = 0;
        }
    }

    #[test]
    fn a_sample_expires_with_its_slice() {
        let mut slices = three_seconds();
        hit(&mut slices, 1_999);
        assert_eq!(count(&slices, 3_999), 1);
        assert_eq!(count(&slices, 4_000), 0);
    }

    #[test]
    fn reading_after_a_pause_gives_the_same_counts_as_rotating_first() {
        let mut read = three_seconds();
        for millis in [0, 1_000, 2_000, 2_500] {
            hit(&mut read, millis);
        }
        let mut rotated = three_seconds();
        merge(&mut rotated, &read);
        rotated.advance(Instant::from_millis(3_100));
        assert_eq!(count(&read, 3_100), 3);
        assert_eq!(count(&rotated, 3_100), 3);
    }

    #[test]
    fn a_long_pause_empties_the_window() {
        let mut slices = three_seconds();
        hit(&mut slices, 500);
        slices.advance(Instant::FAR_FUTURE);
        assert_eq!(slices.total.0, 0);
        assert_eq!(count(&slices, u64::MAX), 0);
    }

    #[test]
    fn a_sample_dated_before_the_newest_one_counts_in_the_newest_slice() {
        let mut slices = three_seconds();
        hit(&mut slices, 10_000);
        hit(&mut slices, 1);
        assert_eq!(count(&slices, 0), 2);
        assert_eq!(count(&slices, 12_999), 2);
        assert_eq!(count(&slices, 13_000), 0);
    }

    #[test]
    fn a_window_too_short_for_its_slices_is_rejected() {
        let error = Slices::<Count, 3>::new(Duration::from_nanos(2)).unwrap_err();
        assert_eq!(error.to_string(), "window of 2ns has no room for 3 slices");
        assert!(Slices::<Count, 3>::new(Duration::from_nanos(3)).is_ok());
    }

    #[test]
    fn expired_slices_are_not_merged() {
        let mut ours = three_seconds();
        let mut theirs = three_seconds();
        hit(&mut ours, 5_000);
        hit(&mut theirs, 2_000);
        hit(&mut theirs, 3_000);
        merge(&mut ours, &theirs);
        assert_eq!(count(&ours, 5_000), 2);
        merge(&mut theirs, &ours);
        assert_eq!(count(&theirs, 5_000), 3);
    }

    #[test]
    fn a_merge_error_names_both_slice_lengths() {
        let mismatch = WindowMismatch { ours: Duration::from_secs(10), theirs: Duration::from_millis(5) };
        assert_eq!(mismatch.to_string(), "windows of 10s and 5ms per slice do not merge");
    }

    fn three_seconds() -> Slices<Count, 3> {
        Slices::new(Duration::from_secs(3)).unwrap()
    }

    fn hit(slices: &mut Slices<Count, 3>, millis: u64) {
        slices.record(Instant::from_millis(millis), |count| count.0 += 1);
    }

    fn merge(ours: &mut Slices<Count, 3>, theirs: &Slices<Count, 3>) {
        ours.merge(theirs, |ours, theirs| ours.0 += theirs.0).unwrap();
    }

    fn count(slices: &Slices<Count, 3>, millis: u64) -> u64 {
        slices.live(Instant::from_millis(millis)).map(|count| count.0).sum()
    }
}
