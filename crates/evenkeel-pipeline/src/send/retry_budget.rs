//! Retry budget: retries are limited to a fraction of the first attempts, plus a minimum.
//!
//! Limits: per window at most `budget` times the first attempts, or `retries_min` if that is more.

use evenkeel_policy::estimate::{Outcome, RatioWindow};
use evenkeel_policy::time::Instant;

use crate::options::RetryOptions;

/// Counts first attempts as good and retries as bad.
#[derive(Clone, Debug)]
pub(crate) struct RetryBudget {
    options: RetryOptions,
    attempts: RatioWindow,
}

impl RetryBudget {
    /// Creates a budget; the options have been checked.
    pub(crate) fn new(options: RetryOptions) -> Self {
        let attempts = RatioWindow::new(options.window).expect("the window is at least a second");
        Self { options, attempts }
    }

    pub(crate) fn on_first_attempt(&mut self, now: Instant) {
        self.attempts.record(now, Outcome::Good);
    }

    /// Spends a retry; returns `false` when none is left.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        let retries = self.attempts.bad(now);
        let first = self.attempts.total(now) - retries;
        let allowed = (self.options.budget * first as f64).max(f64::from(self.options.retries_min));
        let is_allowed = ((retries + 1) as f64) <= allowed;
        if is_allowed {
            self.attempts.record(now, Outcome::Bad);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::time::Duration;

    #[test]
    fn a_tenth_of_the_first_attempts_may_be_retried_and_at_least_three() {
        for (first, allowed) in [(0, 3), (10, 3), (30, 3), (50, 5), (1_000, 100)] {
            let mut budget = RetryBudget::new(RetryOptions::default());
            (0..first).for_each(|_| budget.on_first_attempt(Instant::ORIGIN));
            let spent = (0..2_000).filter(|_| budget.spend(Instant::ORIGIN)).count();
            assert_eq!(spent, allowed, "{first} first attempts");
            assert!(
                budget.spend(Instant::ORIGIN + Duration::from_secs(11)),
                "a window later the budget is refilled"
            );
        }
    }
}
