//! What is on disk, byte by byte. Numbers are big-endian, so that keys sort as their numbers do.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `meta` | `format`, `secret`, `made`, `seq` | the format's number, 32 random bytes, the last queue's id, the first sequence number nobody has used |
//! | `meta` | `q` queue, `e` queue, `p` queue | the queue as JSON, its owner's epoch, the message before which all are purged |
//! | `meta` | `g` first | the message at which this generation ends |
//! | `keys` | queue, key | rule that was set (weight, messages out, rate, burst), weight that was wished, name |
//! | `m_`first, `old_`n | queue, key, sequence, sent at, size, cost, from; its first name if it was moved; when it expires if it has a time of its own | length of headers, headers, body |
//! | `dedup_`n | queue, digest of what its sender calls a message | when it was sent, its key, its sequence |
//! | `state` | as the message's | what it is, attempts, first delivered at, until, epoch, deliveries taken back |
//! | `results` | queue, key, sequence | when it expires, the result |
//! | `results_due` | when it expires, queue, key, sequence | nothing |

use core::num::NonZeroU32;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;

use crate::id::{Epoch, KeyId, MessageId, QueueId, Seq};
use crate::message::{MessageMeta, MoveOrigin, Payload};
use crate::queue_state::{DeliveryCount, StoredMessage, StoredState};
use crate::rule::{KeyRule, Rate};
use crate::time::UnixMillis;

/// Changes when what is on disk does.
pub(super) const FORMAT: u32 = 4;
/// The earliest that is read; what lies in it is written as before, so it becomes the current one at once.
pub(super) const FORMAT_MIN: u32 = 3;
/// The length of a message's key.
const SENT_KEY: usize = 40;
/// The length of the key of a message that was moved.
const MOVED_KEY: usize = 56;
/// How much longer either is of a message that has a time of its own.
const EXPIRY: usize = 8;
const STATE: usize = 33;
/// Where a key's name begins in its record.
const NAME_AT: usize = 20;

const LEASED: u8 = 1;
const DELAYED: u8 = 2;
const WAITS: u8 = 3;

/// A message's key; everything that is known of it without its body.
pub(super) struct MessageKey {
    bytes: [u8; MOVED_KEY + EXPIRY],
    len: usize,
}

impl MessageKey {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

pub(super) fn message_key(queue: QueueId, key: KeyId, header: &MessageMeta) -> MessageKey {
    let mut bytes = [0; MOVED_KEY + EXPIRY];
    bytes[..16].copy_from_slice(&place(queue, key, header.seq));
    bytes[16..24].copy_from_slice(&header.sent_at.0.to_be_bytes());
    bytes[24..28].copy_from_slice(&header.size.to_be_bytes());
    bytes[28..36].copy_from_slice(&header.cost.0.to_be_bytes());
    let mut len = SENT_KEY;
    if let Some(moved) = header.from {
        bytes[36..40].copy_from_slice(&moved.queue.0.to_be_bytes());
        bytes[40..56].copy_from_slice(&place(moved.id.queue, moved.id.key, moved.id.seq));
        len = MOVED_KEY;
    }
    if let Some(at) = header.expires_at {
        bytes[len..len + EXPIRY].copy_from_slice(&at.0.to_be_bytes());
        len += EXPIRY;
    }
    MessageKey { bytes, len }
}

/// The beginning of a message's key.
pub(super) fn place(queue: QueueId, key: KeyId, seq: Seq) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&lane(queue, key));
    bytes[8..].copy_from_slice(&seq.0.to_be_bytes());
    bytes
}

/// The beginning of the keys of a key's messages, and the key of its record.
pub(super) fn lane(queue: QueueId, key: KeyId) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&queue.0.to_be_bytes());
    bytes[4..].copy_from_slice(&key.0.to_be_bytes());
    bytes
}

pub(super) fn read_message_key(bytes: &[u8]) -> Option<(QueueId, KeyId, MessageMeta)> {
    let queue = QueueId(word(bytes, 36)?);
    let (from, len) = if queue == QueueId(0) {
        (None, SENT_KEY)
    } else {
        let first = QueueId(word(bytes, 40)?);
        let key = KeyId(word(bytes, 44)?);
        let id = MessageId { queue: first, key, seq: Seq(long(bytes, 48)?) };
        (Some(MoveOrigin { queue, id }), MOVED_KEY)
    };
    let expires_at = match bytes.len().checked_sub(len)? {
        0 => None,
        EXPIRY => Some(UnixMillis(long(bytes, len)?)),
        _ => return None,
    };
    let header = MessageMeta {
        seq: Seq(long(bytes, 8)?),
        sent_at: UnixMillis(long(bytes, 16)?),
        size: word(bytes, 24)?,
        cost: Cost(long(bytes, 28)?),
        from,
        expires_at,
    };
    Some((QueueId(word(bytes, 0)?), KeyId(word(bytes, 4)?), header))
}

/// A message's value.
pub(super) fn message_value(payload: &Payload) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + payload.size());
    // Headers are limited with the message, far below 4 GiB.
    bytes.extend_from_slice(&(payload.headers.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&payload.headers);
    bytes.extend_from_slice(&payload.body);
    bytes
}

pub(super) fn read_message_value(bytes: &Bytes) -> Option<Payload> {
    let body_at = 4_usize.checked_add(word(bytes, 0)? as usize)?;
    (body_at <= bytes.len())
        .then(|| Payload { headers: bytes.slice(4..body_at), body: bytes.slice(body_at..) })
}

/// A state's value.
pub(super) fn state_value(
    delivered: DeliveryCount,
    first_delivered_at: Option<UnixMillis>,
    standing: StoredState,
) -> [u8; STATE] {
    let (kind, until, epoch) = match standing {
        StoredState::Leased { until, epoch } => (LEASED, until, epoch),
        StoredState::Delayed { until } => (DELAYED, until, Epoch(0)),
        StoredState::Ready => (WAITS, UnixMillis(0), Epoch(0)),
    };
    let mut bytes = [0; STATE];
    bytes[0] = kind;
    bytes[1..5].copy_from_slice(&delivered.attempts.to_be_bytes());
    bytes[5..13].copy_from_slice(&first_delivered_at.map_or(0, |at| at.0).to_be_bytes());
    bytes[13..21].copy_from_slice(&until.0.to_be_bytes());
    bytes[21..29].copy_from_slice(&epoch.0.to_be_bytes());
    bytes[29..].copy_from_slice(&delivered.taken_back.to_be_bytes());
    bytes
}

pub(super) fn read_state(key: KeyId, header: MessageMeta, bytes: &[u8]) -> Option<StoredMessage> {
    let first = long(bytes, 5)?;
    let until = UnixMillis(long(bytes, 13)?);
    let epoch = Epoch(long(bytes, 21)?);
    let standing = match *bytes.first()? {
        LEASED => StoredState::Leased { until, epoch },
        DELAYED => StoredState::Delayed { until },
        WAITS => StoredState::Ready,
        _ => return None,
    };
    let first_delivered_at = (first != 0).then_some(UnixMillis(first));
    let delivered = DeliveryCount { attempts: word(bytes, 1)?, taken_back: word(bytes, 29)? };
    Some(StoredMessage { key, header, delivered, first_delivered_at, standing })
}

/// What is kept of a key.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyRecord {
    pub(super) name: Arc<str>,
    pub(super) rule: KeyRule,
    pub(super) wished_weight: Option<Weight>,
}

impl KeyRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let millis = |weight: Option<Weight>| weight.map_or(0, Weight::millis);
        let KeyRule { weight, concurrency_max, rate } = self.rule;
        let words = [
            millis(weight),
            concurrency_max.map_or(0, NonZeroU32::get),
            rate.map_or(0, Rate::millis),
            rate.map_or(0, |rate| rate.burst().get()),
            millis(self.wished_weight),
        ];
        let mut bytes = Vec::with_capacity(NAME_AT + self.name.len());
        words.iter().for_each(|word| bytes.extend_from_slice(&word.to_be_bytes()));
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let weight = |at| match word(bytes, at)? {
            0 => Some(None),
            millis => Some(Some(Weight::new(f64::from(millis) / 1_000.0).ok()?)),
        };
        let rate = match (word(bytes, 8)?, word(bytes, 12)?) {
            (0, 0) => None,
            (millis, burst) => Some(Rate::from_parts(millis, burst)?),
        };
        let rule = KeyRule { weight: weight(0)?, concurrency_max: NonZeroU32::new(word(bytes, 4)?), rate };
        let name = core::str::from_utf8(bytes.get(NAME_AT..)?).ok()?;
        Some(Self { name: name.into(), rule, wished_weight: weight(16)? })
    }
}

/// A key of `meta` that belongs to a queue.
pub(super) fn of_queue(kind: u8, queue: QueueId) -> [u8; 5] {
    let mut bytes = [kind; 5];
    bytes[1..].copy_from_slice(&queue.0.to_be_bytes());
    bytes
}

/// A key of `meta` that belongs to a generation.
pub(super) fn of_generation(first: Seq) -> [u8; 9] {
    let mut bytes = [b'g'; 9];
    bytes[1..].copy_from_slice(&first.0.to_be_bytes());
    bytes
}

pub(super) fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_key_reads_back(queue: u32, key: u32, seq: u64, at: u64, size: u32, cost: u64, from: u32, ends: Option<u64>) {
            let id = MessageId { queue: QueueId(from ^ queue), key: KeyId(key), seq: Seq(at) };
            let from = (from != 0).then_some(MoveOrigin { queue: QueueId(from), id });
            let expires_at = ends.map(UnixMillis);
            let header = MessageMeta { seq: Seq(seq), sent_at: UnixMillis(at), size, cost: Cost(cost), from, expires_at };
            let bytes = message_key(QueueId(queue), KeyId(key), &header);
            prop_assert_eq!(read_message_key(bytes.as_slice()), Some((QueueId(queue), KeyId(key), header)));
        }

        #[test]
        fn garbage_is_refused_not_misread(bytes: Vec<u8>) {
            if let Some((queue, key, header)) = read_message_key(&bytes) {
                let again = message_key(queue, key, &header);
                prop_assert_eq!(again.as_slice(), &bytes);
            }
            if let Some(payload) = read_message_value(&bytes.clone().into()) {
                prop_assert_eq!(payload.size() + 4, bytes.len());
            }
            if let Some(record) = KeyRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }

        #[test]
        fn a_payload_reads_back(headers: Vec<u8>, body: Vec<u8>) {
            let payload = Payload { headers: headers.into(), body: body.into() };
            prop_assert_eq!(read_message_value(&message_value(&payload).into()), Some(payload));
        }
    }

    #[test]
    fn keys_sort_by_queue_then_key_then_order() {
        let key = |queue, key, seq| place(QueueId(queue), KeyId(key), Seq(seq));
        assert!(
            key(1, 2, 300) < key(1, 2, 301) && key(1, 2, 301) < key(1, 3, 1) && key(1, 3, 9) < key(2, 0, 0)
        );
    }
}
