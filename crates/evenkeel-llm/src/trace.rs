//! One request's trace: a span from its arrival to its last byte, and one within it for each node that was asked.
//!
//! Bound: a request that is not traced carries an empty pointer, and costs a comparison where something could be told.

use std::sync::Arc;

use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::tenant::Tenant;
use evenkeel_telemetry::trace::{Span, SpanKind, TraceParent, Tracer};
use http::{HeaderMap, HeaderValue, StatusCode, Uri};

use crate::error::AttemptError;
use crate::node_registry::Node;
use crate::request::{Endpoint, LlmRequest, ResponseMode};
use crate::usage::Usage;
use evenkeel_scheduler::SlotGuard;

/// Names the trace that a request belongs to.
pub(crate) const TRACEPARENT: &str = "traceparent";

/// A request's trace, if it is traced; dropped, it has ended.
#[derive(Default)]
pub(crate) struct RequestTrace(Option<Box<OpenSpans>>);

struct OpenSpans {
    tracer: Arc<Tracer>,
    /// `None` once it has ended.
    request: Option<Span>,
    /// The node that is being asked.
    attempt: Option<Span>,
    attempts: u64,
    waited: Duration,
    ending: &'static str,
}

impl RequestTrace {
    /// Begins with a request's arrival.
    pub(crate) fn begin(
        tracer: Option<&Arc<Tracer>>,
        endpoint: Endpoint,
        (uri, headers): (&Uri, &HeaderMap),
        id: &HeaderValue,
    ) -> Self {
        let Some(tracer) = tracer else { return Self(None) };
        let parent = parent(headers);
        let Some(context) = tracer.context(parent) else { return Self(None) };
        let route = endpoint.route();
        let mut request = Span::begin(context, SpanKind::Server, format!("POST {route}"));
        request.set("http.request.method", "POST");
        request.set("http.route", route);
        request.set("url.path", uri.path().to_owned());
        request.set("gen_ai.operation.name", endpoint.operation());
        request.set("evenkeel.request_id", id.to_str().unwrap_or_default().to_owned());
        Self(Some(Box::new(OpenSpans {
            tracer: tracer.clone(),
            request: Some(request),
            attempt: None,
            attempts: 0,
            waited: Duration::ZERO,
            // Unless somebody says otherwise.
            ending: "cancelled",
        })))
    }

    /// Tells who asks for what.
    pub(crate) fn ask(&mut self, tenant: &Tenant, ask: &LlmRequest) {
        let Some(request) = self.request() else { return };
        request.set("evenkeel.tenant", tenant.settings.name.clone());
        request.set("gen_ai.request.model", ask.model.clone());
        request.set("evenkeel.stream", ask.delivery == ResponseMode::Stream);
        request.add_event("queued", vec![("evenkeel.input_tokens_estimate", ask.input_tokens.into())]);
    }

    /// Tells that a node is asked.
    pub(crate) fn sent(&mut self, slot: &SlotGuard, node: &Node) {
        let Some(live) = &mut self.0 else { return };
        let Some(request) = &mut live.request else { return };
        live.attempts += 1;
        live.waited = slot.waited();
        let mut attempt = Span::begin(live.tracer.child(request.context), SpanKind::Client, "attempt");
        let name = node.options.name.clone();
        let url = node.origin(slot.path()).to_string();
        let told = vec![
            ("evenkeel.node", name.clone().into()),
            ("evenkeel.queue_wait_ms", millis(live.waited).into()),
        ];
        request.add_event("dispatched", told);
        attempt.set("evenkeel.node", name);
        attempt.set("evenkeel.path", url);
        attempt.set("evenkeel.attempt", live.attempts);
        live.attempt = Some(attempt);
    }

    /// What the node is told of the trace.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let attempt = self.0.as_ref()?.attempt.as_ref()?;
        HeaderValue::from_str(&attempt.context.to_string()).ok()
    }

    /// Tells that the node did not serve the request.
    pub(crate) fn failed(&mut self, trouble: &AttemptError) {
        let Some(live) = &mut self.0 else { return };
        if let Some(mut attempt) = live.attempt.take() {
            attempt.error = Some(trouble.to_string());
            live.tracer.end(attempt);
        }
        if let Some(request) = &mut live.request {
            request.add_event("failed", vec![("error.message", trouble.to_string().into())]);
        }
    }

    /// Tells that the node has begun to answer.
    pub(crate) fn answered(&mut self, status: StatusCode) {
        let Some(live) = &mut self.0 else { return };
        for span in live.request.iter_mut().chain(&mut live.attempt) {
            span.set("http.response.status_code", u64::from(status.as_u16()));
        }
        if let Some(request) = &mut live.request {
            request.add_event("first_byte", Vec::new());
        }
    }

    /// Tells that the request was not served.
    pub(crate) fn refused(&mut self, refusal: &ApiError, waited: Duration) {
        let Some(live) = &mut self.0 else { return };
        (live.ending, live.waited) = ("refused", waited);
        let Some(request) = &mut live.request else { return };
        let status = refusal.status();
        request.set("http.response.status_code", u64::from(status.as_u16()));
        request.set("error.type", refusal.code());
        if status.is_server_error() {
            request.error = Some(refusal.to_string());
        }
    }

    /// Tells that all of the answer was passed on.
    pub(crate) fn served(&mut self) {
        if let Some(live) = &mut self.0 {
            live.ending = "served";
        }
    }

    /// Tells that the answer broke off.
    pub(crate) fn broken(&mut self, trouble: &AttemptError) {
        let Some(live) = &mut self.0 else { return };
        live.ending = "broken";
        for span in live.request.iter_mut().chain(&mut live.attempt) {
            span.error = Some(trouble.to_string());
        }
    }

    /// Tells what it took.
    pub(crate) fn used(&mut self, usage: Usage) {
        let Some(request) = self.request() else { return };
        request.set("gen_ai.usage.input_tokens", usage.input);
        request.set("gen_ai.usage.output_tokens", usage.output);
    }

    fn request(&mut self) -> Option<&mut Span> {
        self.0.as_mut()?.request.as_mut()
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
            request.set("evenkeel.ending", self.ending);
            self.tracer.end(request);
        }
    }
}

/// Reads what the client says of its trace; two that differ say nothing.
fn parent(headers: &HeaderMap) -> Option<TraceParent> {
    let mut given = headers.get_all(TRACEPARENT).iter();
    let parent = TraceParent::parse(given.next()?.as_bytes());
    parent.filter(|_| given.next().is_none())
}

fn millis(span: Duration) -> u64 {
    span.as_millis() as u64
}
