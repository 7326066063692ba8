//! How long messages waited, in few bytes.
//!
//! Bound: 128 bytes, and a quantile is at most half as long again as the truth. Once one bucket is full all are
//! halved, so that what was long ago counts for less.

use core::time::Duration;

/// Two buckets for every doubling, from a millisecond to seven weeks.
const BUCKETS: usize = 64;

/// How long messages waited until they were first delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitPercentiles {
    /// Half of them no longer than this.
    pub p50: Duration,
    /// 99 of 100 no longer than this.
    pub p99: Duration,
}

/// Counts waits by their length.
#[derive(Clone, Debug)]
pub(super) struct WaitHistogram([u16; BUCKETS]);

impl WaitHistogram {
    pub(super) const EMPTY: Self = Self([0; BUCKETS]);

    pub(super) fn record(&mut self, wait: Duration) {
        let at = bucket(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
        if self.0[at] == u16::MAX {
            self.0.iter_mut().for_each(|count| *count /= 2);
        }
        self.0[at] += 1;
    }

    /// Reads it; `None` when nothing was recorded.
    pub(super) fn read(&self) -> Option<WaitPercentiles> {
        let total: u64 = self.0.iter().map(|&count| u64::from(count)).sum();
        let quantile = |hundredths: u64| {
            let rank = (total * hundredths).div_ceil(100);
            let mut seen = 0;
            let at = self.0.iter().position(|&count| {
                seen += u64::from(count);
                rank <= seen
            });
            Duration::from_millis(bucket_max(at.unwrap_or(BUCKETS - 1)))
        };
        (total > 0).then(|| WaitPercentiles { p50: quantile(50), p99: quantile(99) })
    }
}

fn bucket(ms: u64) -> usize {
    let Some(doublings) = ms.checked_ilog2() else { return 0 };
    let Some(half) = doublings.checked_sub(1) else { return 1 };
    let at = 2 * doublings as usize + usize::from(ms >> half & 1 == 1);
    at.min(BUCKETS - 1)
}

/// The longest wait of a bucket, in milliseconds.
fn bucket_max(at: usize) -> u64 {
    if at < 2 {
        return at as u64;
    }
    let half = 1_u64 << (at / 2 - 1);
    2 * half + (at as u64 % 2 + 1) * half - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_gaps() {
        for at in 1..BUCKETS {
            assert_eq!(bucket(bucket_max(at)), at);
            assert_eq!(bucket(bucket_max(at - 1) + 1), at);
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (0, BUCKETS - 1));
    }

    #[test]
    fn quantiles_are_at_most_half_as_long_again() {
        for (most, few) in [(1, 10), (7, 900), (1_000, 86_400_000), (3, 1_209_600_000)] {
            let mut waits = WaitHistogram::EMPTY;
            (0..98).for_each(|_| waits.record(Duration::from_millis(most)));
            (0..2).for_each(|_| waits.record(Duration::from_millis(few)));
            let WaitPercentiles { p50, p99 } = waits.read().unwrap();
            for (told, truth) in [(p50, most), (p99, few)] {
                let told = told.as_millis() as u64;
                assert!((truth..=truth + truth / 2).contains(&told), "{told} was told of {truth}");
            }
        }
        assert_eq!(WaitHistogram::EMPTY.read(), None);
    }

    /// A hundred thousand keys that deliver take 13 MB for it.
    #[test]
    fn a_key_takes_128_bytes() {
        assert_eq!(size_of::<WaitHistogram>(), 128);
    }

    #[test]
    fn a_full_bucket_halves_all() {
        let mut waits = WaitHistogram::EMPTY;
        (0..200_000).for_each(|_| waits.record(Duration::from_millis(1)));
        (0..70_000).for_each(|_| waits.record(Duration::from_millis(1_000)));
        assert_eq!(waits.read().unwrap().p50, Duration::from_millis(1_023), "the recent ones weigh more");
    }
}
