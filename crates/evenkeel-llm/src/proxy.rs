//! Proxies one request: accept, admit, queue, send to a node, fail over until the first byte, respond.
//!
//! [`ProxyRequest`] is the context of one request; its handler owns it from the arrival to the response head.
//!
//! Guarantees: a request is sent to another node only before the first byte of its response. A node that takes longer
//! than `first_byte_max` (time to first byte) over a streamed response has failed. Dropping the handler cancels the
//! request and releases its slot. If the model cannot serve the request, its fallbacks are tried in the same way
//! (`model_chain.rs`).

use core::mem;
use core::time::Duration;
use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_pipeline::{Arrival, ModelId, NoRetryReason, Priority, Rejection};
use evenkeel_policy::score;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::body_budget::BodyPermit;
use evenkeel_server::received_body::ReceivedBody;
use evenkeel_server::route::{FailedRequest, ServerRequest};
use evenkeel_server::scheduling::rejection_error;
use evenkeel_server::sending::ReadAhead;
use evenkeel_server::tenant::{Caller, Tenant};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderValue, Request};
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::LlmApi;
use crate::deadline::ClientDeadlines;
use crate::error::AttemptError;
use crate::error_format::{self, ANTHROPIC_ID};
use crate::forwarding::{exact_output_tokens, is_known_path};
use crate::headers::{self, MODEL, QUEUE_WAIT_MS, REQUEST_ID};
use crate::model_chain::{ChainModel, ModelChain};
use crate::node_registry::Node;
use crate::node_response::NodeResponse;
use crate::request::{Endpoint, IncludeUsage, LlmRequest, ResponseMode};
use crate::response_check::ExpectedBody;
use crate::tenant_flow::FlowHeaders;
use crate::token_reservation::TokenReservation;
use crate::trace::{RequestTrace, TRACEPARENT};
use evenkeel_scheduler::{SlotFuture, SlotGuard, WaitRejection};
use evenkeel_telemetry::{RequestName, Step};
use evenkeel_upstream::HeaderFilter;

/// Longest time a job is queued; it is then returned to its message queue, so that jobs for other models can run.
const JOB_WAIT_MAX: Duration = Duration::from_mins(1);
/// The header in which Anthropic's servers expect the API key.
const X_API_KEY: &str = "x-api-key";

/// Context of one request, from its arrival to its response head.
pub(crate) struct ProxyRequest {
    pub(crate) llm: Arc<LlmApi>,
    pub(crate) endpoint: Endpoint,
    pub(crate) id: HeaderValue,
    pub(crate) priority: Priority,
    pub(crate) on_dispatch: Option<DispatchListener>,
    /// Time spent queued, over all attempts and models.
    pub(crate) waited: Duration,
    pub(crate) trace: RequestTrace,
}

/// Callback for each attempt, with the node's name and URL.
pub(crate) type DispatchListener = Box<dyn Fn(&str, &str) + Send + Sync>;

/// An accepted request: authenticated, read and parsed.
pub(crate) struct AcceptedRequest {
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) request: LlmRequest,
    pub(crate) body: Bytes,
    /// Counts the body in the server's budget; `None` for jobs, which the queue counts.
    pub(crate) permit: Option<BodyPermit>,
    /// Permission to read a streamed response ahead, so that a slow client does not hold the slot.
    pub(crate) read_ahead: Option<ReadAhead>,
    pub(crate) deadline: ClientDeadlines,
    /// Class and session that the headers name.
    pub(crate) flow: FlowHeaders,
}

/// Handles a request for a model.
pub(crate) async fn proxy(
    llm: Arc<LlmApi>,
    endpoint: Endpoint,
    call: ServerRequest,
) -> Result<Response, ApiError> {
    let id = call.request_id.clone();
    let path = call.request.uri().path();
    let tracer = llm.scheduler.observer().tracer();
    let trace = RequestTrace::begin(tracer, endpoint, path, call.request.headers(), &id);
    let priority = Priority::Interactive;
    let mut request =
        ProxyRequest { llm, endpoint, id, priority, on_dispatch: None, waited: Duration::ZERO, trace };
    let result = match request.accept(call).await {
        Ok((head, accepted)) => request.serve(head, accepted).await,
        Err(error) => Err(error),
    };
    Ok(request.respond(result))
}

impl ProxyRequest {
    /// Reads and parses the body of an authenticated request.
    async fn accept(&self, mut call: ServerRequest) -> Result<(Parts, AcceptedRequest), ApiError> {
        let Caller::Tenant(tenant) = call.caller.clone() else { return Err(ApiError::Internal) };
        if self.llm.is_draining() {
            return Err(ApiError::Draining);
        }
        self.check_route(call.request.uri().path())?;
        let deadline = ClientDeadlines::from_headers(call.request.headers(), Instant::now)?;
        let flow = FlowHeaders::read(call.request.headers())?;
        let ReceivedBody { bytes: body, permit } = call.read_body().await?;
        let permit = Some(permit);
        let read_ahead = Some(call.read_ahead());
        let (head, _) = call.request.into_parts();
        let may_be_form = matches!(self.endpoint, Endpoint::Transcription | Endpoint::Other);
        let form = head.headers.get(CONTENT_TYPE).filter(|_| may_be_form);
        let mut request = match form.and_then(|kind| LlmRequest::parse_form(kind.as_bytes(), &body)) {
            Some(parsed) => parsed?,
            None => LlmRequest::parse(self.endpoint, &body)?,
        };
        if self.endpoint == Endpoint::Other {
            request.output_tokens_exact = exact_output_tokens(head.uri.path(), request.choices);
        }
        Ok((head, AcceptedRequest { tenant, request, body, permit, read_ahead, deadline, flow }))
    }

    /// Rejects a path that no node accepts.
    fn check_route(&self, path: &str) -> Result<(), ApiError> {
        if self.endpoint == Endpoint::Other {
            check_path(path)?;
        }
        let is_accepted = self.extra_path(path).is_none_or(|path| self.llm.nodes.any_accepts(path));
        if is_accepted { Ok(()) } else { Err(ApiError::NoRoute) }
    }

    /// Returns the path if nodes accept it only with their consent.
    fn extra_path<'a>(&self, path: &'a str) -> Option<&'a str> {
        Some(path).filter(|path| self.endpoint == Endpoint::Other && !is_known_path(path))
    }

    /// Serves an accepted request: by the model that it names, or else by a fallback of that.
    pub(crate) async fn serve(
        &mut self,
        head: Parts,
        mut accepted: AcceptedRequest,
    ) -> Result<Response, ApiError> {
        // Held until the first byte of the response: until then the body may be sent to another node.
        let _permit = accepted.permit.take();
        let mut models = self.admit(&accepted, head.uri.path())?;
        let mut outgoing = OutgoingRequest::new(head, &self.llm);
        loop {
            let model = models.model();
            outgoing.set_body(&accepted, model, &self.llm);
            match self.serve_by(&models, &accepted, &outgoing).await {
                Ok(mut response) => {
                    let name = model.renamed.as_ref().and_then(|name| HeaderValue::from_str(name).ok());
                    response.headers_mut().extend(name.map(|name| (MODEL, name)));
                    return Ok(response);
                }
                Err(Unserved::Error(error)) => return Err(error),
                Err(Unserved::Rejected(rejection)) => {
                    let id = model.id;
                    if !models.fall_back(&self.llm, accepted.tenant.id, &rejection) {
                        return Err(self.rejection_error(&rejection, &accepted.request, id));
                    }
                }
            }
        }
    }

    /// Checks that the tenant may use the model and that a node serves it or a fallback.
    fn admit(&mut self, accepted: &AcceptedRequest, path: &str) -> Result<ModelChain, ApiError> {
        let AcceptedRequest { tenant, request, .. } = accepted;
        self.trace.accepted(tenant, request);
        let models = ModelChain::select(&self.llm, tenant, request, self.extra_path(path))?;
        models.ok_or_else(|| self.unknown_model(&request.model))
    }

    /// Serves a request by the current model: queues it, then sends it to nodes until one of them responds.
    async fn serve_by(
        &mut self,
        models: &ModelChain,
        accepted: &AcceptedRequest,
        outgoing: &OutgoingRequest,
    ) -> Result<Response, Unserved> {
        let AcceptedRequest { tenant, request, deadline, read_ahead, .. } = accepted;
        self.trace.model_chosen(&self.llm, self.endpoint, request, models.model());
        let mut reservation =
            TokenReservation::reserve(&self.llm, tenant, models.model().id, request, self.name())?;
        let waited_before = self.waited;
        let mut queued = self.enqueue(accepted, models, &reservation);
        loop {
            let slot = queued.await.map_err(|rejected| self.reject(&rejected, waited_before))?;
            self.waited = waited_before + slot.waited();
            let attempt = self.send_attempt(&slot, outgoing, request);
            let result = match deadline.respond_by {
                // A client's deadline does not count against the node: the slot is released as after a disconnect.
                Some(at) => timeout_at(at, attempt).await.map_err(|_| ApiError::UpstreamTimeout)?,
                None => attempt.await,
            };
            match result {
                Ok(response) => {
                    reservation.trace = mem::take(&mut self.trace);
                    return Ok(response.into_response(slot, reservation, self.endpoint, read_ahead.clone()));
                }
                Err(error) => {
                    self.trace.attempt_failed(&error);
                    queued = match (slot.fail(error.failure(), reservation.input_cost()), error) {
                        (Ok(queued), _) => queued,
                        (Err(rejected), AttemptError::Refused(refusal)) if is_refused_twice(&rejected) => {
                            self.waited = waited_before + rejected.waited;
                            return Ok(refusal.into_response());
                        }
                        (Err(rejected), _) => return Err(self.reject(&rejected, waited_before)),
                    };
                }
            }
        }
    }

    /// Submits the request to the scheduler.
    fn enqueue(
        &self,
        accepted: &AcceptedRequest,
        models: &ModelChain,
        reservation: &TokenReservation,
    ) -> SlotFuture {
        let AcceptedRequest { tenant, request, deadline, flow, .. } = accepted;
        let ChainModel { id, renamed } = models.model();
        let arrival = Arrival {
            tenant: tenant.id,
            model: *id,
            cost: reservation.estimated_cost(),
            upfront: match request.mode {
                ResponseMode::Stream => reservation.input_cost(),
                // The progress of a non-streamed response is unknown until it ends.
                ResponseMode::NonStreaming => reservation.estimated_cost(),
            },
            affinity: request.affinity(renamed.as_deref().unwrap_or(&request.model)),
            deadline: match self.priority {
                Priority::Interactive => self.queue_timeout(deadline),
                Priority::Background => Some(JOB_WAIT_MAX),
            },
            request: score::RequestKind::Infer,
            priority: self.priority,
            flow: flow.flow(tenant, request),
            outage: models.outage_rule(),
        };
        let scheduler = &self.llm.scheduler;
        let earlier = models.fallback().map(|reason| {
            let fallback = scheduler.outside_id();
            scheduler.record_outside(fallback, tenant.id, self.name(), Step::FellBack { to: *id, reason });
            fallback
        });
        scheduler.submit(arrival, RequestName { earlier, ..self.name() })
    }

    /// Returns how long the request may be queued, or `None` for the default; earlier models have used a part of it.
    fn queue_timeout(&self, deadline: &ClientDeadlines) -> Option<Duration> {
        let left = self.llm.wait_max.saturating_sub(self.waited);
        deadline.queue_timeout(Instant::now, left).or(Some(left).filter(|left| *left < self.llm.wait_max))
    }

    fn name(&self) -> RequestName<'_> {
        RequestName { client_id: self.id.as_bytes(), earlier: None }
    }

    /// Sends the request to the node that granted the slot, and waits for the first byte of the response.
    async fn send_attempt(
        &mut self,
        slot: &SlotGuard,
        outgoing: &OutgoingRequest,
        request: &LlmRequest,
    ) -> Result<NodeResponse, AttemptError> {
        let node = self.llm.nodes.get(slot.node()).ok_or(AttemptError::NodeRemoved)?;
        let outgoing = outgoing.for_node(&node);
        let usage = if node.options.inject_stream_options { request.usage } else { IncludeUsage::Requested };
        // The node may have been added after the request was accepted.
        let path = outgoing.uri().path();
        if self.endpoint == Endpoint::Other && !is_known_path(path) && !node.accepts(path) {
            return Err(AttemptError::NodeRemoved);
        }
        let origin = node.origin(slot.path());
        if let Some(on_dispatch) = &self.on_dispatch {
            on_dispatch(&node.options.name, &origin.to_string());
        }
        self.trace.attempt_started(slot, &node);
        let exchange = async {
            let authorization = node.authorization();
            let trace = self.trace.header();
            let key = authorization.filter(|_| self.endpoint.is_anthropic()).and_then(bare_key);
            let mut add = [(REQUEST_ID, &self.id); 4];
            let mut count = 1;
            let others = [
                authorization.map(|value| (AUTHORIZATION.as_str(), value)),
                key.as_ref().map(|value| (X_API_KEY, value)),
                trace.as_ref().map(|value| (TRACEPARENT, value)),
            ];
            for other in others.into_iter().flatten() {
                add[count] = other;
                count += 1;
            }
            let filter = HeaderFilter { keep: headers::is_for_nodes, add: &add[..count] };
            let response = self.llm.upstream.send_filtered(origin, &outgoing, filter).await?;
            let metrics = self.llm.scheduler.observer().metrics();
            metrics.record_response(slot.node(), response.status().as_u16());
            let expected = ExpectedBody::of(self.endpoint, path);
            NodeResponse::begin(response, self.endpoint, expected, request.mode, usage).await
        };
        let result = match (request.mode, self.llm.first_byte_max) {
            (ResponseMode::Stream, Some(max)) => {
                timeout(max, exchange).await.unwrap_or(Err(AttemptError::FirstByteTimeout))
            }
            // A non-streamed response sends its first byte when generation is complete.
            (ResponseMode::Stream | ResponseMode::NonStreaming, _) => exchange.await,
        };
        result.inspect_err(|error| {
            let request_id = self.id.to_str().unwrap_or_default();
            let node = node.options.name.as_str();
            match error {
                // Not a warning: an overloaded pool would flood the log, and its events and metrics show the overload.
                AttemptError::Busy { .. } | AttemptError::Refused(_) => {
                    tracing::debug!(request_id, node, %error, "attempt failed");
                }
                _ => tracing::warn!(request_id, node, %error, "attempt failed"),
            }
        })
    }

    /// Turns a result into a response with the headers that every response has.
    fn respond(&mut self, result: Result<Response, ApiError>) -> Response {
        let mut response = result.unwrap_or_else(|error| {
            self.trace.rejected(&error, self.waited);
            let failed = FailedRequest { id: self.id.clone(), is_form: false };
            error_format::for_endpoint(self.endpoint)(error, &failed)
        });
        let millis = match self.waited.as_millis() as u64 {
            0 => HeaderValue::from_static("0"),
            millis => HeaderValue::from(millis),
        };
        response.headers_mut().insert(QUEUE_WAIT_MS, millis);
        if self.endpoint.is_anthropic() {
            response.headers_mut().insert(ANTHROPIC_ID, self.id.clone());
        }
        response
    }

    /// Returns the error for a model that no node serves; a job waits until every node has models.
    fn unknown_model(&self, model: &str) -> ApiError {
        match self.priority {
            Priority::Background if self.llm.nodes.has_node_without_models() => ApiError::Unready,
            Priority::Background | Priority::Interactive => self.llm.unknown_model(model),
        }
    }

    /// Records how long a rejected request was queued.
    fn reject(&mut self, rejected: &WaitRejection, waited_before: Duration) -> Unserved {
        self.waited = waited_before + rejected.waited;
        Unserved::Rejected(rejected.rejection)
    }

    /// Returns the error for a request that the pipeline rejected.
    fn rejection_error(&self, rejection: &Rejection, request: &LlmRequest, model: ModelId) -> ApiError {
        // Nodes have served this model before. They may be drained or removed only for a while, so the job is retried.
        if self.priority == Priority::Background && matches!(rejection, Rejection::NoNode { .. }) {
            return ApiError::Unready;
        }
        if let Rejection::Outage { retry_after } = *rejection {
            return ApiError::Unavailable { message: self.outage_message(request, model), retry_after };
        }
        let waiting = self.llm.scheduler.inspect(|pipeline| pipeline.waiting(model));
        let no_node = match self.llm.nodes.is_listed(model) {
            // Its nodes are drained.
            true => ApiError::unavailable(format!("every node of model {:?} is draining", request.model)),
            false => ApiError::NoModel { model: request.model.clone() },
        };
        rejection_error(rejection, waiting, no_node)
    }

    fn outage_message(&self, request: &LlmRequest, model: ModelId) -> String {
        let causes = join_causes(&self.llm.nodes.health_errors(model));
        let detail = if causes.is_empty() { "connections fail".to_owned() } else { causes };
        format!("no node of model {:?} can be reached: {detail}", request.model)
    }
}

/// Joins the names of unhealthy nodes and the causes for a message.
pub(crate) fn join_causes(causes: &[(String, String)]) -> String {
    let causes = causes.iter().map(|(node, error)| format!("node {node:?}: {error}"));
    causes.collect::<Vec<_>>().join("; ")
}

/// Reason why a model did not serve a request.
enum Unserved {
    /// The pipeline rejected it; another model may serve it.
    Rejected(Rejection),
    Error(ApiError),
}

impl From<ApiError> for Unserved {
    fn from(error: ApiError) -> Self {
        Self::Error(error)
    }
}

fn is_refused_twice(rejected: &WaitRejection) -> bool {
    matches!(rejected.rejection, Rejection::Failed { no_retry: NoRetryReason::RefusedTwice, .. })
}

/// Rejects a path that another parser could resolve to one outside `/v1`.
fn check_path(path: &str) -> Result<(), ApiError> {
    let is_dots = |part: &str| {
        let plain = part.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    };
    let odd = path.contains("//") || path.contains('\\') || path.to_ascii_lowercase().contains("%2f");
    if odd || path.split('/').any(is_dots) { Err(ApiError::NoRoute) } else { Ok(()) }
}

/// The request that every attempt sends; [`HeaderFilter`] removes and adds headers per node.
struct OutgoingRequest {
    request: Request<Bytes>,
    /// The body for nodes that get no `include_usage`, if there are any and `request` has it.
    without_usage: Option<Bytes>,
}

impl OutgoingRequest {
    fn new(mut head: Parts, llm: &LlmApi) -> Self {
        headers::remove_connection_headers(&mut head.headers);
        llm.pass.filter_headers(&mut head.headers);
        head.uri = llm.pass.filter_query(head.uri);
        Self { request: Request::from_parts(head, Bytes::new()), without_usage: None }
    }

    /// Sets the body for a model.
    fn set_body(&mut self, accepted: &AcceptedRequest, model: &ChainModel, llm: &LlmApi) {
        let AcceptedRequest { request, body, .. } = accepted;
        let name = model.renamed.as_deref();
        let needs_both = request.adds_usage() && !llm.nodes.all_inject_stream_options();
        *self.request.body_mut() = request.forwarded(body, name);
        self.without_usage = needs_both.then(|| request.forwarded_without_usage(body, name));
    }

    fn for_node(&self, node: &Node) -> Cow<'_, Request<Bytes>> {
        match &self.without_usage {
            Some(body) if !node.options.inject_stream_options => {
                let mut request = self.request.clone();
                *request.body_mut() = body.clone();
                Cow::Owned(request)
            }
            Some(_) | None => Cow::Borrowed(&self.request),
        }
    }
}

/// Returns a node's API key without `Bearer`, as Anthropic's servers expect it.
fn bare_key(authorization: &HeaderValue) -> Option<HeaderValue> {
    let mut key = HeaderValue::from_bytes(authorization.as_bytes().strip_prefix(b"Bearer ")?).ok()?;
    key.set_sensitive(true);
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_stays_within_v1() {
        for path in ["/v1/rerank", "/v1/audio/speech", "/v1/a.b/c..d", "/v1/engines/a%20b"] {
            assert_eq!(check_path(path), Ok(()), "{path}");
        }
        for path in
            ["/v1/../metrics", "/v1/%2e%2E/x", "/v1/./x", "/v1//x", "/v1/a%2fb", "/v1/..", r"/v1/..\x"]
        {
            assert_eq!(check_path(path), Err(ApiError::NoRoute), "{path}");
        }
    }
}
