//! What a client hears when its request is not served, and what the walk hears when a node does not serve one.
//!
//! Bound: every way to be turned away and every way to fail is named here; there is no other place.

use core::fmt;

use evenkeel_pipeline::{AttemptFailure, Rejection};
use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use http::{HeaderMap, StatusCode};
use serde_json::Value;

use crate::headers::retry_after;
use evenkeel_upstream::UpstreamError;

/// When to ask a busy node again that does not say.
const BUSY_RETRY: Duration = Duration::from_secs(1);

/// Says why a request for `model` was turned away, while `waiting` others wait for it.
pub(crate) fn rejection_error(rejection: &Rejection, model: &str, waiting: usize) -> ApiError {
    let full =
        |queue_size: usize, retry_after| ApiError::QueueFull { queue_size: queue_size as u64, retry_after };
    match *rejection {
        Rejection::QueueFull { current_size, retry_after, .. }
        | Rejection::Evicted { current_size, retry_after, .. } => full(current_size, retry_after),
        Rejection::WouldMissDeadline { retry_after } => full(waiting, retry_after),
        Rejection::WaitTimeout { .. } => ApiError::WaitTimeout,
        Rejection::NoNode { .. } => ApiError::NoModel { model: model.to_owned() },
        // Tenants and models are numbered within the walk's limits, and who has gone hears nothing.
        Rejection::UnknownTenant { .. } | Rejection::UnknownModel { .. } | Rejection::Cancelled => {
            ApiError::Internal
        }
        Rejection::Failed { failure, .. } => match failure {
            AttemptFailure::Unreachable | AttemptFailure::BadResponse => ApiError::Upstream,
            AttemptFailure::TimedOut => ApiError::UpstreamTimeout,
            AttemptFailure::Busy { retry_after } => full(waiting, retry_after.unwrap_or(BUSY_RETRY)),
        },
    }
}

/// Why a node's answer is none that could be passed on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum AttemptError {
    /// It was taken out between the choice and the sending.
    NodeRemoved,
    /// No answer came, or not all of it.
    Send(UpstreamError),
    /// Its answer did not begin in time.
    FirstByteTimeout,
    /// It has no room.
    Busy {
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
    /// It answered with a status that is its own fault.
    Status(StatusCode),
    /// It answered with nothing.
    Empty,
    /// Its answer is not the JSON it says it is.
    NotJson,
    /// Its stream began with an error.
    ErrorEvent,
    /// Its stream ended before it was complete.
    Truncated,
}

impl AttemptError {
    /// What the walk makes of it.
    pub(crate) fn failure(&self) -> AttemptFailure {
        match self {
            Self::Send(error) => match error {
                UpstreamError::Resolve { .. }
                | UpstreamError::Connect { .. }
                | UpstreamError::ConnectTimeout
                | UpstreamError::Tls { .. } => AttemptFailure::Unreachable,
                UpstreamError::Timeout => AttemptFailure::TimedOut,
                UpstreamError::Closed { .. }
                | UpstreamError::Malformed { .. }
                | UpstreamError::Cut { .. } => AttemptFailure::BadResponse,
            },
            Self::NodeRemoved => AttemptFailure::Unreachable,
            Self::FirstByteTimeout => AttemptFailure::TimedOut,
            Self::Busy { retry_after } => AttemptFailure::Busy { retry_after: *retry_after },
            Self::Status(_) | Self::Empty | Self::NotJson | Self::ErrorEvent | Self::Truncated => {
                AttemptFailure::BadResponse
            }
        }
    }

    /// What a client hears that has part of the answer already.
    pub(crate) fn rejection_error(&self) -> ApiError {
        match self.failure() {
            AttemptFailure::TimedOut => ApiError::UpstreamTimeout,
            AttemptFailure::Unreachable | AttemptFailure::BadResponse | AttemptFailure::Busy { .. } => {
                ApiError::Upstream
            }
        }
    }
}

impl From<UpstreamError> for AttemptError {
    fn from(error: UpstreamError) -> Self {
        Self::Send(error)
    }
}

impl fmt::Display for AttemptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NodeRemoved => f.write_str("node was taken out"),
            Self::Send(error) => error.fmt(f),
            Self::FirstByteTimeout => f.write_str("no first byte in time"),
            Self::Busy { .. } => f.write_str("node has no room"),
            Self::Status(status) => write!(f, "node answered {status}"),
            Self::Empty => f.write_str("node answered nothing"),
            Self::NotJson => f.write_str("answer is not the JSON it says it is"),
            Self::ErrorEvent => f.write_str("stream began with an error"),
            Self::Truncated => f.write_str("stream ended before it was complete"),
        }
    }
}

impl core::error::Error for AttemptError {}

/// Decides whether a node's answer is the client's, from its status.
///
/// What a client did wrong is passed on. So is 501: a node that lacks a feature is not broken, or whoever asks for it
/// could break every node. A node that does not take our key is broken, whatever the client's key was.
pub(crate) fn classify_status(status: StatusCode, headers: &HeaderMap) -> Result<(), AttemptError> {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Err(AttemptError::Busy { retry_after: retry_after(headers) })
        }
        // Anthropic's own.
        status if status.as_u16() == 529 => Err(AttemptError::Busy { retry_after: retry_after(headers) }),
        StatusCode::NOT_IMPLEMENTED => Ok(()),
        StatusCode::UNAUTHORIZED | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            Err(AttemptError::Status(status))
        }
        status if status.is_success() || status.is_client_error() => Ok(()),
        status => Err(AttemptError::Status(status)),
    }
}

/// What engines call a client's mistake, in small letters and without what stands between words.
const MISTAKES: [&str; 7] =
    ["invalid", "badrequest", "notfound", "permission", "contextlength", "toolarge", "validation"];
/// What they call not taking a key, which is ours.
const KEYS: [&str; 2] = ["apikey", "authentication"];
/// What they call having no room.
const NO_ROOM: [&str; 3] = ["ratelimit", "overloaded", "toomanyrequests"];

/// Decides whether an error that a stream begins with is the client's, from its number or its words.
pub(crate) fn classify_error_event(said: &Value) -> Result<(), AttemptError> {
    let inner = [&said["error"], &said["response"]["error"]];
    let error = inner.into_iter().find(|error| error.is_object()).unwrap_or(said);
    let number = |name: &&'static str| {
        let value = &error[*name];
        value.as_u64().or_else(|| value.as_str()?.parse().ok()).and_then(|number| u16::try_from(number).ok())
    };
    let numbers = ["status", "status_code", "code"];
    if let Some(status) = numbers.iter().find_map(number).and_then(|code| StatusCode::from_u16(code).ok()) {
        return classify_status(status, &HeaderMap::new()).map_err(|trouble| match trouble {
            AttemptError::Busy { .. } => trouble,
            _ => AttemptError::ErrorEvent,
        });
    }
    let words = ["type", "code"].iter().filter_map(|name| error[*name].as_str());
    let plain: String = words.flat_map(str::chars).filter(char::is_ascii_alphanumeric).collect();
    let plain = plain.to_ascii_lowercase();
    let is_any = |known: &[&str]| known.iter().any(|word| plain.contains(word));
    match () {
        () if is_any(&NO_ROOM) => Err(AttemptError::Busy { retry_after: None }),
        () if is_any(&MISTAKES) && !is_any(&KEYS) => Ok(()),
        () => Err(AttemptError::ErrorEvent),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_pipeline::NoRetryReason;
    use serde_json::json;

    #[test]
    fn an_error_in_a_stream_is_the_clients_if_it_was_its_mistake() {
        let busy = Err(AttemptError::Busy { retry_after: None });
        for (said, judged) in [
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
                Err(AttemptError::ErrorEvent),
            ),
            (
                json!({"error": {"type": "invalid_request_error", "code": "invalid_api_key"}}),
                Err(AttemptError::ErrorEvent),
            ),
            (json!({"error": {"code": 500, "type": "InternalServerError"}}), Err(AttemptError::ErrorEvent)),
            (json!({"error": {"code": 401}}), Err(AttemptError::ErrorEvent)),
            (json!({"error": "out of memory"}), Err(AttemptError::ErrorEvent)),
            (json!({"error": {"type": "api_error"}}), Err(AttemptError::ErrorEvent)),
            (Value::Null, Err(AttemptError::ErrorEvent)),
        ] {
            assert_eq!(classify_error_event(&said), judged, "{said}");
        }
    }

    #[test]
    fn every_way_to_be_turned_away_has_its_status() {
        let failed =
            |failure| Rejection::Failed { attempts: 1, failure, no_retry: NoRetryReason::NoOtherNode };
        let waited = Duration::ZERO;
        let timeout = Duration::ZERO;
        let status = |rejection| rejection_error(&rejection, "m", 3).status().as_u16();
        assert_eq!(status(Rejection::QueueFull { current_size: 1, max_size: 1, retry_after: waited }), 503);
        assert_eq!(status(Rejection::Evicted { current_size: 1, max_size: 1, retry_after: waited }), 503);
        assert_eq!(status(Rejection::WouldMissDeadline { retry_after: waited }), 503);
        assert_eq!(status(Rejection::WaitTimeout { waited, timeout }), 504);
        assert_eq!(status(Rejection::NoNode { model: evenkeel_pipeline::ModelId(0) }), 404);
        assert_eq!(status(failed(AttemptFailure::Unreachable)), 502);
        assert_eq!(status(failed(AttemptFailure::BadResponse)), 502);
        assert_eq!(status(failed(AttemptFailure::TimedOut)), 504);
        assert_eq!(status(failed(AttemptFailure::Busy { retry_after: None })), 503);
    }

    #[test]
    fn a_clients_mistake_is_passed_on_and_a_nodes_is_not() {
        let judged =
            |status: u16| classify_status(StatusCode::from_u16(status).unwrap(), &HeaderMap::new()).is_ok();
        let passed: Vec<u16> = (200..600).filter(|status| judged(*status)).collect();
        let passes =
            |status: &u16| matches!(status, 200..=299 | 400..=499 | 501) && ![401, 407, 429].contains(status);
        assert_eq!(passed, (200..600).filter(passes).collect::<Vec<_>>());
    }
}
