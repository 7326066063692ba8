//! Every way a door says no, and what the client sees: OpenAI's JSON error shape.
//!
//! Bound: a body holds only what is written here and what the client itself sent; what went wrong inside never
//! reaches it.

use core::fmt;

use evenkeel_policy::time::Duration;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Response};

/// Names the header that tells how many wait.
const QUEUE_SIZE: HeaderName = HeaderName::from_static("x-queue-size");

/// Which of a tenant's limits per minute was reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitKind {
    /// Requests per minute.
    Requests,
    /// Tokens per minute.
    Tokens,
}

/// A request that a door does not serve, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiError {
    /// The request cannot be understood; the message is for the client.
    Invalid {
        /// What is wrong with it.
        message: String,
        /// The parameter at fault.
        param: Option<String>,
    },
    /// Two readers could disagree where the request ends; the connection closes.
    Framing,
    /// No credential, or one that nobody has.
    Unauthenticated,
    /// The tenant is switched off.
    TenantDisabled,
    /// Only an administrator may ask this.
    AdminOnly,
    /// The tenant may not use this model.
    ModelForbidden {
        /// The model asked for.
        model: String,
    },
    /// No route has this path.
    NoRoute,
    /// The path takes other methods.
    Method {
        /// The methods it takes, as `Allow` lists them.
        allow: String,
    },
    /// What the path names is not there.
    NotFound {
        /// What, as in `tenant "acme"`.
        what: String,
    },
    /// What is asked contradicts how things are; the message is for the client.
    Conflict {
        /// How they are.
        message: String,
    },
    /// Not now; the message is for the client.
    Unavailable {
        /// Why.
        message: String,
    },
    /// No node serves the model.
    NoModel {
        /// The model asked for.
        model: String,
    },
    /// The client took too long to send its body.
    BodyTimeout,
    /// The body is larger than allowed.
    BodyTooLarge {
        /// The most allowed.
        bytes_max: u64,
    },
    /// The tenant's minute is used up.
    RateLimited {
        /// Which limit.
        rate: RateLimitKind,
        /// When to come back.
        retry_after: Duration,
    },
    /// All places to wait are taken.
    QueueFull {
        /// How many wait.
        queue_size: u64,
        /// When to come back.
        retry_after: Duration,
    },
    /// Waited as long as allowed, and no slot came free.
    WaitTimeout,
    /// The node answered something that cannot be passed on.
    Upstream,
    /// The node did not answer in time.
    UpstreamTimeout,
    /// Not enough is known yet to say whether it can be served.
    Unready,
    /// The server is stopping.
    Draining,
    /// A defect here.
    Internal,
}

/// What a refusal looks like from outside.
struct ErrorParts {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

impl ApiError {
    /// Refuses a request as not understood.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: None }
    }

    /// The status the client sees.
    pub fn status(&self) -> StatusCode {
        self.parts().status
    }

    /// The refusal in OpenAI's shape, for a body or for the last event of a stream.
    pub fn to_json(&self) -> Value {
        let ErrorParts { kind, code, .. } = self.parts();
        let param = match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::ModelForbidden { .. } | Self::NoModel { .. } => Some("model"),
            _ => None,
        };
        json!({"error": {"message": self.to_string(), "type": kind, "param": param, "code": code}})
    }

    /// Writes the refusal as a response.
    pub fn into_response(self) -> Response {
        let body = self.to_json();
        self.with_body(&body)
    }

    /// Writes the refusal as a response whose body is in another shape.
    pub fn with_body(self, body: &Value) -> Response {
        let status = self.status();
        let mut response = Response::new(body::full(body.to_string()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(span) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(span)));
        }
        if let Self::QueueFull { queue_size, .. } = self {
            headers.insert(QUEUE_SIZE, HeaderValue::from(queue_size));
        }
        if status == StatusCode::UNAUTHORIZED {
            headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Self::Method { allow } = &self
            && let Ok(allow) = HeaderValue::from_str(allow)
        {
            headers.insert(ALLOW, allow);
        }
        response
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. } | Self::QueueFull { retry_after, .. } => Some(*retry_after),
            Self::Unready | Self::Draining | Self::Unavailable { .. } => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// The word for it that clients rely on.
    pub fn code(&self) -> &'static str {
        self.parts().code
    }

    fn parts(&self) -> ErrorParts {
        let (status, kind, code) = match self {
            Self::Invalid { .. } => (400, "invalid_request_error", "invalid_request"),
            Self::Framing => (400, "invalid_request_error", "ambiguous_framing"),
            Self::Unauthenticated => (401, "authentication_error", "invalid_api_key"),
            Self::TenantDisabled => (403, "permission_error", "tenant_disabled"),
            Self::AdminOnly => (403, "permission_error", "admin_only"),
            Self::ModelForbidden { .. } => (403, "permission_error", "model_forbidden"),
            Self::NoRoute => (404, "invalid_request_error", "unknown_url"),
            Self::Method { .. } => (405, "invalid_request_error", "method_not_allowed"),
            Self::NotFound { .. } => (404, "invalid_request_error", "not_found"),
            Self::Conflict { .. } => (409, "invalid_request_error", "conflict"),
            Self::Unavailable { .. } => (503, "overloaded_error", "unavailable"),
            Self::NoModel { .. } => (404, "invalid_request_error", "model_not_found"),
            Self::BodyTimeout => (408, "invalid_request_error", "body_timeout"),
            Self::BodyTooLarge { .. } => (413, "invalid_request_error", "body_too_large"),
            Self::RateLimited { rate: RateLimitKind::Requests, .. } => {
                (429, "requests", "rate_limit_exceeded")
            }
            Self::RateLimited { rate: RateLimitKind::Tokens, .. } => (429, "tokens", "rate_limit_exceeded"),
            Self::QueueFull { .. } => (503, "overloaded_error", "queue_full"),
            Self::WaitTimeout => (504, "timeout_error", "wait_timeout"),
            Self::Upstream => (502, "upstream_error", "bad_upstream"),
            Self::UpstreamTimeout => (504, "timeout_error", "upstream_timeout"),
            Self::Unready => (503, "overloaded_error", "not_ready"),
            Self::Draining => (503, "overloaded_error", "shutting_down"),
            Self::Internal => (500, "server_error", "internal_error"),
        };
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        ErrorParts { status, kind, code }
    }
}

/// Rounds up, so that whoever waits as told is not too early.
fn whole_seconds(span: Duration) -> u64 {
    (span.as_secs() + u64::from(span.subsec_nanos() > 0)).max(1)
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid { message, .. } | Self::Conflict { message } | Self::Unavailable { message } => {
                f.write_str(message)
            }
            Self::Framing => f.write_str("the request's headers disagree about its length"),
            Self::Unauthenticated => f.write_str("no valid API key was given"),
            Self::TenantDisabled => f.write_str("this API key's tenant is disabled"),
            Self::AdminOnly => f.write_str("this needs an admin key"),
            Self::ModelForbidden { model } => write!(f, "this API key may not use model {model:?}"),
            Self::NoRoute => f.write_str("nothing is served at this path"),
            Self::Method { allow } => write!(f, "this path takes {allow}"),
            Self::NotFound { what } => write!(f, "there is no {what}"),
            Self::NoModel { model } => write!(f, "no node serves model {model:?}"),
            Self::BodyTimeout => f.write_str("the body did not arrive in time"),
            Self::BodyTooLarge { bytes_max } => write!(f, "the body is larger than {bytes_max} bytes"),
            Self::RateLimited { rate: RateLimitKind::Requests, .. } => {
                f.write_str("requests per minute are used up")
            }
            Self::RateLimited { rate: RateLimitKind::Tokens, .. } => {
                f.write_str("tokens per minute are used up")
            }
            Self::QueueFull { queue_size, .. } => write!(f, "queue is full, {queue_size} wait"),
            Self::WaitTimeout => f.write_str("no slot came free in time"),
            Self::Upstream => f.write_str("the node's answer cannot be passed on"),
            Self::UpstreamTimeout => f.write_str("the node did not answer in time"),
            Self::Unready => f.write_str("nodes have not said yet what they serve"),
            Self::Draining => f.write_str("the server is stopping"),
            Self::Internal => f.write_str("internal error"),
        }
    }
}

impl core::error::Error for ApiError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_tells_when_to_come_back_and_never_too_early() {
        let refusal = ApiError::RateLimited {
            rate: RateLimitKind::Requests,
            retry_after: Duration::from_millis(1_001),
        };
        let response = refusal.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }

    #[test]
    fn a_wait_of_no_time_is_still_a_second() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_secs(3)), 3);
    }

    #[test]
    fn a_full_queue_tells_its_size() {
        let response =
            ApiError::QueueFull { queue_size: 100, retry_after: Duration::from_secs(2) }.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[QUEUE_SIZE], "100");
    }

    #[test]
    fn a_method_that_is_not_taken_tells_which_are() {
        let response = ApiError::Method { allow: "GET, POST".to_owned() }.into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[ALLOW]),
            (405, &"GET, POST".parse().unwrap())
        );
    }
}
