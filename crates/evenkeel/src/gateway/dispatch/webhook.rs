//! Webhooks: posts jobs to a URL.
//!
//! Limits: a response must be complete within `wait_max` and has at most [`RESPONSE_BYTES_MAX`] bytes.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_llm::{JobResponse, RESPONSE_BYTES_MAX, retry_after};
use evenkeel_queue::{Delivery, Queue};
use evenkeel_sqs::{client_key, header_of};
use evenkeel_upstream::{Upstream, UpstreamError};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::json;
use thiserror::Error;
use tokio::time::timeout;

use super::outcome::{JobOutcome, JobReply};
use super::target::Url;

/// Content type of jobs that have none.
const JSON: &str = "application/json";

pub(in crate::gateway) struct WebhookClient {
    upstream: Upstream,
    wait_max: Duration,
}

impl WebhookClient {
    pub(in crate::gateway) fn new(upstream: Upstream, wait_max: Duration) -> Self {
        Self { upstream, wait_max }
    }

    /// Posts a job and returns its outcome.
    pub(super) async fn post(
        &self,
        url: &Url,
        queue: &Queue,
        tenant: Option<&str>,
        job: &Delivery,
    ) -> JobOutcome {
        let request = match request(url, queue, tenant, job) {
            Ok(request) => request,
            Err(error) => {
                let message = format!("job cannot be posted: {error}");
                return JobOutcome::Failed(error_reply(StatusCode::BAD_REQUEST, message));
            }
        };
        let result = timeout(self.wait_max, self.send(url, &request)).await;
        match result.unwrap_or(Err(WebhookError::Upstream(UpstreamError::Timeout))) {
            Ok(response) => JobOutcome::new(Ok(response)),
            Err(WebhookError::TooLarge) => {
                let message = format!("{url}: the response is larger than {RESPONSE_BYTES_MAX} bytes");
                JobOutcome::Failed(error_reply(StatusCode::BAD_GATEWAY, message))
            }
            Err(WebhookError::Upstream(error)) => {
                let status = match error {
                    UpstreamError::Timeout | UpstreamError::ConnectTimeout => StatusCode::GATEWAY_TIMEOUT,
                    _ => StatusCode::BAD_GATEWAY,
                };
                JobOutcome::Retry(error_reply(status, format!("{url}: {error}")), None)
            }
        }
    }

    async fn send(&self, url: &Url, request: &Request<Bytes>) -> Result<JobResponse, WebhookError> {
        let (head, body) = self.upstream.send(&url.origin, request).await?.into_parts();
        let read = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        let body = read.map_err(|error| match error.downcast::<UpstreamError>() {
            Ok(error) => WebhookError::Upstream(*error),
            Err(_) => WebhookError::TooLarge,
        })?;
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        let retry_after = retry_after(&head.headers);
        Ok(JobResponse { status: head.status, content_type, retry_after, body: body.to_bytes() })
    }
}

#[derive(Debug, Error)]
enum WebhookError {
    #[error("response too large")]
    TooLarge,
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
}

/// Builds the request: the job's body, and headers that identify the job.
fn request(
    url: &Url,
    queue: &Queue,
    tenant: Option<&str>,
    job: &Delivery,
) -> Result<Request<Bytes>, http::Error> {
    let content_type = header_of(&job.payload.headers, CONTENT_TYPE.as_str());
    let key = client_key(&job.payload.headers, &job.key);
    let mut request = Request::post(url.path.as_str());
    if let Some(tenant) = tenant {
        request = request.header("x-evenkeel-tenant", tenant);
    }
    request
        .header(CONTENT_TYPE, content_type.unwrap_or(JSON))
        .header("x-evenkeel-queue", &queue.descriptor().name)
        .header("x-evenkeel-message-id", queue.message_ids().format(job.id))
        .header("x-evenkeel-attempt", job.attempt)
        .header("x-evenkeel-fairness-key", HeaderValue::from_bytes(key.as_bytes())?)
        .body(job.payload.body.clone())
}

/// Returns the reply to store for a job that got no usable response.
fn error_reply(status: StatusCode, message: String) -> JobReply {
    let body = json!({"error": {"message": message, "type": "dispatch_error"}});
    JobReply {
        status: status.as_u16(),
        content_type: Some(JSON.to_owned()),
        body: Bytes::from(body.to_string()),
    }
}
