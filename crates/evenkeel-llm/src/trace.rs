//! Trace and metrics of one request: a span from its arrival to its last byte, with a child span per attempt.
//!
//! Guarantees: for a request that is not sampled, the spans are a null pointer and each event costs one comparison.

use core::mem;
use std::sync::Arc;

use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use evenkeel_telemetry::GenAiOperation;
use evenkeel_telemetry::trace::{Span, SpanKind, TraceParent, Tracer};
use http::{HeaderMap, HeaderValue, StatusCode};

use crate::api::LlmApi;
use crate::error::AttemptError;
use crate::model_chain::ChainModel;
use crate::node_registry::Node;
use crate::request::{Endpoint, LlmRequest, ResponseMode};
use crate::request_metrics::RequestMetrics;
use crate::usage::Usage;
use evenkeel_scheduler::SlotGuard;

/// The header of the W3C trace context.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// Trace of a request, if it is sampled, and its metrics. Dropping it ends its spans and records the metrics.
#[derive(Default)]
pub(crate) struct RequestTrace {
    spans: Option<Box<OpenSpans>>,
    metrics: RequestMetrics,
}

struct OpenSpans {
    tracer: Arc<Tracer>,
    /// `None` once it has ended.
    request: Option<Span>,
    /// The current attempt.
    attempt: Option<Span>,
    attempts: u64,
    /// Name of the model that is to serve the request; empty if it named no known model.
    model: String,
    waited: Duration,
    outcome: &'static str,
}

impl RequestTrace {
    /// Starts the request's span on its arrival.
    pub(crate) fn begin(
        tracer: Option<&Arc<Tracer>>,
        endpoint: Endpoint,
        path: &str,
        headers: &HeaderMap,
        id: &HeaderValue,
    ) -> Self {
        let metrics = RequestMetrics::default();
        let context = tracer.and_then(|tracer| Some((tracer, tracer.context(parent(headers))?)));
        let Some((tracer, context)) = context else { return Self { spans: None, metrics } };
        let route = endpoint.route();
        let mut request = Span::begin(context, SpanKind::Server, format!("POST {route}"));
        request.set("http.request.method", "POST");
        request.set("http.route", route);
        request.set("url.path", path.to_owned());
        request.set("gen_ai.operation.name", endpoint.operation());
        request.set("evenkeel.request_id", id.to_str().unwrap_or_default().to_owned());
        let spans = Some(Box::new(OpenSpans {
            tracer: tracer.clone(),
            request: Some(request),
            attempt: None,
            attempts: 0,
            model: String::new(),
            waited: Duration::ZERO,
            // The outcome of a request that is dropped; every other end overwrites it.
            outcome: "cancelled",
        }));
        Self { spans, metrics }
    }

    pub(crate) fn accepted(&mut self, tenant: &Tenant, request: &LlmRequest) {
        let Some(span) = self.request_span() else { return };
        span.set("evenkeel.tenant", tenant.settings.name.clone());
        span.set("gen_ai.request.model", request.model.clone());
        span.set("evenkeel.stream", request.mode == ResponseMode::Stream);
        span.add_event("queued", vec![("evenkeel.input_tokens_estimate", request.input_tokens.into())]);
    }

    /// Records the model that is to serve the request, under the name that nodes know.
    pub(crate) fn model_chosen(
        &mut self,
        llm: &LlmApi,
        endpoint: Endpoint,
        request: &LlmRequest,
        model: &ChainModel,
    ) {
        let name = model.renamed.as_deref().unwrap_or(&request.model);
        if let Some(metrics) = llm.scheduler.observer().gen_ai() {
            let provider = if endpoint.is_anthropic() { "anthropic" } else { "openai" };
            let operation = GenAiOperation { name: endpoint.operation(), provider };
            let series = metrics.series(operation, model.id, &request.model, name);
            self.metrics.set_series(series, request.mode);
        }
        if let Some(open) = &mut self.spans {
            name.clone_into(&mut open.model);
        }
    }

    pub(crate) fn attempt_started(&mut self, slot: &SlotGuard, node: &Node) {
        let Some(open) = &mut self.spans else { return };
        let Some(request) = &mut open.request else { return };
        open.attempts += 1;
        open.waited = slot.waited();
        let mut attempt = Span::begin(open.tracer.child(request.context), SpanKind::Client, "attempt");
        let name = node.options.name.clone();
        let url = node.origin(slot.path()).to_string();
        let attributes = vec![
            ("evenkeel.node", name.clone().into()),
            ("evenkeel.queue_wait_ms", millis(open.waited).into()),
        ];
        request.add_event("dispatched", attributes);
        attempt.set("evenkeel.node", name);
        attempt.set("evenkeel.path", url);
        attempt.set("evenkeel.attempt", open.attempts);
        open.attempt = Some(attempt);
    }

    /// Returns the `traceparent` header for the current attempt.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let attempt = self.spans.as_ref()?.attempt.as_ref()?;
        HeaderValue::from_str(&attempt.context.to_string()).ok()
    }

    pub(crate) fn attempt_failed(&mut self, error: &AttemptError) {
        let Some(open) = &mut self.spans else { return };
        if let Some(mut attempt) = open.attempt.take() {
            attempt.error = Some(error.to_string());
            open.tracer.end(attempt);
        }
        if let Some(request) = &mut open.request {
            request.add_event("failed", vec![("error.message", error.to_string().into())]);
        }
    }

    pub(crate) fn first_byte(&mut self, status: StatusCode) {
        self.metrics.first_byte(status);
        let Some(open) = &mut self.spans else { return };
        for span in open.request.iter_mut().chain(&mut open.attempt) {
            span.set("http.response.status_code", u64::from(status.as_u16()));
        }
        if let Some(request) = &mut open.request {
            request.add_event("first_byte", Vec::new());
        }
    }

    pub(crate) fn rejected(&mut self, error: &ApiError, waited: Duration) {
        self.metrics.rejected(error);
        let Some(open) = &mut self.spans else { return };
        open.outcome = "refused";
        open.waited = waited;
        let Some(request) = &mut open.request else { return };
        let status = error.status();
        request.set("http.response.status_code", u64::from(status.as_u16()));
        request.set("error.type", error.code());
        if status.is_server_error() {
            request.error = Some(error.to_string());
        }
    }

    /// Records that the whole response was received from the node, with the usage that it reports.
    pub(crate) fn served(&mut self, reported: Option<Usage>) {
        self.metrics.served(reported);
        if let Some(open) = &mut self.spans {
            open.outcome = "served";
        }
    }

    pub(crate) fn failed_mid_stream(&mut self, error: &AttemptError) {
        self.metrics.failed_mid_stream(error);
        let Some(open) = &mut self.spans else { return };
        open.outcome = "failed_mid_stream";
        for span in open.request.iter_mut().chain(&mut open.attempt) {
            span.error = Some(error.to_string());
        }
    }

    pub(crate) fn set_usage(&mut self, usage: Usage) {
        let Some(request) = self.request_span() else { return };
        request.set("gen_ai.usage.input_tokens", usage.input);
        request.set("gen_ai.usage.output_tokens", usage.output);
    }

    fn request_span(&mut self) -> Option<&mut Span> {
        self.spans.as_mut()?.request.as_mut()
    }
}

impl Drop for OpenSpans {
    fn drop(&mut self) {
        if let Some(attempt) = self.attempt.take() {
            self.tracer.end(attempt);
        }
        if let Some(mut request) = self.request.take() {
            request.set("evenkeel.queue_wait_ms", millis(self.waited));
            request.set("evenkeel.attempts", self.attempts);
            if !self.model.is_empty() {
                request.set("gen_ai.response.model", mem::take(&mut self.model));
            }
            request.set("evenkeel.outcome", self.outcome);
            self.tracer.end(request);
        }
    }
}

/// Reads the client's trace context; more than one `traceparent` counts as none.
fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut given = headers.get_all(TRACEPARENT).iter();
    let parent = TraceParent::parse(given.next()?.as_bytes());
    parent.filter(|_| given.next().is_none())
}

fn millis(duration: Duration) -> u64 {
    duration.as_millis() as u64
}
