//! SendMessage and SendMessageBatch.

use core::time::Duration;

use bytes::Bytes;
use evenkeel_queue::message_ids::MessageIds;
use evenkeel_queue::{DeliveryOrder, MessageId, NewMessage, Payload, Queue};
use evenkeel_server::hex::hex;
use serde::{Deserialize, Serialize};

use crate::access::{account_of, sender_name};
use crate::api::{RequestContext, SqsApi, required, seconds};
use crate::attribute::{
    Attribute, AttributeMap, attribute_map, digest, digest_body, validate, validate_system,
};
use crate::batch::{BatchFailure, BatchResponse, check_ids};
use crate::error::SqsError;
use crate::fifo::{DedupName, DedupPolicy, DedupScope};
use crate::limit::{BATCH_BYTES_MAX, DELAY_SECS, GROUP_MAX, HEADROOM, TRACE_MAX};
use crate::protocol::list;
use crate::reason;
use crate::stored_headers::StoredHeaders;
use crate::stored_key::Sender;
use crate::text_validation::is_valid_text;

/// Name of a batch's entries in the query protocol, which errors use in both protocols.
const ENTRY: &str = "SendMessageBatchRequestEntry";

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessageBatch {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "list")]
    entries: Vec<SendMessage>,
}

/// Request for one message, single or as an entry of a batch.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct SendMessage {
    /// Set for entries of a batch.
    id: Option<String>,
    /// Set for single messages.
    queue_url: Option<String>,
    message_body: Option<String>,
    delay_seconds: Option<i64>,
    #[serde(default, deserialize_with = "attribute_map")]
    message_attributes: AttributeMap,
    #[serde(default, deserialize_with = "attribute_map")]
    message_system_attributes: AttributeMap,
    message_deduplication_id: Option<String>,
    message_group_id: Option<String>,
}

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
    /// Sets the message id, and the sequence number on FIFO queues.
    fn set_id(&mut self, ids: &MessageIds, id: MessageId, order: DeliveryOrder) {
        self.message_id = ids.format(id);
        self.sequence_number = (order == DeliveryOrder::Fifo).then(|| sequence_number(id));
    }
}

impl SqsApi {
    pub(crate) async fn send_message(
        &self,
        context: &RequestContext,
        request: SendMessage,
    ) -> Result<SendResponse, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        let dedup = DedupPolicy::of(&queue.descriptor());
        let (message, mut response) = prepare(context, &queue, dedup, request)?;
        let ids = queue.enqueue(vec![message]).await?;
        response.set_id(queue.message_ids(), *ids.first().ok_or(SqsError::Internal)?, dedup.order);
        self.count_sent(&queue, 1);
        Ok(response)
    }

    pub(crate) async fn send_message_batch(
        &self,
        context: &RequestContext,
        request: SendMessageBatch,
    ) -> Result<BatchResponse<SendResponse>, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        check_ids(ENTRY, request.entries.iter().map(|entry| entry.id.as_deref()))?;
        let bytes: usize = request.entries.iter().map(SendMessage::size).sum();
        if bytes > BATCH_BYTES_MAX {
            return Err(SqsError::BatchTooLong { bytes });
        }
        let dedup = DedupPolicy::of(&queue.descriptor());
        for entry in &request.entries {
            // As at AWS, an entry of a FIFO queue without its ids fails the whole call, a missing group with another code
            // than in `SendMessage`.
            dedup
                .check_ids(entry.message_group_id.as_deref(), entry.message_deduplication_id.as_deref())
                .map_err(|error| SqsError::invalid(error.to_string()))?;
        }
        let mut batch = BatchResponse { successful: Vec::new(), failed: Vec::new() };
        let mut messages = Vec::with_capacity(request.entries.len());
        for (index, entry) in request.entries.into_iter().enumerate() {
            let id = entry.id.clone().unwrap_or_default();
            match prepare(context, &queue, dedup, entry) {
                Ok((message, response)) => {
                    messages.push(message);
                    batch.successful.push(SendResponse { id: Some(id), ..response });
                }
                Err(error) => batch.failed.push(BatchFailure::new(id, &error.in_entry(ENTRY, index + 1))),
            }
        }
        if messages.is_empty() {
            return Ok(batch);
        }
        let ids = queue.enqueue(messages).await?;
        self.count_sent(&queue, ids.len() as u64);
        for (response, id) in batch.successful.iter_mut().zip(ids) {
            response.set_id(queue.message_ids(), id, dedup.order);
        }
        Ok(batch)
    }
}

impl SendMessage {
    /// Returns the size that AWS counts: body and attributes.
    fn size(&self) -> usize {
        let attributes = self.message_attributes.iter();
        let attributes: usize = attributes.map(|(name, value)| name.len() + value.size_without_name()).sum();
        self.message_body.as_deref().map_or(0, str::len) + attributes
    }
}

/// Validates a message; returns it with its response, which lacks only the message id.
fn prepare(
    context: &RequestContext,
    queue: &Queue,
    dedup: DedupPolicy,
    request: SendMessage,
) -> Result<(NewMessage, SendResponse), SqsError> {
    let size = request.size() as u64;
    let body = request.message_body.unwrap_or_default();
    required("MessageBody", Some(&body))?;
    let bytes_max = queue.descriptor().settings.message_bytes_max.saturating_sub(HEADROOM);
    if size > bytes_max {
        return Err(SqsError::MessageTooLarge { bytes_max });
    }
    if !is_valid_text(&body) {
        return Err(SqsError::Contents);
    }
    let delay = delay(request.delay_seconds, dedup.order)?;
    let group = request.message_group_id.as_deref().map(check_group).transpose()?;
    let sender = Sender::new(&context.caller, &queue.descriptor());
    let stored_key = sender.stored_key(group);
    let scope = DedupScope { queue: sender.dedup_scope(), group: &stored_key.key };
    let dedup_name = dedup_name(dedup, group, scope, request.message_deduplication_id, &body)?;
    let attributes = validate(&request.message_attributes)?;
    let system = validate_system(&request.message_system_attributes)?;
    let body_md5 = digest_body(body.as_bytes());
    let response = SendResponse {
        id: None,
        message_id: String::new(),
        body_md5: hex(&body_md5),
        attributes_md5: digest(&attributes),
        system_md5: system.as_ref().and_then(|trace| digest(core::slice::from_ref(trace))),
        sequence_number: None,
    };
    let stored = StoredHeaders {
        has_group: group.is_some(),
        first_level: stored_key.first_level,
        body_md5,
        sender: sender_name(&context.caller),
        account: account_of(&context.caller),
        trace: trace_of(context, system.as_ref()),
        dedup: dedup_name.as_ref().map(|dedup| dedup.name.as_str()),
        attributes,
    };
    let headers = Bytes::from(stored.encode());
    let message = NewMessage {
        key: stored_key.key,
        weight: None,
        cost: None,
        delay,
        ttl: None,
        dedup: dedup_name.map(|dedup| dedup.id),
        payload: Payload { headers, body: Bytes::from(body) },
    };
    Ok((message, response))
}

/// Returns the deduplication id of a message. FIFO queues require an id and a group; others accept no id.
fn dedup_name(
    dedup: DedupPolicy,
    group: Option<&str>,
    scope: DedupScope<'_>,
    requested: Option<String>,
    body: &str,
) -> Result<Option<DedupName>, SqsError> {
    if dedup.order == DeliveryOrder::Fair {
        return requested.map_or(Ok(None), |id| Err(SqsError::DedupOnStandardQueue { id }));
    }
    dedup.check_ids(group, requested.as_deref())?;
    dedup.name(scope, requested, body)
}

/// Returns the sequence number of a FIFO queue's message, twenty digits as at AWS.
pub(crate) fn sequence_number(id: MessageId) -> String {
    format!("{:020}", id.seq.0)
}

fn delay(requested: Option<i64>, order: DeliveryOrder) -> Result<Option<Duration>, SqsError> {
    if order == DeliveryOrder::Fifo {
        // Messages of FIFO queues have the queue's delay; an explicit 0 is accepted, as at AWS.
        let own = requested.filter(|seconds| *seconds != 0);
        let invalid = |own| SqsError::invalid_value("DelaySeconds", own, reason::WRONG_QUEUE_TYPE);
        return own.map_or(Ok(None), |own| Err(invalid(own)));
    }
    Ok(seconds("DelaySeconds", requested, &DELAY_SECS, reason::DELAY)?.map(Duration::from))
}

/// Validates a group id, which is the message's fairness key.
fn check_group(group: &str) -> Result<&str, SqsError> {
    let is_plain = group.bytes().all(|byte| byte.is_ascii_graphic());
    if is_plain && (1..=GROUP_MAX).contains(&group.len()) {
        return Ok(group);
    }
    Err(SqsError::invalid_value("MessageGroupId", group, reason::GROUP))
}

fn trace_of<'a>(context: &'a RequestContext, system: Option<&Attribute<'a>>) -> Option<&'a str> {
    let own = system.and_then(|trace| str::from_utf8(trace.value.as_bytes()).ok());
    own.or_else(|| context.trace.as_deref().filter(|trace| trace.len() <= TRACE_MAX))
}
