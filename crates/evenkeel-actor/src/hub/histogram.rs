//! Histogram of durations with power-of-two buckets.
//!
//! Limits: 27 buckets from 256 ns to 17 s and one above. A bucket's bound exceeds a sample by less than a factor of two;
//! the sum of all samples is exact.
//! 232 bytes on a 64-bit machine.

use core::time::Duration;

use portable_atomic::{AtomicUsize, Ordering::Relaxed};

use super::{Counter, nanos};

/// log2 of the first bucket's upper bound in nanoseconds.
const FIRST_BITS: u32 = 8;
/// The number of buckets, including the last one without an upper bound.
const BUCKETS: usize = 28;

/// A histogram that one thread records into and any thread reads.
///
/// The count of a bucket is one machine word and wraps.
#[derive(Debug)]
pub struct Histogram {
    counts: [AtomicUsize; BUCKETS],
    nanos: Counter,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: [const { AtomicUsize::new(0) }; BUCKETS], nanos: Counter::new() }
    }
}

impl Histogram {
    /// Records a duration.
    pub fn record(&self, duration: Duration) {
        let nanos = nanos(duration);
        let count = &self.counts[bucket(nanos)];
        count.store(count.load(Relaxed).wrapping_add(1), Relaxed);
        self.nanos.add(nanos);
    }

    /// Takes a snapshot; a duration recorded meanwhile may be partly included.
    pub fn snapshot(&self) -> HistogramSnapshot {
        let counts = self.counts.each_ref().map(|count| count.load(Relaxed) as u64);
        HistogramSnapshot { counts, nanos: self.nanos.get() }
    }
}

/// Finds the first bucket whose upper bound is at least `nanos`.
fn bucket(nanos: u64) -> usize {
    let bits = u64::BITS - nanos.saturating_sub(1).leading_zeros();
    (bits.saturating_sub(FIRST_BITS) as usize).min(BUCKETS - 1)
}

/// The contents of a histogram at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HistogramSnapshot {
    counts: [u64; BUCKETS],
    nanos: u64,
}

impl HistogramSnapshot {
    /// Adds the contents of another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(other.counts) {
            *count = count.saturating_add(more);
        }
        self.nanos = self.nanos.saturating_add(other.nanos);
    }

    /// Returns the number of durations.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Returns the sum of the durations.
    pub fn sum(&self) -> Duration {
        Duration::from_nanos(self.nanos)
    }

    /// Iterates over the buckets: upper bound and cumulative count; the last bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let mut cumulative = 0;
        self.counts.iter().enumerate().map(move |(bucket, count)| {
            cumulative += count;
            let bound = Duration::from_nanos(1 << (FIRST_BITS as usize + bucket));
            ((bucket + 1 < BUCKETS).then_some(bound), cumulative)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn a_duration_counts_in_the_first_bucket_whose_bound_reaches_it() {
        for (nanos, end) in [(0, 256), (256, 256), (257, 512), (512, 512), (513, 1_024), (1 << 34, 1 << 34)] {
            assert_eq!(first_bucket_of(nanos), Some(Duration::from_nanos(end)), "{nanos} ns");
        }
        assert_eq!(first_bucket_of((1 << 34) + 1), None);
        assert_eq!(first_bucket_of(u64::MAX), None);
    }

    #[test]
    fn bucket_counts_are_cumulative_and_the_sum_is_exact() {
        let snapshot = recorded([100, 300, 300, 1_000_000]);
        let counts: Vec<_> = snapshot.buckets().map(|(_, count)| count).collect();
        assert_eq!((counts[0], counts[1], counts[11], counts[12], counts[27]), (1, 3, 3, 4, 4));
        assert_eq!((snapshot.count(), snapshot.sum()), (4, Duration::from_nanos(1_000_700)));
    }

    #[test]
    fn a_merged_histogram_equals_one_that_recorded_everything() {
        let mut merged = recorded([1, 1_000]);
        merged.merge(&recorded([1_000, u64::MAX / 2]));
        assert_eq!(merged, recorded([1, 1_000, 1_000, u64::MAX / 2]));
        merged.merge(&HistogramSnapshot::default());
        assert_eq!(merged.count(), 4);
    }

    #[test]
    #[cfg(target_pointer_width = "64")]
    fn a_histogram_takes_232_bytes() {
        assert_eq!(size_of::<Histogram>(), 232);
    }

    fn recorded(nanos: impl IntoIterator<Item = u64>) -> HistogramSnapshot {
        let histogram = Histogram::default();
        nanos.into_iter().for_each(|nanos| histogram.record(Duration::from_nanos(nanos)));
        histogram.snapshot()
    }

    fn first_bucket_of(nanos: u64) -> Option<Duration> {
        recorded([nanos]).buckets().find(|(_, count)| *count == 1).and_then(|(end, _)| end)
    }
}
