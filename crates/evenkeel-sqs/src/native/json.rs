//! JSON representations of messages, results and errors.

use std::collections::BTreeMap;

use evenkeel_queue::message::Payload;
use evenkeel_queue::message_ids::MessageIds;
use evenkeel_queue::queues::CreateError;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::store::StoreError;
use evenkeel_queue::{Delivery, Rejection};
use evenkeel_server::api_error::ApiError;
use serde::Serialize;

use crate::attribute::Value;
use crate::base64;
use crate::error::SqsError;
use crate::stored_headers::{StoredHeaders, client_key};

/// A message in flight.
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
    pub(super) fn new(ids: &MessageIds, delivery: &'a Delivery) -> Self {
        Self {
            id: ids.format(delivery.id),
            receipt: delivery.receipt.as_str(),
            fairness_key: client_key(&delivery.payload.headers, &delivery.key),
            attempt: delivery.attempt,
            sent_at_ms: delivery.sent_at.0,
            first_delivered_at_ms: delivery.first_delivered_at.0,
            content: ContentJson::new(&delivery.payload),
        }
    }
}

/// A waiting message.
#[derive(Serialize)]
pub(super) struct PeekJson<'a> {
    id: String,
    fairness_key: &'a str,
    #[serde(flatten)]
    content: ContentJson<'a>,
}

impl<'a> PeekJson<'a> {
    pub(super) fn new(id: String, key: &'a str, payload: &'a Payload) -> Self {
        Self { id, fairness_key: client_key(&payload.headers, key), content: ContentJson::new(payload) }
    }
}

/// Sender, headers and body of a message.
#[derive(Serialize)]
struct ContentJson<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    sender: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    headers: BTreeMap<&'a str, HeaderValue<'a>>,
    body: &'a str,
}

/// Value of a header: text, or bytes from an SQS client.
#[derive(Serialize)]
#[serde(untagged)]
enum HeaderValue<'a> {
    Text(&'a str),
    Binary { base64: String },
}

impl<'a> ContentJson<'a> {
    fn new(payload: &'a Payload) -> Self {
        let stored = StoredHeaders::decode(&payload.headers);
        let sender = stored.as_ref().map(|stored| stored.sender).filter(|sender| !sender.is_empty());
        let attributes = stored.map(|stored| stored.attributes).unwrap_or_default();
        let headers = attributes.into_iter().map(|attribute| {
            let value = match attribute.value {
                Value::Text(text) => HeaderValue::Text(text),
                Value::Binary(bytes) => HeaderValue::Binary { base64: base64::encode(bytes) },
            };
            (attribute.name, value)
        });
        // Always UTF-8: both APIs accept text only.
        let body = str::from_utf8(&payload.body).unwrap_or_default();
        Self { sender, headers: headers.collect(), body }
    }
}

/// Results of several receipts.
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
    pub(super) fn new(receipts: &'a [Receipt], results: &[Result<(), Rejection>]) -> Self {
        let done = results.iter().filter(|result| result.is_ok()).count();
        let failed = receipts.iter().zip(results).filter_map(|(receipt, result)| {
            Some(FailedReceipt { receipt: receipt.as_str(), message: result.as_ref().err()?.to_string() })
        });
        Self { done, failed: failed.collect() }
    }
}

/// Converts a queue's rejection into an API error.
pub(super) fn queue_error(rejection: Rejection) -> ApiError {
    let message = rejection.to_string();
    match rejection {
        Rejection::QueueFull { .. }
        | Rejection::TooManyInFlight { .. }
        | Rejection::TooManyKeys { .. }
        | Rejection::TooManyTenantKeys { .. }
        | Rejection::Busy
        | Rejection::NoAnswer
        | Rejection::Stopping
        | Rejection::Interrupted => ApiError::unavailable(message),
        Rejection::BadKey
        | Rejection::DelayOnFifo
        | Rejection::BadTtl { .. }
        | Rejection::TooLarge { .. }
        | Rejection::ForgedReceipt => ApiError::invalid(message),
        Rejection::MessageGone | Rejection::StaleReceipt | Rejection::NotInFlight => {
            ApiError::Conflict { message }
        }
        Rejection::Store(error) => store_error(error),
        Rejection::QueueDeleted => queue_deleted(),
    }
}

fn queue_deleted() -> ApiError {
    ApiError::NotFound { what: "such queue anymore".to_owned() }
}

fn store_error(error: StoreError) -> ApiError {
    match error {
        StoreError::NoQueue => queue_deleted(),
        StoreError::DiskFull { .. }
        | StoreError::NoRoom(_)
        | StoreError::Busy
        | StoreError::TooManyKeys
        | StoreError::TooManyTenantKeys { .. }
        | StoreError::NotOwner
        | StoreError::Closed => ApiError::unavailable(error.to_string()),
        StoreError::Io(_) | StoreError::Unknown(_) => {
            tracing::error!(%error, "queue store failed");
            ApiError::Internal
        }
    }
}

/// Converts an error from creating or changing a queue.
pub(super) fn create_error(error: CreateError) -> ApiError {
    match error {
        CreateError::Name | CreateError::Setting(_) | CreateError::OrderIsFixed => {
            ApiError::invalid(error.to_string())
        }
        CreateError::TooMany { .. } => ApiError::unavailable(error.to_string()),
        CreateError::TooManyOfOwner { .. } | CreateError::NameTaken => {
            ApiError::Conflict { message: error.to_string() }
        }
        CreateError::Store(error) => store_error(error),
        CreateError::Open(error) => {
            tracing::error!(%error, "could not open the queue");
            ApiError::Internal
        }
    }
}

/// Converts a validation error of headers, which share the rules of SQS attributes.
pub(super) fn header_error(error: &SqsError) -> ApiError {
    ApiError::invalid(error.to_string())
}
