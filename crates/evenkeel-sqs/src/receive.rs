//! ReceiveMessage with long polling: leases the next messages in fair order and returns the requested attributes.

use core::time::Duration;
use std::collections::BTreeMap;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::{Delivery, DeliveryOrder, Queue, Rejection};
use evenkeel_server::disconnect::{Disconnect, ResponseEnd};
use evenkeel_server::hex::hex;
use evenkeel_server::tenant::Caller;
use serde::{Deserialize, Serialize};

use crate::api::{RequestContext, SqsApi, seconds};
use crate::attribute::{Attribute, Filter, digest, digest_body};
use crate::error::SqsError;
use crate::fifo::is_valid_id;
use crate::limit::{RECEIVE, VISIBILITY_SECS, WAIT_SECS};
use crate::operation::Operation;
use crate::protocol::list;
use crate::reason;
use crate::send::sequence_number;
use crate::stored_headers::{StoredHeaders, client_key};
use crate::stored_key::FirstLevel;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiveMessage {
    queue_url: Option<String>,
    #[serde(default, deserialize_with = "list")]
    attribute_names: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    message_system_attribute_names: Vec<String>,
    #[serde(default, deserialize_with = "list")]
    message_attribute_names: Vec<String>,
    max_number_of_messages: Option<i64>,
    visibility_timeout: Option<i64>,
    wait_time_seconds: Option<i64>,
    receive_request_attempt_id: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct ReceiveResponse<'a> {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    messages: Vec<ReceivedMessage<'a>>,
}

#[derive(Serialize)]
struct ReceivedMessage<'a> {
    #[serde(rename = "MessageId")]
    message_id: String,
    #[serde(rename = "ReceiptHandle")]
    receipt_handle: &'a str,
    #[serde(rename = "MD5OfBody")]
    body_md5: String,
    #[serde(rename = "Body")]
    body: &'a str,
    #[serde(rename = "Attributes", skip_serializing_if = "BTreeMap::is_empty")]
    system: BTreeMap<&'static str, String>,
    #[serde(rename = "MD5OfMessageAttributes", skip_serializing_if = "Option::is_none")]
    attributes_md5: Option<String>,
    #[serde(rename = "MessageAttributes", skip_serializing_if = "BTreeMap::is_empty")]
    attributes: BTreeMap<&'a str, Attribute<'a>>,
}

/// A message system attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SystemAttribute {
    SenderId,
    SentTimestamp,
    ReceiveCount,
    FirstReceive,
    SequenceNumber,
    DeduplicationId,
    GroupId,
    TraceHeader,
    DeadLetterSource,
}

const SYSTEM: &[(&str, SystemAttribute)] = &[
    ("SenderId", SystemAttribute::SenderId),
    ("SentTimestamp", SystemAttribute::SentTimestamp),
    ("ApproximateReceiveCount", SystemAttribute::ReceiveCount),
    ("ApproximateFirstReceiveTimestamp", SystemAttribute::FirstReceive),
    ("SequenceNumber", SystemAttribute::SequenceNumber),
    ("MessageDeduplicationId", SystemAttribute::DeduplicationId),
    ("MessageGroupId", SystemAttribute::GroupId),
    ("AWSTraceHeader", SystemAttribute::TraceHeader),
    ("DeadLetterQueueSourceArn", SystemAttribute::DeadLetterSource),
];

/// Estimated bytes of a message in the response besides its payload.
const MESSAGE_OVERHEAD: usize = 384;

impl SqsApi {
    pub(crate) async fn receive_message(
        &self,
        context: &RequestContext,
        request: &ReceiveMessage,
    ) -> Result<Vec<u8>, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        let descriptor = queue.descriptor();
        check_attempt(request, descriptor.settings.order)?;
        let options = receive_options(request, descriptor.settings.wait_ms)?;
        let system = requested_system_attributes(request)?;
        let deliveries = self.receive(&context.caller, &queue, options).await?;
        self.count_received(&queue, deliveries.len() as u64);
        let filter = Filter(&request.message_attribute_names);
        let messages = deliveries
            .iter()
            .map(|delivery| self.received_message(&queue, delivery, &system, &filter))
            .collect();
        // An estimate: the buffer grows for bodies with many escapes.
        let bytes = deliveries.iter().map(|delivery| delivery.payload.size() + MESSAGE_OVERHEAD).sum();
        let encoded = context.encode_with_capacity(bytes, &ReceiveResponse { messages });
        release_unless_served(queue, &deliveries, context.disconnect.clone());
        encoded
    }

    /// Receives messages with long polling; returns an empty list on shutdown, or when the caller becomes invalid.
    pub(crate) async fn receive(
        &self,
        caller: &Caller,
        queue: &Queue,
        options: ReceiveOptions,
    ) -> Result<Vec<Delivery>, Rejection> {
        let _waiting = self.metrics.waiting();
        let mut stopping = self.stopping.subscribe();
        let received = tokio::select! {
            biased;
            received = queue.receive(options) => received?,
            _ = stopping.wait_for(|stopping| *stopping) => Vec::new(),
            () = self.auth.until_invalid(caller) => Vec::new(),
        };
        // The queue may have got another owner or policy during the wait, and the caller may have become invalid.
        if received.is_empty() || self.allows(caller, queue, Operation::ReceiveMessage) {
            return Ok(received);
        }
        let receipts: Vec<Receipt> = received.into_iter().map(|delivery| delivery.receipt).collect();
        // Errors are ignored: those deliveries ended in the meantime.
        drop(queue.release(&receipts).await);
        if self.auth.is_current(caller) { Err(Rejection::QueueDeleted) } else { Ok(Vec::new()) }
    }

    fn received_message<'a>(
        &self,
        queue: &Queue,
        delivery: &'a Delivery,
        requested: &[(&'static str, SystemAttribute)],
        filter: &Filter<'_>,
    ) -> ReceivedMessage<'a> {
        let body = str::from_utf8(&delivery.payload.body).unwrap_or_default();
        let stored = StoredHeaders::decode(&delivery.payload.headers).unwrap_or_else(|| StoredHeaders {
            has_group: false,
            first_level: FirstLevel::Label,
            body_md5: digest_body(body.as_bytes()),
            sender: "",
            account: None,
            trace: None,
            dedup: None,
            attributes: Vec::new(),
        });
        let system = requested
            .iter()
            .filter_map(|&(name, attribute)| {
                Some((name, self.system_attribute(queue, delivery, &stored, attribute)?))
            })
            .collect();
        let attributes: Vec<Attribute<'a>> =
            stored.attributes.into_iter().filter(|attribute| filter.includes(attribute.name)).collect();
        ReceivedMessage {
            message_id: queue.message_ids().format(delivery.id),
            receipt_handle: delivery.receipt.as_str(),
            body_md5: hex(&stored.body_md5),
            body,
            system,
            attributes_md5: digest(&attributes),
            attributes: attributes.into_iter().map(|attribute| (attribute.name, attribute)).collect(),
        }
    }

    fn system_attribute(
        &self,
        queue: &Queue,
        delivery: &Delivery,
        stored: &StoredHeaders<'_>,
        attribute: SystemAttribute,
    ) -> Option<String> {
        match attribute {
            SystemAttribute::SenderId => Some(stored.sender.to_owned()).filter(|sender| !sender.is_empty()),
            SystemAttribute::SentTimestamp => Some(delivery.sent_at.0.to_string()),
            SystemAttribute::ReceiveCount => Some(delivery.attempt.to_string()),
            SystemAttribute::FirstReceive => Some(delivery.first_delivered_at.0.to_string()),
            // Only messages of FIFO queues have a sequence number.
            SystemAttribute::SequenceNumber => {
                let is_fifo = queue.descriptor().settings.order == DeliveryOrder::Fifo;
                is_fifo.then(|| sequence_number(delivery.id))
            }
            // As at AWS, the message id replaces it when the message is moved.
            SystemAttribute::DeduplicationId => stored.dedup.map(|dedup| match delivery.from {
                Some(_) => queue.message_ids().format(delivery.id),
                None => dedup.to_owned(),
            }),
            SystemAttribute::GroupId => {
                let group = || client_key(&delivery.payload.headers, &delivery.key).to_owned();
                stored.has_group.then(group)
            }
            SystemAttribute::TraceHeader => stored.trace.map(str::to_owned),
            SystemAttribute::DeadLetterSource => {
                let source = self.queues.by_id(delivery.from?)?;
                let redrive = source.descriptor().settings.redrive;
                // `from` is also set on messages that were moved back from a dead-letter queue.
                let is_dead_letter = redrive.is_some_and(|redrive| redrive.to == queue.id());
                is_dead_letter.then(|| self.arn_of(&source))
            }
        }
    }
}

/// Validates the attempt id of a FIFO receive. It has no effect: a disconnect already releases undelivered messages.
fn check_attempt(request: &ReceiveMessage, order: DeliveryOrder) -> Result<(), SqsError> {
    let Some(id) = &request.receive_request_attempt_id else { return Ok(()) };
    let reason = match order {
        DeliveryOrder::Fair => reason::WRONG_QUEUE_TYPE,
        DeliveryOrder::Fifo if is_valid_id(id) => return Ok(()),
        DeliveryOrder::Fifo => reason::ATTEMPT,
    };
    Err(SqsError::invalid_value("ReceiveRequestAttemptId", id, reason))
}

fn receive_options(request: &ReceiveMessage, wait_ms: u64) -> Result<ReceiveOptions, SqsError> {
    let max = request.max_number_of_messages.unwrap_or(1);
    if !RECEIVE.contains(&max) {
        return Err(SqsError::invalid_value("MaxNumberOfMessages", max, reason::RECEIVE_MAX));
    }
    let wait = seconds("WaitTimeSeconds", request.wait_time_seconds, &WAIT_SECS, reason::WAIT)?;
    let reason = reason::RECEIVE_VISIBILITY;
    let lease = seconds("VisibilityTimeout", request.visibility_timeout, &VISIBILITY_SECS, reason)?;
    Ok(ReceiveOptions {
        max: usize::try_from(max).unwrap_or(1),
        lease: lease.map(Duration::from),
        wait: wait.map_or(Duration::from_millis(wait_ms), Duration::from),
    })
}

/// Returns the requested system attributes, from the older and the newer parameter.
fn requested_system_attributes(
    request: &ReceiveMessage,
) -> Result<Vec<(&'static str, SystemAttribute)>, SqsError> {
    let names = || request.message_system_attribute_names.iter().chain(&request.attribute_names);
    let is_known = |name: &str| name == "All" || SYSTEM.iter().any(|(known, _)| *known == name);
    if let Some(name) = names().find(|name| !is_known(name)) {
        return Err(SqsError::UnknownAttribute { name: name.clone() });
    }
    let is_requested = |name: &str| names().any(|requested| requested == "All" || requested == name);
    Ok(SYSTEM.iter().filter(|(name, _)| is_requested(name)).copied().collect())
}

/// Releases the messages of a response that the client did not receive in full, so that other consumers get them.
pub(crate) fn release_unless_served(queue: Queue, deliveries: &[Delivery], mut disconnect: Disconnect) {
    if deliveries.is_empty() {
        return;
    }
    let receipts: Vec<Receipt> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    tokio::spawn(async move {
        if disconnect.ended().await == ResponseEnd::Aborted {
            // Errors are ignored: those messages were nacked or acknowledged in the meantime.
            drop(queue.release(&receipts).await);
        }
    });
}
