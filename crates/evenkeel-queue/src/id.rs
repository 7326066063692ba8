//! Identifiers of queues, keys, messages and owners.
//!
//! The owner epoch is a fencing token: the store rejects writes of an owner that another has replaced.

use serde::{Deserialize, Serialize};

/// Identifies a queue; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueId(pub u32);

/// Identifies a fairness key within its queue.
///
/// The id of a removed key is not reused while the process runs, but may be after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

/// Sequence number of a message, in the order of all messages of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// Owner epoch of a queue, a fencing token: each new owner gets a larger one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Identifies a message by the queue it was sent to; it keeps its id when it is moved.
///
/// Clients get it in the form of [`MessageIds`](crate::message_ids::MessageIds), which cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub queue: QueueId,
    pub key: KeyId,
    pub seq: Seq,
}

impl MessageId {
    pub(crate) const fn number(self) -> u128 {
        (self.queue.0 as u128) << 96 | (self.key.0 as u128) << 64 | self.seq.0 as u128
    }

    pub(crate) const fn from_number(number: u128) -> Self {
        // The casts truncate on purpose.
        Self {
            queue: QueueId((number >> 96) as u32),
            key: KeyId((number >> 64) as u32),
            seq: Seq(number as u64),
        }
    }
}
