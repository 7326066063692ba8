//! `POST /api/queues/{queue}/messages`: sends one message, or several atomically.

use core::time::Duration;
use std::collections::BTreeMap;

use bytes::Bytes;
use evenkeel_policy::account::AccountNumber;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::{NewMessage, Payload, Queue};
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::ServerRequest;
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::{header_error, queue_error};
use super::{Native, body_error, json_response, read, within};
use crate::access::{account_of, sender_name};
use crate::attribute::{AttributeInput, AttributeMap, digest_body, validate};
use crate::fifo::{DedupPolicy, DedupScope};
use crate::limit::BATCH_BYTES_MAX;
use crate::stored_headers::StoredHeaders;
use crate::stored_key::Sender;

/// Messages per request.
const MESSAGES_MAX: usize = 1_000;
/// Maximum delay of a message, the same as in a queue's settings.
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
    pub(super) async fn send(
        &self,
        request: &mut ServerRequest,
        queue: &Queue,
    ) -> Result<Response, ApiError> {
        let value: Value = read(request).await?;
        let messages = parse_messages(value)?;
        let bytes: usize = messages.iter().map(|message| message.body.len()).sum();
        if bytes > BATCH_BYTES_MAX && messages.len() > 1 {
            let message = format!("the messages have {bytes} bytes, the maximum is {BATCH_BYTES_MAX}");
            return Err(ApiError::invalid(message));
        }
        let descriptor = queue.descriptor();
        let origin = MessageOrigin {
            sender: Sender::new(&request.caller, &descriptor),
            name: sender_name(&request.caller),
            account: account_of(&request.caller),
            dedup: DedupPolicy::of(&descriptor),
        };
        let messages = messages.into_iter().map(|message| message.into_message(&origin));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let ids = queue.enqueue(messages).await.map_err(queue_error)?;
        self.sqs.count_sent(queue, ids.len() as u64);
        let ids: Vec<String> = ids.iter().map(|id| queue.message_ids().format(*id)).collect();
        json_response(StatusCode::CREATED, &json!({"ids": ids}))
    }
}

/// Parses one message or a list. An untagged enum would be shorter, but its errors would not name the wrong field.
fn parse_messages(value: Value) -> Result<Vec<SendBody>, ApiError> {
    let Some(messages) = value.get("messages") else {
        return Ok(vec![serde_json::from_value(value).map_err(body_error)?]);
    };
    let list = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    if !list.iter().all(Value::is_object) {
        return Err(ApiError::invalid("messages must contain objects only"));
    }
    let SendManyBody { messages } = serde_json::from_value(value).map_err(body_error)?;
    match messages.len() {
        0 => Err(ApiError::invalid("messages is empty")),
        1..=MESSAGES_MAX => Ok(messages),
        len => Err(ApiError::invalid(format!("messages has {len} entries, the maximum is {MESSAGES_MAX}"))),
    }
}

/// The sender of messages, and the rules of the queue that it sends to.
struct MessageOrigin<'a> {
    sender: Sender<'a>,
    /// Name of the sender, stored with the messages.
    name: &'a str,
    account: Option<AccountNumber>,
    dedup: DedupPolicy,
}

impl SendBody {
    fn into_message(self, origin: &MessageOrigin<'_>) -> Result<NewMessage, ApiError> {
        let MessageOrigin { sender, name, account, dedup } = *origin;
        let weight = self.weight.map(Weight::new).transpose();
        let weight = weight.map_err(|error| ApiError::invalid(format!("weight {error}")))?;
        let delay_ms = self.delay_ms.map(|delay| within("delay_ms", delay, 0..=DELAY_MS_MAX)).transpose()?;
        let cost = self.cost.map(|cost| within("cost", cost, 1..=COST_MAX)).transpose()?;
        let stored_key = sender.stored_key(self.fairness_key.as_deref());
        let scope = DedupScope { queue: sender.dedup_scope(), group: &stored_key.key };
        let dedup_name = dedup.name(scope, self.dedup_id, &self.body);
        let dedup_name = dedup_name.map_err(|error| header_error(&error))?;
        let headers: AttributeMap =
            self.headers.into_iter().map(|(name, text)| (name, AttributeInput::text(text))).collect();
        let stored = StoredHeaders {
            has_group: self.fairness_key.is_some(),
            first_level: stored_key.first_level,
            body_md5: digest_body(self.body.as_bytes()),
            sender: name,
            account,
            trace: None,
            dedup: dedup_name.as_ref().map(|dedup| dedup.name.as_str()),
            attributes: validate(&headers).map_err(|error| header_error(&error))?,
        };
        let headers = Bytes::from(stored.encode());
        Ok(NewMessage {
            weight: sender.weight(weight, &stored_key),
            key: stored_key.key,
            cost: sender.cost(cost.map(Cost)),
            delay: delay_ms.map(Duration::from_millis),
            ttl: self.ttl_ms.map(Duration::from_millis),
            dedup: dedup_name.map(|dedup| dedup.id),
            payload: Payload { headers, body: Bytes::from(self.body) },
        })
    }
}
