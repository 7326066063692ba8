//! One request's way: read, let in, sent to a node, to another if that fails before its answer began, and answered.

use core::mem;
use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_pipeline::{Arrival, ModelId, Priority, Rejection};
use evenkeel_policy::score;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use evenkeel_server::tenant::{Caller, Tenant};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request};
use tokio::time::{Instant, timeout, timeout_at};

use crate::api::LlmApi;
use crate::deadline::Deadline;
use crate::error::{self, AttemptError};
use crate::error_format::{self, ANTHROPIC_ID};
use crate::headers::{self, QUEUE_WAIT_MS, REQUEST_ID};
use crate::node_response::NodeResponse;
use crate::request::{Endpoint, LlmRequest, ResponseMode};
use crate::token_reservation::TokenReservation;
use crate::trace::{RequestTrace, TRACEPARENT};
use crate::usage::Usage;
use evenkeel_scheduler::{SlotGuard, WaitRejection};
use evenkeel_upstream::HeaderFilter;

/// How long a job waits for a slot before it is handed back, and another has its place: one of another model, maybe.
const JOB_WAIT_MAX: Duration = Duration::from_mins(1);
/// Where Anthropic's servers look for a key.
const X_API_KEY: &str = "x-api-key";

/// Answers a request for a model.
pub(crate) async fn proxy(
    llm: Arc<LlmApi>,
    endpoint: Endpoint,
    call: ServerRequest,
) -> Result<Response, ApiError> {
    let request_id = call.request_id.clone();
    let mut waited = Duration::ZERO;
    let mut trace = {
        let head = (call.request.uri(), call.request.headers());
        RequestTrace::begin(llm.walk.watch().tracer(), endpoint, head, &request_id)
    };
    let answer = handle(llm, endpoint, call, &mut waited, &mut trace).await;
    let mut response = answer.unwrap_or_else(|refusal| {
        trace.refused(&refusal, waited);
        error_format::of(endpoint)(refusal, &request_id)
    });
    let millis = match waited.as_millis() as u64 {
        0 => HeaderValue::from_static("0"),
        millis => HeaderValue::from(millis),
    };
    response.headers_mut().insert(QUEUE_WAIT_MS, millis);
    if endpoint.is_anthropic() {
        response.headers_mut().insert(ANTHROPIC_ID, request_id);
    }
    Ok(response)
}

async fn handle(
    llm: Arc<LlmApi>,
    endpoint: Endpoint,
    mut call: ServerRequest,
    waited: &mut Duration,
    trace: &mut RequestTrace,
) -> Result<Response, ApiError> {
    let Caller::Tenant(tenant) = call.caller.clone() else { return Err(ApiError::Internal) };
    if llm.is_draining() {
        return Err(ApiError::Draining);
    }
    if endpoint == Endpoint::Other {
        check_path(call.request.uri().path())?;
    }
    let deadline = Deadline::of(call.request.headers(), Instant::now)?;
    let body = call.read_body().await?;
    let (head, _) = call.request.into_parts();
    let ask = read(endpoint, &head.headers, &body)?;
    let id = call.request_id;
    let urgency = Priority::Interactive;
    let errand = ProxyRequest { endpoint, tenant, head, id, deadline, urgency, sent: None };
    errand.run(llm, ask, body, waited, trace).await
}

/// A request whose body was read, and who waits for its answer.
pub(crate) struct ProxyRequest {
    pub(crate) endpoint: Endpoint,
    pub(crate) tenant: Arc<Tenant>,
    pub(crate) head: Parts,
    pub(crate) id: HeaderValue,
    pub(crate) deadline: Deadline,
    pub(crate) urgency: Priority,
    /// Who is told to which node it was sent, and over which path.
    pub(crate) sent: Option<DispatchListener>,
}

/// Told to which node a request was sent, and over which path.
pub(crate) type DispatchListener = Box<dyn Fn(&str, &str) + Send + Sync>;

impl ProxyRequest {
    /// Goes the rest of the way: let in, sent to nodes, answered.
    pub(crate) async fn run(
        self,
        llm: Arc<LlmApi>,
        ask: LlmRequest,
        body: Bytes,
        waited: &mut Duration,
        trace: &mut RequestTrace,
    ) -> Result<Response, ApiError> {
        let Self { endpoint, tenant, head, id, deadline, urgency, sent } = self;
        trace.ask(&tenant, &ask);
        tenant.check_model(&ask.model)?;
        let model = llm.nodes.model(&ask.model).ok_or_else(|| llm.unknown_model(&ask.model, urgency))?;
        let mut bill = TokenReservation::reserve(&llm, &tenant, model, &ask)?;
        let outgoing = UpstreamRequest::new(endpoint, head, id, ask.forwarded(&body));
        drop(body);
        let guess = bill.estimate();
        let mut place = llm.walk.submit(Arrival {
            tenant: tenant.id,
            model,
            cost: guess.cost(),
            upfront: match ask.delivery {
                ResponseMode::Stream => Usage { output: 0, ..guess }.cost(),
                // Nothing is known of it before its end.
                ResponseMode::Whole => guess.cost(),
            },
            affinity: ask.affinity,
            deadline: match urgency {
                Priority::Interactive => deadline.wait_max(Instant::now, llm.wait_max),
                Priority::Background => Some(JOB_WAIT_MAX),
            },
            request: score::RequestKind::Infer,
            priority: urgency,
        });
        loop {
            let slot = place.await.map_err(|turned| llm.refuse(turned, (model, urgency), &ask, waited))?;
            *waited = slot.waited();
            if let (Some(sent), Some(node)) = (&sent, llm.nodes.get(slot.node())) {
                sent(&node.options.name, &node.origin(slot.path()).to_string());
            }
            let asking = llm.send_attempt(&slot, &outgoing, ask.delivery, trace);
            let asked = match deadline.told_at {
                // Nobody is to blame for a client's haste: the slot is given back as if it had gone.
                Some(told_at) => timeout_at(told_at, asking).await.map_err(|_| ApiError::UpstreamTimeout)?,
                None => asking.await,
            };
            match asked {
                Ok(answer) => {
                    bill.trace = mem::take(trace);
                    return Ok(answer.into_response(slot, bill, endpoint, &ask));
                }
                Err(trouble) => {
                    trace.failed(&trouble);
                    let again = slot.fail(trouble.failure());
                    place = again.map_err(|turned| llm.refuse(turned, (model, urgency), &ask, waited))?;
                }
            }
        }
    }
}

fn read(endpoint: Endpoint, headers: &HeaderMap, body: &Bytes) -> Result<LlmRequest, ApiError> {
    if matches!(endpoint, Endpoint::Transcription | Endpoint::Other) {
        let content_type = headers.get(CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
        if let Some(ask) = LlmRequest::parse_form(content_type, body) {
            return ask;
        }
    }
    LlmRequest::parse(endpoint, body)
}

/// Refuses a path that another reader could take for one outside of `/v1`.
fn check_path(path: &str) -> Result<(), ApiError> {
    let is_dots = |part: &str| {
        let plain = part.to_ascii_lowercase().replace("%2e", ".");
        plain == "." || plain == ".."
    };
    let odd = path.contains("//") || path.contains('\\') || path.to_ascii_lowercase().contains("%2f");
    if odd || path.split('/').any(is_dots) { Err(ApiError::NoRoute) } else { Ok(()) }
}

impl LlmApi {
    /// Says that nobody serves a model; a job can wait until every node has said what it serves.
    fn unknown_model(&self, model: &str, urgency: Priority) -> ApiError {
        let may_come = match urgency {
            Priority::Interactive => self.nodes.has_pending_discovery(),
            Priority::Background => self.nodes.has_node_without_models(),
        };
        if may_come { ApiError::Unready } else { ApiError::NoModel { model: model.to_owned() } }
    }

    fn refuse(
        &self,
        turned: WaitRejection,
        (model, urgency): (ModelId, Priority),
        ask: &LlmRequest,
        waited: &mut Duration,
    ) -> ApiError {
        *waited = turned.waited;
        // A model that was served may be again: its nodes are drained, or gone for a while.
        if urgency == Priority::Background && matches!(turned.rejection, Rejection::NoNode { .. }) {
            return ApiError::Unready;
        }
        let waiting = self.walk.inspect(|machine| machine.waiting(model));
        error::rejection_error(&turned.rejection, &ask.model, waiting)
    }

    /// Asks the node that has the slot, up to the beginning of its answer.
    async fn send_attempt(
        &self,
        slot: &SlotGuard,
        outgoing: &UpstreamRequest,
        delivery: ResponseMode,
        trace: &mut RequestTrace,
    ) -> Result<NodeResponse, AttemptError> {
        let node = self.nodes.get(slot.node()).ok_or(AttemptError::NodeRemoved)?;
        trace.sent(slot, &node);
        let begun = async {
            let authorization = node.authorization();
            let trace = trace.header();
            let key = authorization.filter(|_| outgoing.endpoint.is_anthropic()).and_then(bare_key);
            let mut adds = [(REQUEST_ID, &outgoing.id); 4];
            let mut count = 1;
            let others = [
                authorization.map(|value| (AUTHORIZATION.as_str(), value)),
                key.as_ref().map(|value| (X_API_KEY, value)),
                trace.as_ref().map(|value| (TRACEPARENT, value)),
            ];
            for other in others.into_iter().flatten() {
                adds[count] = other;
                count += 1;
            }
            let passed = HeaderFilter { keeps: headers::is_for_nodes, adds: &adds[..count] };
            let sent = self.upstream.send_filtered(node.origin(slot.path()), &outgoing.request, passed);
            NodeResponse::begin(sent.await?, outgoing.endpoint).await
        };
        let begun = match (delivery, self.first_byte_max) {
            (ResponseMode::Stream, Some(max)) => {
                timeout(max, begun).await.unwrap_or(Err(AttemptError::FirstByteTimeout))
            }
            // An answer in one piece begins when all of it is made.
            (ResponseMode::Stream | ResponseMode::Whole, _) => begun.await,
        };
        begun.inspect_err(|trouble| match trouble {
            // A busy pool would fill the log, and is told by its events.
            AttemptError::Busy { .. } => {
                tracing::debug!(node = node.options.name, %trouble, "attempt failed")
            }
            _ => tracing::warn!(node = node.options.name, %trouble, "attempt failed"),
        })
    }
}

/// A request as every node gets it, but for what is left out on the way.
struct UpstreamRequest {
    endpoint: Endpoint,
    request: Request<Bytes>,
    id: HeaderValue,
}

impl UpstreamRequest {
    fn new(endpoint: Endpoint, mut head: Parts, id: HeaderValue, body: Bytes) -> Self {
        headers::drop_listed(&mut head.headers);
        Self { endpoint, request: Request::from_parts(head, body), id }
    }
}

/// A node's key as Anthropic's servers want it.
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
