//! What a request will probably cost, from what the same tenant's requests for the same model did.
//!
//! Bound: holds at most `entries_max` tenants' averages and as many models'; whoever was not heard of for longest
//! is forgotten first, and starts again from the model's average.

use core::hash::Hash;
use std::collections::HashMap;

use evenkeel_pipeline::ModelId;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::{Ewma, Gains};
use evenkeel_policy::id::TenantId;

use super::Usage;
use crate::request::LlmRequest;

/// How long an answer is taken to be when nobody has said anything.
const OUTPUT_GUESS: u64 = 256;
/// What a client's limit is believed at most: many set one that their answers never reach.
const OUTPUT_GUESS_MAX: u64 = 1_024;

/// How long answers were, by tenant and model.
#[derive(Clone, Debug)]
pub struct Forecast {
    by_tenant: Averages<(TenantId, ModelId)>,
    by_model: Averages<ModelId>,
}

impl Forecast {
    /// Makes a forecast that has heard of nobody.
    pub fn new(entries_max: usize) -> Self {
        Self { by_tenant: Averages::new(entries_max), by_model: Averages::new(entries_max) }
    }

    /// What a request will probably be charged.
    pub fn estimate(&self, tenant: TenantId, model: ModelId, ask: &LlmRequest) -> Cost {
        self.usage(tenant, model, ask).cost()
    }

    /// How many tokens a request will probably take.
    pub fn usage(&self, tenant: TenantId, model: ModelId, ask: &LlmRequest) -> Usage {
        let known = self.by_tenant.mean(&(tenant, model)).or_else(|| self.by_model.mean(&model));
        let output = match (ask.output_known, known, ask.output_max) {
            (Some(output), ..) => output,
            (None, Some(mean), _) => mean.round() as u64,
            (None, None, Some(_)) => OUTPUT_GUESS_MAX,
            (None, None, None) => OUTPUT_GUESS,
        };
        Usage { input: ask.input_tokens, output: output.min(ask.output_max.unwrap_or(u64::MAX)) }
    }

    /// Learns from a request that ended.
    pub fn learn(&mut self, tenant: TenantId, model: ModelId, usage: Usage) {
        let output = usage.output as f64;
        self.by_tenant.record((tenant, model), output);
        self.by_model.record(model, output);
    }

    /// Forgets a tenant, whose id may become another's.
    pub fn forget_tenant(&mut self, tenant: TenantId) {
        self.by_tenant.retain(|(known, _)| *known != tenant);
    }

    /// Forgets a model, whose id may become another's.
    pub fn forget_model(&mut self, model: ModelId) {
        self.by_tenant.retain(|(_, known)| *known != model);
        self.by_model.retain(|known| *known != model);
    }
}

/// Averages by key, in two halves: when the young one is full it becomes the old one, and the old one is forgotten.
#[derive(Clone, Debug)]
struct Averages<K> {
    young: HashMap<K, Ewma>,
    old: HashMap<K, Ewma>,
    half_max: usize,
}

impl<K: Copy + Eq + Hash> Averages<K> {
    fn new(entries_max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), half_max: (entries_max / 2).max(1) }
    }

    fn mean(&self, key: &K) -> Option<f64> {
        self.young.get(key).or_else(|| self.old.get(key))?.mean()
    }

    fn record(&mut self, key: K, sample: f64) {
        if let Some(known) = self.young.get_mut(&key) {
            // Counts are finite and not negative, so none is refused.
            let _taken = known.record(sample);
            return;
        }
        if self.half_max <= self.young.len() {
            self.old = core::mem::take(&mut self.young);
        }
        let mut average = self.old.remove(&key).unwrap_or(Ewma::new(Gains::RTT));
        let _taken = average.record(sample);
        self.young.insert(key, average);
    }

    fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.young.retain(|key, _| keep(key));
        self.old.retain(|key, _| keep(key));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Endpoint;
    use bytes::Bytes;

    const ALICE: TenantId = TenantId(1);
    const BOB: TenantId = TenantId(2);
    const MODEL: ModelId = ModelId(1);

    #[test]
    fn without_history_the_clients_limit_is_believed_up_to_a_point() {
        let forecast = Forecast::new(10);
        assert_eq!(output(&forecast, ALICE, Some(64)), 64);
        assert_eq!(output(&forecast, ALICE, Some(100_000)), OUTPUT_GUESS_MAX);
        assert_eq!(output(&forecast, ALICE, None), OUTPUT_GUESS);
    }

    #[test]
    fn a_newcomer_is_taken_for_an_average_one_until_it_shows_otherwise() {
        let mut forecast = Forecast::new(10);
        forecast.learn(ALICE, MODEL, Usage { input: 1, output: 100 });
        assert_eq!(output(&forecast, BOB, None), 100);
        forecast.learn(BOB, MODEL, Usage { input: 1, output: 20 });
        assert_eq!((output(&forecast, ALICE, None), output(&forecast, BOB, None)), (100, 20));
        forecast.learn(BOB, MODEL, Usage { input: 1, output: 28 });
        assert_eq!(output(&forecast, BOB, None), 21);
    }

    #[test]
    fn nobody_is_thought_to_need_more_than_its_limit() {
        let mut forecast = Forecast::new(10);
        forecast.learn(ALICE, MODEL, Usage { input: 1, output: 100 });
        assert_eq!(output(&forecast, ALICE, Some(30)), 30);
        assert_eq!(output(&forecast, ALICE, Some(0)), 0);
    }

    #[test]
    fn the_estimate_is_the_input_and_twice_the_output() {
        let ask = ask(Some(64));
        assert_eq!(Forecast::new(10).estimate(ALICE, MODEL, &ask), Cost(ask.input_tokens + 128));
    }

    #[test]
    fn the_number_of_averages_is_bounded_and_the_active_stay() {
        let mut forecast = Forecast::new(8);
        for other in 10..1_000 {
            forecast.learn(ALICE, MODEL, Usage { input: 1, output: 7 });
            forecast.learn(TenantId(other), MODEL, Usage { input: 1, output: 500 });
            assert!(forecast.by_tenant.young.len() + forecast.by_tenant.old.len() <= 8);
        }
        assert_eq!(output(&forecast, ALICE, None), 7);
        assert_ne!(output(&forecast, TenantId(10), None), 500);
    }

    #[test]
    fn who_is_forgotten_leaves_nothing_to_who_comes_after() {
        let mut forecast = Forecast::new(10);
        forecast.learn(ALICE, MODEL, Usage { input: 1, output: 100 });
        forecast.learn(BOB, MODEL, Usage { input: 1, output: 900 });
        forecast.forget_tenant(BOB);
        assert_eq!(output(&forecast, BOB, None), 200);
        forecast.forget_model(MODEL);
        assert_eq!(output(&forecast, ALICE, None), OUTPUT_GUESS);
    }

    fn output(forecast: &Forecast, tenant: TenantId, output_max: Option<u64>) -> u64 {
        forecast.usage(tenant, MODEL, &ask(output_max)).output
    }

    fn ask(output_max: Option<u64>) -> LlmRequest {
        let limit = output_max.map_or(String::new(), |max| format!(r#","max_tokens":{max}"#));
        let body = Bytes::from(format!(r#"{{"model":"m","prompt":"hello"{limit}}}"#));
        LlmRequest::parse(Endpoint::Completions, &body).unwrap()
    }
}
