//! The usage of tenants by day and model, and its comparison with their budgets. The time is an argument.
//!
//! Guarantees: with the estimates of requests in flight, a budget is exceeded at most by the error of these estimates.
//! Usage counts on the day on which its request ends. A clock that steps back resets no
//! budget, because the usage of earlier days is kept.
//!
//! Limits: totals are kept for [`DAYS_MAX`] days per tenant, rows until they are taken to be stored; a tenant has at most
//! [`MODELS_MAX`] rows a day, further models share [`OTHER`].

use std::collections::{BTreeMap, HashMap};

use parking_lot::Mutex;

use crate::budget::{BudgetKind, BudgetReached, BudgetStatus, Budgets, Spending};
use crate::calendar::Day;
use crate::money::Money;
use crate::unix_seconds::UnixSeconds;

/// Days with usage whose totals are kept; a month and the one before it.
pub const DAYS_MAX: usize = 62;
/// Rows of a tenant per day, apart from that of all other models.
pub const MODELS_MAX: usize = 64;
/// Model of the row of all models beyond [`MODELS_MAX`].
pub const OTHER: &str = "other";

/// Usage of all tenants.
#[derive(Debug, Default)]
pub struct UsageLedger(Mutex<LedgerState>);

#[derive(Debug, Default)]
struct LedgerState {
    currency: String,
    tenants: HashMap<String, TenantTotals>,
    /// Rows that are not stored yet.
    pending: UsageRows,
}

#[derive(Debug, Default)]
struct TenantTotals {
    by_day: BTreeMap<Day, Spending>,
    /// Estimates for requests in flight.
    reserved: Spending,
}

/// Identifies a row of a statement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageKey {
    pub day: Day,
    pub tenant: String,
    pub model: String,
    pub currency: String,
}

/// Usage of one model by one tenant on one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UsageRow {
    pub requests: u64,
    /// Prompt tokens, cached ones included.
    pub input_tokens: u64,
    pub cached_tokens: u64,
    pub output_tokens: u64,
    pub cost: Money,
}

impl UsageRow {
    pub fn add(&mut self, other: Self) {
        self.requests = self.requests.saturating_add(other.requests);
        self.input_tokens = self.input_tokens.saturating_add(other.input_tokens);
        self.cached_tokens = self.cached_tokens.saturating_add(other.cached_tokens);
        self.output_tokens = self.output_tokens.saturating_add(other.output_tokens);
        self.cost = self.cost.saturating_add(other.cost);
    }

    fn spending(self) -> Spending {
        Spending { tokens: self.input_tokens.saturating_add(self.output_tokens), money: self.cost }
    }
}

/// Rows by day, tenant, model and currency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UsageRows(BTreeMap<UsageKey, UsageRow>);

impl UsageRows {
    /// Adds usage to its row.
    pub fn add(&mut self, mut key: UsageKey, row: UsageRow) {
        if !self.0.contains_key(&key) && self.rows_of(&key) >= MODELS_MAX {
            OTHER.clone_into(&mut key.model);
        }
        self.0.entry(key).or_default().add(row);
    }

    /// Counts the rows of the same day and tenant.
    fn rows_of(&self, key: &UsageKey) -> usize {
        let first = UsageKey { model: String::new(), currency: String::new(), ..key.clone() };
        self.0
            .range(first..)
            .take_while(|(other, _)| other.day == key.day && other.tenant == key.tenant)
            .count()
    }

    /// Removes the first row.
    pub fn pop_first(&mut self) -> Option<(UsageKey, UsageRow)> {
        self.0.pop_first()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&UsageKey, &UsageRow)> {
        self.0.iter()
    }
}

impl TenantTotals {
    fn add(&mut self, day: Day, spending: Spending) {
        self.by_day.entry(day).or_default().add(spending);
        while self.by_day.len() > DAYS_MAX {
            self.by_day.pop_first();
        }
    }

    fn status(&self, budget: BudgetKind, limit: u64, today: Day) -> BudgetStatus {
        let mut used = Spending::default();
        // All days of the period: those after today were recorded while the clock was ahead.
        self.by_day
            .range(budget.first_day(today)..budget.next_day(today))
            .for_each(|(_, day)| used.add(*day));
        let reserved = self.reserved.of(budget);
        BudgetStatus {
            budget,
            limit,
            used: used.of(budget),
            reserved,
            resets_at: budget.next_day(today).start(),
        }
    }
}

impl UsageLedger {
    /// Sets the currency of amounts from now on.
    pub fn set_currency(&self, currency: &str) {
        currency.clone_into(&mut self.0.lock().currency);
    }

    /// Adds stored usage to the totals.
    pub fn restore(&self, rows: &UsageRows) {
        let mut state = self.0.lock();
        for (key, row) in rows.iter() {
            state.tenants.entry(key.tenant.clone()).or_default().add(key.day, row.spending());
        }
    }

    /// Reserves the estimate for a request, unless it does not fit into a budget. If several do not fit, the error names
    /// the one with the longest `retry_after`.
    pub fn reserve(
        &self,
        tenant: &str,
        budgets: &Budgets,
        estimate: Spending,
        now: UnixSeconds,
    ) -> Result<(), BudgetReached> {
        let state = &mut *self.0.lock();
        let currency = &state.currency;
        let totals = state.tenants.entry(tenant.to_owned()).or_default();
        let reached = statuses(totals, budgets, now).filter_map(|status| {
            let needed = estimate.of(status.budget);
            // A request that costs nothing fits into any budget.
            let fits = needed == 0 || status.has_room_for(needed);
            (!fits).then(|| BudgetReached { status, needed, currency: currency.clone(), at: now })
        });
        match reached.max_by_key(BudgetReached::retry_after) {
            Some(reached) => Err(reached),
            None => {
                totals.reserved.add(estimate);
                Ok(())
            }
        }
    }

    /// Releases the reservation of a request that has ended.
    pub fn release(&self, tenant: &str, estimate: Spending) {
        if let Some(totals) = self.0.lock().tenants.get_mut(tenant) {
            totals.reserved.subtract(estimate);
        }
    }

    /// Records the usage of a request that ends now.
    pub fn record(&self, tenant: &str, model: &str, row: UsageRow, now: UnixSeconds) {
        let mut state = self.0.lock();
        let day = Day::of(now);
        let key = UsageKey {
            day,
            tenant: tenant.to_owned(),
            model: model.to_owned(),
            currency: state.currency.clone(),
        };
        state.pending.add(key, row);
        state.tenants.entry(tenant.to_owned()).or_default().add(day, row.spending());
    }

    /// Returns the state of each budget that the tenant has.
    pub fn budgets(&self, tenant: &str, budgets: &Budgets, now: UnixSeconds) -> Vec<BudgetStatus> {
        let state = self.0.lock();
        let unused = TenantTotals::default();
        statuses(state.tenants.get(tenant).unwrap_or(&unused), budgets, now).collect()
    }

    /// Takes the rows that are not stored yet.
    pub fn take_pending(&self) -> UsageRows {
        core::mem::take(&mut self.0.lock().pending)
    }

    /// Puts back rows that could not be stored.
    pub fn return_pending(&self, rows: UsageRows) {
        let mut state = self.0.lock();
        rows.0.into_iter().for_each(|(key, row)| state.pending.add(key, row));
    }
}

fn statuses<'a>(
    totals: &'a TenantTotals,
    budgets: &'a Budgets,
    now: UnixSeconds,
) -> impl Iterator<Item = BudgetStatus> + 'a {
    let today = Day::of(now);
    let limits = BudgetKind::ALL.into_iter().filter_map(|budget| Some((budget, budgets.limit(budget)?)));
    limits.map(move |(budget, limit)| totals.status(budget, limit, today))
}

#[cfg(test)]
mod tests;
