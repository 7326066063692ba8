//! The two protocols of SQS: JSON, and the older query protocol with forms and XML. Both carry the same requests and responses.

use evenkeel_server::route::{ServerRequest, is_form};
use http::{HeaderName, HeaderValue, Method};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use crate::error::SqsError;
use crate::operation::Operation;
use crate::xml;

pub(crate) const TARGET: HeaderName = HeaderName::from_static("x-amz-target");
const ACTION: &str = "Action=";
/// Initial buffer capacity; most responses fit.
const RESPONSE_BYTES: usize = 512;

/// A protocol of SQS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Json,
    Query,
}

/// The parameters of a request.
pub(crate) enum Parameters<'a> {
    Json(&'a [u8]),
    /// A form, converted by [`crate::form`].
    Query(Value),
}

impl Protocol {
    /// Finds the protocol of a request; only `POST` requests can be of the JSON protocol.
    pub(crate) fn of(request: &ServerRequest) -> Self {
        if request.request.method() != Method::POST {
            return Self::Query;
        }
        let headers = request.request.headers();
        if !headers.contains_key(TARGET) && (is_form(headers) || has_action(request)) {
            Self::Query
        } else {
            Self::Json
        }
    }

    pub(crate) const fn content_type(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Json => "application/x-amz-json-1.0",
            Self::Query => "text/xml",
        })
    }

    /// Encodes the response of an operation; `bytes` is an estimate of its length.
    pub(crate) fn encode(
        self,
        operation: Operation,
        request_id: &str,
        bytes: usize,
        response: &impl Serialize,
    ) -> Result<Vec<u8>, SqsError> {
        match self {
            Self::Json => {
                let mut text = Vec::with_capacity(bytes.max(RESPONSE_BYTES));
                serde_json::to_writer(&mut text, response).map_err(|_| SqsError::Internal)?;
                Ok(text)
            }
            Self::Query => {
                let fields = serde_json::to_value(response).map_err(|_| SqsError::Internal)?;
                Ok(xml::response(operation, request_id, &fields).into_bytes())
            }
        }
    }
}

impl Parameters<'_> {
    /// Parses the parameters of an operation.
    pub(crate) fn read<T: DeserializeOwned>(self) -> Result<T, SqsError> {
        let parsed = match self {
            // A request without parameters may have no body.
            Self::Json(b"") => serde_json::from_slice(b"{}"),
            Self::Json(body) => serde_json::from_slice(body),
            Self::Query(parameters) => serde_json::from_value(parameters),
        };
        parsed.map_err(|error| SqsError::Serialization { message: error.to_string() })
    }
}

/// Deserializes a list; some clients send `null` for a list that they do not set.
pub(crate) fn list<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reports whether the query string names an operation.
pub(crate) fn has_action(request: &ServerRequest) -> bool {
    let query = request.request.uri().query().unwrap_or_default();
    query.split('&').any(|pair| pair.starts_with(ACTION))
}
