//! Queue storage: messages and their delivery states, keys, results and ownership.
//!
//! Guarantees: a successful operation is as durable as requested; a failed one changed nothing, unless the error is
//! [`StoreError::Unknown`]. A queue's listener receives each appended message exactly once, in order, before the
//! completion of the append runs.

pub mod disk;
pub mod memory;
pub(crate) mod result_index;

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, EnqueueResult, MessageMeta, NewMessage, Payload};
use crate::namespace::Namespace;
use crate::queue_state::{RedeliveryRecord, StoredKey, StoredMessage};
use crate::rule::KeyRule;
use crate::settings::{Durability, QueueSettings};
use crate::time::UnixMillis;

/// Completion callback. Called at most once, on any thread; must not block.
///
/// A store that is closed drops the callbacks of its pending operations without calling them.
pub type Completion<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;
/// Callback for appended messages; must not block.
pub type AppendListener = Arc<dyn Fn(Vec<AppendedMessage>) + Send + Sync>;

/// A store of queues.
///
/// Most operations are asynchronous and report to a [`Completion`]. [`queues`](Self::queues),
/// [`read_keys`](Self::read_keys), [`read_delivery_states`](Self::read_delivery_states),
/// [`take_ownership`](Self::take_ownership) and [`is_owner`](Self::is_owner) block until the disk has answered: call
/// them on a blocking thread, never from an actor.
pub trait Store: Send + Sync + 'static {
    /// Stores the messages of a batch atomically; duplicates are skipped.
    fn append(&self, batch: AppendBatch, done: Completion<Vec<EnqueueResult>>);

    /// Reads the keys of a queue, each with a summary of its messages with a sequence number below `before`.
    fn read_keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError>;

    /// Reads the delivery states of a queue's messages with a sequence number below `before`.
    fn read_delivery_states(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError>;

    /// Reads the next messages of a key, in order.
    fn read_next(&self, fetch: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>);

    /// Reads the payloads of messages; deleted messages are left out.
    fn read_payloads(
        &self,
        queue: QueueId,
        messages: Vec<(KeyId, MessageMeta)>,
        done: Completion<Vec<(Seq, Payload)>>,
    );

    /// Applies changes to messages atomically.
    fn commit(&self, commit: Commit, done: Completion<()>);

    /// Deletes every message of a queue.
    ///
    /// Messages appended after the purge reach the listener after `done` has run.
    fn purge(&self, queue: QueueId, done: Completion<()>);

    /// Replaces the rule of a key; creates the key if needed.
    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>);

    /// Stores the result of a message, synced to disk, and replaces an earlier one.
    ///
    /// Evicts the results that expire first while the queue has more than `results_max`.
    fn put_result(&self, id: MessageId, result: StoredResult, results_max: usize, done: Completion<()>);

    /// Reads the result of a message.
    fn result(&self, id: MessageId, done: Completion<Option<StoredResult>>);

    /// Deletes at most `max` expired results, of all queues; returns the number deleted.
    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>);

    /// Lists all queues.
    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError>;

    /// Stores a queue's descriptor; creates a new queue if `id` is `None`.
    fn put_queue(&self, id: Option<QueueId>, descriptor: QueueDescriptor, done: Completion<QueueId>);

    /// Deletes a queue and its messages.
    fn remove_queue(&self, queue: QueueId, done: Completion<()>);

    /// Takes ownership of queues atomically, in one write: later writes of earlier owners are rejected.
    ///
    /// The listeners receive the messages appended after that write, in order.
    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError>;

    /// Reports whether the owner with this epoch still owns the queue.
    fn is_owner(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError>;

    /// Gives up ownership of a queue.
    fn release_ownership(&self, queue: QueueId, epoch: Epoch);

    /// Returns the store's secret, which signs receipts and encrypts message ids.
    fn secret(&self) -> [u8; 32];

    /// Returns the first message whose id is [encrypted](crate::message_ids::MessageIds).
    fn plain_ids_before(&self) -> Seq;

    /// Syncs everything to disk and rejects further operations.
    fn close(&self);
}

/// Ownership of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Owner epoch, the fencing token of this owner's writes.
    pub epoch: Epoch,
    /// First message that the listener receives; earlier messages are read from the store.
    pub listen_from: Seq,
}

/// Messages to append to one queue.
#[derive(Debug)]
pub struct AppendBatch {
    pub queue: QueueId,
    pub messages: Vec<NewMessage>,
    pub sent_at: UnixMillis,
    /// Delay of messages that do not set one.
    pub delay_ms: u64,
    pub durability: Durability,
}

/// A read of messages of one key.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    pub queue: QueueId,
    pub key: KeyId,
    pub after: Seq,
    pub messages_max: usize,
    /// Soft limit: the read stops after the message that reaches it.
    pub bytes_max: usize,
}

/// Changes to messages of a queue, applied atomically.
#[derive(Debug)]
pub struct Commit {
    pub queue: QueueId,
    /// Owner epoch of the writer; the commit is rejected if another owner has taken over.
    pub epoch: Epoch,
    pub changes: Vec<MessageChange>,
    pub durability: Durability,
}

impl Commit {
    /// Reports whether the commit may be delayed: no caller waits for it, and a crash that loses it only causes
    /// redeliveries.
    pub(crate) fn is_relaxed(&self) -> bool {
        let may_be_lost = |change: &MessageChange| {
            matches!(
                change,
                MessageChange::Leased(..) | MessageChange::Requeued(_) | MessageChange::KeyRemoved(_)
            )
        };
        self.durability == Durability::Os && self.changes.iter().all(may_be_lost)
    }
}

/// Change to a message or a key.
#[derive(Clone, Copy, Debug)]
pub enum MessageChange {
    /// Leased until this time.
    Leased(RedeliveryRecord, UnixMillis),
    /// Ready again, at once or after a delay ([`RedeliveryRecord::not_before`]).
    Requeued(RedeliveryRecord),
    Removed(KeyId, MessageMeta),
    /// Moved to another queue, under the same key.
    Moved(KeyId, MessageMeta, QueueId),
    /// Removes the key, unless it has a message or a rule.
    KeyRemoved(KeyId),
}

impl MessageChange {
    /// Returns the queue that the message is moved to.
    pub(crate) fn destination(&self) -> Option<QueueId> {
        match self {
            Self::Moved(_, _, to) => Some(*to),
            Self::Leased(..) | Self::Requeued(_) | Self::Removed(..) | Self::KeyRemoved(_) => None,
        }
    }
}

/// Result of a message, in a format that the store does not interpret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResult {
    pub expires_at: UnixMillis,
    pub bytes: Bytes,
}

/// A stored queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    pub id: QueueId,
    pub descriptor: QueueDescriptor,
}

/// Name, settings and metadata of a queue. Stored as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueDescriptor {
    /// Unique in the namespace.
    pub name: String,
    /// Namespace of the queue's owner. Earlier versions do not store it: their queues are shared.
    #[serde(rename = "owner", default, skip_serializing_if = "Namespace::is_shared")]
    pub namespace: Namespace,
    pub settings: QueueSettings,
    pub created_at: u64,
    pub changed_at: u64,
    /// Opaque metadata of the API that created the queue. Stored as `notes`, its name in earlier versions.
    #[serde(rename = "notes")]
    pub metadata: String,
}

#[cfg(test)]
impl QueueDescriptor {
    pub(crate) fn for_test() -> Self {
        let name = "jobs".to_owned();
        let metadata = String::new();
        let namespace = Namespace::Shared;
        Self { name, namespace, settings: QueueSettings::default(), created_at: 0, changed_at: 0, metadata }
    }
}

/// Error of a store operation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Less disk space is free than the configured reserve.
    #[error("disk is full: {free} bytes are free, {reserve} are kept in reserve")]
    DiskFull { free: u64, reserve: u64 },
    /// The file system reported that it is full (`ENOSPC`).
    #[error("disk is full: {0}")]
    NoRoom(String),
    #[error("write queue is full, retry later")]
    Busy,
    #[error("no such queue")]
    NoQueue,
    #[error("no more fairness keys can be created")]
    TooManyKeys,
    #[error("a tenant may have {max} fairness keys in use")]
    TooManyTenantKeys { max: u32 },
    #[error("another gateway owns the queue")]
    NotOwner,
    #[error("store is closed")]
    Closed,
    #[error("disk could not be read or written: {0}")]
    Io(String),
    /// An fsync failed: it is unknown whether the write is durable.
    #[error("disk failed while writing, the outcome is unknown: {0}")]
    Unknown(String),
}

/// Returns the cost of a message's delivery.
pub(crate) fn delivery_cost(message: &NewMessage) -> evenkeel_policy::cost::Cost {
    message.cost.unwrap_or(evenkeel_policy::cost::Cost::MESSAGE)
}

/// Returns when a message's delay ends; `None` without a delay.
pub(crate) fn visible_at(
    message: &NewMessage,
    batch_delay_ms: u64,
    sent_at: UnixMillis,
) -> Option<UnixMillis> {
    let delay = message.delay.unwrap_or(core::time::Duration::from_millis(batch_delay_ms));
    (!delay.is_zero()).then(|| sent_at + delay)
}

/// Returns when a message's TTL ends; `None` without a TTL.
pub(crate) fn expires_at(message: &NewMessage, sent_at: UnixMillis) -> Option<UnixMillis> {
    message.ttl.map(|ttl| sent_at + ttl)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::{CostMode, DeliveryOrder, DispatchSettings, RedrivePolicy};

    /// Existing data directories contain these field names.
    #[test]
    fn the_stored_json_of_a_queue_does_not_change() {
        let settings = QueueSettings {
            redrive: Some(RedrivePolicy { to: QueueId(7), attempts_max: 3 }),
            durability: Durability::Interval(50),
            dispatch: Some(DispatchSettings {
                target: "/v1/embeddings".into(),
                concurrency: 4,
                result_ttl_ms: 1_000,
                results_max: 10,
            }),
            cost_mode: CostMode::Time,
            order: DeliveryOrder::Fifo,
            ..QueueSettings::default()
        };
        let descriptor = QueueDescriptor {
            name: "jobs".into(),
            namespace: Namespace::Shared,
            settings,
            created_at: 1,
            changed_at: 2,
            metadata: "{}".into(),
        };
        let json = concat!(
            r#"{"name":"jobs","settings":{"lease_ms":30000,"delay_ms":0,"wait_ms":0,"retention_ms":345600000,"#,
            r#""message_bytes_max":1048576,"redrive":{"to":7,"attempts_max":3},"backoff_ms_min":1000,"#,
            r#""backoff_ms_max":60000,"messages_max":100000000,"bytes_max":1099511627776,"in_flight_max":120000,"#,
            r#""keys_max":1048576,"quantum":1000,"durability":{"interval":50},"dispatch":{"#,
            r#""target":"/v1/embeddings","concurrency":4,"result_ttl_ms":1000,"results_max":10},"#,
            r#""cost_mode":"time","order":"fifo"},"created_at":1,"changed_at":2,"notes":"{}"}"#,
        );
        assert_eq!(serde_json::to_string(&descriptor).unwrap(), json);
        assert_eq!(serde_json::from_str::<QueueDescriptor>(json).unwrap(), descriptor);
        // The field was added later: without it, a queue is shared.
        let namespace = Namespace::Account("123456789012".parse().unwrap());
        let owned = QueueDescriptor { namespace, ..descriptor };
        let owned_json = json.replacen(r#""name":"jobs""#, r#""name":"jobs","owner":"123456789012""#, 1);
        assert_eq!(serde_json::to_string(&owned).unwrap(), owned_json);
        assert_eq!(serde_json::from_str::<QueueDescriptor>(&owned_json).unwrap(), owned);
        for (durability, json) in [(Durability::Fsync, r#""fsync""#), (Durability::Os, r#""os""#)] {
            assert_eq!(serde_json::to_string(&durability).unwrap(), json);
        }
    }
}
