//! Errors as clients see them, in OpenAI's and in Anthropic's JSON shape.

use super::fault::FaultResponse;
use hyper::StatusCode;
use serde_json::{Value, json};

/// Why a request is not done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ApiError {
    Bad { param: Option<&'static str>, what: String },
    NoModel { model: String },
    NoRoute { method: String, path: String },
    WrongMethod { allowed: &'static str },
    TooLarge { bytes_max: usize },
    NotLocal,
    Full,
    Fault(FaultResponse),
}

impl ApiError {
    pub(super) fn bad(param: Option<&'static str>, what: String) -> Self {
        Self::Bad { param, what }
    }

    /// Names the parameter that is to blame.
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

    /// Names a header that belongs to the answer, with its value.
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

    /// The error in Anthropic's shape.
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

    /// The error in OpenAI's shape.
    pub(super) fn body(&self) -> Value {
        let (kind, code, message) = match self {
            Self::Bad { what, .. } => ("invalid_request_error", None, what.clone()),
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
                ("invalid_request_error", None, "faults are set from the same machine only".to_owned())
            }
            Self::Full => (
                "server_error",
                Some("engine_overloaded"),
                "every slot and waiting place is taken".to_owned(),
            ),
            Self::Fault(FaultResponse::TooMany | FaultResponse::TooManyRetryAfter) => {
                ("rate_limit_error", Some("rate_limit_exceeded"), "too many requests".to_owned())
            }
            Self::Fault(FaultResponse::Internal) => {
                ("server_error", None, "the engine broke down".to_owned())
            }
        };
        json!({"error": {"message": message, "type": kind, "param": self.param(), "code": code}})
    }
}
