//! Messages: to be sent, stored, and delivered.
//!
//! Sending is idempotent for messages with a deduplication ID: within [`DEDUP_WINDOW`] a duplicate is not stored, and
//! the id of the first is returned.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;

use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::receipt::Receipt;
use crate::time::UnixMillis;

/// The key of a message that was sent without one.
pub const DEFAULT_KEY: &str = "default";
pub const KEY_BYTES_MAX: usize = 256;

/// Time within which a message with the same deduplication ID is a duplicate.
pub const DEDUP_WINDOW: Duration = Duration::from_secs(300);

/// Deduplication ID of a message: a digest of its scope and the sender's name for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DedupId([u8; 32]);

impl DedupId {
    /// Hashes a name; the same name in another scope is a different ID.
    pub fn new(scope: &str, name: &str) -> Self {
        let mut digest = ring::digest::Context::new(&ring::digest::SHA256);
        digest.update(&(scope.len() as u64).to_be_bytes());
        digest.update(scope.as_bytes());
        digest.update(name.as_bytes());
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.finish().as_ref());
        Self(bytes)
    }

    pub(crate) const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Result of sending one message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    Stored(MessageId),
    /// The message was sent before, with this id.
    Duplicate(MessageId),
}

impl EnqueueResult {
    pub const fn id(self) -> MessageId {
        match self {
            Self::Stored(id) | Self::Duplicate(id) => id,
        }
    }
}

/// Contents of a message: headers, which the queue does not read, and a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Attributes or content type, in the format of the API that sent it.
    pub headers: Bytes,
    pub body: Bytes,
}

impl Payload {
    /// Returns the bytes of headers and body.
    pub fn size(&self) -> usize {
        self.headers.len() + self.body.len()
    }
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Fairness key: `tenant` or `tenant/subkey`.
    pub key: Arc<str>,
    /// Weight requested for the key; a rule of the key overrides it.
    pub weight: Option<Weight>,
    /// Cost of a delivery; 1000 when `None`.
    pub cost: Option<Cost>,
    /// Delay before the first delivery; the queue's when `None`.
    pub delay: Option<Duration>,
    /// Time to live; the queue's retention when `None`.
    pub ttl: Option<Duration>,
    /// Deduplication ID.
    pub dedup: Option<DedupId>,
    pub payload: Payload,
}

impl NewMessage {
    /// Creates a message for the default key.
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            key: DEFAULT_KEY.into(),
            weight: None,
            cost: None,
            delay: None,
            ttl: None,
            dedup: None,
            payload: Payload { headers: Bytes::new(), body: body.into() },
        }
    }

    #[must_use]
    pub fn for_key(mut self, key: impl Into<Arc<str>>) -> Self {
        self.key = key.into();
        self
    }
}

/// Metadata of a stored message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageMeta {
    pub seq: Seq,
    pub sent_at: UnixMillis,
    /// Bytes of headers and body.
    pub size: u32,
    pub cost: Cost,
    /// Origin, if the message was moved.
    pub from: Option<MoveOrigin>,
    /// End of its TTL, if it has one.
    pub expires_at: Option<UnixMillis>,
}

impl MessageMeta {
    /// Returns the origin that the message has after a move out of `queue`.
    pub(crate) fn moved_from(&self, queue: QueueId, key: KeyId) -> MoveOrigin {
        let here = MessageId { queue, key, seq: self.seq };
        MoveOrigin { queue, id: self.from.map_or(here, |before| before.id) }
    }
}

/// Origin of a moved message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveOrigin {
    /// The queue it was moved from.
    pub queue: QueueId,
    /// Its id, which a move does not change.
    pub id: MessageId,
}

/// A newly stored message, as the store reports it to the owner of the queue.
#[derive(Clone, Debug)]
pub struct AppendedMessage {
    pub key: KeyId,
    /// Name of its key.
    pub name: Arc<str>,
    /// Weight requested for its key.
    pub weight: Option<Weight>,
    pub meta: MessageMeta,
    /// End of its delay.
    pub not_before: Option<UnixMillis>,
    pub payload: Payload,
}

/// A message delivered to a consumer.
#[derive(Clone, Debug)]
pub struct Delivery {
    pub id: MessageId,
    /// Receipt handle of this delivery.
    pub receipt: Receipt,
    pub key: Arc<str>,
    /// Deliveries so far, this one included; released ones do not count.
    pub attempt: u32,
    pub sent_at: UnixMillis,
    pub first_delivered_at: UnixMillis,
    /// The queue it was moved from.
    pub from: Option<QueueId>,
    pub payload: Payload,
}
