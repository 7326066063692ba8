//! Retry budget, and budget of redirects: limits an exceptional action to a fraction of the regular ones within a window,
//! plus a minimum.
//!
//! Limits: per window at most `ratio` times the regular actions, or `spends_min` if that is more. While others act, too, a
//! member gets no more of a shared budget than its own actions earn, or half if that is more.

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
        self.is_within(now, self.allowed(now))
    }

    /// Spends one; returns `false` when nothing is left.
    pub(crate) fn spend(&mut self, now: Instant) -> bool {
        let is_left = self.is_left(now);
        if is_left {
            self.actions.record(now, Outcome::Bad);
        }
        is_left
    }

    /// Spends one for a member, which has a budget of the same rule; returns `false` when nothing is left for it.
    pub(crate) fn spend_for(&mut self, now: Instant, member: &mut Self) -> bool {
        let is_left = self.is_left(now) && member.is_within(now, self.part_of(now, member));
        if is_left {
            self.actions.record(now, Outcome::Bad);
            member.actions.record(now, Outcome::Bad);
        }
        is_left
    }

    /// Returns how many of the spends that are allowed a member may have.
    fn part_of(&self, now: Instant, member: &Self) -> f64 {
        let allowed = self.allowed(now);
        if self.regular(now) <= member.regular(now) {
            return allowed;
        }
        let earned = self.rule.ratio * member.regular(now) as f64;
        // One is left for the others, however few of the actions are theirs.
        earned.min(allowed - 1.0).max((allowed / 2.0).ceil())
    }

    fn allowed(&self, now: Instant) -> f64 {
        (self.rule.ratio * self.regular(now) as f64).max(f64::from(self.rule.spends_min))
    }

    fn regular(&self, now: Instant) -> u64 {
        self.actions.total(now) - self.actions.bad(now)
    }

    fn is_within(&self, now: Instant, max: f64) -> bool {
        ((self.actions.bad(now) + 1) as f64) <= max
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

    #[test]
    fn a_member_gets_what_it_earned_or_half_and_all_only_while_no_other_acts() {
        for (own, others, allowed) in [
            (10, 0, 3),
            (100, 0, 10),
            (10, 1, 2),
            (100, 100, 10),
            (900, 100, 90),
            (1_000, 1, 99),
            (0, 100, 5),
        ] {
            let rule = RetryOptions::default().budget_rule();
            let mut all = Budget::new(rule);
            let mut member = Budget::new(rule);
            let mut other = Budget::new(rule);
            (0..own + others).for_each(|_| all.earn(Instant::ORIGIN));
            (0..own).for_each(|_| member.earn(Instant::ORIGIN));
            (0..others).for_each(|_| other.earn(Instant::ORIGIN));
            let spent = (0..2_000).filter(|_| all.spend_for(Instant::ORIGIN, &mut member)).count();
            assert_eq!(spent, allowed, "{own} own first attempts and {others} of others");
            assert_eq!(all.spend_for(Instant::ORIGIN, &mut other), 0 < others);
        }
    }
}
