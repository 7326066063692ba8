//! `POST /api/queues/{queue}/messages`: one message, or several, all or none.

use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_door::body::Response;
use evenkeel_door::refusal::Refusal;
use evenkeel_door::route::Call;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::message::DEFAULT_KEY;
use evenkeel_queue::{Draft, Payload, Queue};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};

use super::wire::{refused, unfit};
use super::{Native, read, sender_of, told, unexpected, within};
use crate::attribute::{Sent, SentValue, check, digest_body};
use crate::fifo::SentOnce;
use crate::header::Kept;
use crate::limit::BATCH_BYTES_MAX;

/// Messages of one request.
const MESSAGES_MAX: usize = 1_000;
/// The longest a message may be delayed, which is also a queue's longest delay.
const DELAY_MS_MAX: u64 = 900_000;
const COST_MAX: u64 = 1_000_000_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Several {
    messages: Vec<Message>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
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
    pub(super) async fn send(&self, call: &mut Call, queue: &Queue) -> Result<Response, Refusal> {
        let value: Value = read(call).await?;
        let wishes = wishes(value)?;
        let bytes: usize = wishes.iter().map(|message| message.body.len()).sum();
        if BATCH_BYTES_MAX < bytes && wishes.len() > 1 {
            let message = format!("{bytes} bytes of messages at once; at most {BATCH_BYTES_MAX}");
            return Err(Refusal::invalid(message));
        }
        let (sender, once) = (sender_of(call), SentOnce::of(&queue.body()));
        let drafts =
            wishes.into_iter().map(|message| message.draft(sender, once)).collect::<Result<Vec<_>, _>>()?;
        let ids = queue.enqueue(drafts).await.map_err(refused)?;
        self.sqs.meters.sent(queue, ids.len() as u64);
        let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
        told(StatusCode::CREATED, &json!({"ids": ids}))
    }
}

/// Reads one message or several; which it is decides what a mistake is called.
fn wishes(value: Value) -> Result<Vec<Message>, Refusal> {
    let Some(messages) = value.get("messages") else {
        return Ok(vec![serde_json::from_value(value).map_err(unexpected)?]);
    };
    let listed = messages.as_array().map(Vec::as_slice).unwrap_or_default();
    if !listed.iter().all(Value::is_object) {
        return Err(Refusal::invalid("messages has something in it that is not an object"));
    }
    let Several { messages } = serde_json::from_value(value).map_err(unexpected)?;
    match messages.len() {
        0 => Err(Refusal::invalid("there are no messages in the list")),
        1..=MESSAGES_MAX => Ok(messages),
        len => Err(Refusal::invalid(format!("{len} messages at once; at most {MESSAGES_MAX}"))),
    }
}

impl Message {
    fn draft(self, sender: &str, once: SentOnce) -> Result<Draft, Refusal> {
        let weight = self.weight.map(Weight::new).transpose();
        let weight = weight.map_err(|error| Refusal::invalid(format!("weight {error}")))?;
        let delay_ms = self.delay_ms.map(|delay| within("delay_ms", delay, 0..=DELAY_MS_MAX)).transpose()?;
        let cost = self.cost.map(|cost| within("cost", cost, 1..=COST_MAX)).transpose()?;
        let key = self.fairness_key.as_deref().unwrap_or(DEFAULT_KEY);
        let called = once.call(key, self.dedup_id, &self.body).map_err(|fault| unfit(&fault))?;
        let headers: Sent =
            self.headers.into_iter().map(|(name, text)| (name, SentValue::text(text))).collect();
        let kept = Kept {
            has_group: self.fairness_key.is_some(),
            body_md5: digest_body(self.body.as_bytes()),
            sender,
            trace: None,
            dedup: called.as_ref().map(|called| called.name.as_str()),
            attributes: check(&headers).map_err(|fault| unfit(&fault))?,
        };
        let headers = Bytes::from(kept.encode());
        Ok(Draft {
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
