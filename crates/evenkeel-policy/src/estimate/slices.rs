//! The rotating slices that every window is made of, and their running total.
//!
//! Rotation costs one [`Tally::take`] per expired slice, at most `N` however long the pause was.

use core::fmt;

use crate::time::{Duration, Instant, nanos};

/// What a slice counts; the default is a slice in which nothing happened.
pub(super) trait SliceCounter: Default {
    fn take(&mut self, other: &Self);
    fn clear(&mut self);
}

/// `N` consecutive slices, the newest of which is still filling.
#[derive(Clone, Debug)]
pub(super) struct Slices<S, const N: usize> {
    /// Length of a slice in nanoseconds, never 0.
    slice: u64,
    /// Number of the newest slice; slice `n` lives at `ring[n % N]`.
    newest: u64,
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
        Ok(Self::of(Duration::from_nanos(slice)))
    }

    pub(super) fn of(slice: Duration) -> Self {
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
        count(&mut self.ring[Self::slot(self.newest)]);
        count(&mut self.total);
    }

    fn advance(&mut self, now: Instant) {
        if now <= self.latest {
            return;
        }
        self.latest = now;
        let number = self.number(now);
        for step in 1..=(number - self.newest).min(N as u64) {
            let expired = &mut self.ring[Self::slot(self.newest + step)];
            self.total.take(expired);
            expired.clear();
        }
        self.newest = number;
    }

    /// Lists tallies that add up to the window that ends at `now`.
    ///
    /// The running total alone, unless slices have expired since the last sample.
    pub(super) fn live(&self, now: Instant) -> impl Iterator<Item = &S> + Clone {
        let expired = (self.number(now) - self.newest).min(N as u64);
        let (whole, kept) = if expired == 0 { (Some(&self.total), 0) } else { (None, N as u64 - expired) };
        let slices = (0..kept).filter_map(|age| self.newest.checked_sub(age)).map(Self::slot);
        whole.into_iter().chain(slices.map(|slot| &self.ring[slot]))
    }

    /// The start of the oldest slice of the window that ends at `now`.
    pub(super) fn oldest(&self, now: Instant) -> Instant {
        Instant::from_nanos(self.number(now).saturating_sub(N as u64 - 1) * self.slice)
    }

    /// The time it is for this window: never before its newest sample.
    pub(super) fn not_before_latest(&self, now: Instant) -> Instant {
        now.max(self.latest)
    }

    /// Applies the slices of `other` that this window still holds, each to its slice and to the total.
    pub(super) fn merge(&mut self, other: &Self, add: impl Fn(&mut S, &S)) -> Result<(), WindowMismatch> {
        if self.slice != other.slice {
            return Err(WindowMismatch { ours: self.slice(), theirs: other.slice() });
        }
        self.advance(other.latest);
        for number in (0..N as u64).filter_map(|age| other.newest.checked_sub(age)) {
            if self.newest - number >= N as u64 {
                break;
            }
            let theirs = &other.ring[Self::slot(number)];
            add(&mut self.ring[Self::slot(number)], theirs);
            add(&mut self.total, theirs);
        }
        Ok(())
    }

    fn number(&self, now: Instant) -> u64 {
        let nanos = self.not_before_latest(now).as_nanos();
        // Most calls fall into the newest slice, and need no division to know it.
        if nanos - self.newest * self.slice < self.slice { self.newest } else { nanos / self.slice }
    }

    const fn slot(number: u64) -> usize {
        (number % N as u64) as usize
    }
}

/// A window too short to be divided into slices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowTooShort {
    /// The window as given.
    pub window: Duration,
    /// How many slices it would have to hold, a nanosecond each at least.
    pub slices: usize,
}

impl fmt::Display for WindowTooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "window of {:?} has no room for {} slices", self.window, self.slices)
    }
}

impl core::error::Error for WindowTooShort {}

/// Two windows whose slices differ in length, so that their samples cannot be added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowMismatch {
    /// The slice of the window that was to receive the samples.
    pub ours: Duration,
    /// The slice of the window that was to give them.
    pub theirs: Duration,
}

impl fmt::Display for WindowMismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "windows of {:?} and {:?} per slice do not merge", self.ours, self.theirs)
    }
}

impl core::error::Error for WindowMismatch {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[derive(Debug, Default)]
    struct Count(u64);

    impl SliceCounter for Count {
        fn take(&mut self, other: &Self) {
            self.0 -= other.0;
        }

        fn clear(&mut self) {
            self.0 = 0;
        }
    }

    #[test]
    fn a_sample_leaves_when_its_slice_does() {
        let mut slices = three_seconds();
        hit(&mut slices, 1_999);
        assert_eq!(count(&slices, 3_999), 1);
        assert_eq!(count(&slices, 4_000), 0);
    }

    #[test]
    fn reading_late_equals_rotating_late() {
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
    fn a_pause_of_any_length_empties_the_window_once() {
        let mut slices = three_seconds();
        hit(&mut slices, 500);
        slices.advance(Instant::FAR_FUTURE);
        assert_eq!(slices.total.0, 0);
        assert_eq!(count(&slices, u64::MAX), 0);
    }

    #[test]
    fn a_clock_that_steps_back_counts_into_the_newest_slice() {
        let mut slices = three_seconds();
        hit(&mut slices, 10_000);
        hit(&mut slices, 1);
        assert_eq!(count(&slices, 0), 2);
        assert_eq!(count(&slices, 12_999), 2);
        assert_eq!(count(&slices, 13_000), 0);
    }

    #[test]
    fn a_window_without_room_for_its_slices_is_refused() {
        let refused = Slices::<Count, 3>::new(Duration::from_nanos(2)).unwrap_err();
        assert_eq!(refused.to_string(), "window of 2ns has no room for 3 slices");
        assert!(Slices::<Count, 3>::new(Duration::from_nanos(3)).is_ok());
    }

    #[test]
    fn what_a_merge_brings_too_late_is_left_out() {
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
    fn windows_that_do_not_merge_say_why() {
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
