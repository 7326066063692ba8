//! `[llm] currency` and `[[llm.prices]]`: prices of models per million tokens.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

use evenkeel_llm::{Price, PriceTable};
use evenkeel_server::money::Money;
use evenkeel_server::tenant::TenantSettings;

use super::llm::LlmConfig;
use super::reader::Section;
use super::value::Float;

const CURRENCY: &str = "USD";
const CURRENCY_BYTES_MAX: usize = 8;
/// Highest price per million tokens.
const PRICE_MAX: f64 = 1e6;
const PRICES_MAX: usize = 10_000;

pub(super) fn read(section: &mut Section<'_>) -> PriceTable {
    let currency = section.read("currency", CURRENCY.to_owned());
    let is_letter = |byte: u8| byte.is_ascii_alphabetic();
    let length = currency.value.len();
    if !(1..=CURRENCY_BYTES_MAX).contains(&length) || !currency.value.bytes().all(is_letter) {
        let message = format!("currency must be 1 to {CURRENCY_BYTES_MAX} letters, such as \"EUR\"");
        section.error(&currency.origin, message);
    }
    let mut models = HashMap::new();
    for (index, (origin, mut table)) in section.sections("prices").into_iter().enumerate() {
        if index == PRICES_MAX {
            table.error(&origin, format!("more than {PRICES_MAX} prices"));
        }
        let model = table.optional::<String>("model");
        let input = read_price(&mut table, "input");
        let cached = read_price(&mut table, "cached");
        let output = read_price(&mut table, "output");
        let Some(model) = model.filter(|model| !model.value.is_empty()) else {
            table.error(&origin, "a price needs the name of a model");
            continue;
        };
        if input.is_none() && output.is_none() {
            table.error(&origin, format!("the price of {:?} needs input or output", model.value));
        }
        let input = input.unwrap_or_default();
        let price = Price { input, cached: cached.unwrap_or(input), output: output.unwrap_or_default() };
        match models.entry(model.value) {
            Entry::Occupied(entry) => {
                table.error(&model.origin, format!("two prices for model {:?}", entry.key()));
            }
            Entry::Vacant(entry) => {
                entry.insert(price);
            }
        }
    }
    PriceTable { currency: currency.value, models }
}

fn read_price(table: &mut Section<'_>, key: &'static str) -> Option<Money> {
    let units = table.optional_within(key, Float(0.0)..=Float(PRICE_MAX));
    units.and_then(|units| Money::from_units(units.0))
}

/// Describes each tenant with a budget of money that may use models without a price, as far as the configuration names them.
pub fn unpriced_models(llm: &LlmConfig, tenants: &[TenantSettings]) -> Vec<String> {
    let prices = &llm.options.prices.models;
    let served: BTreeSet<&String> = llm.options.nodes.iter().flat_map(|node| &node.models).collect();
    let mut warnings = Vec::new();
    for tenant in tenants.iter().filter(|tenant| tenant.budgets.has_money()) {
        let allowed: BTreeSet<&String> = tenant.models.iter().collect();
        let models = if allowed.is_empty() { &served } else { &allowed };
        let unpriced: Vec<_> = models.iter().filter(|model| !prices.contains_key(**model)).collect();
        let name = &tenant.name;
        if prices.is_empty() {
            warnings.push(format!(
                "tenant {name:?} has a budget of money, but without [[llm.prices]] nothing counts against it"
            ));
        } else if !unpriced.is_empty() {
            warnings.push(format!(
                "tenant {name:?} has a budget of money, but these models have no price in [[llm.prices]] and cost \
                 nothing: {unpriced:?}"
            ));
        }
    }
    warnings
}
