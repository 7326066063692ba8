use super::*;
use evenkeel_policy::time::Duration;
use proptest::prelude::*;

const DAY: u64 = 86_400;
const EVENING: &str = "2026-11-30T23:59:50Z";

fn at(text: &str) -> UnixSeconds {
    UnixSeconds::parse_rfc3339(text).unwrap()
}

fn budgets(limits: &[(BudgetKind, u64)]) -> Budgets {
    let mut budgets = Budgets::default();
    limits.iter().for_each(|(budget, limit)| budgets.set(*budget, Some(*limit)));
    budgets
}

fn tokens(tokens: u64) -> Spending {
    Spending { tokens, money: Money::ZERO }
}

fn row(input_tokens: u64, cost: u64) -> UsageRow {
    UsageRow { requests: 1, input_tokens, cost: Money::from_nanos(cost), ..UsageRow::default() }
}

fn key(day: &str, model: &str) -> UsageKey {
    let day = Day::parse(day).unwrap();
    UsageKey { day, tenant: "acme".to_owned(), model: model.to_owned(), currency: "USD".to_owned() }
}

#[test]
fn requests_in_flight_together_cannot_exceed_a_budget() {
    let ledger = UsageLedger::default();
    let budgets = budgets(&[(BudgetKind::TokensPerDay, 100)]);
    let reserve = || ledger.reserve("acme", &budgets, tokens(40), at(EVENING));
    assert_eq!((reserve(), reserve()), (Ok(()), Ok(())));
    let reached = reserve().unwrap_err();
    assert!(!reached.is_used_up());
    assert_eq!(reached.retry_after(), Duration::from_secs(1));
    assert_eq!(
        reached.to_string(),
        "budget tokens_per_day reached: 0 tokens of 100 tokens used, 80 tokens reserved for requests in flight, \
         and this request needs about 40 tokens; retry when requests in flight have ended"
    );
    ledger.release("acme", tokens(40));
    assert_eq!(reserve(), Ok(()));
    assert_eq!(ledger.reserve("bolt", &budgets, tokens(100), at(EVENING)), Ok(()), "another tenant");
}

#[test]
fn a_daily_budget_resets_at_midnight_and_a_monthly_one_with_the_month() {
    let ledger = UsageLedger::default();
    ledger.set_currency("USD");
    let day = budgets(&[(BudgetKind::TokensPerDay, 100)]);
    let month = budgets(&[(BudgetKind::MoneyPerMonth, 2_000_000_000)]);
    let estimate = Spending { tokens: 10, money: Money::from_nanos(500_000_000) };
    let is_allowed = |budgets: &Budgets, now: &str| {
        let result = ledger.reserve("acme", budgets, estimate, at(now));
        result.is_ok().then(|| ledger.release("acme", estimate)).is_some()
    };
    ledger.record("acme", "m", row(95, 1_600_000_000), at("2026-11-29T12:00:00Z"));
    assert!(!is_allowed(&day, "2026-11-29T23:59:59Z"));
    assert!(is_allowed(&day, "2026-11-30T00:00:00Z"));
    assert!(!is_allowed(&month, "2026-11-30T23:59:59Z"));
    assert!(is_allowed(&month, "2026-12-01T00:00:00Z"));
    let reached = ledger.reserve("acme", &month, estimate, at(EVENING)).unwrap_err();
    assert_eq!((reached.is_used_up(), reached.retry_after()), (true, Duration::from_secs(10)));
    assert_eq!(
        reached.to_string(),
        "budget money_per_month reached: 1.60 USD of 2.00 USD used, and this request needs about 0.50 USD; the \
         budget resets at 2026-12-01T00:00:00Z"
    );
}

#[test]
fn the_budget_that_resets_last_is_named() {
    let ledger = UsageLedger::default();
    let both = budgets(&[(BudgetKind::TokensPerDay, 10), (BudgetKind::TokensPerMonth, 10)]);
    let now = at("2026-11-18T12:00:00Z");
    ledger.record("acme", "m", row(10, 0), now);
    let reached = ledger.reserve("acme", &both, tokens(1), now).unwrap_err();
    assert_eq!(reached.budget(), BudgetKind::TokensPerMonth);
}

#[test]
fn a_clock_that_steps_back_and_forth_reopens_no_spent_period() {
    let ledger = UsageLedger::default();
    let budgets = budgets(&[(BudgetKind::TokensPerDay, 10)]);
    let days = ["2026-11-18T23:59:59Z", "2026-11-19T00:00:00Z"];
    days.iter().for_each(|now| ledger.record("acme", "m", row(10, 0), at(now)));
    let month = self::budgets(&[(BudgetKind::TokensPerMonth, 20)]);
    for now in [days[0], days[1], days[0], days[1]] {
        assert!(ledger.reserve("acme", &budgets, tokens(1), at(now)).is_err(), "{now}");
        // The usage of the day to come was recorded while the clock was ahead.
        assert!(ledger.reserve("acme", &month, tokens(1), at(now)).is_err(), "{now}");
    }
}

#[test]
fn usage_counts_on_the_day_on_which_the_request_ends() {
    let ledger = UsageLedger::default();
    let budgets = budgets(&[(BudgetKind::TokensPerDay, 10)]);
    ledger.reserve("acme", &budgets, tokens(10), at(EVENING)).unwrap();
    let next = at("2026-12-01T00:00:05Z");
    assert!(ledger.reserve("acme", &budgets, tokens(1), next).is_err(), "the request is still in flight");
    ledger.release("acme", tokens(10));
    ledger.record("acme", "m", row(4, 0), next);
    let status = ledger.budgets("acme", &budgets, next)[0];
    assert_eq!((status.used, status.remaining()), (4, 6));
    assert_eq!(ledger.budgets("acme", &budgets, at(EVENING))[0].used, 0);
}

#[test]
fn a_request_that_costs_nothing_fits_into_an_exceeded_budget_of_money() {
    let ledger = UsageLedger::default();
    let budgets = budgets(&[(BudgetKind::MoneyPerDay, 5)]);
    ledger.record("acme", "m", row(1, 9), at(EVENING));
    assert_eq!(ledger.reserve("acme", &budgets, tokens(100), at(EVENING)), Ok(()));
}

#[test]
fn stored_rows_count_after_a_restart_and_are_not_stored_again() {
    let before = UsageLedger::default();
    before.record("acme", "m", row(7, 0), at(EVENING));
    let stored = before.take_pending();
    let after = UsageLedger::default();
    after.restore(&stored);
    let budgets = budgets(&[(BudgetKind::TokensPerMonth, 10)]);
    assert_eq!(after.budgets("acme", &budgets, at(EVENING))[0].used, 7);
    assert_eq!(after.take_pending(), UsageRows::default());
    after.return_pending(stored.clone());
    assert_eq!(after.take_pending(), stored);
}

#[test]
fn models_beyond_the_limit_share_a_row() {
    let mut rows = UsageRows::default();
    for model in 0..MODELS_MAX + 3 {
        rows.add(key("2026-11-18", &format!("m{model:03}")), row(1, 0));
    }
    rows.add(key("2026-11-18", "m000"), row(1, 0));
    rows.add(key("2026-11-19", "m999"), row(1, 0));
    let found: Vec<(&str, u64)> = rows.iter().map(|(key, row)| (key.model.as_str(), row.requests)).collect();
    assert_eq!(found.len(), MODELS_MAX + 2);
    assert!(found.contains(&("m000", 2)) && found.contains(&(OTHER, 3)) && found.contains(&("m999", 1)));
}

#[test]
fn totals_are_kept_for_the_latest_days() {
    let ledger = UsageLedger::default();
    let first = at("2026-11-01");
    for day in 0..DAYS_MAX as u64 + 1 {
        ledger.record("acme", "m", row(1, 0), UnixSeconds(first.0 + day * DAY));
    }
    let budgets = budgets(&[(BudgetKind::TokensPerDay, 1)]);
    let used = |day: u64| ledger.budgets("acme", &budgets, UnixSeconds(first.0 + day * DAY))[0].used;
    assert_eq!((used(0), used(1), used(DAYS_MAX as u64)), (0, 1, 1));
}

proptest! {
    /// Requests that use at most their estimates never exceed a budget, in whatever order they begin and end.
    #[test]
    fn a_budget_is_never_exceeded_by_requests_within_their_estimates(
        steps in proptest::collection::vec((0_u64..60, 0_u64..=100, 0_u64..20_000), 1..200),
    ) {
        const LIMIT: u64 = 200;
        let ledger = UsageLedger::default();
        let budgets = budgets(&[(BudgetKind::TokensPerDay, LIMIT), (BudgetKind::TokensPerMonth, 3 * LIMIT)]);
        let mut now = at("2026-11-27");
        let mut open: Vec<u64> = Vec::new();
        for (estimate, part, passed) in steps {
            now.0 += passed;
            if ledger.reserve("acme", &budgets, tokens(estimate), now).is_ok() {
                open.push(estimate);
            }
            if part % 2 == 0 && !open.is_empty() {
                let estimate = open.swap_remove(part as usize % open.len());
                ledger.record("acme", "m", row(estimate * part / 100, 0), now);
                ledger.release("acme", tokens(estimate));
            }
            for status in ledger.budgets("acme", &budgets, now) {
                prop_assert!(status.used <= status.limit, "{status:?}");
            }
        }
        open.drain(..).for_each(|estimate| ledger.release("acme", tokens(estimate)));
        prop_assert_eq!(ledger.budgets("acme", &budgets, now)[0].reserved, 0);
    }
}
