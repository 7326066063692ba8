//! Jobs: requests from this process that run in the background, through the same pipeline as all others.
//!
//! Guarantees: a job gets only slots that no interactive request could use.
//!
//! Limits: a response is buffered as a whole, at most [`RESPONSE_BYTES_MAX`] bytes.

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
use crate::deadline::ClientDeadlines;
use crate::headers;
use crate::proxy::{AcceptedRequest, DispatchListener, ProxyRequest};
use crate::request::{Endpoint, LlmRequest, ResponseMode};
use crate::tenant_flow::FlowHeaders;
use crate::trace::RequestTrace;

/// Size limit of the response to a job.
pub const RESPONSE_BYTES_MAX: usize = 16 << 20;

/// A route that accepts jobs: JSON request, one response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobTarget(Endpoint);

impl JobTarget {
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

    pub fn from_path(path: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|endpoint| endpoint.route() == path).map(Self)
    }

    /// Lists the paths of all targets.
    pub fn paths() -> Vec<&'static str> {
        Self::ALL.map(Endpoint::route).to_vec()
    }
}

/// A request to run in the background.
pub struct Job {
    pub target: JobTarget,
    /// The tenant that is charged.
    pub tenant: Arc<Tenant>,
    /// Request ID sent to nodes.
    pub id: HeaderValue,
    pub body: Bytes,
    /// Start time, by the clock of the tenant's request rate limit.
    pub accepted_at: Instant,
    /// Called for each attempt with the node's name and URL.
    pub on_dispatch: DispatchListener,
}

/// A buffered response.
#[derive(Clone, Debug)]
pub struct JobResponse {
    /// 2xx, or the status with which a node reports a client error.
    pub status: StatusCode,
    pub content_type: Option<HeaderValue>,
    /// The delay that the node asks for before a retry.
    pub retry_after: Option<Duration>,
    pub body: Bytes,
}

impl LlmApi {
    /// Runs a job: admit, queue behind interactive requests, send, buffer the response.
    pub async fn run_job(self: &Arc<Self>, job: Job) -> Result<JobResponse, ApiError> {
        let Job { target: JobTarget(endpoint), tenant, id, body, accepted_at, on_dispatch } = job;
        if self.is_draining() {
            return Err(ApiError::Draining);
        }
        if tenant.settings.state == TenantState::Disabled {
            return Err(ApiError::TenantDisabled);
        }
        let request = LlmRequest::parse(endpoint, &body)?;
        if request.mode == ResponseMode::Stream {
            let message = "the response to a job is stored whole: remove \"stream\"";
            return Err(ApiError::invalid(message));
        }
        let started_at = self.scheduler.now();
        tenant.take_request(accepted_at)?;
        let head = Request::builder().method(Method::POST).uri(endpoint.route());
        let head = head.header(CONTENT_TYPE, "application/json").body(());
        let (head, ()) = head.map_err(|_| ApiError::Internal)?.into_parts();
        let tracer = self.scheduler.observer().tracer();
        let trace = RequestTrace::begin(tracer, endpoint, head.uri.path(), &head.headers, &id);
        let mut context = ProxyRequest {
            llm: self.clone(),
            endpoint,
            id,
            priority: Priority::Background,
            on_dispatch: Some(on_dispatch),
            waited: Duration::ZERO,
            trace,
        };
        let charged_tenant = tenant.clone();
        let deadline = ClientDeadlines::default();
        let permit = None;
        let read_ahead = None;
        let flow = FlowHeaders::default();
        let accepted = AcceptedRequest { tenant, request, body, permit, read_ahead, deadline, flow };
        let result = context.serve(head, accepted).await;
        let response = result.inspect_err(|error| {
            context.trace.rejected(error, context.waited);
            // The job will be retried and was not sent to a node.
            if let ApiError::RateLimited { .. }
            | ApiError::BudgetReached(_)
            | ApiError::Unready
            | ApiError::Draining
            | ApiError::WaitTimeout = error
            {
                let now = accepted_at + self.scheduler.now().since(started_at);
                charged_tenant.refund_request(accepted_at, now);
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
        let Ok(chunk) = frame.map_err(|_| ApiError::Upstream)?.into_data() else { continue };
        if all.len() + chunk.len() > RESPONSE_BYTES_MAX {
            let message = format!("the response is larger than {RESPONSE_BYTES_MAX} bytes");
            return Err(ApiError::invalid(message));
        }
        all.extend_from_slice(&chunk);
    }
    Ok(all.freeze())
}
