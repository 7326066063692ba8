//! Histogram of durations in 128 bytes, for estimates kept per key.
//!
//! It has two [log-linear](super::log_linear) buckets per doubling, from a millisecond to seven weeks. When a bucket is
//! full, all counts are halved, so that old samples count for less.

use super::Quantile;
use super::log_linear;
use crate::time::Duration;

const BUCKETS: usize = 64;
const STEP_BITS: u32 = 1;

/// Decaying histogram of durations, in milliseconds.
///
/// Recording is O(1) except for the occasional halving; reading a quantile is one pass over 64 counts. Assign
/// [`EMPTY`](Self::EMPTY) to reset it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecayingHistogram([u16; BUCKETS]);

impl DecayingHistogram {
    /// Histogram without samples.
    pub const EMPTY: Self = Self([0; BUCKETS]);

    /// Records a sample.
    pub fn record(&mut self, span: Duration) {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let index = log_linear::index::<STEP_BITS>(millis).min(BUCKETS - 1);
        if self.0[index] == u16::MAX {
            self.halve();
        }
        self.0[index] += 1;
    }

    /// Adds the samples of `other`, halving the counts of both until every sum fits.
    pub fn merge(&mut self, other: &Self) {
        let mut other = other.clone();
        while self.0.iter().zip(&other.0).any(|(count, more)| count.checked_add(*more).is_none()) {
            self.halve();
            other.halve();
        }
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count += more;
        }
    }

    /// Returns the upper end of the bucket at `quantile`; `None` without samples.
    pub fn quantile(&self, quantile: Quantile) -> Option<Duration> {
        let rank = quantile.rank(self.samples())?;
        let mut seen = 0;
        let index = self.0.iter().position(|&count| {
            seen += u64::from(count);
            rank <= seen
        })?;
        Some(Duration::from_millis(log_linear::range::<STEP_BITS>(index).end - 1))
    }

    /// Returns the number of samples, less those that have decayed.
    pub fn samples(&self) -> u64 {
        self.0.iter().copied().map(u64::from).sum()
    }

    fn halve(&mut self) {
        self.0.iter_mut().for_each(|count| *count /= 2);
    }
}

impl Default for DecayingHistogram {
    fn default() -> Self {
        Self::EMPTY
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_takes_128_bytes() {
        assert_eq!(size_of::<DecayingHistogram>(), 128);
    }

    #[test]
    fn quantiles_overestimate_by_at_most_half() {
        for (usual_ms, rare_ms) in [(1, 10), (7, 900), (1_000, 86_400_000), (3, 1_209_600_000)] {
            let histogram = recorded(&[(98, usual_ms), (2, rare_ms)]);
            for (quantile, exact) in [(Quantile::P50, usual_ms), (Quantile::P99, rare_ms)] {
                let millis = histogram.quantile(quantile).unwrap().as_millis() as u64;
                assert!((exact..=exact + exact / 2).contains(&millis), "{millis} for {exact}");
            }
        }
        assert_eq!(DecayingHistogram::default().quantile(Quantile::P50), None);
    }

    #[test]
    fn a_full_bucket_halves_all_counts() {
        let histogram = recorded(&[(200_000, 1), (70_000, 1_000)]);
        let p50 = histogram.quantile(Quantile::P50);
        assert_eq!(p50, Some(Duration::from_millis(1_023)), "recent samples weigh more");
    }

    #[test]
    fn merging_equals_recording_the_samples_of_both() {
        let mut left = recorded(&[(10, 3)]);
        left.merge(&recorded(&[(5, 700)]));
        assert_eq!(left, recorded(&[(10, 3), (5, 700)]));
    }

    #[test]
    fn a_merge_that_overflows_a_bucket_halves_all_counts() {
        let full = recorded(&[(u32::from(u16::MAX), 5), (2, 900)]);
        let mut merged = full.clone();
        merged.merge(&full);
        assert_eq!(merged.samples(), 2 * (u64::from(u16::MAX / 2) + 1));
        assert_eq!(merged.quantile(Quantile::P50), full.quantile(Quantile::P50));
    }

    #[test]
    fn a_span_beyond_the_scale_counts_in_the_last_bucket() {
        let mut histogram = DecayingHistogram::EMPTY;
        histogram.record(Duration::MAX);
        assert!(histogram.quantile(Quantile::P99) > Some(Duration::from_hours(7 * 7 * 24 - 24)));
    }

    fn recorded(samples: &[(u32, u64)]) -> DecayingHistogram {
        let mut histogram = DecayingHistogram::EMPTY;
        for &(count, millis) in samples {
            (0..count).for_each(|_| histogram.record(Duration::from_millis(millis)));
        }
        histogram
    }
}
