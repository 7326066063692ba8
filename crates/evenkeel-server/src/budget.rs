//! Budgets of a tenant: tokens and money per day and per month, in UTC.

use core::fmt;

use evenkeel_policy::time::Duration;

use crate::calendar::Day;
use crate::money::Money;
use crate::unix_seconds::UnixSeconds;

/// Tokens, and what they cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spending {
    pub tokens: u64,
    pub money: Money,
}

impl Spending {
    pub(crate) fn add(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_add(other.tokens);
        self.money = self.money.saturating_add(other.money);
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.tokens = self.tokens.saturating_sub(other.tokens);
        self.money = self.money.saturating_sub(other.money);
    }

    /// Returns the amount that counts against a budget, in the unit of [`Budgets::limit`].
    pub(crate) fn of(self, budget: BudgetKind) -> u64 {
        match budget {
            BudgetKind::TokensPerDay | BudgetKind::TokensPerMonth => self.tokens,
            BudgetKind::MoneyPerDay | BudgetKind::MoneyPerMonth => self.money.as_nanos(),
        }
    }
}

/// One of the budgets that a tenant can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetKind {
    TokensPerDay,
    TokensPerMonth,
    MoneyPerDay,
    MoneyPerMonth,
}

impl BudgetKind {
    pub const ALL: [Self; 4] =
        [Self::TokensPerDay, Self::TokensPerMonth, Self::MoneyPerDay, Self::MoneyPerMonth];

    /// Returns the name of the setting.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TokensPerDay => "tokens_per_day",
            Self::TokensPerMonth => "tokens_per_month",
            Self::MoneyPerDay => "money_per_day",
            Self::MoneyPerMonth => "money_per_month",
        }
    }

    pub const fn is_money(self) -> bool {
        matches!(self, Self::MoneyPerDay | Self::MoneyPerMonth)
    }

    /// Returns the first day of the period that contains `today`.
    pub(crate) fn first_day(self, today: Day) -> Day {
        match self {
            Self::TokensPerDay | Self::MoneyPerDay => today,
            Self::TokensPerMonth | Self::MoneyPerMonth => today.first_of_month(),
        }
    }

    /// Returns the first day of the next period.
    pub(crate) fn next_day(self, today: Day) -> Day {
        match self {
            Self::TokensPerDay | Self::MoneyPerDay => today.next(),
            Self::TokensPerMonth | Self::MoneyPerMonth => today.first_of_next_month(),
        }
    }

    /// Formats an amount with its unit.
    fn format(self, amount: u64, currency: &str) -> String {
        if self.is_money() {
            format!("{} {currency}", Money::from_nanos(amount))
        } else {
            format!("{amount} tokens")
        }
    }
}

/// The budgets of a tenant; by default it has none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Budgets([Option<u64>; 4]);

impl Budgets {
    /// Sets a limit, in tokens or in billionths of the currency's unit.
    pub fn set(&mut self, budget: BudgetKind, limit: Option<u64>) {
        self.0[budget as usize] = limit;
    }

    /// Returns a limit, in tokens or in billionths of the currency's unit.
    pub fn limit(&self, budget: BudgetKind) -> Option<u64> {
        self.0[budget as usize]
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    pub fn has_money(&self) -> bool {
        BudgetKind::ALL.into_iter().any(|budget| budget.is_money() && self.limit(budget).is_some())
    }
}

/// State of one budget. Amounts are in tokens or in billionths of the currency's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetStatus {
    pub budget: BudgetKind,
    pub limit: u64,
    /// Used since the period began.
    pub used: u64,
    /// Estimated for requests in flight.
    pub reserved: u64,
    pub resets_at: UnixSeconds,
}

impl BudgetStatus {
    pub(crate) fn has_room_for(&self, needed: u64) -> bool {
        self.used.saturating_add(self.reserved).saturating_add(needed) <= self.limit
    }

    /// Converts one of the amounts to tokens or to units of the currency.
    pub fn amount(&self, amount: u64) -> f64 {
        if self.budget.is_money() { Money::from_nanos(amount).as_units() } else { amount as f64 }
    }

    pub fn remaining(&self) -> u64 {
        self.limit.saturating_sub(self.used).saturating_sub(self.reserved)
    }
}

/// A request does not fit into a budget.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct BudgetReached {
    pub(crate) status: BudgetStatus,
    /// Estimate for the request.
    pub(crate) needed: u64,
    pub(crate) currency: String,
    pub(crate) at: UnixSeconds,
}

/// Delay of a retry that only waits for requests in flight.
const IN_FLIGHT_DELAY: Duration = Duration::from_secs(1);

impl BudgetReached {
    pub fn budget(&self) -> BudgetKind {
        self.status.budget
    }

    /// Reports whether the request has to wait for the next period. Otherwise it may fit once requests in flight have ended.
    pub fn is_used_up(&self) -> bool {
        self.status.limit < self.status.used.saturating_add(self.needed)
    }

    /// Returns the time after which a retry may succeed.
    pub fn retry_after(&self) -> Duration {
        if self.is_used_up() {
            Duration::from_secs(self.status.resets_at.0.saturating_sub(self.at.0))
        } else {
            IN_FLIGHT_DELAY
        }
    }
}

impl fmt::Display for BudgetReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BudgetStatus { budget, limit, used, reserved, resets_at } = self.status;
        let amount = |amount| budget.format(amount, &self.currency);
        write!(f, "budget {} reached: {} of {} used, ", budget.name(), amount(used), amount(limit))?;
        if reserved > 0 {
            write!(f, "{} reserved for requests in flight, ", amount(reserved))?;
        }
        write!(f, "and this request needs about {}; ", amount(self.needed))?;
        if self.is_used_up() {
            write!(f, "the budget resets at {}", resets_at.to_rfc3339())
        } else {
            f.write_str("retry when requests in flight have ended")
        }
    }
}
