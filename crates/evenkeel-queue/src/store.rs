//! What survives: messages, what became of them, keys, queues and who owns them.
//!
//! Bound: whatever is answered without an error is as durable as was asked for; what is answered with an error
//! has changed nothing, but for [`StoreError::Unknown`]. Appended messages are told to the tail of their queue in
//! order, each once, before whoever sent them is answered.

pub mod disk;
pub mod memory;
pub(crate) mod result_index;

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{AppendedMessage, EnqueueResult, MessageMeta, NewMessage, Payload};
use crate::queue_state::{RedeliveryRecord, StoredKey, StoredMessage};
use crate::rule::KeyRule;
use crate::settings::{Durability, QueueSettings};
use crate::time::UnixMillis;

/// Whom to tell how it went; called once, from any thread, and must not wait.
pub type Completion<T> = Box<dyn FnOnce(Result<T, StoreError>) + Send>;
/// Whom to tell of messages that were written down; must not wait.
pub type AppendListener = Arc<dyn Fn(Vec<AppendedMessage>) + Send + Sync>;

/// Where queues live.
///
/// What takes long is answered through a [`Done`]; what is answered at once ([`queues`](Self::queues),
/// [`keys`](Self::keys), [`state`](Self::state), [`claim`](Self::claim)) reads the disk and is called while a queue
/// is opened, never by an actor.
pub trait Store: Send + Sync + 'static {
    /// Writes messages down, all or none, but for those that were sent before.
    fn append(&self, batch: Batch, done: Completion<Vec<EnqueueResult>>);

    /// Reads a queue's keys, and how many messages each has before this one.
    fn keys(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredKey>, StoreError>;

    /// Reads those messages of a queue before this one that are not simply waiting.
    fn state(&self, queue: QueueId, before: Seq) -> Result<Vec<StoredMessage>, StoreError>;

    /// Reads messages of a key, in order.
    fn fetch(&self, ask: Fetch, done: Completion<Vec<(MessageMeta, Payload)>>);

    /// Reads these messages; those that are gone are left out.
    fn read(&self, queue: QueueId, which: Vec<(KeyId, MessageMeta)>, done: Completion<Vec<(Seq, Payload)>>);

    /// Writes down what became of messages, all or nothing.
    fn commit(&self, commit: Commit, done: Completion<()>);

    /// Removes every message that is in a queue, and says before which; later ones are told after that.
    fn purge(&self, queue: QueueId, done: Completion<Seq>);

    /// Sets what a key is bound to, in place of what was set before, and names the key.
    fn set_rule(&self, queue: QueueId, name: Arc<str>, rule: KeyRule, done: Completion<KeyId>);

    /// Keeps what came of a message, as durably as can be; what was kept of it before is forgotten, and so is what
    /// would expire first of its queue's others, while there are more than `max`.
    fn put_result(&self, of: MessageId, kept: StoredResult, max: usize, done: Completion<()>);

    /// Reads what came of a message, if that is kept.
    fn result(&self, of: MessageId, done: Completion<Option<StoredResult>>);

    /// Forgets results that have expired, at most `max` of them, and counts them.
    fn expire_results(&self, now: UnixMillis, max: usize, done: Completion<usize>);

    /// Reads every queue.
    fn queues(&self) -> Result<Vec<QueueRecord>, StoreError>;

    /// Writes a queue down, new or changed; a new one is given its id.
    fn put_queue(&self, id: Option<QueueId>, record: QueueDescriptor, done: Completion<QueueId>);

    /// Removes a queue and its messages.
    fn remove_queue(&self, queue: QueueId, done: Completion<()>);

    /// Becomes the owner of queues, all or none, in one write: earlier owners can write nothing any more.
    ///
    /// Messages that are appended from then on are told to the tails, in order.
    fn take_ownership(&self, queues: Vec<(QueueId, AppendListener)>) -> Result<Vec<Ownership>, StoreError>;

    /// Stays the owner; `false` when another has become it.
    fn renew(&self, queue: QueueId, epoch: Epoch) -> Result<bool, StoreError>;

    /// Owns a queue no longer.
    fn release(&self, queue: QueueId, epoch: Epoch);

    /// Reads a secret that is as old as the store, to sign receipts with.
    fn secret(&self) -> [u8; 32];

    /// Has everything written so far on disk, and takes nothing more.
    fn close(&self);
}

/// A queue that somebody has become the owner of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ownership {
    /// Which owner this is.
    pub epoch: Epoch,
    /// Messages from this one on are told; those before are read.
    pub told_from: Seq,
}

/// Messages to write down.
#[derive(Debug)]
pub struct Batch {
    /// Into which queue.
    pub queue: QueueId,
    /// Which.
    pub drafts: Vec<NewMessage>,
    /// When they were sent.
    pub sent_at: UnixMillis,
    /// The delay of those that name none.
    pub delay_ms: u64,
    /// How durably.
    pub durability: Durability,
}

/// Which messages to read.
#[derive(Clone, Copy, Debug)]
pub struct Fetch {
    /// Of which queue.
    pub queue: QueueId,
    /// Of which key.
    pub key: KeyId,
    /// After which message.
    pub after: Seq,
    /// At most so many.
    pub count_max: usize,
    /// No more once so many bytes were read.
    pub bytes_max: usize,
}

/// What became of messages of a queue.
#[derive(Debug)]
pub struct Commit {
    /// Which queue.
    pub queue: QueueId,
    /// Who says so; refused when another owns the queue.
    pub epoch: Epoch,
    /// What became of them.
    pub changes: Vec<MessageChange>,
    /// How durably.
    pub durability: Durability,
}

impl Commit {
    /// Whether nobody waits for it: lost in a crash, a message is delivered once more.
    pub(crate) fn is_relaxed(&self) -> bool {
        let is_note = |change: &MessageChange| {
            matches!(
                change,
                MessageChange::Leased(..) | MessageChange::Requeued(_) | MessageChange::KeyRemoved(_)
            )
        };
        self.durability == Durability::Os && self.changes.iter().all(is_note)
    }
}

/// What became of a message, or of a key.
#[derive(Clone, Copy, Debug)]
pub enum MessageChange {
    /// A consumer has it until then.
    Leased(RedeliveryRecord, UnixMillis),
    /// It waits again.
    Requeued(RedeliveryRecord),
    /// It is gone.
    Removed(KeyId, MessageMeta),
    /// It is in another queue, under the same key.
    Moved(KeyId, MessageMeta, QueueId),
    /// A key has no message; it is forgotten unless it has one or a rule.
    KeyRemoved(KeyId),
}

impl MessageChange {
    /// Where a message goes that is moved.
    pub(crate) fn target(&self) -> Option<QueueId> {
        match self {
            Self::Moved(_, _, to) => Some(*to),
            Self::Leased(..) | Self::Requeued(_) | Self::Removed(..) | Self::KeyRemoved(_) => None,
        }
    }
}

/// What came of a message, as text that only its reader understands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResult {
    /// Kept until then.
    pub expires_at: UnixMillis,
    /// What it is.
    pub bytes: Bytes,
}

/// A queue as it is written down.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueRecord {
    /// Which queue.
    pub id: QueueId,
    /// What it is.
    pub body: QueueDescriptor,
}

/// What a queue is, beside its messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueDescriptor {
    /// What it is called.
    pub name: String,
    /// How it behaves.
    pub settings: QueueSettings,
    /// When it was made.
    pub created_at: u64,
    /// When it was last changed.
    pub changed_at: u64,
    /// What a door wants to find again, as text that only the door understands.
    pub notes: String,
}

#[cfg(test)]
impl QueueDescriptor {
    /// A queue as stores are tested with.
    pub(crate) fn plain() -> Self {
        let name = "jobs".to_owned();
        let notes = String::new();
        Self { name, settings: QueueSettings::default(), created_at: 0, changed_at: 0, notes }
    }
}

/// Why the store did not do it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StoreError {
    /// There is no room on the disk.
    DiskFull {
        /// How much is free.
        free: u64,
        /// How much must be.
        reserve: u64,
    },
    /// The disk took no more, reserve or not; what was asked for did not happen.
    NoRoom(String),
    /// Too much waits to be written.
    Busy,
    /// There is no such queue.
    NoQueue,
    /// As many keys were made as can be.
    TooManyKeys,
    /// Another owns the queue.
    NotOwner,
    /// The store was closed.
    Closed,
    /// The disk could not be read or written; what was asked for did not happen.
    Io(String),
    /// It may or may not have happened: the disk failed while it was made durable.
    Unknown(String),
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::DiskFull { free, reserve } => {
                write!(f, "disk is full: {free} bytes are free, {reserve} are kept in reserve")
            }
            Self::NoRoom(why) => write!(f, "disk is full: {why}"),
            Self::Busy => f.write_str("too much is waiting to be written, retry later"),
            Self::NoQueue => f.write_str("no such queue"),
            Self::TooManyKeys => f.write_str("no more fairness keys can be made"),
            Self::NotOwner => f.write_str("another gateway owns the queue"),
            Self::Closed => f.write_str("store is closed"),
            Self::Io(why) => write!(f, "disk could not be used: {why}"),
            Self::Unknown(why) => write!(f, "disk failed while writing, the outcome is unknown: {why}"),
        }
    }
}

impl core::error::Error for StoreError {}

/// What a message is charged when it names no cost.
pub(crate) fn cost_of(draft: &NewMessage) -> evenkeel_policy::cost::Cost {
    draft.cost.unwrap_or(evenkeel_policy::cost::Cost::MESSAGE)
}

/// When a message may first be delivered; `None` at once.
pub(crate) fn due_of(draft: &NewMessage, batch_delay_ms: u64, sent_at: UnixMillis) -> Option<UnixMillis> {
    let delay = draft.delay.unwrap_or(core::time::Duration::from_millis(batch_delay_ms));
    (!delay.is_zero()).then(|| sent_at + delay)
}

/// When a message's own time is over; `None` when it has none.
pub(crate) fn expiry_of(draft: &NewMessage, sent_at: UnixMillis) -> Option<UnixMillis> {
    draft.ttl.map(|ttl| sent_at + ttl)
}
