//! FIFO queues: their attributes, and the deduplication ids of messages.

use evenkeel_queue::DeliveryOrder;
use evenkeel_queue::message::DedupId;
use evenkeel_queue::store::QueueDescriptor;
use evenkeel_server::hex::hex;
use ring::digest::{SHA256, digest};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::SqsError;
use crate::limit::DEDUP_MAX;
use crate::queue_metadata::QueueMetadata;
use crate::reason;
use crate::settings::{AttributeName, QueueSpec, parse_bool};

/// Suffix of a FIFO queue's name.
pub(crate) const SUFFIX: &str = ".fifo";

/// FIFO attributes of a queue, in the format in which they are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct FifoSettings {
    /// `ContentBasedDeduplication`: the SHA-256 of the body is the default deduplication id.
    content_based: bool,
    scope: Scope,
    /// Stored and returned, but not enforced.
    throughput: Throughput,
}

/// Scope of deduplication.
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

/// Deduplication of a queue's messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupPolicy {
    pub(crate) order: DeliveryOrder,
    fifo: FifoSettings,
}

/// Deduplication id of a message.
pub(crate) struct DedupName {
    /// The id as the client sent it; consumers see it.
    pub(crate) name: String,
    /// The id as the queue stores it, with its scope.
    pub(crate) id: DedupId,
}

/// Scopes within which a deduplication id is unique; the queue's settings decide which of them applies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DedupScope<'a> {
    /// The sender's name for a guest, otherwise empty: all senders.
    pub(crate) queue: &'a str,
    /// Stored key of the message.
    pub(crate) group: &'a str,
}

impl DedupPolicy {
    pub(crate) fn of(descriptor: &QueueDescriptor) -> Self {
        let order = descriptor.settings.order;
        let fifo = match order {
            DeliveryOrder::Fair => FifoSettings::default(),
            DeliveryOrder::Fifo => QueueMetadata::read(&descriptor.metadata).fifo,
        };
        Self { order, fifo }
    }

    /// Rejects a message of a FIFO queue without a group id, or without a deduplication id that the queue cannot derive.
    pub(crate) fn check_ids(&self, group: Option<&str>, requested: Option<&str>) -> Result<(), SqsError> {
        if self.order == DeliveryOrder::Fair {
            return Ok(());
        }
        group.ok_or(SqsError::Missing { name: "MessageGroupId" })?;
        if requested.is_some() || self.fifo.content_based {
            return Ok(());
        }
        Err(SqsError::invalid(reason::NO_DEDUP))
    }

    /// Returns the id that the client sent, or the hash of the body with `ContentBasedDeduplication`.
    pub(crate) fn name(
        &self,
        scope: DedupScope<'_>,
        requested: Option<String>,
        body: &str,
    ) -> Result<Option<DedupName>, SqsError> {
        let body_hash = || hex(digest(&SHA256, body.as_bytes()).as_ref());
        let name = requested.or_else(|| self.fifo.content_based.then(body_hash));
        let Some(name) = name else { return Ok(None) };
        if !is_valid_id(&name) {
            return Err(SqsError::invalid_value("MessageDeduplicationId", name, reason::DEDUP));
        }
        let scope = match self.fifo.scope {
            Scope::Queue => scope.queue,
            Scope::MessageGroup => scope.group,
        };
        Ok(Some(DedupName { id: DedupId::new(scope, &name), name }))
    }
}

/// Reports whether AWS accepts a deduplication id or a receive request attempt id.
pub(crate) fn is_valid_id(id: &str) -> bool {
    (1..=DEDUP_MAX).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Sets a FIFO attribute.
pub(crate) fn apply(spec: &mut QueueSpec, name: AttributeName, value: &str) -> Result<(), SqsError> {
    if spec.settings.order == DeliveryOrder::Fair {
        return Err(match name {
            AttributeName::DeduplicationScope | AttributeName::FifoThroughputLimit => {
                SqsError::FifoAttribute { name: name.as_str() }
            }
            _ => SqsError::UnknownAttribute { name: name.as_str().to_owned() },
        });
    }
    let bad =
        |hint: &str| SqsError::AttributeValue { name: name.as_str(), reason: "", hint: hint.to_owned() };
    let fifo = &mut spec.metadata.fifo;
    match name {
        AttributeName::ContentBasedDeduplication => fifo.content_based = parse_bool(name, value)?,
        AttributeName::DeduplicationScope => {
            fifo.scope = parse(value).ok_or_else(|| bad("must be messageGroup or queue"))?;
        }
        AttributeName::FifoThroughputLimit => {
            fifo.throughput = parse(value).ok_or_else(|| bad("must be perQueue or perMessageGroupId"))?;
        }
        // `FifoQueue` is determined by the queue's name.
        _ if parse_bool(name, value)? => {}
        _ => {
            let reason = reason::MODIFIED_QUEUE_TYPE;
            let hint = "a queue whose name ends in .fifo is a FIFO queue".to_owned();
            return Err(SqsError::AttributeValue { name: name.as_str(), reason, hint });
        }
    }
    Ok(())
}

/// Rejects contradictory attributes.
pub(crate) fn check(spec: &QueueSpec) -> Result<(), SqsError> {
    let FifoSettings { scope, throughput, .. } = spec.metadata.fifo;
    if throughput == Throughput::PerMessageGroupId && scope == Scope::Queue {
        let hint = "perMessageGroupId is only allowed when DeduplicationScope is messageGroup".to_owned();
        let name = AttributeName::FifoThroughputLimit.as_str();
        return Err(SqsError::AttributeValue { name, reason: "", hint });
    }
    Ok(())
}

/// Returns the value of a FIFO attribute; `None` if the queue is not FIFO.
pub(crate) fn value(spec: &QueueSpec, name: AttributeName) -> Option<String> {
    if spec.settings.order == DeliveryOrder::Fair {
        return None;
    }
    let FifoSettings { content_based, scope, throughput } = spec.metadata.fifo;
    match name {
        AttributeName::ContentBasedDeduplication => Some(content_based.to_string()),
        AttributeName::DeduplicationScope => text(&scope),
        AttributeName::FifoThroughputLimit => text(&throughput),
        _ => Some("true".to_owned()),
    }
}

fn parse<T: DeserializeOwned>(value: &str) -> Option<T> {
    serde_json::from_value(Value::String(value.to_owned())).ok()
}

fn text(value: &impl Serialize) -> Option<String> {
    serde_json::to_value(value).ok()?.as_str().map(str::to_owned)
}
