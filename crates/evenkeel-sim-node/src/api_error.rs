//! Error responses in the formats of OpenAI and Anthropic.

use super::fault::FaultResponse;
use hyper::StatusCode;
use serde_json::{Value, json};

/// Error response to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    Bad { param: Option<&'static str>, message: String },
    NoModel { model: String },
    NoRoute { method: String, path: String },
    WrongMethod { allowed: &'static str },
    TooLarge { bytes_max: usize },
    NotLocal,
    Full,
    Fault(FaultResponse),
}

impl ApiError {
    pub(super) fn bad(param: Option<&'static str>, message: String) -> Self {
        Self::Bad { param, message }
    }

    /// Returns the request parameter that caused the error.
    pub(super) fn param(&self) -> Option<&'static str> {
        match self {
            Self::Bad { param, .. } => *param,
            Self::NoModel { .. } => Some("model"),
            Self::NoRoute { .. }
            | Self::WrongMethod { .. }
            | Self::TooLarge { .. }
            | Self::NotLocal
            | Self::Full
            | Self::Fault(_) => None,
        }
    }

    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::Bad { .. } => StatusCode::BAD_REQUEST,
            Self::NoModel { .. } | Self::NoRoute { .. } => StatusCode::NOT_FOUND,
            Self::WrongMethod { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::NotLocal => StatusCode::FORBIDDEN,
            Self::Full => StatusCode::SERVICE_UNAVAILABLE,
            Self::Fault(FaultResponse::TooMany | FaultResponse::TooManyRetryAfter) => {
                StatusCode::TOO_MANY_REQUESTS
            }
            Self::Fault(FaultResponse::Internal) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns a header that belongs to the response, with its value.
    pub(super) fn header(&self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::WrongMethod { allowed } => Some(("allow", allowed)),
            Self::Fault(FaultResponse::TooManyRetryAfter) => Some(("retry-after", "1")),
            Self::Bad { .. }
            | Self::NoModel { .. }
            | Self::NoRoute { .. }
            | Self::TooLarge { .. }
            | Self::NotLocal
            | Self::Full
            | Self::Fault(FaultResponse::TooMany | FaultResponse::Internal) => None,
        }
    }

    /// Returns the body in Anthropic's format.
    pub(super) fn anthropic_body(&self) -> Value {
        let kind = match self {
            Self::NoModel { .. } | Self::NoRoute { .. } => "not_found_error",
            Self::NotLocal => "permission_error",
            Self::TooLarge { .. } => "request_too_large",
            Self::Bad { .. } | Self::WrongMethod { .. } => "invalid_request_error",
            Self::Full => "overloaded_error",
            Self::Fault(FaultResponse::TooMany | FaultResponse::TooManyRetryAfter) => "rate_limit_error",
            Self::Fault(FaultResponse::Internal) => "api_error",
        };
        json!({"type": "error", "error": {"type": kind, "message": self.body()["error"]["message"]}})
    }

    /// Returns the body in OpenAI's format.
    pub(super) fn body(&self) -> Value {
        let (kind, code, message) = match self {
            Self::Bad { message, .. } => ("invalid_request_error", None, message.clone()),
            Self::NoModel { model } => (
                "invalid_request_error",
                Some("model_not_found"),
                format!("the model `{model}` does not exist"),
            ),
            Self::NoRoute { method, path } => {
                ("invalid_request_error", None, format!("unknown request URL: {method} {path}"))
            }
            Self::WrongMethod { allowed } => {
                ("invalid_request_error", None, format!("only {allowed} is allowed here"))
            }
            Self::TooLarge { bytes_max } => {
                ("invalid_request_error", None, format!("the body has more than {bytes_max} bytes"))
            }
            Self::NotLocal => {
                ("invalid_request_error", None, "faults can only be set from the same machine".to_owned())
            }
            Self::Full => (
                "server_error",
                Some("engine_overloaded"),
                "all slots are busy and the queue is full".to_owned(),
            ),
            Self::Fault(FaultResponse::TooMany | FaultResponse::TooManyRetryAfter) => {
                ("rate_limit_error", Some("rate_limit_exceeded"), "too many requests".to_owned())
            }
            Self::Fault(FaultResponse::Internal) => {
                ("server_error", None, "internal server error".to_owned())
            }
        };
        json!({"error": {"message": message, "type": kind, "param": self.param(), "code": code}})
    }
}
