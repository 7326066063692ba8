//! FIFO queues: what they are told, and what a message is called so that it is sent once.

use evenkeel_queue::DeliveryOrder;
use evenkeel_queue::message::DedupId;
use evenkeel_queue::store::QueueDescriptor;
use ring::digest::{SHA256, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::attribute::hex;
use crate::error::SqsError;
use crate::limit::DEDUP_MAX;
use crate::queue_metadata::QueueMetadata;
use crate::settings::{AttributeName, QueueSpec};

/// How FIFO queues' names end.
pub(crate) const SUFFIX: &str = ".fifo";

/// What a FIFO queue is told beside its order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FifoSettings {
    /// Whether a message that its sender gave no name is called by its body.
    content_based: bool,
    scope: Scope,
    /// Kept, and not acted on: a queue has no such limit.
    throughput: Throughput,
}

/// Where two messages of one name are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Scope {
    #[default]
    Queue,
    MessageGroup,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
enum Throughput {
    #[default]
    PerQueue,
    PerMessageGroupId,
}

/// How a queue tells that a message was sent before.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupPolicy {
    pub(crate) order: DeliveryOrder,
    fifo: FifoSettings,
}

/// What a message is called.
pub(crate) struct DedupName {
    /// As its consumers are told.
    pub(crate) name: String,
    /// As the queue knows it.
    pub(crate) id: DedupId,
}

impl DedupPolicy {
    pub(crate) fn of(body: &QueueDescriptor) -> Self {
        let order = body.settings.order;
        let fifo = match order {
            DeliveryOrder::Fair => FifoSettings::default(),
            DeliveryOrder::Fifo => QueueMetadata::read(&body.metadata).fifo,
        };
        Self { order, fifo }
    }

    /// Says what a message is called: as its sender says, or by its body if the queue was told so.
    pub(crate) fn call(
        &self,
        group: &str,
        given: Option<String>,
        body: &str,
    ) -> Result<Option<DedupName>, SqsError> {
        let by_body = || hex(digest(&SHA256, body.as_bytes()).as_ref());
        let Some(name) = given.or_else(|| self.fifo.content_based.then(by_body)) else { return Ok(None) };
        let reason = "MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length.";
        if !is_plain(&name) {
            return Err(SqsError::value("MessageDeduplicationId", name, reason));
        }
        let scope = match self.fifo.scope {
            Scope::Queue => "",
            Scope::MessageGroup => group,
        };
        Ok(Some(DedupName { id: DedupId::new(scope, &name), name }))
    }
}

/// Tells whether AWS would take it for an id.
pub(crate) fn is_plain(id: &str) -> bool {
    (1..=DEDUP_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Tells a FIFO queue what only those are told.
pub(crate) fn apply(shape: &mut QueueSpec, name: AttributeName, value: &str) -> Result<(), SqsError> {
    if shape.settings.order == DeliveryOrder::Fair {
        return Err(SqsError::UnknownAttribute { name: name.as_str().to_owned() });
    }
    let bad = |why: &str| SqsError::AttributeValue { name: name.as_str(), why: why.to_owned() };
    let fifo = &mut shape.notes.fifo;
    match name {
        AttributeName::ContentBasedDeduplication => {
            fifo.content_based = value.parse().map_err(|_| bad("Must be true or false."))?;
        }
        AttributeName::DeduplicationScope => {
            fifo.scope = word(value).ok_or_else(|| bad("Must be messageGroup or queue."))?;
        }
        AttributeName::FifoThroughputLimit => {
            fifo.throughput = word(value).ok_or_else(|| bad("Must be perQueue or perMessageGroupId."))?;
        }
        // A queue is one or is not, by its name.
        _ if value == "true" => {}
        _ => return Err(bad("A queue whose name ends in .fifo is a FIFO queue.")),
    }
    Ok(())
}

/// Refuses what contradicts itself.
pub(crate) fn check(shape: &QueueSpec) -> Result<(), SqsError> {
    let FifoSettings { scope, throughput, .. } = shape.notes.fifo;
    if throughput == Throughput::PerMessageGroupId && scope == Scope::Queue {
        let why = "perMessageGroupId is only allowed when DeduplicationScope is messageGroup.".to_owned();
        return Err(SqsError::AttributeValue { name: AttributeName::FifoThroughputLimit.as_str(), why });
    }
    Ok(())
}

/// Shows what a FIFO queue was told.
pub(crate) fn show(shape: &QueueSpec, name: AttributeName) -> Option<String> {
    if shape.settings.order == DeliveryOrder::Fair {
        return None;
    }
    let FifoSettings { content_based, scope, throughput } = shape.notes.fifo;
    match name {
        AttributeName::ContentBasedDeduplication => Some(content_based.to_string()),
        AttributeName::DeduplicationScope => text(&scope),
        AttributeName::FifoThroughputLimit => text(&throughput),
        _ => Some("true".to_owned()),
    }
}

fn word<T: DeserializeOwned>(value: &str) -> Option<T> {
    serde_json::from_value(Value::String(value.to_owned())).ok()
}

fn text(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}
