//! SendMessage and SendMessageBatch.

use std::sync::Arc;

use core::time::Duration;

use bytes::Bytes;
use evenkeel_queue::message::DEFAULT_KEY;
use evenkeel_queue::{DeliveryOrder, MessageId, NewMessage, Payload, Queue};
use serde::{Deserialize, Serialize};

use crate::api::{RequestContext, SqsApi, required, seconds};
use crate::attribute::{Attribute, AttributeMap, check, check_system, digest, digest_body, hex};
use crate::batch::{BatchFailure, BatchResponse, check_ids};
use crate::error::{SqsError, too_large};
use crate::fifo::{DedupName, DedupPolicy};
use crate::limit::{BATCH_BYTES_MAX, DELAY_SECS, GROUP_MAX, HEADROOM, TRACE_MAX};
use crate::stored_headers::StoredHeaders;
use crate::text_validation::is_valid_text;

/// A batch as it is sent.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessageBatch {
    queue_url: Option<String>,
    #[serde(default)]
    entries: Vec<SendMessage>,
}

/// A message as it is sent, alone or as an entry of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessage {
    /// Of an entry.
    #[serde(default)]
    id: String,
    /// Of a message sent alone.
    queue_url: Option<String>,
    message_body: Option<String>,
    delay_seconds: Option<i64>,
    message_attributes: Option<AttributeMap>,
    message_system_attributes: Option<AttributeMap>,
    message_deduplication_id: Option<String>,
    message_group_id: Option<String>,
}

/// What a sender is told.
#[derive(Serialize)]
pub(crate) struct SendResponse {
    #[serde(rename = "Id", skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(rename = "MessageId")]
    message_id: String,
    #[serde(rename = "MD5OfMessageBody")]
    body_md5: String,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    attributes_md5: Option<String>,
    #[serde(rename = "MD5OfMessageSystemAttributes", skip_serializing_if = "Option::is_none")]
    system_md5: Option<String>,
    #[serde(rename = "SequenceNumber", skip_serializing_if = "Option::is_none")]
    sequence_number: Option<String>,
}

impl SendResponse {
    /// Says what the message is called, and where it stands if that is told.
    fn name(&mut self, id: MessageId, order: DeliveryOrder) {
        self.message_id = id.to_string();
        self.sequence_number = (order == DeliveryOrder::Fifo).then(|| sequence_number(id));
    }
}

impl SqsApi {
    pub(crate) async fn send_message(
        &self,
        ask: &RequestContext,
        wish: SendMessage,
    ) -> Result<SendResponse, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let once = DedupPolicy::of(&queue.descriptor());
        let (draft, mut sent) = prepare(ask, &queue, once, wish)?;
        let ids = queue.enqueue(vec![draft]).await?;
        sent.name(*ids.first().ok_or(SqsError::Internal)?, once.order);
        self.meters.sent(&queue, 1);
        Ok(sent)
    }

    pub(crate) async fn send_message_batch(
        &self,
        ask: &RequestContext,
        wish: SendMessageBatch,
    ) -> Result<BatchResponse<SendResponse>, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        check_ids(wish.entries.iter().map(|entry| entry.id.as_str()))?;
        let bytes: usize = wish.entries.iter().map(SendMessage::size).sum();
        if BATCH_BYTES_MAX < bytes {
            return Err(SqsError::BatchTooLong { bytes });
        }
        let once = DedupPolicy::of(&queue.descriptor());
        let mut outcome = BatchResponse { successful: Vec::new(), failed: Vec::new() };
        let mut drafts = Vec::with_capacity(wish.entries.len());
        for entry in wish.entries {
            let id = entry.id.clone();
            match prepare(ask, &queue, once, entry) {
                Ok((draft, sent)) => {
                    drafts.push(draft);
                    outcome.successful.push(SendResponse { id: Some(id), ..sent });
                }
                Err(fault) => outcome.failed.push(BatchFailure::new(id, &fault)),
            }
        }
        if drafts.is_empty() {
            return Ok(outcome);
        }
        let ids = queue.enqueue(drafts).await?;
        self.meters.sent(&queue, ids.len() as u64);
        for (sent, id) in outcome.successful.iter_mut().zip(ids) {
            sent.name(id, once.order);
        }
        Ok(outcome)
    }
}

impl SendMessage {
    /// Counts it as AWS does: body and attributes.
    fn size(&self) -> usize {
        let attributes = self.message_attributes.iter().flatten();
        let attributes: usize = attributes.map(|(name, value)| name.len() + value.size()).sum();
        self.message_body.as_deref().map_or(0, str::len) + attributes
    }
}

/// Reads a message, and what its sender will be told but for its id.
fn prepare(
    ask: &RequestContext,
    queue: &Queue,
    once: DedupPolicy,
    message: SendMessage,
) -> Result<(NewMessage, SendResponse), SqsError> {
    let size = message.size() as u64;
    let body = message.message_body.unwrap_or_default();
    required("MessageBody", Some(&body))?;
    let bytes_max = queue.descriptor().settings.message_bytes_max.saturating_sub(HEADROOM);
    if bytes_max < size {
        return Err(too_large(bytes_max));
    }
    if !is_valid_text(&body) {
        return Err(SqsError::Contents);
    }
    let delay = delay(message.delay_seconds, once.order)?;
    let group = message.message_group_id.as_deref().map(check_group).transpose()?;
    let called = call(once, group, message.message_deduplication_id, &body)?;
    let none = AttributeMap::new();
    let attributes = check(message.message_attributes.as_ref().unwrap_or(&none))?;
    let system = check_system(message.message_system_attributes.as_ref().unwrap_or(&none))?;
    let body_md5 = digest_body(body.as_bytes());
    let sent = SendResponse {
        id: None,
        message_id: String::new(),
        body_md5: hex(&body_md5),
        attributes_md5: digest(&attributes),
        system_md5: system.as_ref().and_then(|trace| digest(core::slice::from_ref(trace))),
        sequence_number: None,
    };
    let kept = StoredHeaders {
        has_group: group.is_some(),
        body_md5,
        sender: &ask.sender,
        trace: trace_of(ask, system.as_ref()),
        dedup: called.as_ref().map(|called| called.name.as_str()),
        attributes,
    };
    let headers = Bytes::from(kept.encode());
    let draft = NewMessage {
        key: Arc::from(group.unwrap_or(DEFAULT_KEY)),
        weight: None,
        cost: None,
        delay,
        ttl: None,
        dedup: called.map(|called| called.id),
        payload: Payload { headers, body: Bytes::from(body) },
    };
    Ok((draft, sent))
}

/// Says what a message is called; on a FIFO queue it must be called something, and be of a group.
fn call(
    once: DedupPolicy,
    group: Option<&str>,
    given: Option<String>,
    body: &str,
) -> Result<Option<DedupName>, SqsError> {
    if once.order == DeliveryOrder::Fair {
        let not_here = |id| SqsError::value("MessageDeduplicationId", id, NOT_OF_TYPE);
        return given.map_or(Ok(None), |id| Err(not_here(id)));
    }
    let group = group.ok_or(SqsError::Missing { name: "MessageGroupId" })?;
    let called = once.call(group, given, body)?;
    called.map(Some).ok_or_else(|| {
        SqsError::invalid(
            "The queue should either have ContentBasedDeduplication enabled or MessageDeduplicationId provided explicitly",
        )
    })
}

/// Where a message of a FIFO queue stands, as AWS writes it: twenty digits.
pub(crate) fn sequence_number(id: MessageId) -> String {
    format!("{:020}", id.seq.0)
}

pub(crate) const NOT_OF_TYPE: &str =
    "The request includes a parameter that is not valid for this queue type.";

fn delay(wished: Option<i64>, order: DeliveryOrder) -> Result<Option<Duration>, SqsError> {
    if order == DeliveryOrder::Fifo {
        // The queue's delay holds; none of its own is what it has anyway.
        let own = wished.filter(|seconds| *seconds != 0);
        return own.map_or(Ok(None), |own| Err(SqsError::value("DelaySeconds", own, NOT_OF_TYPE)));
    }
    let reason = "DelaySeconds must be >= 0 and <= 900.";
    let wrong = |_| SqsError::value("DelaySeconds", wished.unwrap_or_default(), reason);
    Ok(seconds("DelaySeconds", wished, &DELAY_SECS).map_err(wrong)?.map(Duration::from))
}

/// Refuses a group that AWS would; it is the key by which turns are taken.
fn check_group(group: &str) -> Result<&str, SqsError> {
    let plain = group.bytes().all(|byte| byte.is_ascii_graphic());
    if plain && (1..=GROUP_MAX).contains(&group.len()) {
        return Ok(group);
    }
    let reason =
        "MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.";
    Err(SqsError::value("MessageGroupId", group, reason))
}

fn trace_of<'a>(ask: &'a RequestContext, system: Option<&Attribute<'a>>) -> Option<&'a str> {
    let own = system.and_then(|trace| str::from_utf8(trace.value.as_bytes()).ok());
    own.or_else(|| ask.trace.as_deref().filter(|trace| trace.len() <= TRACE_MAX))
}
