//! `POST /api/queues/{queue}/messages`: one message, or several, all or none.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::message::DEFAULT_KEY;
use evenkeel_queue::{NewMessage, Payload, Queue};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::{header_error, queue_error};
use super::{Native, json_response, read, sender_of, unexpected, within};
use crate::attribute::{AttributeInput, AttributeMap, check, digest_body};
use crate::fifo::DedupPolicy;
use crate::limit::BATCH_BYTES_MAX;
use crate::stored_headers::StoredHeaders;

/// Messages of one request.
const MESSAGES_MAX: usize = 1_000;
/// The longest a message may be delayed, which is also a queue's longest delay.
const DELAY_MS_MAX: u64 = 900_000;
const COST_MAX: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendManyBody {
    messages: Vec<SendBody>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SendBody {
    body: String,
    fairness_key: Option<String>,
    weight: Option<f64>,
    cost: Option<u64>,
    delay_ms: Option<u64>,
    ttl_ms: Option<u64>,
    dedup_id: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

impl Native {
    pub(super) async fn send(&self, call: &mut ServerRequest, queue: &Queue) -> Result<Response, ApiError> {
        let value: Value = read(call).await?;
        let wishes = wishes(value)?;
        let bytes: usize = wishes.iter().map(|message| message.body.len()).sum();
        if BATCH_BYTES_MAX < bytes && wishes.len() > 1 {
            let message = format!("{bytes} bytes of messages at once; at most {BATCH_BYTES_MAX}");
            return Err(ApiError::invalid(message));
        }
        let sender = sender_of(call);
        let once = DedupPolicy::of(&queue.descriptor());
        let drafts =
            wishes.into_iter().map(|message| message.draft(sender, once)).collect::<Result<Vec<_>, _>>()?;
        let ids = queue.enqueue(drafts).await.map_err(queue_error)?;
        self.sqs.meters.sent(queue, ids.len() as u64);
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        json_response(StatusCode::CREATED, &json!({"ids": ids}))
    }
}

/// Reads one message or several; which it is decides what a mistake is called.
fn wishes(value: Value) -> Result<Vec<SendBody>, ApiError> {
    let Some(messages) = value.get("messages") else {
        return Ok(vec![serde_json::from_value(value).map_err(unexpected)?]);
    };
    let listed = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    if !listed.iter().all(Value::is_object) {
        return Err(ApiError::invalid("messages has something in it that is not an object"));
    }
    let SendManyBody { messages } = serde_json::from_value(value).map_err(unexpected)?;
    match messages.len() {
        0 => Err(ApiError::invalid("there are no messages in the list")),
        1..=MESSAGES_MAX => Ok(messages),
        len => Err(ApiError::invalid(format!("{len} messages at once; at most {MESSAGES_MAX}"))),
    }
}

impl SendBody {
    fn draft(self, sender: &str, once: DedupPolicy) -> Result<NewMessage, ApiError> {
        let weight = self.weight.map(Weight::new).transpose();
        let weight = weight.map_err(|error| ApiError::invalid(format!("weight {error}")))?;
        let delay_ms = self.delay_ms.map(|delay| within("delay_ms", delay, 0..=DELAY_MS_MAX)).transpose()?;
        let cost = self.cost.map(|cost| within("cost", cost, 1..=COST_MAX)).transpose()?;
        let key = self.fairness_key.as_deref().unwrap_or(DEFAULT_KEY);
        let called = once.call(key, self.dedup_id, &self.body).map_err(|fault| header_error(&fault))?;
        let headers: AttributeMap =
            self.headers.into_iter().map(|(name, text)| (name, AttributeInput::text(text))).collect();
        let kept = StoredHeaders {
            has_group: self.fairness_key.is_some(),
            body_md5: digest_body(self.body.as_bytes()),
            sender,
            trace: None,
            dedup: called.as_ref().map(|called| called.name.as_str()),
            attributes: check(&headers).map_err(|fault| header_error(&fault))?,
        };
        let headers = Bytes::from(kept.encode());
        Ok(NewMessage {
            key: Arc::from(key),
            weight,
            cost: cost.map(Cost),
            delay: delay_ms.map(Duration::from_millis),
            ttl: self.ttl_ms.map(Duration::from_millis),
            dedup: called.map(|called| called.id),
            payload: Payload { headers, body: Bytes::from(self.body) },
        })
    }
}
