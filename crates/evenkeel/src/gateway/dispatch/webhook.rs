//! Jobs that are posted to a URL.
//!
//! Bound: an answer comes whole within `wait_max`, and has at most [`RESPONSE_BYTES_MAX`].

use std::time::Duration;

use bytes::Bytes;
use evenkeel_llm::{JobResponse, RESPONSE_BYTES_MAX, retry_after};
use evenkeel_queue::Delivery;
use evenkeel_sqs::header_of;
use evenkeel_upstream::{Upstream, UpstreamError};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::json;
use tokio::time::timeout;

use super::outcome::{JobOutcome, JobReply};
use super::target::Url;

/// What a body is that does not say.
const JSON: &str = "application/json";

/// Posts jobs to URLs.
pub(in crate::gateway) struct WebhookClient {
    upstream: Upstream,
    wait_max: Duration,
}

impl WebhookClient {
    pub(in crate::gateway) fn new(upstream: Upstream, wait_max: Duration) -> Self {
        Self { upstream, wait_max }
    }

    /// Posts a job, and says what its answer means for it.
    pub(super) async fn post(&self, url: &Url, queue: &str, job: &Delivery) -> JobOutcome {
        let request = match request(url, queue, job) {
            Ok(request) => request,
            Err(error) => {
                return JobOutcome::Failed(unsent(
                    StatusCode::BAD_REQUEST,
                    format!("job cannot be posted: {error}"),
                ));
            }
        };
        let answered = timeout(self.wait_max, self.exchange(url, &request)).await;
        match answered.unwrap_or(Err(WebhookError::Unsent(UpstreamError::Timeout))) {
            Ok(answer) => JobOutcome::of(Ok(answer)),
            Err(WebhookError::TooLarge) => {
                let why = format!("{url}: the answer is larger than {RESPONSE_BYTES_MAX} bytes");
                JobOutcome::Failed(unsent(StatusCode::BAD_GATEWAY, why))
            }
            Err(WebhookError::Unsent(error)) => {
                let status = match error {
                    UpstreamError::Timeout | UpstreamError::ConnectTimeout => StatusCode::GATEWAY_TIMEOUT,
                    _ => StatusCode::BAD_GATEWAY,
                };
                JobOutcome::Retry(unsent(status, format!("{url}: {error}")), None)
            }
        }
    }

    async fn exchange(&self, url: &Url, request: &Request<Bytes>) -> Result<JobResponse, WebhookError> {
        let (head, body) = self.upstream.send(&url.origin, request).await?.into_parts();
        let read = Limited::new(body, RESPONSE_BYTES_MAX).collect().await;
        let body = read.map_err(|error| match error.downcast::<UpstreamError>() {
            Ok(error) => WebhookError::Unsent(*error),
            Err(_) => WebhookError::TooLarge,
        })?;
        let content_type = head.headers.get(CONTENT_TYPE).cloned();
        let retry_after = retry_after(&head.headers);
        Ok(JobResponse { status: head.status, content_type, retry_after, body: body.to_bytes() })
    }
}

/// Why there is no answer to keep.
enum WebhookError {
    TooLarge,
    /// It was not sent, or not answered to the end.
    Unsent(UpstreamError),
}

impl From<UpstreamError> for WebhookError {
    fn from(error: UpstreamError) -> Self {
        Self::Unsent(error)
    }
}

/// Makes a job's request: its body, and whose it is.
fn request(url: &Url, queue: &str, job: &Delivery) -> Result<Request<Bytes>, http::Error> {
    let content_type = header_of(&job.payload.headers, CONTENT_TYPE.as_str());
    Request::post(url.path.as_str())
        .header(CONTENT_TYPE, content_type.unwrap_or(JSON))
        .header("x-evenkeel-queue", queue)
        .header("x-evenkeel-message-id", job.id.to_string())
        .header("x-evenkeel-attempt", job.attempt)
        .header("x-evenkeel-fairness-key", HeaderValue::from_bytes(job.key.as_bytes())?)
        .body(job.payload.body.clone())
}

/// What is kept of a job that has no answer.
fn unsent(status: StatusCode, why: String) -> JobReply {
    let body = json!({"error": {"message": why, "type": "dispatch_error"}});
    JobReply {
        status: status.as_u16(),
        content_type: Some(JSON.to_owned()),
        body: Bytes::from(body.to_string()),
    }
}
