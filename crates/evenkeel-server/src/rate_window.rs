//! Rate limit per minute as a sliding window of one-second slots; the time is an argument.
//!
//! Guarantees: the amount taken in any 60 seconds is at most the limit, whatever the order of calls, unless an estimate
//! is settled upwards; the excess then counts before anything else is taken. A rejected amount would fit after
//! `retry_after`, at most 61 seconds, if nothing else is taken until then.

use evenkeel_policy::time::{Duration, Instant};

const WINDOW_SECS: u64 = 60;
/// One more than the window, because the oldest second is only partly outside of it.
const SLOTS: usize = WINDOW_SECS as usize + 1;
const NANOS: u64 = 1_000_000_000;

/// Decision about an amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateDecision {
    /// The amount is counted.
    Allowed,
    /// The limit is reached.
    Limited {
        /// Time after which the amount fits, if nothing else is taken until then.
        retry_after: Duration,
    },
    /// The amount exceeds the limit of a whole minute.
    TooLarge,
}

/// Amounts taken in each of the last 61 seconds.
#[derive(Clone, Debug)]
pub struct MinuteWindow {
    slots: [u64; SLOTS],
    newest: u64,
}

impl Default for MinuteWindow {
    fn default() -> Self {
        Self { slots: [0; SLOTS], newest: 0 }
    }
}

impl MinuteWindow {
    /// Takes `amount` if the sliding window stays within `limit`.
    pub fn take(&mut self, amount: u64, limit: u64, now: Instant) -> RateDecision {
        if limit < amount {
            return RateDecision::TooLarge;
        }
        self.advance(now);
        let used = self.used();
        if used.saturating_add(amount) <= limit {
            *self.slot(self.newest) += amount;
            return RateDecision::Allowed;
        }
        RateDecision::Limited { retry_after: self.expires_at(used - (limit - amount)).since(now) }
    }

    /// Replaces an estimate taken at `taken_at` with the actual amount.
    ///
    /// An excess counts as of `now`; a surplus is returned to the second it was taken in, if the window still covers it.
    pub fn settle(&mut self, taken: u64, actual: u64, taken_at: Instant, now: Instant) {
        self.advance(now);
        if taken <= actual {
            let slot = self.slot(self.newest);
            *slot = slot.saturating_add(actual - taken);
            return;
        }
        let second = taken_at.as_nanos() / NANOS;
        if second <= self.newest && self.newest - second < SLOTS as u64 {
            let slot = self.slot(second);
            *slot = slot.saturating_sub(taken - actual);
        }
    }

    /// Returns the sum of the window as of the last call.
    pub fn used(&self) -> u64 {
        self.slots.iter().fold(0, |sum, slot| sum.saturating_add(*slot))
    }

    fn advance(&mut self, now: Instant) {
        let second = now.as_nanos() / NANOS;
        let passed = second.saturating_sub(self.newest).min(SLOTS as u64);
        for step in 1..=passed {
            *self.slot(self.newest + step) = 0;
        }
        self.newest = self.newest.max(second);
    }

    /// Returns the time at which amounts that add up to `excess` have left the window, oldest first.
    fn expires_at(&mut self, excess: u64) -> Instant {
        let oldest = self.newest.saturating_sub(WINDOW_SECS);
        let mut expired = 0_u64;
        for second in oldest..=self.newest {
            expired = expired.saturating_add(*self.slot(second));
            if excess <= expired {
                return Instant::from_secs(second + SLOTS as u64);
            }
        }
        Instant::from_secs(self.newest + SLOTS as u64)
    }

    fn slot(&mut self, second: u64) -> &mut u64 {
        &mut self.slots[(second % SLOTS as u64) as usize]
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
            assert_eq!(minute.take(1, LIMIT, at(500)), RateDecision::Allowed);
        }
        let retry_after = Duration::from_millis(60_500);
        assert_eq!(minute.take(1, LIMIT, at(500)), RateDecision::Limited { retry_after });
        assert_eq!(
            minute.take(1, LIMIT, at(60_999)),
            RateDecision::Limited { retry_after: Duration::from_millis(1) }
        );
        assert_eq!(minute.take(1, LIMIT, at(61_000)), RateDecision::Allowed);
    }

    #[test]
    fn more_than_the_limit_is_too_large() {
        assert_eq!(MinuteWindow::default().take(4, LIMIT, at(0)), RateDecision::TooLarge);
    }

    #[test]
    fn the_surplus_of_an_estimate_is_returned() {
        let mut minute = MinuteWindow::default();
        minute.take(3, LIMIT, at(0));
        minute.settle(3, 1, at(0), at(5_000));
        assert_eq!(minute.take(2, LIMIT, at(5_000)), RateDecision::Allowed);
    }

    #[test]
    fn the_excess_over_an_estimate_counts_later() {
        let mut minute = MinuteWindow::default();
        minute.take(1, LIMIT, at(0));
        minute.settle(1, 30, at(0), at(30_000));
        assert_eq!(
            minute.take(1, LIMIT, at(61_000)),
            RateDecision::Limited { retry_after: Duration::from_secs(30) }
        );
    }

    #[test]
    fn a_surplus_outside_the_window_is_not_returned() {
        let mut minute = MinuteWindow::default();
        minute.take(3, LIMIT, at(0));
        minute.take(3, LIMIT, at(61_000));
        minute.settle(3, 0, at(0), at(61_000));
        assert_eq!(minute.used(), 3);
    }

    #[test]
    fn a_clock_that_steps_back_frees_nothing() {
        let mut minute = MinuteWindow::default();
        minute.take(3, LIMIT, at(100_000));
        assert!(matches!(minute.take(1, LIMIT, at(0)), RateDecision::Limited { .. }));
    }
}
