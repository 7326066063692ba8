//! Error responses: status, headers and a JSON body in OpenAI's format.
//!
//! Guarantees: a body contains only text of this module and of the client's own request; internal errors never reach
//! the client.

use evenkeel_policy::time::Duration;
use http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::{Value, json};

use crate::body::{self, Response};
use crate::budget::BudgetReached;

/// Header with the number of queued requests.
const QUEUE_SIZE: HeaderName = HeaderName::from_static("x-queue-size");
/// Header by which the SDKs of OpenAI and Anthropic decide about retries before anything else.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// Kind of a tenant's per-minute limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RateLimitKind {
    Requests,
    Tokens,
}

impl RateLimitKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Requests => "requests",
            Self::Tokens => "tokens",
        }
    }
}

/// Reason why an API rejects a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request is malformed; the message is for the client.
    #[error("{message}")]
    Invalid {
        message: String,
        /// The parameter at fault.
        param: Option<String>,
    },
    /// The request's length is ambiguous (request smuggling); the connection closes.
    #[error("the request's headers disagree about its length")]
    Framing,
    #[error("no valid API key was given")]
    Unauthenticated,
    /// The key is right, but it has expired.
    #[error("this API key expired at {at}")]
    KeyExpired { at: String },
    #[error("this API key's tenant is disabled")]
    TenantDisabled,
    #[error("this operation needs an admin key")]
    AdminOnly,
    #[error("this API key may not use model {model:?}")]
    ModelForbidden { model: String },
    #[error("this API key may not use datasource {datasource:?}")]
    DatasourceForbidden { datasource: String },
    /// A peer handed the request over with a ticket that this node does not accept.
    #[error("the ticket of this request is not valid: {reason}")]
    InvalidTicket { reason: String },
    /// A web page of another site sent the request.
    #[error(
        "requests from web pages of another origin are not allowed; cors_origins of [server] lists the exceptions"
    )]
    ForeignOrigin,
    /// The request names this server by a name that may be an attacker's (DNS rebinding).
    #[error(
        "{host:?} is not a name of this server; list its names in hosts of [server], or use its IP address"
    )]
    UnknownHost { host: String },
    /// A proxy forwarded the request to a server that is open to clients on this machine only.
    #[error(
        "this server has no tenants, so it serves only clients on this machine, and a proxy forwarded this request; \
         add a tenant, or set allow_open to serve everybody whom the proxy lets in"
    )]
    Forwarded,
    #[error("a body needs the header `Content-Type: application/json`")]
    NotJson,
    #[error("no route matches this path")]
    NoRoute,
    #[error("method not allowed: this path accepts {allow}")]
    Method {
        /// The accepted methods, in the format of `Allow`.
        allow: String,
    },
    /// The path names a resource that does not exist.
    #[error("there is no {what}")]
    NotFound {
        /// The resource, as in `tenant "acme"`.
        what: String,
    },
    /// The request conflicts with the resource's state; the message is for the client.
    #[error("{message}")]
    Conflict { message: String },
    /// The request may succeed later; the message is for the client.
    #[error("{message}")]
    Unavailable { message: String, retry_after: Duration },
    #[error("no node serves model {model:?}")]
    NoModel { model: String },
    #[error("the body did not arrive in time")]
    BodyTimeout,
    #[error("the body is larger than {bytes_max} bytes")]
    BodyTooLarge { bytes_max: u64 },
    #[error("rate limit reached: {} per minute", .rate.as_str())]
    RateLimited { rate: RateLimitKind, retry_after: Duration },
    #[error(transparent)]
    BudgetReached(Box<BudgetReached>),
    #[error("queue is full: {queue_size} requests waiting, retry after {} s", whole_seconds(*.retry_after))]
    QueueFull { queue_size: u64, retry_after: Duration },
    /// The budget of request bodies is used up by others, or this body was evicted from it.
    #[error("too many request bodies are being received, retry in a moment")]
    BodiesFull,
    /// All connections are in use, and this one is reserved for probes and administrators.
    #[error("too many connections are in use, retry in a moment")]
    ConnectionsFull,
    #[error("timed out while waiting for a free slot")]
    WaitTimeout,
    #[error("the node sent an invalid response")]
    Upstream,
    #[error("the node did not respond in time")]
    UpstreamTimeout,
    /// No node has reported its models yet.
    #[error("model discovery is still running, retry in a moment")]
    Unready,
    #[error("the server is shutting down")]
    Draining,
    #[error("internal error")]
    Internal,
}

/// The client-visible constants of an error.
struct ErrorParts {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

impl ApiError {
    /// Creates an error for a request that may succeed in a second.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into(), retry_after: Duration::from_secs(1) }
    }

    /// Creates an error for a malformed request.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into(), param: None }
    }

    pub fn status(&self) -> StatusCode {
        self.parts().status
    }

    /// Returns the error in OpenAI's format, for a body or for the last event of a stream.
    pub fn to_json(&self) -> Value {
        let ErrorParts { kind, code, .. } = self.parts();
        let param = match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::ModelForbidden { .. } | Self::NoModel { .. } => Some("model"),
            _ => None,
        };
        json!({"error": {"message": self.to_string(), "type": kind, "param": param, "code": code}})
    }

    /// Converts the error into a response.
    pub fn into_response(self) -> Response {
        let body = self.to_json();
        self.with_body(&body)
    }

    /// Converts the error into a response with a body in another format.
    pub fn with_body(self, body: &Value) -> Response {
        let status = self.status();
        let mut response = body::json_response(status, body::full(body.to_string()));
        let headers = response.headers_mut();
        if let Some(retry_after) = self.retry_after() {
            headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(retry_after)));
        }
        if let Self::QueueFull { queue_size, .. } = self {
            headers.insert(QUEUE_SIZE, HeaderValue::from(queue_size));
        }
        if let Self::BudgetReached(reached) = &self
            && reached.is_used_up()
        {
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
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

    /// Returns the time after which a retry may succeed.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::RateLimited { retry_after, .. }
            | Self::QueueFull { retry_after, .. }
            | Self::Unavailable { retry_after, .. } => Some(*retry_after),
            Self::BudgetReached(reached) => Some(reached.retry_after()),
            Self::Unready | Self::Draining | Self::BodiesFull | Self::ConnectionsFull => {
                Some(Duration::from_secs(1))
            }
            _ => None,
        }
    }

    /// Returns the stable `code` that clients match on.
    pub fn code(&self) -> &'static str {
        self.parts().code
    }

    fn parts(&self) -> ErrorParts {
        let (status, kind, code) = match self {
            Self::Invalid { .. } => (400, "invalid_request_error", "invalid_request"),
            Self::Framing => (400, "invalid_request_error", "ambiguous_framing"),
            Self::Unauthenticated => (401, "authentication_error", "invalid_api_key"),
            Self::KeyExpired { .. } => (401, "authentication_error", "api_key_expired"),
            Self::TenantDisabled => (403, "permission_error", "tenant_disabled"),
            Self::AdminOnly => (403, "permission_error", "admin_only"),
            Self::ModelForbidden { .. } => (403, "permission_error", "model_forbidden"),
            Self::DatasourceForbidden { .. } => (403, "permission_error", "datasource_forbidden"),
            Self::InvalidTicket { .. } => (403, "permission_error", "invalid_ticket"),
            Self::ForeignOrigin => (403, "permission_error", "foreign_origin"),
            Self::UnknownHost { .. } => (403, "permission_error", "unknown_host"),
            Self::Forwarded => (403, "permission_error", "forwarded_request"),
            Self::NotJson => (415, "invalid_request_error", "unsupported_media_type"),
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
            // The type and code that OpenAI uses for a quota that is used up.
            Self::BudgetReached(reached) if reached.is_used_up() => {
                (429, "insufficient_quota", "insufficient_quota")
            }
            Self::BudgetReached(_) => (429, "tokens", "rate_limit_exceeded"),
            Self::QueueFull { .. } => (503, "overloaded_error", "queue_full"),
            Self::BodiesFull => (503, "overloaded_error", "bodies_full"),
            Self::ConnectionsFull => (503, "overloaded_error", "connections_full"),
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

/// Rounds up to whole seconds, at least one, so that a client that waits this long does not retry too early.
fn whole_seconds(duration: Duration) -> u64 {
    (duration.as_secs() + u64::from(duration.subsec_nanos() > 0)).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_is_rounded_up() {
        let error = ApiError::RateLimited {
            rate: RateLimitKind::Requests,
            retry_after: Duration::from_millis(1_001),
        };
        assert_eq!(error.to_string(), "rate limit reached: requests per minute");
        let response = error.into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()[RETRY_AFTER], "2");
    }

    #[test]
    fn retry_after_is_at_least_a_second() {
        assert_eq!(whole_seconds(Duration::ZERO), 1);
        assert_eq!(whole_seconds(Duration::from_secs(3)), 3);
    }

    #[test]
    fn a_full_queue_reports_its_size() {
        let error = ApiError::QueueFull { queue_size: 100, retry_after: Duration::from_secs(2) };
        assert_eq!(error.to_string(), "queue is full: 100 requests waiting, retry after 2 s");
        let response = error.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[QUEUE_SIZE], "100");
    }

    #[test]
    fn a_wrong_method_gets_405_with_the_allowed_methods() {
        let response = ApiError::Method { allow: "GET, POST".to_owned() }.into_response();
        assert_eq!(
            (response.status().as_u16(), &response.headers()[ALLOW]),
            (405, &"GET, POST".parse().unwrap())
        );
    }
}
