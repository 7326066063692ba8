//! So much per minute, decided with time handed in.
//!
//! Bound: what was taken in any 60 seconds is at most the limit, whatever the order of calls, as long as nothing is
//! settled upwards; what was settled upwards counts before anything else is taken. Whoever is refused was told a time
//! at which it would fit if nobody else came; it is at most 61 seconds away.

use evenkeel_policy::time::{Duration, Instant};

const WINDOW_SECS: u64 = 60;
/// One more than the window, because the oldest second is partly inside it.
const SLOTS: usize = WINDOW_SECS as usize + 1;
const NANOS: u64 = 1_000_000_000;

/// What became of an amount that asked for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateDecision {
    /// It counts from here on.
    Allowed,
    /// There will be room.
    Limited {
        /// After this time, if nobody else comes.
        retry_after: Duration,
    },
    /// It is more than a whole minute's limit.
    TooLarge,
}

/// What was taken in each of the last 61 seconds.
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
    /// Takes `amount` if the last minute has room for it under `limit`.
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
        RateDecision::Limited { retry_after: self.room_at(used - (limit - amount)).since(now) }
    }

    /// Replaces an amount taken at `taken_at` by what it turned out to be.
    ///
    /// More counts as of `now`; less is given back where it was taken, if that second still counts.
    pub fn settle(&mut self, taken: u64, truly: u64, taken_at: Instant, now: Instant) {
        self.advance(now);
        if taken <= truly {
            let slot = self.slot(self.newest);
            *slot = slot.saturating_add(truly - taken);
            return;
        }
        let second = taken_at.as_nanos() / NANOS;
        if second <= self.newest && self.newest - second < SLOTS as u64 {
            let slot = self.slot(second);
            *slot = slot.saturating_sub(taken - truly);
        }
    }

    /// Adds up what counts as of the last call.
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

    /// Names the time at which the oldest seconds that add up to `excess` have left the window.
    fn room_at(&mut self, excess: u64) -> Instant {
        let oldest = self.newest.saturating_sub(WINDOW_SECS);
        let mut left = 0_u64;
        for second in oldest..=self.newest {
            left = left.saturating_add(*self.slot(second));
            if excess <= left {
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
    fn a_minute_takes_its_limit_and_no_more() {
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
    fn more_than_a_minutes_limit_never_fits() {
        assert_eq!(MinuteWindow::default().take(4, LIMIT, at(0)), RateDecision::TooLarge);
    }

    #[test]
    fn an_estimate_too_high_is_given_back() {
        let mut minute = MinuteWindow::default();
        minute.take(3, LIMIT, at(0));
        minute.settle(3, 1, at(0), at(5_000));
        assert_eq!(minute.take(2, LIMIT, at(5_000)), RateDecision::Allowed);
    }

    #[test]
    fn an_estimate_too_low_is_a_debt() {
        let mut minute = MinuteWindow::default();
        minute.take(1, LIMIT, at(0));
        minute.settle(1, 30, at(0), at(30_000));
        assert_eq!(
            minute.take(1, LIMIT, at(61_000)),
            RateDecision::Limited { retry_after: Duration::from_secs(30) }
        );
    }

    #[test]
    fn what_left_the_window_is_not_given_back_twice() {
        let mut minute = MinuteWindow::default();
        minute.take(3, LIMIT, at(0));
        minute.take(3, LIMIT, at(61_000));
        minute.settle(3, 0, at(0), at(61_000));
        assert_eq!(minute.used(), 3);
    }

    #[test]
    fn a_clock_that_steps_back_makes_no_room() {
        let mut minute = MinuteWindow::default();
        minute.take(3, LIMIT, at(100_000));
        assert!(matches!(minute.take(1, LIMIT, at(0)), RateDecision::Limited { .. }));
    }
}
