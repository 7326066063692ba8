//! Error mapping: pipeline rejections to API errors, node failures to pipeline failures.
//!
//! Guarantees: every rejection and every failed attempt is mapped here, and nowhere else.

use bytes::Bytes;
use evenkeel_pipeline::AttemptFailure;
use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::{self, Response};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::headers::{for_client, retry_after};
use evenkeel_upstream::UpstreamError;

/// Failure of an attempt on a node.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AttemptError {
    /// The node was removed between pick and send.
    #[error("node was removed")]
    NodeRemoved,
    #[error(transparent)]
    Send(#[from] UpstreamError),
    #[error("no first byte in time")]
    FirstByteTimeout,
    #[error("node is overloaded")]
    Busy {
        /// The node's `Retry-After`.
        retry_after: Option<Duration>,
    },
    /// An overloaded node's response, which goes to the client if nodes that serve others refuse the request again.
    #[error("node is overloaded: {}", .0.status)]
    Refused(Box<RefusedResponse>),
    /// A status that counts as the node's failure.
    #[error("node returned {0}")]
    Status(StatusCode),
    #[error("node returned an empty response")]
    Empty,
    #[error("node returned HTML")]
    Html,
    #[error("response is not valid JSON")]
    NotJson,
    /// An error inside a successful response.
    #[error("response contains an error of the node")]
    ReportedError,
    #[error("stream ended before it was complete")]
    Truncated,
}

/// A refusal (429, 503) as the node sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedResponse {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// At most 64 KiB.
    pub(crate) body: Bytes,
}

impl RefusedResponse {
    /// Passes the refusal on to the client.
    pub(crate) fn into_response(self) -> Response {
        let mut response = Response::new(body::full(self.body));
        *response.status_mut() = self.status;
        *response.headers_mut() = for_client(self.headers);
        // An omitted body has another length.
        response.headers_mut().remove(CONTENT_LENGTH);
        response
    }
}

impl AttemptError {
    /// Classifies the error for the pipeline.
    pub(crate) fn failure(&self) -> AttemptFailure {
        match self {
            Self::Send(error) => match error {
                UpstreamError::Resolve { .. }
                | UpstreamError::Connect { .. }
                | UpstreamError::ConnectTimeout
                | UpstreamError::Tls { .. } => AttemptFailure::Unreachable,
                UpstreamError::LinkBusy { .. } => AttemptFailure::Busy { retry_after: None },
                UpstreamError::Timeout => AttemptFailure::TimedOut,
                UpstreamError::Closed { .. }
                | UpstreamError::Malformed { .. }
                | UpstreamError::Truncated { .. } => AttemptFailure::BadResponse,
            },
            Self::NodeRemoved => AttemptFailure::Unreachable,
            Self::FirstByteTimeout => AttemptFailure::TimedOut,
            Self::Busy { retry_after } => AttemptFailure::Busy { retry_after: *retry_after },
            Self::Refused(refusal) => AttemptFailure::Busy { retry_after: retry_after(&refusal.headers) },
            Self::Status(_)
            | Self::Empty
            | Self::Html
            | Self::NotJson
            | Self::ReportedError
            | Self::Truncated => AttemptFailure::BadResponse,
        }
    }

    /// Returns the error for a client that has received part of the response.
    pub(crate) fn api_error(&self) -> ApiError {
        match self.failure() {
            AttemptFailure::TimedOut => ApiError::UpstreamTimeout,
            AttemptFailure::Unreachable | AttemptFailure::BadResponse | AttemptFailure::Busy { .. } => {
                ApiError::Upstream
            }
        }
    }
}

/// Decides by status whether a node's response is passed to the client or counts as a failed attempt.
///
/// Client errors are passed on, and so is 501: if a missing feature counted as a node failure, a single client that
/// requests it could open every circuit breaker. A node that rejects the gateway's API key has failed.
pub(crate) fn classify_status(status: StatusCode, headers: &HeaderMap) -> Result<(), AttemptError> {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(AttemptError::Busy { retry_after: retry_after(headers) })
        }
        // Anthropic's status for "overloaded".
        status if status.as_u16() == 529 => Err(AttemptError::Busy { retry_after: retry_after(headers) }),
        StatusCode::NOT_IMPLEMENTED => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Err(AttemptError::Status(status))
        }
        status if status.is_success() || status.is_client_error() => Ok(()),
        status => Err(AttemptError::Status(status)),
    }
}

/// Substrings of engines' error types that mean a client error, in lower case and without separators.
const CLIENT_ERRORS: [&str; 7] =
    ["invalid", "badrequest", "notfound", "permission", "contextlength", "toolarge", "validation"];
/// Substrings that mean that the node rejected the gateway's API key.
const KEY_ERRORS: [&str; 2] = ["apikey", "authentication"];
/// Substrings that mean that the node is overloaded.
const OVERLOADED: [&str; 3] = ["ratelimit", "overloaded", "toomanyrequests"];

/// Decides by code or type whether an error inside a 2xx response is passed to the client or is a failure.
pub(crate) fn classify_reported_error(reported: &Value) -> Result<(), AttemptError> {
    let inner = [&reported["error"], &reported["response"]["error"]];
    let error = inner.into_iter().find(|error| error.is_object()).unwrap_or(reported);
    let number = |name: &&'static str| {
        let value = &error[*name];
        value.as_u64().or_else(|| value.as_str()?.parse().ok()).and_then(|number| u16::try_from(number).ok())
    };
    let numbers = ["status", "status_code", "code"];
    if let Some(status) = numbers.iter().find_map(number).and_then(|code| StatusCode::from_u16(code).ok()) {
        return classify_status(status, &HeaderMap::new()).map_err(|error| match error {
            AttemptError::Busy { .. } => error,
            _ => AttemptError::ReportedError,
        });
    }
    let names = ["type", "code"].iter().filter_map(|name| error[*name].as_str());
    let plain: String = names.flat_map(str::chars).filter(char::is_ascii_alphanumeric).collect();
    let plain = plain.to_ascii_lowercase();
    let is_any = |known: &[&str]| known.iter().any(|part| plain.contains(part));
    match () {
        () if is_any(&OVERLOADED) => Err(AttemptError::Busy { retry_after: None }),
        () if is_any(&CLIENT_ERRORS) && !is_any(&KEY_ERRORS) => Ok(()),
        () => Err(AttemptError::ReportedError),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_error_event_is_passed_to_the_client_if_it_is_a_client_error() {
        let busy = Err(AttemptError::Busy { retry_after: None });
        for (event, expected) in [
            (json!({"error": {"message": "x", "type": "BadRequestError", "code": 400}}), Ok(())),
            (json!({"error": {"type": "invalid_request_error", "code": "context_length_exceeded"}}), Ok(())),
            (json!({"type": "error", "error": {"type": "not_found_error"}}), Ok(())),
            (json!({"type": "error", "error": {"type": "overloaded_error"}}), busy.clone()),
            (json!({"error": {"code": "429"}}), busy.clone()),
            (
                json!({"type": "response.failed", "response": {"error": {"code": "rate_limit_exceeded"}}}),
                busy,
            ),
            (json!({"type": "response.failed", "response": {"error": {"code": "invalid_prompt"}}}), Ok(())),
            (
                json!({"type": "response.failed", "response": {"error": {"code": "server_error"}}}),
                Err(AttemptError::ReportedError),
            ),
            (
                json!({"error": {"type": "invalid_request_error", "code": "invalid_api_key"}}),
                Err(AttemptError::ReportedError),
            ),
            (
                json!({"error": {"code": 500, "type": "InternalServerError"}}),
                Err(AttemptError::ReportedError),
            ),
            (json!({"error": {"code": 401}}), Err(AttemptError::ReportedError)),
            (json!({"error": "out of memory"}), Err(AttemptError::ReportedError)),
            (json!({"error": {"type": "api_error"}}), Err(AttemptError::ReportedError)),
            (Value::Null, Err(AttemptError::ReportedError)),
        ] {
            assert_eq!(classify_reported_error(&event), expected, "{event}");
        }
    }

    #[test]
    fn client_errors_are_passed_to_the_client_and_node_failures_are_not() {
        let is_passed =
            |status: u16| classify_status(StatusCode::from_u16(status).unwrap(), &HeaderMap::new()).is_ok();
        let passed: Vec<u16> = (200..600).filter(|status| is_passed(*status)).collect();
        let passes =
            |status: &u16| matches!(status, 200..=299 | 400..=499 | 501) && ![401, 407, 429].contains(status);
        assert_eq!(passed, (200..600).filter(passes).collect::<Vec<_>>());
    }
}
