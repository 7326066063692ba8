//! Maps the response or error of an attempt to the outcome of its job: done, failed, retried or deferred.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_llm::JobResponse;
use evenkeel_server::api_error::ApiError;
use http::StatusCode;

/// Delay of a job for which no node was ready or free.
const UNREADY_DELAY: Duration = Duration::from_secs(5);

/// Maximum size of a response body that is searched for an error message.
const ERROR_BODY_BYTES_MAX: usize = 64 << 10;
/// Length to which error messages are truncated.
const MESSAGE_BYTES_MAX: usize = 500;

/// Longest delay of a job whose tenant has reached a budget, so that a higher budget takes effect soon.
const BUDGET_DELAY_MAX: Duration = Duration::from_mins(5);

/// Maximum `Retry-After` that is honoured.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// Outcome of an attempt at a job.
#[derive(Debug)]
pub(super) enum JobOutcome {
    Done(JobReply),
    /// Permanent failure.
    Failed(JobReply),
    /// Temporary failure; counts as an attempt. Retried after the given delay, otherwise after the queue's backoff.
    Retry(JobReply, Option<Duration>),
    /// Released without counting an attempt: the job was rate-limited or over a budget, no node was ready or free, or the gateway is
    /// draining. Holds the reason and the delay.
    Deferred(String, Duration),
}

/// A response as stored in the job result.
#[derive(Debug)]
pub(super) struct JobReply {
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    pub(super) body: Bytes,
}

impl JobReply {
    /// Returns the status and, if the body has one, the error message.
    pub(super) fn summary(&self) -> String {
        let searched = Some(&self.body).filter(|body| body.len() <= ERROR_BODY_BYTES_MAX);
        let json: Option<serde_json::Value> = searched.and_then(|body| serde_json::from_slice(body).ok());
        match json.as_ref().and_then(|json| json["error"]["message"].as_str()) {
            Some(message) => {
                let end = message.floor_char_boundary(MESSAGE_BYTES_MAX);
                format!("{}, {}", self.status, &message[..end])
            }
            None => format!("status {}", self.status),
        }
    }
}

impl JobOutcome {
    pub(super) fn new(result: Result<JobResponse, ApiError>) -> Self {
        match result {
            Ok(response) => Self::from_response(response),
            Err(error) => Self::from_error(&error),
        }
    }

    fn from_response(response: JobResponse) -> Self {
        let JobResponse { status, content_type, retry_after, body } = response;
        let content_type = content_type.and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let reply = JobReply { status: status.as_u16(), content_type, body };
        if status.is_success() {
            Self::Done(reply)
        } else if is_retryable(status) {
            Self::Retry(reply, retry_after.map(|delay| delay.min(RETRY_AFTER_MAX)))
        } else {
            Self::Failed(reply)
        }
    }

    fn from_error(error: &ApiError) -> Self {
        let reply = JobReply {
            status: error.status().as_u16(),
            content_type: Some("application/json".to_owned()),
            body: Bytes::from(error.to_json().to_string()),
        };
        match error {
            // The job did not fail: it never reached a node.
            ApiError::RateLimited { retry_after, .. } => Self::Deferred(reply.summary(), *retry_after),
            ApiError::BudgetReached(reached) => {
                Self::Deferred(reply.summary(), reached.retry_after().min(BUDGET_DELAY_MAX))
            }
            ApiError::Unready | ApiError::WaitTimeout => Self::Deferred(reply.summary(), UNREADY_DELAY),
            ApiError::Draining => Self::Deferred(reply.summary(), Duration::ZERO),
            ApiError::QueueFull { retry_after, .. } => Self::Retry(reply, Some(*retry_after)),
            _ if is_retryable(error.status()) => Self::Retry(reply, None),
            _ => Self::Failed(reply),
        }
    }

    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed(_) => "failed",
            Self::Retry(..) => "retried",
            Self::Deferred(..) => "deferred",
        }
    }
}

/// Reports whether the same request may succeed later.
fn is_retryable(status: StatusCode) -> bool {
    match status {
        StatusCode::REQUEST_TIMEOUT
        | StatusCode::CONFLICT
        | StatusCode::TOO_EARLY
        | StatusCode::TOO_MANY_REQUESTS => true,
        StatusCode::NOT_IMPLEMENTED => false,
        status => status.is_server_error(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_server::api_error::RateLimitKind;

    fn outcome_of_status(status: u16) -> JobOutcome {
        let status = StatusCode::from_u16(status).unwrap();
        let retry_after = Some(Duration::from_secs(7));
        JobOutcome::new(Ok(JobResponse { status, content_type: None, retry_after, body: Bytes::new() }))
    }

    #[test]
    fn permanent_errors_fail_the_job_and_temporary_ones_retry_it() {
        for status in [200, 201] {
            assert_eq!(outcome_of_status(status).as_str(), "done", "{status}");
        }
        for status in [400, 403, 404, 413, 415, 422, 501] {
            assert_eq!(outcome_of_status(status).as_str(), "failed", "{status}");
        }
        for status in [408, 409, 425, 429, 500, 502, 503, 504] {
            let outcome = outcome_of_status(status);
            let JobOutcome::Retry(_, after) = outcome else { panic!("{status}: {outcome:?}") };
            assert_eq!(after, Some(Duration::from_secs(7)), "the Retry-After of the response");
        }
    }

    #[test]
    fn a_retry_after_beyond_an_hour_is_capped() {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let retry_after = Some(Duration::from_secs(3_601));
        let response = JobResponse { status, content_type: None, retry_after, body: Bytes::new() };
        let outcome = JobOutcome::new(Ok(response));
        assert!(matches!(outcome, JobOutcome::Retry(_, Some(RETRY_AFTER_MAX))), "{outcome:?}");
    }

    #[test]
    fn a_long_error_message_is_truncated() {
        let summary =
            |body: String| JobReply { status: 500, content_type: None, body: Bytes::from(body) }.summary();
        let body = |message: &str| format!("{{\"error\": {{\"message\": \"{message}\"}}}}");
        assert_eq!(summary(body("no")), "500, no");
        assert_eq!(summary(body(&"ü".repeat(5_000))), format!("500, {}", "ü".repeat(250)));
        assert_eq!(summary(body(&"x".repeat(1 << 20))), "status 500");
    }

    #[test]
    fn gateway_errors_map_to_outcomes() {
        let retry_after = Duration::from_secs(9);
        let limited = ApiError::RateLimited { rate: RateLimitKind::Tokens, retry_after };
        for (error, outcome) in [
            (limited, "deferred"),
            (ApiError::Draining, "deferred"),
            (ApiError::Unready, "deferred"),
            (ApiError::WaitTimeout, "deferred"),
            (ApiError::QueueFull { queue_size: 1, retry_after }, "retried"),
            (ApiError::Upstream, "retried"),
            (ApiError::UpstreamTimeout, "retried"),
            (ApiError::invalid("x"), "failed"),
            (ApiError::NoModel { model: "x".into() }, "failed"),
            (ApiError::TenantDisabled, "failed"),
        ] {
            assert_eq!(JobOutcome::new(Err(error.clone())).as_str(), outcome, "{error:?}");
        }
    }
}
