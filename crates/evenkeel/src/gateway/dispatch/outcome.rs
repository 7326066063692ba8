//! What an answer means for its job.

use std::time::Duration;

use bytes::Bytes;
use evenkeel_llm::JobResponse;
use evenkeel_server::api_error::ApiError;
use http::StatusCode;

/// When a job is looked at again that waits for nodes to say what they serve.
const UNREADY_AFTER: Duration = Duration::from_secs(5);

/// No more than this is read of an answer to say what it was, nor said.
const READ_MAX: usize = 64 << 10;
const WORDS_MAX: usize = 500;

/// The longest wait for another attempt that an answer can ask for.
const RETRY_AFTER_MAX: Duration = Duration::from_hours(1);

/// What becomes of a job.
#[derive(Debug)]
pub(super) enum JobOutcome {
    /// It was answered.
    Done(JobReply),
    /// However often it is tried, this is the answer.
    Failed(JobReply),
    /// It is tried again, which counts: after so long, or after the queue's backoff.
    Retry(JobReply, Option<Duration>),
    /// It is tried again after so long, which does not count: no node was asked.
    Deferred(String, Duration),
}

/// An answer as it is kept.
#[derive(Debug)]
pub(super) struct JobReply {
    pub(super) status: u16,
    pub(super) content_type: Option<String>,
    pub(super) body: Bytes,
}

impl JobReply {
    /// Says what it was, in few words.
    pub(super) fn words(&self) -> String {
        let read = Some(&self.body).filter(|body| body.len() <= READ_MAX);
        let said: Option<serde_json::Value> = read.and_then(|body| serde_json::from_slice(body).ok());
        match said.as_ref().and_then(|said| said["error"]["message"].as_str()) {
            Some(message) => {
                let end = message.floor_char_boundary(WORDS_MAX);
                format!("{}, {}", self.status, &message[..end])
            }
            None => format!("status {}", self.status),
        }
    }
}

impl JobOutcome {
    pub(super) fn of(answered: Result<JobResponse, ApiError>) -> Self {
        match answered {
            Ok(answer) => Self::of_answer(answer),
            Err(refusal) => Self::of_refusal(&refusal),
        }
    }

    fn of_answer(answer: JobResponse) -> Self {
        let JobResponse { status, content_type, retry_after, body } = answer;
        let content_type = content_type.and_then(|value| Some(value.to_str().ok()?.to_owned()));
        let kept = JobReply { status: status.as_u16(), content_type, body };
        match () {
            () if status.is_success() => Self::Done(kept),
            () if is_retryable(status) => {
                Self::Retry(kept, retry_after.map(|after| after.min(RETRY_AFTER_MAX)))
            }
            () => Self::Failed(kept),
        }
    }

    fn of_refusal(refusal: &ApiError) -> Self {
        let kept = JobReply {
            status: refusal.status().as_u16(),
            content_type: Some("application/json".to_owned()),
            body: Bytes::from(refusal.to_json().to_string()),
        };
        match refusal {
            // Neither is the job's fault, and its tenant's minute, or the nodes, are what it waits for.
            ApiError::RateLimited { retry_after, .. } => Self::Deferred(kept.words(), *retry_after),
            ApiError::Unready | ApiError::WaitTimeout => Self::Deferred(kept.words(), UNREADY_AFTER),
            ApiError::Draining => Self::Deferred(kept.words(), Duration::ZERO),
            ApiError::QueueFull { retry_after, .. } => Self::Retry(kept, Some(*retry_after)),
            _ if is_retryable(refusal.status()) => Self::Retry(kept, None),
            _ => Self::Failed(kept),
        }
    }

    /// What it is counted as.
    pub(super) fn as_str(&self) -> &'static str {
        match self {
            Self::Done(_) => "done",
            Self::Failed(_) => "failed",
            Self::Retry(..) => "retried",
            Self::Deferred(..) => "deferred",
        }
    }
}

/// Whether the same request may have another answer later.
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

    fn of_status(status: u16) -> JobOutcome {
        let status = StatusCode::from_u16(status).unwrap();
        let retry_after = Some(Duration::from_secs(7));
        JobOutcome::of(Ok(JobResponse { status, content_type: None, retry_after, body: Bytes::new() }))
    }

    #[test]
    fn what_cannot_get_better_fails_for_good_and_all_else_is_tried_again() {
        for status in [200, 201] {
            assert_eq!(of_status(status).as_str(), "done", "{status}");
        }
        for status in [400, 403, 404, 413, 415, 422, 501] {
            assert_eq!(of_status(status).as_str(), "failed", "{status}");
        }
        for status in [408, 409, 425, 429, 500, 502, 503, 504] {
            let outcome = of_status(status);
            let JobOutcome::Retry(_, after) = outcome else { panic!("{status}: {outcome:?}") };
            assert_eq!(after, Some(Duration::from_secs(7)), "as it was told");
        }
    }

    #[test]
    fn no_answer_puts_a_job_off_for_longer_than_an_hour() {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let retry_after = Some(Duration::from_secs(3_601));
        let answer = JobResponse { status, content_type: None, retry_after, body: Bytes::new() };
        let outcome = JobOutcome::of(Ok(answer));
        assert!(matches!(outcome, JobOutcome::Retry(_, Some(RETRY_AFTER_MAX))), "{outcome:?}");
    }

    #[test]
    fn of_a_long_answer_few_words_are_said() {
        let words =
            |body: String| JobReply { status: 500, content_type: None, body: Bytes::from(body) }.words();
        let saying = |message: &str| format!("{{\"error\": {{\"message\": \"{message}\"}}}}");
        assert_eq!(words(saying("no")), "500, no");
        assert_eq!(words(saying(&"ü".repeat(5_000))), format!("500, {}", "ü".repeat(250)));
        assert_eq!(words(saying(&"x".repeat(1 << 20))), "status 500");
    }

    #[test]
    fn what_never_came_to_a_node_does_not_count() {
        let retry_after = Duration::from_secs(9);
        let limited = ApiError::RateLimited { rate: RateLimitKind::Tokens, retry_after };
        for (refusal, word) in [
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
            assert_eq!(JobOutcome::of(Err(refusal.clone())).as_str(), word, "{refusal:?}");
        }
    }
}
