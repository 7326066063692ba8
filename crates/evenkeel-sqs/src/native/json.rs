//! Messages and refusals as JSON.

use std::collections::BTreeMap;

use evenkeel_queue::message::Payload;
use evenkeel_queue::queues::CreateError;
use evenkeel_queue::store::StoreError;
use evenkeel_queue::{Delivery, MessageId, Rejection};
use evenkeel_server::api_error::ApiError;
use serde::Serialize;

use crate::attribute::Value;
use crate::base64;
use crate::error::SqsError;
use crate::stored_headers::StoredHeaders;

/// A message in a consumer's hands.
#[derive(Serialize)]
pub(super) struct DeliveryJson<'a> {
    id: String,
    receipt: &'a str,
    fairness_key: &'a str,
    attempt: u32,
    sent_at_ms: u64,
    first_delivered_at_ms: u64,
    #[serde(flatten)]
    content: ContentJson<'a>,
}

impl<'a> DeliveryJson<'a> {
    pub(super) fn of(delivery: &'a Delivery) -> Self {
        Self {
            id: delivery.id.to_string(),
            receipt: delivery.receipt.as_str(),
            fairness_key: &delivery.key,
            attempt: delivery.attempt,
            sent_at_ms: delivery.sent_at.0,
            first_delivered_at_ms: delivery.first_delivered_at.0,
            content: ContentJson::of(&delivery.payload),
        }
    }
}

/// A message that nobody has.
#[derive(Serialize)]
pub(super) struct PeekJson<'a> {
    id: String,
    fairness_key: &'a str,
    #[serde(flatten)]
    content: ContentJson<'a>,
}

impl<'a> PeekJson<'a> {
    pub(super) fn of((id, key, payload): &'a (MessageId, std::sync::Arc<str>, Payload)) -> Self {
        Self { id: id.to_string(), fairness_key: key, content: ContentJson::of(payload) }
    }
}

/// What was sent.
#[derive(Serialize)]
struct ContentJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, HeaderValue<'a>>,
    body: &'a str,
}

/// A header's value: text, or what an SQS client sent as bytes.
#[derive(Serialize)]
#[serde(untagged)]
enum HeaderValue<'a> {
    Text(&'a str),
    Binary { base64: String },
}

impl<'a> ContentJson<'a> {
    fn of(payload: &'a Payload) -> Self {
        let kept = StoredHeaders::decode(&payload.headers);
        let sender = kept.as_ref().map(|kept| kept.sender).filter(|sender| !sender.is_empty());
        let attributes = kept.map(|kept| kept.attributes).unwrap_or_default();
        let headers = attributes.into_iter().map(|attribute| {
            let value = match attribute.value {
                Value::Text(text) => HeaderValue::Text(text),
                Value::Binary(bytes) => HeaderValue::Binary { base64: base64::encode(bytes) },
            };
            (attribute.name, value)
        });
        // Both protocols take text only.
        let body = str::from_utf8(&payload.body).unwrap_or_default();
        Self { sender, headers: headers.collect(), body }
    }
}

/// What became of several deliveries.
#[derive(Serialize)]
pub(super) struct AckJson<'a> {
    done: usize,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    failed: Vec<FailedReceipt<'a>>,
}

#[derive(Serialize)]
struct FailedReceipt<'a> {
    receipt: &'a str,
    message: String,
}

impl<'a> AckJson<'a> {
    pub(super) fn of(receipts: impl Iterator<Item = &'a str>, answers: &[Result<(), Rejection>]) -> Self {
        let done = answers.iter().filter(|answer| answer.is_ok()).count();
        let refused = receipts.zip(answers).filter_map(|(receipt, answer)| {
            Some(FailedReceipt { receipt, message: answer.as_ref().err()?.to_string() })
        });
        Self { done, failed: refused.collect() }
    }
}

/// Says why a queue said no.
pub(super) fn queue_error(rejection: Rejection) -> ApiError {
    let message = rejection.to_string();
    match rejection {
        Rejection::QueueFull { .. }
        | Rejection::TooManyInFlight { .. }
        | Rejection::TooManyKeys { .. }
        | Rejection::Busy
        | Rejection::Stopping
        | Rejection::Interrupted => ApiError::Unavailable { message },
        Rejection::BadKey
        | Rejection::DelayOnFifo
        | Rejection::BadTtl { .. }
        | Rejection::TooLarge { .. }
        | Rejection::ForgedReceipt => ApiError::invalid(message),
        Rejection::MessageGone | Rejection::StaleReceipt | Rejection::NotInFlight => {
            ApiError::Conflict { message }
        }
        Rejection::Store(error) => unstored(error),
        Rejection::QueueDeleted => ApiError::NotFound { what: "such queue any more".to_owned() },
    }
}

fn unstored(error: StoreError) -> ApiError {
    match error {
        StoreError::NoQueue => ApiError::NotFound { what: "such queue any more".to_owned() },
        StoreError::DiskFull { .. }
        | StoreError::NoRoom(_)
        | StoreError::Busy
        | StoreError::TooManyKeys
        | StoreError::NotOwner
        | StoreError::Closed => ApiError::Unavailable { message: error.to_string() },
        StoreError::Io(_) | StoreError::Unknown(_) => {
            tracing::error!(%error, "queue store failed");
            ApiError::Internal
        }
    }
}

/// Says why a queue was not made or changed.
pub(super) fn unmade(error: CreateError) -> ApiError {
    match error {
        CreateError::Name | CreateError::Setting(_) | CreateError::OrderIsFixed => {
            ApiError::invalid(error.to_string())
        }
        CreateError::TooMany { .. } => ApiError::Unavailable { message: error.to_string() },
        CreateError::Store(error) => unstored(error),
        CreateError::Open(error) => {
            tracing::error!(%error, "queue was not opened");
            ApiError::Internal
        }
    }
}

/// Says what is wrong with a message's headers, which are SQS attributes.
pub(super) fn header_error(fault: &SqsError) -> ApiError {
    ApiError::invalid(fault.to_string())
}
