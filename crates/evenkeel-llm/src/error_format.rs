//! Error bodies in the format of the API that was called: OpenAI's, or Anthropic's on `/v1/messages`.
//!
//! Guarantees: every error response of the LLM API states how long the request was queued; 0 if it never was.

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::{ErrorFormat, FailedRequest};
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::headers::QUEUE_WAIT_MS;
use crate::request::Endpoint;

/// The header in which Anthropic's clients expect the request ID.
pub(crate) const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// Returns the error format of an endpoint.
pub(crate) fn for_endpoint(endpoint: Endpoint) -> ErrorFormat {
    if endpoint.is_anthropic() { anthropic } else { openai }
}

pub(crate) fn openai(error: ApiError, _: &FailedRequest) -> Response {
    with_zero_wait(error.into_response())
}

/// Formats an error body as Anthropic does. Status and headers stay ours: Anthropic's clients also retry a 503 after
/// `Retry-After`.
fn anthropic(error: ApiError, request: &FailedRequest) -> Response {
    let mut body = anthropic_body(&error);
    body["request_id"] = request.id.to_str().unwrap_or_default().into();
    let mut response = with_zero_wait(error.with_body(&body));
    response.headers_mut().insert(ANTHROPIC_ID, request.id.clone());
    response
}

/// Sets the queue-wait header to 0.
pub(crate) fn with_zero_wait(mut response: Response) -> Response {
    response.headers_mut().insert(QUEUE_WAIT_MS, HeaderValue::from_static("0"));
    response
}

/// Formats an error as the last event of a stream; `before` is written first, to end an incomplete event.
pub(crate) fn error_event(before: &str, endpoint: Endpoint, error: &ApiError) -> Bytes {
    let (name, data) = match endpoint {
        Endpoint::Chat | Endpoint::Completions => ("", error.to_json()),
        Endpoint::Messages | Endpoint::CountTokens => ("event: error\n", anthropic_body(error)),
        Endpoint::Responses
        | Endpoint::Embeddings
        | Endpoint::Rerank
        | Endpoint::Speech
        | Endpoint::Transcription
        | Endpoint::Other => {
            // The format of the Responses API; OpenAI's clients raise the object under `error`.
            let mut data = error.to_json();
            data["type"] = "error".into();
            data["code"] = error.code().into();
            data["message"] = error.to_string().into();
            ("event: error\n", data)
        }
    };
    Bytes::from(format!("{before}{name}data: {data}\n\n"))
}

fn anthropic_body(error: &ApiError) -> Value {
    json!({"type": "error", "error": {
        "type": anthropic_type(error),
        "message": error.to_string(),
        "details": {"error_code": error.code()},
    }})
}

fn anthropic_type(error: &ApiError) -> &'static str {
    match error {
        ApiError::Invalid { .. }
        | ApiError::Framing
        | ApiError::Method { .. }
        | ApiError::Conflict { .. }
        | ApiError::NotJson
        | ApiError::BodyTimeout => "invalid_request_error",
        ApiError::BodyTooLarge { .. } => "request_too_large",
        ApiError::Unauthenticated | ApiError::KeyExpired { .. } => "authentication_error",
        ApiError::TenantDisabled
        | ApiError::AdminOnly
        | ApiError::ModelForbidden { .. }
        | ApiError::DatasourceForbidden { .. }
        | ApiError::InvalidTicket { .. }
        | ApiError::ForeignOrigin
        | ApiError::UnknownHost { .. }
        | ApiError::Forwarded => "permission_error",
        ApiError::NoRoute | ApiError::NotFound { .. } | ApiError::NoModel { .. } => "not_found_error",
        ApiError::RateLimited { .. } | ApiError::BudgetReached(_) => "rate_limit_error",
        ApiError::QueueFull { .. }
        | ApiError::BodiesFull
        | ApiError::ConnectionsFull
        | ApiError::Unready
        | ApiError::Draining
        | ApiError::Unavailable { .. } => "overloaded_error",
        ApiError::WaitTimeout | ApiError::UpstreamTimeout => "timeout_error",
        ApiError::Upstream | ApiError::Internal => "api_error",
    }
}
