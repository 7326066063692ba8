//! Error responses in the formats of OpenAI and Anthropic.

use super::fault::FaultResponse;
use hyper::StatusCode;
use serde_json::{Value, json};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    InvalidRequest { param: Option<&'static str>, message: String },
    ModelNotFound { model: String },
    RouteNotFound { method: String, path: String },
    MethodNotAllowed { allowed: &'static str },
    TooLarge { bytes_max: usize },
    NotLocal,
    QueueFull,
    Fault(FaultResponse),
}

impl ApiError {
    pub(super) fn invalid(param: Option<&'static str>, message: String) -> Self {
        Self::InvalidRequest { param, message }
    }

    /// Returns the request parameter that caused the error.
    pub(super) fn param(&self) -> Option<&'static str> {
        match self {
            Self::InvalidRequest { param, .. } => *param,
            Self::ModelNotFound { .. } => Some("model"),
            Self::RouteNotFound { .. }
            | Self::MethodNotAllowed { .. }
            | Self::TooLarge { .. }
            | Self::NotLocal
            | Self::QueueFull
            | Self::Fault(_) => None,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::InvalidRequest { .. } => StatusCode::BAD_REQUEST,
            Self::ModelNotFound { .. } | Self::RouteNotFound { .. } => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotLocal => StatusCode::FORBIDDEN,
            Self::QueueFull => StatusCode::SERVICE_UNAVAILABLE,
            Self::Fault(FaultResponse::TooManyRequests | FaultResponse::TooManyRequestsRetryAfter) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Fault(FaultResponse::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the extra header (`Allow` or `Retry-After`), if the error has one.
    pub(super) fn header(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::MethodNotAllowed { allowed } => Some(("allow", allowed)),
            Self::Fault(FaultResponse::TooManyRequestsRetryAfter) => Some(("retry-after", "1")),
            Self::InvalidRequest { .. }
            | Self::ModelNotFound { .. }
            | Self::RouteNotFound { .. }
            | Self::TooLarge { .. }
            | Self::NotLocal
            | Self::QueueFull
            | Self::Fault(FaultResponse::TooManyRequests | FaultResponse::Internal) => None,
        }
    }

    /// Returns the body in Anthropic's format.
    pub(super) fn anthropic_body(&self) -> Value {
        let kind = match self {
            Self::ModelNotFound { .. } | Self::RouteNotFound { .. } => "not_found_error",
            Self::NotLocal => "permission_error",
            Self::TooLarge { .. } => "request_too_large",
            Self::InvalidRequest { .. } | Self::MethodNotAllowed { .. } => "invalid_request_error",
            Self::QueueFull => "overloaded_error",
            Self::Fault(FaultResponse::TooManyRequests | FaultResponse::TooManyRequestsRetryAfter) => {
                "rate_limit_error"
            }
            Self::Fault(FaultResponse::Internal) => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.openai_body()["error"]["message"]}})
    }

    /// Returns the body in OpenAI's format.
    pub(super) fn openai_body(&self) -> Value {
        let (kind, code, message) = match self {
            Self::InvalidRequest { message, .. } => ("invalid_request_error", None, message.clone()),
            Self::ModelNotFound { model } => (
                "invalid_request_error",
                Some("model_not_found"),
                format!("the model `{model}` does not exist"),
            ),
            Self::RouteNotFound { method, path } => {
                ("invalid_request_error", None, format!("unknown request URL: {method} {path}"))
            }
            Self::MethodNotAllowed { allowed } => {
                ("invalid_request_error", None, format!("only {allowed} is allowed here"))
            }
            Self::TooLarge { bytes_max } => {
                ("invalid_request_error", None, format!("the body is larger than {bytes_max} bytes"))
            }
            Self::NotLocal => {
                ("invalid_request_error", None, "faults can only be set from the same machine".to_owned())
            }
            Self::QueueFull => (
                "server_error",
                Some("engine_overloaded"),
                "all slots are busy and the queue is full".to_owned(),
            ),
            Self::Fault(FaultResponse::TooManyRequests | FaultResponse::TooManyRequestsRetryAfter) => {
                ("rate_limit_error", Some("rate_limit_exceeded"), "too many requests".to_owned())
            }
            Self::Fault(FaultResponse::Internal) => {
                ("server_error", None, "internal server error".to_owned())
            }
        };
        json!({"error": {"message": message, "type": kind, "param": self.param(), "code": code}})
    }
}
