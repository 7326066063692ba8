//! Jobs: requests that nobody waits for, from this process, by the way of all others.
//!
//! Bound: an answer is held whole, up to [`ANSWER_BYTES_MAX`]; a job gets slots that nobody who waits could have.

use core::time::Duration;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use evenkeel_pipeline::Priority;
use evenkeel_policy::time::Instant;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Body;
use evenkeel_server::tenant::{Tenant, TenantState};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::BodyExt;

use crate::api::LlmApi;
use crate::deadline::Deadline;
use crate::headers;
use crate::proxy::{DispatchListener, ProxyRequest};
use crate::request::{Endpoint, LlmRequest, ResponseMode};
use crate::trace::RequestTrace;

/// How large the answer to a job may be.
pub const ANSWER_BYTES_MAX: usize = 16 << 20;

/// A route that a job can be a request to: JSON in, one answer out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTarget(Endpoint);

impl JobTarget {
    /// All of them.
    const ALL: [Endpoint; 8] = [
        Endpoint::Chat,
        Endpoint::Completions,
        Endpoint::Embeddings,
        Endpoint::Messages,
        Endpoint::CountTokens,
        Endpoint::Responses,
        Endpoint::Rerank,
        Endpoint::Speech,
    ];

    /// Finds a target by its path.
    pub fn of(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.route() == path).map(Self)
    }

    /// The paths of all of them.
    pub fn paths() -> Vec<&'static str> {
        Self::ALL.map(Endpoint::route).to_vec()
    }
}

/// A request that nobody waits for.
pub struct Job {
    /// What it asks.
    pub target: JobTarget,
    /// Who asks and is charged.
    pub tenant: Arc<Tenant>,
    /// Its name, which nodes are told.
    pub id: HeaderValue,
    /// The request's body.
    pub body: Bytes,
    /// When it began, by the clock that counts the tenant's requests.
    pub accepted_at: Instant,
    /// Who is told to which node it was sent, and over which path.
    pub sent: DispatchListener,
}

/// An answer, whole.
#[derive(Clone, Debug)]
pub struct JobResponse {
    /// Its status: 2xx, or what a node says that the request got wrong.
    pub status: StatusCode,
    /// What its body is.
    pub content_type: Option<HeaderValue>,
    /// When its sender wants to be asked again.
    pub retry_after: Option<Duration>,
    /// Its body.
    pub body: Bytes,
}

impl LlmApi {
    /// Runs a job: admitted, in turn when nobody who waits could have the slot, sent, answered.
    pub async fn run(self: &Arc<Self>, job: Job) -> Result<JobResponse, ApiError> {
        let Job { target: JobTarget(endpoint), tenant, id, body, accepted_at, sent } = job;
        if self.is_draining() {
            return Err(ApiError::Draining);
        }
        if tenant.settings.state == TenantState::Disabled {
            return Err(ApiError::TenantDisabled);
        }
        let ask = LlmRequest::parse(endpoint, &body)?;
        if ask.delivery == ResponseMode::Stream {
            return Err(ApiError::invalid("the answer to a job is stored whole: leave out \"stream\""));
        }
        let begun_at = self.walk.now();
        tenant.take_request(accepted_at)?;
        let request = Request::builder().method(Method::POST).uri(endpoint.route());
        let request = request.header(CONTENT_TYPE, "application/json").body(());
        let (head, ()) = request.map_err(|_| ApiError::Internal)?.into_parts();
        let deadline = Deadline::default();
        let urgency = Priority::Background;
        let mut trace =
            RequestTrace::begin(self.walk.watch().tracer(), endpoint, (&head.uri, &head.headers), &id);
        let payer = tenant.clone();
        let errand = ProxyRequest { endpoint, tenant, head, id, deadline, urgency, sent: Some(sent) };
        let mut waited = Duration::ZERO;
        let answer = errand.run(self.clone(), ask, body, &mut waited, &mut trace).await;
        let response = answer.inspect_err(|refusal| {
            trace.refused(refusal, waited);
            // It comes again, and no node was asked for it.
            if let ApiError::RateLimited { .. }
            | ApiError::Unready
            | ApiError::Draining
            | ApiError::WaitTimeout = refusal
            {
                payer.give_request_back(accepted_at, accepted_at + self.walk.now().since(begun_at));
            }
        })?;
        let (head, body) = response.into_parts();
        let body = read_whole(body).await?;
        let retry_after = headers::retry_after(&head.headers);
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        Ok(JobResponse { status: head.status, content_type, retry_after, body })
    }
}

async fn read_whole(mut body: Body) -> Result<Bytes, ApiError> {
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(piece) = frame.map_err(|_| ApiError::Upstream)?.into_data() else { continue };
        if ANSWER_BYTES_MAX < all.len() + piece.len() {
            let message = format!("the answer is larger than {ANSWER_BYTES_MAX} bytes");
            return Err(ApiError::invalid(message));
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}
