//! How the door says no in the words of the API that was asked: OpenAI's, or Anthropic's on `/v1/messages`.
//!
//! Bound: whatever refuses a request of the door, its answer tells how long it waited, 0 if it never did.

use bytes::Bytes;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ErrorFormat;
use http::{HeaderName, HeaderValue};
use serde_json::{Value, json};

use crate::headers::QUEUE_WAIT_MS;
use crate::request::Endpoint;

/// Names a request to Anthropic's clients.
pub(crate) const ANTHROPIC_ID: HeaderName = HeaderName::from_static("request-id");

/// How requests of an endpoint are refused.
pub(crate) fn of(endpoint: Endpoint) -> ErrorFormat {
    if endpoint.is_anthropic() { anthropic } else { openai }
}

/// Says no as OpenAI does.
pub(crate) fn openai(refusal: ApiError, _: &HeaderValue) -> Response {
    with_zero_wait(refusal.into_response())
}

/// Says no as Anthropic does, with the same statuses and headers: 503 and `Retry-After` is what its clients retry, too.
fn anthropic(refusal: ApiError, request_id: &HeaderValue) -> Response {
    let mut body = anthropic_body(&refusal);
    body["request_id"] = request_id.to_str().unwrap_or_default().into();
    let mut response = with_zero_wait(refusal.with_body(&body));
    response.headers_mut().insert(ANTHROPIC_ID, request_id.clone());
    response
}

/// Notes that a request did not wait.
pub(crate) fn with_zero_wait(mut response: Response) -> Response {
    response.headers_mut().insert(QUEUE_WAIT_MS, HeaderValue::from_static("0"));
    response
}

/// A refusal as the last event of a stream that has begun, after `before`.
pub(crate) fn event(before: &str, endpoint: Endpoint, refusal: &ApiError) -> Bytes {
    let (name, error) = match endpoint {
        Endpoint::Chat | Endpoint::Completions => ("", refusal.to_json()),
        Endpoint::Messages | Endpoint::CountTokens => ("event: error\n", anthropic_body(refusal)),
        Endpoint::Responses
        | Endpoint::Embeddings
        | Endpoint::Rerank
        | Endpoint::Speech
        | Endpoint::Transcription
        | Endpoint::Other => {
            // As the Responses API has it; the object behind `error` is what OpenAI's clients raise.
            let mut error = refusal.to_json();
            error["type"] = "error".into();
            error["code"] = refusal.code().into();
            error["message"] = refusal.to_string().into();
            ("event: error\n", error)
        }
    };
    Bytes::from(format!("{before}{name}data: {error}\n\n"))
}

fn anthropic_body(refusal: &ApiError) -> Value {
    json!({"type": "error", "error": {
        "type": anthropic_kind(refusal),
        "message": refusal.to_string(),
        "details": {"error_code": refusal.code()},
    }})
}

fn anthropic_kind(refusal: &ApiError) -> &'static str {
    match refusal {
        ApiError::Invalid { .. }
        | ApiError::Framing
        | ApiError::Method { .. }
        | ApiError::Conflict { .. }
        | ApiError::BodyTimeout => "invalid_request_error",
        ApiError::BodyTooLarge { .. } => "request_too_large",
        ApiError::Unauthenticated => "authentication_error",
        ApiError::TenantDisabled | ApiError::AdminOnly | ApiError::ModelForbidden { .. } => {
            "permission_error"
        }
        ApiError::NoRoute | ApiError::NotFound { .. } | ApiError::NoModel { .. } => "not_found_error",
        ApiError::RateLimited { .. } => "rate_limit_error",
        ApiError::QueueFull { .. }
        | ApiError::Unready
        | ApiError::Draining
        | ApiError::Unavailable { .. } => "overloaded_error",
        ApiError::WaitTimeout | ApiError::UpstreamTimeout => "timeout_error",
        ApiError::Upstream | ApiError::Internal => "api_error",
    }
}
