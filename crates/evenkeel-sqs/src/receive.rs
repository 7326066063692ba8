//! ReceiveMessage: what is whose turn, with as much about it as the consumer wants.

use core::time::Duration;
use std::collections::BTreeMap;

use evenkeel_queue::queue::ReceiveOptions;
use evenkeel_queue::receipt::Receipt;
use evenkeel_queue::{Delivery, DeliveryOrder, Queue, Rejection};
use evenkeel_server::disconnect::{Disconnect, ResponseEnd};
use serde::{Deserialize, Serialize};

use crate::api::{RequestContext, SqsApi, seconds, to_json_with_capacity};
use crate::attribute::{Attribute, Filter, digest, digest_body, hex};
use crate::error::SqsError;
use crate::fifo::is_plain;
use crate::limit::{RECEIVE, VISIBILITY_SECS, WAIT_SECS};
use crate::send::{NOT_OF_TYPE, sequence_number};
use crate::stored_headers::StoredHeaders;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ReceiveMessage {
    queue_url: Option<String>,
    #[serde(default)]
    attribute_names: Vec<String>,
    #[serde(default)]
    message_system_attribute_names: Vec<String>,
    #[serde(default)]
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

/// What is known of a message beside what its sender said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
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

const SYSTEM: &[(&str, System)] = &[
    ("SenderId", System::SenderId),
    ("SentTimestamp", System::SentTimestamp),
    ("ApproximateReceiveCount", System::ReceiveCount),
    ("ApproximateFirstReceiveTimestamp", System::FirstReceive),
    ("SequenceNumber", System::SequenceNumber),
    ("MessageDeduplicationId", System::DeduplicationId),
    ("MessageGroupId", System::GroupId),
    ("AWSTraceHeader", System::TraceHeader),
    ("DeadLetterQueueSourceArn", System::DeadLetterSource),
];

/// What is around a body in an answer.
const AROUND_BYTES: usize = 384;

impl SqsApi {
    pub(crate) async fn receive_message(
        &self,
        ask: &RequestContext,
        wish: &ReceiveMessage,
    ) -> Result<Vec<u8>, SqsError> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        let settings = queue.descriptor();
        check_attempt(wish, settings.settings.order)?;
        let want = want(wish, settings.settings.wait_ms)?;
        let system = system_of(wish)?;
        let deliveries = self.wait(&queue, want).await?;
        self.meters.received(&queue, deliveries.len() as u64);
        let filter = Filter(&wish.message_attribute_names);
        let messages =
            deliveries.iter().map(|delivery| self.shown(&queue, delivery, &system, &filter)).collect();
        // Bodies with much to escape need more, which is given as it is needed.
        let bytes = deliveries.iter().map(|delivery| delivery.payload.size() + AROUND_BYTES).sum();
        let answer = to_json_with_capacity(bytes, &ReceiveResponse { messages });
        release_unless_served(queue, &deliveries, ask.disconnect.clone());
        answer
    }

    /// Waits for a first message, but not for one that may come after the server.
    pub(crate) async fn wait(&self, queue: &Queue, want: ReceiveOptions) -> Result<Vec<Delivery>, Rejection> {
        let _waiting = self.meters.wait();
        let mut stopping = self.stopping.subscribe();
        tokio::select! {
            biased;
            received = queue.receive(want) => received,
            _ = stopping.wait_for(|stopping| *stopping) => Ok(Vec::new()),
        }
    }

    fn shown<'a>(
        &self,
        queue: &Queue,
        delivery: &'a Delivery,
        wanted: &[(&'static str, System)],
        filter: &Filter<'_>,
    ) -> ReceivedMessage<'a> {
        let body = str::from_utf8(&delivery.payload.body).unwrap_or_default();
        let kept = StoredHeaders::decode(&delivery.payload.headers).unwrap_or_else(|| StoredHeaders {
            has_group: false,
            body_md5: digest_body(body.as_bytes()),
            sender: "",
            trace: None,
            dedup: None,
            attributes: Vec::new(),
        });
        let system = wanted
            .iter()
            .filter_map(|&(name, which)| Some((name, self.system(queue, delivery, &kept, which)?)))
            .collect();
        let attributes: Vec<Attribute<'a>> =
            kept.attributes.into_iter().filter(|attribute| filter.wants(attribute.name)).collect();
        ReceivedMessage {
            message_id: delivery.id.to_string(),
            receipt_handle: delivery.receipt.as_str(),
            body_md5: hex(&kept.body_md5),
            body,
            system,
            attributes_md5: digest(&attributes),
            attributes: attributes.into_iter().map(|attribute| (attribute.name, attribute)).collect(),
        }
    }

    fn system(
        &self,
        queue: &Queue,
        delivery: &Delivery,
        kept: &StoredHeaders<'_>,
        which: System,
    ) -> Option<String> {
        match which {
            System::SenderId => Some(kept.sender.to_owned()).filter(|sender| !sender.is_empty()),
            System::SentTimestamp => Some(delivery.sent_at.0.to_string()),
            System::ReceiveCount => Some(delivery.attempt.to_string()),
            System::FirstReceive => Some(delivery.first_delivered_at.0.to_string()),
            // Only FIFO queues have them.
            System::SequenceNumber => {
                let is_fifo = queue.descriptor().settings.order == DeliveryOrder::Fifo;
                is_fifo.then(|| sequence_number(delivery.id))
            }
            System::DeduplicationId => kept.dedup.map(str::to_owned),
            System::GroupId => kept.has_group.then(|| delivery.key.to_string()),
            System::TraceHeader => kept.trace.map(str::to_owned),
            System::DeadLetterSource => {
                let from = self.queues.by_id(delivery.from?)?.descriptor();
                // What came back from a dead-letter queue has come from one, too.
                let is_dead = from.settings.redrive.is_some_and(|redrive| redrive.to == queue.id());
                is_dead.then(|| self.options.arn(&from.name))
            }
        }
    }
}

/// Takes an attempt's id on FIFO queues: a receive whose answer was lost is undone by its disconnect, not by its id.
fn check_attempt(wish: &ReceiveMessage, order: DeliveryOrder) -> Result<(), SqsError> {
    let Some(id) = &wish.receive_request_attempt_id else { return Ok(()) };
    let reason = match order {
        DeliveryOrder::Fair => NOT_OF_TYPE,
        DeliveryOrder::Fifo if is_plain(id) => return Ok(()),
        DeliveryOrder::Fifo => {
            "ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length."
        }
    };
    Err(SqsError::value("ReceiveRequestAttemptId", id, reason))
}

fn want(wish: &ReceiveMessage, wait_ms: u64) -> Result<ReceiveOptions, SqsError> {
    let max = wish.max_number_of_messages.unwrap_or(1);
    if !RECEIVE.contains(&max) {
        return Err(SqsError::value("MaxNumberOfMessages", max, "Must be between 1 and 10, if provided."));
    }
    let reason = "Must be >= 0 and <= 20, if provided.";
    let wait = wish.wait_time_seconds;
    let wait = seconds("WaitTimeSeconds", wait, &WAIT_SECS)
        .map_err(|_| SqsError::value("WaitTimeSeconds", wait.unwrap_or_default(), reason))?;
    let lease = seconds("VisibilityTimeout", wish.visibility_timeout, &VISIBILITY_SECS)?;
    Ok(ReceiveOptions {
        max: usize::try_from(max).unwrap_or(1),
        lease: lease.map(Duration::from),
        wait: wait.map_or(Duration::from_millis(wait_ms), Duration::from),
    })
}

/// Which system attributes the consumer wants, under the older parameter or the newer.
fn system_of(wish: &ReceiveMessage) -> Result<Vec<(&'static str, System)>, SqsError> {
    let names = || wish.message_system_attribute_names.iter().chain(&wish.attribute_names);
    let is_known = |name: &str| name == "All" || SYSTEM.iter().any(|(known, _)| *known == name);
    if let Some(name) = names().find(|name| !is_known(name)) {
        return Err(SqsError::UnknownAttribute { name: name.clone() });
    }
    let wanted = |name: &str| names().any(|wanted| wanted == "All" || wanted == name);
    Ok(SYSTEM.iter().filter(|(name, _)| wanted(name)).copied().collect())
}

/// Has messages delivered to others at once when their consumer left before it had them.
pub(crate) fn release_unless_served(queue: Queue, deliveries: &[Delivery], mut disconnect: Disconnect) {
    if deliveries.is_empty() {
        return;
    }
    let back: Vec<Receipt> = deliveries.iter().map(|delivery| delivery.receipt.clone()).collect();
    tokio::spawn(async move {
        if disconnect.ended().await == ResponseEnd::Aborted {
            // Those that were given back or acknowledged meanwhile need nothing.
            drop(queue.release(&back).await);
        }
    });
}
