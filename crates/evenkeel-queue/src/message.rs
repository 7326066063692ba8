//! A message, from draft to delivery.

use core::time::Duration;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;

use crate::id::{KeyId, MessageId, QueueId, Seq};
use crate::receipt::Receipt;
use crate::time::UnixMillis;

/// The key of a message that names none.
pub const DEFAULT_KEY: &str = "default";
/// A fairness key is at most this long.
pub const KEY_BYTES_MAX: usize = 256;

/// For so long a message that is sent again under the same name is the same message.
pub const DEDUP_WINDOW: Duration = Duration::from_secs(300);

/// What a sender calls a message, in a scope: a digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DedupId([u8; 32]);

impl DedupId {
    /// Digests a name; the same name in another scope is another.
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

/// What became of a message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueResult {
    /// It was written down.
    Stored(MessageId),
    /// It was sent before; this is what it is called.
    Duplicate(MessageId),
}

impl EnqueueResult {
    /// What the message is called.
    pub const fn id(self) -> MessageId {
        match self {
            Self::Stored(id) | Self::Duplicate(id) => id,
        }
    }
}

/// What is sent: headers, which the queue passes on unread, and a body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// What the door wants to find again: attributes, a content type.
    pub headers: Bytes,
    /// The message itself.
    pub body: Bytes,
}

impl Payload {
    /// Counts what it holds.
    pub fn size(&self) -> usize {
        self.headers.len() + self.body.len()
    }
}

/// A message to be sent.
#[derive(Clone, Debug)]
pub struct NewMessage {
    /// Who it belongs to, `tenant` or `tenant/subkey`.
    pub key: Arc<str>,
    /// The key's weight, unless one was set for the key itself.
    pub weight: Option<Weight>,
    /// What its delivery costs; a plain message costs 1000.
    pub cost: Option<Cost>,
    /// How long it stays invisible; the queue's delay when `None`.
    pub delay: Option<Duration>,
    /// How long after it is sent it may be delivered; as long as the queue keeps messages when `None`.
    pub ttl: Option<Duration>,
    /// What its sender calls it: within [`DEDUP_WINDOW`] another of that name is the same message.
    pub dedup: Option<DedupId>,
    /// What is sent.
    pub payload: Payload,
}

impl NewMessage {
    /// Makes a message without wishes, for the default key.
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

    /// Has it belong to `key`.
    #[must_use]
    pub fn of(mut self, key: impl Into<Arc<str>>) -> Self {
        self.key = key.into();
        self
    }
}

/// What is known of a stored message without its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageMeta {
    /// Its place in the order.
    pub seq: Seq,
    /// When it was sent.
    pub sent_at: UnixMillis,
    /// Bytes of headers and body.
    pub size: u32,
    /// What its delivery costs.
    pub cost: Cost,
    /// Where it was before, if it was moved.
    pub from: Option<MoveOrigin>,
    /// When its own time is over, if it was sent with one.
    pub expires_at: Option<UnixMillis>,
}

impl MessageMeta {
    /// Says where a message comes from that leaves `queue`.
    pub(crate) fn leaving(&self, queue: QueueId, key: KeyId) -> MoveOrigin {
        let here = MessageId { queue, key, seq: self.seq };
        MoveOrigin { queue, id: self.from.map_or(here, |before| before.id) }
    }
}

/// Where a message was that was moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MoveOrigin {
    /// The queue it was moved from.
    pub queue: QueueId,
    /// What it was called when it was sent, and is still.
    pub id: MessageId,
}

/// A message that was written down.
#[derive(Clone, Debug)]
pub struct AppendedMessage {
    /// Its key.
    pub key: KeyId,
    /// What its key is called.
    pub name: Arc<str>,
    /// The weight it wishes for its key.
    pub weight: Option<Weight>,
    /// What is known of it.
    pub header: MessageMeta,
    /// When it may first be delivered.
    pub not_before: Option<UnixMillis>,
    /// What was sent.
    pub payload: Payload,
}

/// A message in a consumer's hands.
#[derive(Clone, Debug)]
pub struct Delivery {
    /// Which message.
    pub id: MessageId,
    /// Acknowledges this delivery and no other.
    pub receipt: Receipt,
    /// What its key is called.
    pub key: Arc<str>,
    /// How often it was delivered, this time included.
    pub attempt: u32,
    /// When it was sent.
    pub sent_at: UnixMillis,
    /// When it was first delivered.
    pub first_delivered_at: UnixMillis,
    /// The queue it was moved from.
    pub from: Option<QueueId>,
    /// What was sent.
    pub payload: Payload,
}
