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

#[cfg(test)]
mod tests {
    use super::super::{Config, ConfigSources};

    fn read(text: &str) -> Result<Config, String> {
        let file = Some(("a.toml".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() }).map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_cached_token_costs_as_much_as_another_unless_it_has_a_price() {
        let config = read(
            "[llm]\ncurrency = 'EUR'\n[[llm.prices]]\nmodel = 'a'\ninput = 2\noutput = 0.5\n\
             [[llm.prices]]\nmodel = 'b'\ninput = 2\ncached = 0.25\n",
        );
        let prices = config.unwrap().llm.options.prices;
        let of = |model: &str| {
            let price = prices.models[model];
            [price.input, price.cached, price.output].map(|money| money.to_string())
        };
        assert_eq!((prices.currency.as_str(), prices.models.len()), ("EUR", 2));
        assert_eq!(of("a"), ["2.00", "2.00", "0.50"]);
        assert_eq!(of("b"), ["2.00", "0.25", "0.00"]);
        assert_eq!(read("").unwrap().llm.options.prices.currency, "USD");
    }

    #[test]
    fn invalid_prices_and_budgets_are_errors_at_their_line() {
        let price = |more: &str| format!("[[llm.prices]]\nmodel = 'a'\ninput = 1\n{more}");
        let tenant = |more: &str| format!("[[tenants]]\nname = 'a'\n{more}");
        let range = "must be from 0 to 1000000";
        for (text, error) in [
            (price("output = -1"), format!("a.toml:4: output {range}")),
            (price("output = nan"), format!("a.toml:4: output {range}")),
            (price("output = inf"), format!("a.toml:4: output {range}")),
            (price("cached = 1e7"), format!("a.toml:4: cached {range}")),
            (price("output = '1'"), "a.toml:4: output must be a number".to_owned()),
            (
                price("ouput = 1"),
                "a.toml:4: unknown key \"ouput\" in [llm.prices]; did you mean \"output\"?".to_owned(),
            ),
            (
                price("[[llm.prices]]\nmodel = 'a'\ninput = 1"),
                "a.toml:5: two prices for model \"a\"".to_owned(),
            ),
            (
                "[[llm.prices]]\nmodel = 'a'".to_owned(),
                "a.toml:1: the price of \"a\" needs input or output".to_owned(),
            ),
            (
                "[[llm.prices]]\ninput = 1".to_owned(),
                "a.toml:1: a price needs the name of a model".to_owned(),
            ),
            (
                "[llm]\ncurrency = '$'".to_owned(),
                "a.toml:2: currency must be 1 to 8 letters, such as \"EUR\"".to_owned(),
            ),
            (
                tenant("money_per_day = nan"),
                "a.toml:3: money_per_day must be from 0 to 1000000000".to_owned(),
            ),
            (
                tenant("money_per_month = -0.01"),
                "a.toml:3: money_per_month must be from 0 to 1000000000".to_owned(),
            ),
            (tenant("tokens_per_day = 1.5"), "a.toml:3: tokens_per_day must be a whole number".to_owned()),
            (
                tenant("token_per_day = 1"),
                "a.toml:3: unknown key \"token_per_day\" in [tenants]; did you mean \"tokens_per_day\"?"
                    .to_owned(),
            ),
        ] {
            assert_eq!(read(&text).unwrap_err(), error, "{text}");
        }
    }
}
