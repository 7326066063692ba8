//! Metrics of model requests, named as in OpenTelemetry's semantic conventions for generative AI.
//!
//! Names and labels have underscores for dots, and durations the suffix `_seconds`, as the conventions are mapped to
//! Prometheus. The boundaries of the buckets are those of the conventions.
//!
//! Limits: [`MODELS_MAX`] values of each label with a model and [`ERRORS_MAX`] of `error_type`; further ones are recorded
//! as `other`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_policy::id::ModelId;
use parking_lot::RwLock;

use crate::family::{Family, Label};
use crate::metric::{CountHistogram, Histogram};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

/// Maximum number of models with their own series.
const MODELS_MAX: usize = 256;
/// Maximum number of types of errors with their own series.
const ERRORS_MAX: usize = 64;
/// Maximum number of operations, and of providers.
const KINDS_MAX: usize = 16;

/// Boundaries of request durations, in the conventions' doubling steps.
const DURATION_BOUNDS: &[Duration] = &[
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
    Duration::from_millis(320),
    Duration::from_millis(640),
    Duration::from_millis(1_280),
    Duration::from_millis(2_560),
    Duration::from_millis(5_120),
    Duration::from_millis(10_240),
    Duration::from_millis(20_480),
    Duration::from_millis(40_960),
    Duration::from_millis(81_920),
];

const FIRST_TOKEN_BOUNDS: &[Duration] = &[
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(60),
    Duration::from_millis(80),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(750),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
    Duration::from_secs(5),
    Duration::from_millis(7_500),
    Duration::from_secs(10),
];

const OUTPUT_TOKEN_BOUNDS: &[Duration] = &[
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(75),
    Duration::from_millis(100),
    Duration::from_millis(150),
    Duration::from_millis(200),
    Duration::from_millis(300),
    Duration::from_millis(400),
    Duration::from_millis(500),
    Duration::from_millis(750),
    Duration::from_secs(1),
    Duration::from_millis(2_500),
];

/// Boundaries of token counts: powers of 4.
const TOKEN_BOUNDS: &[u64] =
    &[1, 4, 16, 64, 256, 1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576, 4_194_304, 16_777_216, 67_108_864];

/// Metrics of model requests.
#[derive(Debug)]
pub struct GenAiMetrics {
    duration: Family<Histogram, 5>,
    first_token: Family<Histogram, 4>,
    output_token: Family<Histogram, 4>,
    tokens: Family<CountHistogram, 5>,
    /// Series in use, so that a request finds its own without building their labels.
    series: RwLock<HashMap<ModelId, Vec<Arc<GenAiSeries>>>>,
}

/// Kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GenAiOperation {
    /// Value of `gen_ai.operation.name`.
    pub name: &'static str,
    /// Value of `gen_ai.provider.name`: the vendor of the API's format.
    pub provider: &'static str,
}

/// Series of requests with the same operation and models.
#[derive(Debug)]
pub struct GenAiSeries {
    operation: GenAiOperation,
    request_model: String,
    response_model: String,
    succeeded: Histogram,
    failed: Family<Histogram, 5>,
    first_token: Histogram,
    output_token: Histogram,
    input_tokens: CountHistogram,
    output_tokens: CountHistogram,
}

impl GenAiMetrics {
    pub fn new(registry: &Registry) -> Result<Self, RegisterError> {
        let label = |name, values_max| Label { name, values_max };
        let operation = label("gen_ai_operation_name", KINDS_MAX);
        let provider = label("gen_ai_provider_name", KINDS_MAX);
        let request = label("gen_ai_request_model", MODELS_MAX);
        let response = label("gen_ai_response_model", MODELS_MAX);
        let error = label("error_type", ERRORS_MAX);
        let token = label("gen_ai_token_type", 2);
        let of_model = [operation, provider, request, response];
        Ok(Self {
            duration: registry.histograms(
                metric_names::GEN_AI_SERVER_REQUEST_DURATION,
                [operation, provider, request, response, error],
                DURATION_BOUNDS,
            )?,
            first_token: registry.histograms(
                metric_names::GEN_AI_SERVER_TIME_TO_FIRST_TOKEN,
                of_model,
                FIRST_TOKEN_BOUNDS,
            )?,
            output_token: registry.histograms(
                metric_names::GEN_AI_SERVER_TIME_PER_OUTPUT_TOKEN,
                of_model,
                OUTPUT_TOKEN_BOUNDS,
            )?,
            tokens: registry.count_histograms(
                metric_names::GEN_AI_CLIENT_TOKEN_USAGE,
                [operation, provider, request, response, token],
                TOKEN_BOUNDS,
            )?,
            series: RwLock::default(),
        })
    }

    /// Returns the series of requests for `request_model` that `response_model` serves, whose id is `model`.
    pub fn series(
        &self,
        operation: GenAiOperation,
        model: ModelId,
        request_model: &str,
        response_model: &str,
    ) -> Arc<GenAiSeries> {
        let is_same = |series: &&Arc<GenAiSeries>| {
            series.operation == operation && series.request_model == request_model
        };
        let known = self.series.read().get(&model).and_then(|list| list.iter().find(is_same).cloned());
        if let Some(known) = known {
            return known;
        }
        let mut table = self.series.write();
        let list = table.entry(model).or_default();
        // Another request may have added it in the meantime.
        if let Some(known) = list.iter().find(is_same) {
            return known.clone();
        }
        let series = Arc::new(self.new_series(operation, request_model, response_model));
        list.push(series.clone());
        series
    }

    fn new_series(
        &self,
        operation: GenAiOperation,
        request_model: &str,
        response_model: &str,
    ) -> GenAiSeries {
        let GenAiOperation { name, provider } = operation;
        let labels = [name, provider, request_model, response_model];
        let tokens = |kind| self.tokens.with([name, provider, request_model, response_model, kind]);
        GenAiSeries {
            operation,
            request_model: request_model.to_owned(),
            response_model: response_model.to_owned(),
            // To Prometheus, an empty label is a missing one, and without `error.type` the request succeeded.
            succeeded: self.duration.with([name, provider, request_model, response_model, ""]),
            failed: self.duration.clone(),
            first_token: self.first_token.with(labels),
            output_token: self.output_token.with(labels),
            input_tokens: tokens("input"),
            output_tokens: tokens("output"),
        }
    }
}

impl GenAiSeries {
    /// Records the duration of a successful request.
    pub fn record_success(&self, duration: Duration) {
        self.succeeded.record(duration);
    }

    /// Records the duration of a failed request.
    pub fn record_failure(&self, duration: Duration, error_type: &str) {
        let GenAiOperation { name, provider } = self.operation;
        let labels = [name, provider, &self.request_model, &self.response_model, error_type];
        self.failed.with(labels).record(duration);
    }

    /// Records the first token of a successful stream.
    pub fn record_first_token(&self, after: Duration) {
        self.first_token.record(after);
    }

    /// Records the mean time per output token after the first.
    pub fn record_output_token(&self, time: Duration) {
        self.output_token.record(time);
    }

    /// Records the tokens that the engine reported; an operation without output has only input tokens.
    pub fn record_tokens(&self, input: u64, output: Option<u64>) {
        self.input_tokens.record(input);
        if let Some(output) = output {
            self.output_tokens.record(output);
        }
    }
}
