//! Retry budget, and budget of redirects: limits an exceptional action to a fraction of the regular ones within a window,
//! plus a minimum.
//!
//! Limits: per window at most `ratio` times the regular actions, or `spends_min` if that is more.

use evenkeel_policy::estimate::{Outcome, RatioWindow};
use evenkeel_policy::time::{Duration, Instant};

/// Size of a budget.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BudgetRule {
    pub(crate) ratio: f64,
    pub(crate) spends_min: u32,
    /// At least a second.
    pub(crate) window: Duration,
}

/// Budget for retries, or for redirects to peers that may be full.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    rule: BudgetRule,
    /// Regular actions are recorded as good, spends as bad.
    actions: RatioWindow,
}

impl Budget {
    /// Creates a budget; the rule has been checked.
    pub(crate) fn new(rule: BudgetRule) -> Self {
        let actions = RatioWindow::new(rule.window).expect("the window is at least a second");
        Self { rule, actions }
    }

    /// Records a regular action, which earns a part of a spend.
    pub(crate) fn earn(&mut self, now: Instant) {
        self.actions.record(now, Outcome::Good);
    }

    pub(crate) fn is_left(&self, now: Instant) -> bool {
        let spent = self.actions.bad(now);
        let earned = self.actions.total(now) - spent;
        let allowed = (self.rule.ratio * earned as f64).max(f64::from(self.rule.spends_min));
        ((spent + 1) as f64) <= allowed
    }

    /// Spends one; returns `false` when nothing is left.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        let is_left = self.is_left(now);
        if is_left {
            self.actions.record(now, Outcome::Bad);
        }
        is_left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::RetryOptions;

    #[test]
    fn a_tenth_of_the_first_attempts_may_be_retried_and_at_least_three() {
        for (first, allowed) in [(0, 3), (10, 3), (30, 3), (50, 5), (1_000, 100)] {
            let mut budget = Budget::new(RetryOptions::default().budget_rule());
            (0..first).for_each(|_| budget.earn(Instant::ORIGIN));
            let spent = (0..2_000).filter(|_| budget.spend(Instant::ORIGIN)).count();
            assert_eq!(spent, allowed, "{first} first attempts");
            assert!(!budget.is_left(Instant::ORIGIN));
            assert!(
                budget.spend(Instant::ORIGIN + Duration::from_secs(11)),
                "a window later the budget is refilled"
            );
        }
    }
}
