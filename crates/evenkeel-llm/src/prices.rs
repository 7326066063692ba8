//! Prices of models, and the cost of usage in money.
//!
//! Limits: a warning about a model without a price is logged once for each of the first [`WARNINGS_MAX`] models.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use evenkeel_server::money::Money;
use parking_lot::{Mutex, RwLock};

use crate::usage::Usage;

const TOKENS_PER_PRICE: u128 = 1_000_000;
const WARNINGS_MAX: usize = 1_000;

/// Prices of a model per million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Price {
    pub input: Money,
    /// Of prompt tokens that the engine read from its cache.
    pub cached: Money,
    pub output: Money,
}

impl Price {
    /// Returns the cost, rounded to the nearest billionth.
    pub fn cost(&self, usage: Usage) -> Money {
        let cached = usage.cached.min(usage.input);
        let parts = [(usage.input - cached, self.input), (cached, self.cached), (usage.output, self.output)];
        let cost = |(tokens, price): (u64, Money)| u128::from(tokens).saturating_mul(price.as_nanos().into());
        let sum = parts.into_iter().map(cost).fold(TOKENS_PER_PRICE / 2, u128::saturating_add);
        Money::from_nanos(u64::try_from(sum / TOKENS_PER_PRICE).unwrap_or(u64::MAX))
    }
}

/// Prices by model, all in one currency.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PriceTable {
    /// Name of the currency; nothing is converted.
    pub currency: String,
    pub models: HashMap<String, Price>,
}

/// The prices in force.
#[derive(Debug, Default)]
pub(crate) struct Prices {
    table: RwLock<Arc<PriceTable>>,
    warned: Mutex<HashSet<String>>,
}

impl Prices {
    pub(crate) fn replace(&self, table: PriceTable) {
        *self.table.write() = Arc::new(table);
        self.warned.lock().clear();
    }

    /// Returns the cost of usage; a model without a price costs nothing.
    pub(crate) fn cost(&self, model: &str, usage: Usage) -> Money {
        self.table.read().models.get(model).map_or(Money::ZERO, |price| price.cost(usage))
    }

    /// Logs a warning for the first request to a model without a price from a tenant with a budget of money.
    pub(crate) fn warn_if_unpriced(&self, model: &str, tenant: &str) {
        if self.table.read().models.contains_key(model) {
            return;
        }
        let mut warned = self.warned.lock();
        if warned.len() < WARNINGS_MAX && !warned.contains(model) {
            warned.insert(model.to_owned());
            tracing::warn!(target: "evenkeel", model, tenant, "the model has no price in [[llm.prices]], so it costs nothing, although the tenant has a budget of money");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn money(units: f64) -> Money {
        Money::from_units(units).unwrap()
    }

    #[test]
    fn usage_is_priced_by_kind_of_token_and_exactly() {
        let price = Price { input: money(2.5), cached: money(0.25), output: money(10.0) };
        let cost = |input, cached, output| price.cost(Usage { input, cached, output }).to_string();
        assert_eq!(cost(1_000_000, 0, 1_000_000), "12.50");
        assert_eq!(cost(1_000, 400, 7), "0.00167");
        assert_eq!(cost(1, 0, 0), "0.0000025");
        assert_eq!(cost(1, 5, 0), "0.00000025");
        assert_eq!(cost(u64::MAX, 0, u64::MAX), Money::from_nanos(u64::MAX).to_string());
    }

    #[test]
    fn ten_thousand_small_requests_cost_as_much_as_one_large_one() {
        let price = Price { input: money(0.02), cached: money(0.02), output: Money::ZERO };
        let usage = |input| Usage { input, cached: 0, output: 0 };
        let small = (0..10_000).fold(Money::ZERO, |sum, _| sum.saturating_add(price.cost(usage(10))));
        assert_eq!(small, price.cost(usage(100_000)));
    }
}
