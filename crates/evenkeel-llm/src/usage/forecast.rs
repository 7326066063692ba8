//! Forecast of a request's usage, from earlier requests of the same tenant for the same model.
//!
//! Limits: at most `entries_max` averages by tenant and as many by model. The least recently updated ones are evicted;
//! an evicted tenant starts again from the model's average.

use core::hash::Hash;
use core::ops::RangeInclusive;
use std::collections::HashMap;

use evenkeel_pipeline::ModelId;
use evenkeel_policy::estimate::{Ewma, Gains};
use evenkeel_policy::id::TenantId;

use super::Usage;
use crate::request::{LlmRequest, TOKEN_BYTES};

/// Output tokens assumed without history and without a client's limit.
const OUTPUT_DEFAULT: u64 = 256;
/// Maximum of output tokens assumed without history if the client sets a limit, because many limits are never reached.
const OUTPUT_DEFAULT_MAX: u64 = 1_024;

/// Tokens from which a response says how long the model's tokens are.
const SAMPLE_TOKENS_MIN: u64 = 16;
/// Plausible average lengths of a token: hidden reasoning makes them look shorter, merged deltas longer.
const TOKEN_BYTES_RANGE: RangeInclusive<f64> = 1.0..=8.0;

/// Average output lengths by tenant and model, and average token lengths by model.
#[derive(Clone, Debug)]
pub struct Forecast {
    by_tenant: Averages<(TenantId, ModelId)>,
    by_model: Averages<ModelId>,
    token_bytes: Averages<ModelId>,
}

impl Forecast {
    pub fn new(entries_max: usize) -> Self {
        Self {
            by_tenant: Averages::new(entries_max),
            by_model: Averages::new(entries_max),
            token_bytes: Averages::new(entries_max),
        }
    }

    /// Estimates the usage of a request.
    pub fn usage(&self, tenant: TenantId, model: ModelId, request: &LlmRequest) -> Usage {
        let known = self.by_tenant.mean(&(tenant, model)).or_else(|| self.by_model.mean(&model));
        let output = match (request.output_tokens_exact, known, request.output_tokens_max) {
            (Some(output), ..) => output,
            (None, Some(mean), _) => mean.round() as u64,
            (None, None, Some(_)) => OUTPUT_DEFAULT_MAX,
            (None, None, None) => OUTPUT_DEFAULT,
        };
        Usage {
            input: request.input_tokens,
            cached: 0,
            output: output.min(request.output_tokens_max.unwrap_or(u64::MAX)),
        }
    }

    /// Records the usage of a complete request.
    pub fn record(&mut self, tenant: TenantId, model: ModelId, usage: Usage) {
        let output = usage.output as f64;
        self.by_tenant.record((tenant, model), output);
        self.by_model.record(model, output);
    }

    /// Records generated text whose number of tokens is known.
    pub fn record_text(&mut self, model: ModelId, bytes: u64, tokens: u64) {
        let token_bytes = bytes as f64 / tokens as f64;
        if tokens >= SAMPLE_TOKENS_MIN && TOKEN_BYTES_RANGE.contains(&token_bytes) {
            self.token_bytes.record(model, token_bytes);
        }
    }

    /// Returns the average length of a model's tokens in bytes of text.
    pub fn token_bytes(&self, model: ModelId) -> f64 {
        self.token_bytes.mean(&model).unwrap_or(TOKEN_BYTES as f64)
    }

    /// Forgets a tenant, whose ID may be reused.
    pub fn forget_tenant(&mut self, tenant: TenantId) {
        self.by_tenant.retain(|(known, _)| *known != tenant);
    }

    /// Forgets a model, whose ID may be reused.
    pub fn forget_model(&mut self, model: ModelId) {
        self.by_tenant.retain(|(_, known)| *known != model);
        self.by_model.retain(|known| *known != model);
        self.token_bytes.retain(|known| *known != model);
    }
}

/// Averages by key, in two generations: when the young generation is full, it replaces the old one.
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
            // Token counts are finite and not negative, so no sample is rejected.
            let _accepted = known.record(sample);
            return;
        }
        if self.young.len() >= self.half_max {
            self.old = core::mem::take(&mut self.young);
        }
        let mut average = self.old.remove(&key).unwrap_or(Ewma::new(Gains::RTT));
        let _accepted = average.record(sample);
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
    fn without_history_the_estimate_is_the_clients_limit_up_to_a_maximum() {
        let forecast = Forecast::new(10);
        assert_eq!(output(&forecast, ALICE, Some(64)), 64);
        assert_eq!(output(&forecast, ALICE, Some(100_000)), OUTPUT_DEFAULT_MAX);
        assert_eq!(output(&forecast, ALICE, None), OUTPUT_DEFAULT);
    }

    #[test]
    fn the_length_of_tokens_is_learned_from_responses_that_are_long_and_plausible_enough() {
        let mut forecast = Forecast::new(10);
        forecast.record_text(MODEL, 60, SAMPLE_TOKENS_MIN - 1);
        forecast.record_text(MODEL, 10, 100);
        forecast.record_text(MODEL, 10_000, 100);
        forecast.record_text(MODEL, 10, 0);
        assert!((forecast.token_bytes(MODEL) - 4.0).abs() < 1e-9);
        forecast.record_text(MODEL, 300, 100);
        assert!((forecast.token_bytes(MODEL) - 3.0).abs() < 1e-9);
        forecast.forget_model(MODEL);
        assert!((forecast.token_bytes(MODEL) - 4.0).abs() < 1e-9);
    }

    #[test]
    fn a_new_tenant_starts_from_the_models_average() {
        let mut forecast = Forecast::new(10);
        forecast.record(ALICE, MODEL, Usage { input: 1, cached: 0, output: 100 });
        assert_eq!(output(&forecast, BOB, None), 100);
        forecast.record(BOB, MODEL, Usage { input: 1, cached: 0, output: 20 });
        assert_eq!((output(&forecast, ALICE, None), output(&forecast, BOB, None)), (100, 20));
        forecast.record(BOB, MODEL, Usage { input: 1, cached: 0, output: 28 });
        assert_eq!(output(&forecast, BOB, None), 21);
    }

    #[test]
    fn the_estimate_never_exceeds_the_clients_limit() {
        let mut forecast = Forecast::new(10);
        forecast.record(ALICE, MODEL, Usage { input: 1, cached: 0, output: 100 });
        assert_eq!(output(&forecast, ALICE, Some(30)), 30);
        assert_eq!(output(&forecast, ALICE, Some(0)), 0);
    }

    #[test]
    fn the_estimate_is_the_input_and_the_expected_output() {
        let request = request(Some(64));
        let usage = Forecast::new(10).usage(ALICE, MODEL, &request);
        assert_eq!(usage, Usage { input: request.input_tokens, cached: 0, output: 64 });
    }

    #[test]
    fn the_number_of_averages_is_limited_and_recently_updated_ones_are_kept() {
        let mut forecast = Forecast::new(8);
        for other in 10..1_000 {
            forecast.record(ALICE, MODEL, Usage { input: 1, cached: 0, output: 7 });
            forecast.record(TenantId(other), MODEL, Usage { input: 1, cached: 0, output: 500 });
            assert!(forecast.by_tenant.young.len() + forecast.by_tenant.old.len() <= 8);
        }
        assert_eq!(output(&forecast, ALICE, None), 7);
        assert_ne!(output(&forecast, TenantId(10), None), 500);
    }

    #[test]
    fn a_reused_id_inherits_nothing() {
        let mut forecast = Forecast::new(10);
        forecast.record(ALICE, MODEL, Usage { input: 1, cached: 0, output: 100 });
        forecast.record(BOB, MODEL, Usage { input: 1, cached: 0, output: 900 });
        forecast.forget_tenant(BOB);
        assert_eq!(output(&forecast, BOB, None), 200);
        forecast.forget_model(MODEL);
        assert_eq!(output(&forecast, ALICE, None), OUTPUT_DEFAULT);
    }

    fn output(forecast: &Forecast, tenant: TenantId, output_tokens_max: Option<u64>) -> u64 {
        forecast.usage(tenant, MODEL, &request(output_tokens_max)).output
    }

    fn request(output_tokens_max: Option<u64>) -> LlmRequest {
        let limit = output_tokens_max.map_or(String::new(), |max| format!(r#","max_tokens":{max}"#));
        let body = Bytes::from(format!(r#"{{"model":"m","prompt":"hello"{limit}}}"#));
        LlmRequest::parse(Endpoint::Completions, &body).unwrap()
    }
}
