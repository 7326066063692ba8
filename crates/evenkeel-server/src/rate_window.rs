//! Rate limit per minute as a sliding window of one-second buckets; the time is an argument.
//!
//! Guarantees: the amount taken in any 60 seconds is at most the limit, whatever the order of calls, unless an estimate
//! was too low; the difference then counts from the time of settlement, so later requests wait for it. A rejected amount
//! fits after `retry_after`, at most 61 seconds unless the clock steps back, if nothing else is taken until then.

use evenkeel_policy::time::{Duration, Instant};

const WINDOW_SECS: u64 = 60;
/// One more than the window, because the oldest second is only partly outside of it.
const BUCKETS: usize = WINDOW_SECS as usize + 1;
const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Result of [`MinuteWindow::try_acquire`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateDecision {
    /// The amount is counted.
    Allowed,
    /// The limit is reached.
    Limited {
        /// Time after which the amount fits, if nothing else is taken until then.
        retry_after: Duration,
    },
    /// The amount alone exceeds the limit; it will never fit.
    TooLarge,
}

/// Amounts taken in each of the last 61 seconds.
#[derive(Clone, Debug)]
pub struct MinuteWindow {
    buckets: [u64; BUCKETS],
    newest: u64,
}

impl Default for MinuteWindow {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], newest: 0 }
    }
}

impl MinuteWindow {
    /// Takes `amount` if the sliding window stays within `limit`.
    pub fn try_acquire(&mut self, amount: u64, limit: u64, now: Instant) -> RateDecision {
        if limit < amount {
            return RateDecision::TooLarge;
        }
        self.advance(now);
        let used = self.used();
        if used.saturating_add(amount) <= limit {
            *self.bucket(self.newest) += amount;
            return RateDecision::Allowed;
        }
        RateDecision::Limited { retry_after: self.freed_at(used - (limit - amount)).since(now) }
    }

    /// Replaces an estimate taken at `taken_at` with the actual amount.
    ///
    /// An underestimate is charged at `now`; an overestimate is refunded to the second it was taken in, if the window
    /// still covers it.
    pub fn settle(&mut self, taken: u64, actual: u64, taken_at: Instant, now: Instant) {
        self.advance(now);
        if taken <= actual {
            let bucket = self.bucket(self.newest);
            *bucket = bucket.saturating_add(actual - taken);
            return;
        }
        let second = taken_at.as_nanos() / NANOS_PER_SEC;
        if second <= self.newest && self.newest - second < BUCKETS as u64 {
            let bucket = self.bucket(second);
            *bucket = bucket.saturating_sub(taken - actual);
        }
    }

    /// Returns the amount in the window as of the last `try_acquire` or `settle`.
    pub fn used(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    fn advance(&mut self, now: Instant) {
        let second = now.as_nanos() / NANOS_PER_SEC;
        let passed = second.saturating_sub(self.newest).min(BUCKETS as u64);
        for step in 1..=passed {
            *self.bucket(self.newest + step) = 0;
        }
        self.newest = self.newest.max(second);
    }

    /// Returns the time at which the oldest amounts, at least `amount` in total, have left the window.
    fn freed_at(&mut self, amount: u64) -> Instant {
        let oldest = self.newest.saturating_sub(WINDOW_SECS);
        let mut freed = 0_u64;
        for second in oldest..=self.newest {
            freed = freed.saturating_add(*self.bucket(second));
            if amount <= freed {
                return Instant::from_secs(second + BUCKETS as u64);
            }
        }
        Instant::from_secs(self.newest + BUCKETS as u64)
    }

    fn bucket(&mut self, second: u64) -> &mut u64 {
        &mut self.buckets[(second % BUCKETS as u64) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 3;

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }

    #[test]
    fn a_window_allows_its_limit_and_no_more() {
        let mut minute = MinuteWindow::default();
        for _ in 0..LIMIT {
            assert_eq!(minute.try_acquire(1, LIMIT, at(500)), RateDecision::Allowed);
        }
        let retry_after = Duration::from_millis(60_500);
        assert_eq!(minute.try_acquire(1, LIMIT, at(500)), RateDecision::Limited { retry_after });
        assert_eq!(
            minute.try_acquire(1, LIMIT, at(60_999)),
            RateDecision::Limited { retry_after: Duration::from_millis(1) }
        );
        assert_eq!(minute.try_acquire(1, LIMIT, at(61_000)), RateDecision::Allowed);
    }

    #[test]
    fn an_amount_over_the_limit_is_too_large() {
        assert_eq!(MinuteWindow::default().try_acquire(4, LIMIT, at(0)), RateDecision::TooLarge);
    }

    #[test]
    fn an_overestimate_is_refunded() {
        let mut minute = MinuteWindow::default();
        minute.try_acquire(3, LIMIT, at(0));
        minute.settle(3, 1, at(0), at(5_000));
        assert_eq!(minute.try_acquire(2, LIMIT, at(5_000)), RateDecision::Allowed);
    }

    #[test]
    fn an_underestimate_is_charged_at_settlement_time() {
        let mut minute = MinuteWindow::default();
        minute.try_acquire(1, LIMIT, at(0));
        minute.settle(1, 30, at(0), at(30_000));
        assert_eq!(
            minute.try_acquire(1, LIMIT, at(61_000)),
            RateDecision::Limited { retry_after: Duration::from_secs(30) }
        );
    }

    #[test]
    fn an_overestimate_from_before_the_window_is_not_refunded() {
        let mut minute = MinuteWindow::default();
        minute.try_acquire(3, LIMIT, at(0));
        minute.try_acquire(3, LIMIT, at(61_000));
        minute.settle(3, 0, at(0), at(61_000));
        assert_eq!(minute.used(), 3);
    }

    #[test]
    fn a_clock_that_steps_back_frees_nothing() {
        let mut minute = MinuteWindow::default();
        minute.try_acquire(3, LIMIT, at(100_000));
        assert!(matches!(minute.try_acquire(1, LIMIT, at(0)), RateDecision::Limited { .. }));
    }
}
