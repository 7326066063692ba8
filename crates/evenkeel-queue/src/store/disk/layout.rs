//! On-disk layout, byte by byte. Numbers are big-endian, so that keys sort in numeric order.
//!
//! | keyspace | key | value |
//! |---|---|---|
//! | `meta` | `format`, `secret`, `made`, `seq` | format number, 32 random bytes, last queue id, first unused sequence number |
//! | `meta` | `q` queue, `e` queue, `p` queue | descriptor as JSON, owner epoch, first sequence number not purged |
//! | `meta` | `g` first | end of the segment's sequence numbers, exclusive |
//! | `keys` | queue, key | rule (weight, concurrency, rate, burst), requested weight, name |
//! | `m_`first, `old_`n | queue, key, sequence, sent at, size, cost, origin queue; original id if it was moved; expiry if it has a TTL | length of headers, headers, body |
//! | `dedup_`n | queue, digest of the deduplication ID | sent at, key, sequence |
//! | `state` | as the message's | state, attempts, first delivered at, until, epoch, released deliveries |
//! | `results` | queue, key, sequence | expiry, result |
//! | `results_due` | expiry, queue, key, sequence | empty |

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

/// Format number; changes with the layout.
pub(super) const FORMAT: u32 = 4;
/// Earliest readable format. Format 4 did not change its records, so an upgrade only writes the new number.
pub(super) const FORMAT_MIN: u32 = 3;
/// Length of the key of a message that was not moved.
const SENT_KEY_LEN: usize = 40;
/// Length of the key of a moved message.
const MOVED_KEY_LEN: usize = 56;
/// Additional length for a message with a TTL.
const EXPIRY_LEN: usize = 8;
/// Length of an encoded delivery state.
const STATE_LEN: usize = 33;
/// Offset of the name in a key's record.
const NAME_AT: usize = 20;

const LEASED: u8 = 1;
const DELAYED: u8 = 2;
const READY: u8 = 3;

/// A message's key, which holds all its metadata.
pub(super) struct MessageKey {
    bytes: [u8; MOVED_KEY_LEN + EXPIRY_LEN],
    len: usize,
}

impl MessageKey {
    pub(super) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

pub(super) fn message_key(queue: QueueId, key: KeyId, meta: &MessageMeta) -> MessageKey {
    let mut bytes = [0; MOVED_KEY_LEN + EXPIRY_LEN];
    bytes[..16].copy_from_slice(&message_prefix(queue, key, meta.seq));
    bytes[16..24].copy_from_slice(&meta.sent_at.0.to_be_bytes());
    bytes[24..28].copy_from_slice(&meta.size.to_be_bytes());
    bytes[28..36].copy_from_slice(&meta.cost.0.to_be_bytes());
    let mut len = SENT_KEY_LEN;
    if let Some(moved) = meta.from {
        bytes[36..40].copy_from_slice(&moved.queue.0.to_be_bytes());
        bytes[40..56].copy_from_slice(&message_prefix(moved.id.queue, moved.id.key, moved.id.seq));
        len = MOVED_KEY_LEN;
    }
    if let Some(at) = meta.expires_at {
        bytes[len..len + EXPIRY_LEN].copy_from_slice(&at.0.to_be_bytes());
        len += EXPIRY_LEN;
    }
    MessageKey { bytes, len }
}

/// Returns the prefix of a message's key.
pub(super) fn message_prefix(queue: QueueId, key: KeyId, seq: Seq) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&key_prefix(queue, key));
    bytes[8..].copy_from_slice(&seq.0.to_be_bytes());
    bytes
}

/// Returns the prefix of the keys of a key's messages, which is also the key of its record.
pub(super) fn key_prefix(queue: QueueId, key: KeyId) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&queue.0.to_be_bytes());
    bytes[4..].copy_from_slice(&key.0.to_be_bytes());
    bytes
}

pub(super) fn read_message_key(bytes: &[u8]) -> Option<(QueueId, KeyId, MessageMeta)> {
    let origin = QueueId(read_u32(bytes, 36)?);
    let (from, len) = if origin == QueueId(0) {
        (None, SENT_KEY_LEN)
    } else {
        let queue = QueueId(read_u32(bytes, 40)?);
        let key = KeyId(read_u32(bytes, 44)?);
        let id = MessageId { queue, key, seq: Seq(read_u64(bytes, 48)?) };
        (Some(MoveOrigin { queue: origin, id }), MOVED_KEY_LEN)
    };
    let expires_at = match bytes.len().checked_sub(len)? {
        0 => None,
        EXPIRY_LEN => Some(UnixMillis(read_u64(bytes, len)?)),
        _ => return None,
    };
    let meta = MessageMeta {
        seq: Seq(read_u64(bytes, 8)?),
        sent_at: UnixMillis(read_u64(bytes, 16)?),
        size: read_u32(bytes, 24)?,
        cost: Cost(read_u64(bytes, 28)?),
        from,
        expires_at,
    };
    Some((QueueId(read_u32(bytes, 0)?), KeyId(read_u32(bytes, 4)?), meta))
}

/// Encodes a message's value.
pub(super) fn message_value(payload: &Payload) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(4 + payload.size());
    // The maximum message size keeps the headers far below 4 GiB.
    bytes.extend_from_slice(&(payload.headers.len() as u32).to_be_bytes());
    bytes.extend_from_slice(&payload.headers);
    bytes.extend_from_slice(&payload.body);
    bytes
}

pub(super) fn read_message_value(bytes: &Bytes) -> Option<Payload> {
    let body_at = 4_usize.checked_add(read_u32(bytes, 0)? as usize)?;
    (body_at <= bytes.len())
        .then(|| Payload { headers: bytes.slice(4..body_at), body: bytes.slice(body_at..) })
}

/// Encodes a delivery state.
pub(super) fn state_value(
    deliveries: DeliveryCount,
    first_delivered_at: Option<UnixMillis>,
    state: StoredState,
) -> [u8; STATE_LEN] {
    let (kind, until, epoch) = match state {
        StoredState::Leased { until, epoch } => (LEASED, until, epoch),
        StoredState::Delayed { until } => (DELAYED, until, Epoch(0)),
        StoredState::Ready => (READY, UnixMillis(0), Epoch(0)),
    };
    let mut bytes = [0; STATE_LEN];
    bytes[0] = kind;
    bytes[1..5].copy_from_slice(&deliveries.attempts.to_be_bytes());
    bytes[5..13].copy_from_slice(&first_delivered_at.map_or(0, |at| at.0).to_be_bytes());
    bytes[13..21].copy_from_slice(&until.0.to_be_bytes());
    bytes[21..29].copy_from_slice(&epoch.0.to_be_bytes());
    bytes[29..].copy_from_slice(&deliveries.released.to_be_bytes());
    bytes
}

pub(super) fn read_state(key: KeyId, meta: MessageMeta, bytes: &[u8]) -> Option<StoredMessage> {
    let first = read_u64(bytes, 5)?;
    let until = UnixMillis(read_u64(bytes, 13)?);
    let epoch = Epoch(read_u64(bytes, 21)?);
    let state = match *bytes.first()? {
        LEASED => StoredState::Leased { until, epoch },
        DELAYED => StoredState::Delayed { until },
        READY => StoredState::Ready,
        _ => return None,
    };
    let first_delivered_at = (first != 0).then_some(UnixMillis(first));
    let deliveries = DeliveryCount { attempts: read_u32(bytes, 1)?, released: read_u32(bytes, 29)? };
    Some(StoredMessage { key, meta, deliveries, first_delivered_at, state })
}

/// A key's record.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct KeyRecord {
    pub(super) name: Arc<str>,
    pub(super) rule: KeyRule,
    pub(super) requested_weight: Option<Weight>,
}

impl KeyRecord {
    pub(super) fn encode(&self) -> Vec<u8> {
        let millis = |weight: Option<Weight>| weight.map_or(0, Weight::millis);
        let KeyRule { weight, concurrency_max, rate } = self.rule;
        let numbers = [
            millis(weight),
            concurrency_max.map_or(0, NonZeroU32::get),
            rate.map_or(0, Rate::millis),
            rate.map_or(0, |rate| rate.burst().get()),
            millis(self.requested_weight),
        ];
        let mut bytes = Vec::with_capacity(NAME_AT + self.name.len());
        numbers.iter().for_each(|number| bytes.extend_from_slice(&number.to_be_bytes()));
        bytes.extend_from_slice(self.name.as_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let weight = |offset| match read_u32(bytes, offset)? {
            0 => Some(None),
            millis => Some(Some(Weight::new(f64::from(millis) / 1_000.0).ok()?)),
        };
        let rate = match (read_u32(bytes, 8)?, read_u32(bytes, 12)?) {
            (0, 0) => None,
            (millis, burst) => Some(Rate::from_parts(millis, burst)?),
        };
        let rule =
            KeyRule { weight: weight(0)?, concurrency_max: NonZeroU32::new(read_u32(bytes, 4)?), rate };
        let name = core::str::from_utf8(bytes.get(NAME_AT..)?).ok()?;
        Some(Self { name: name.into(), rule, requested_weight: weight(16)? })
    }
}

/// Returns the key in `meta` of a queue's descriptor (`q`), epoch (`e`) or first unpurged sequence number (`p`).
pub(super) fn queue_meta_key(kind: u8, queue: QueueId) -> [u8; 5] {
    let mut bytes = [kind; 5];
    bytes[1..].copy_from_slice(&queue.0.to_be_bytes());
    bytes
}

/// Returns the key in `meta` of the end of a segment.
pub(super) fn segment_end_key(first: Seq) -> [u8; 9] {
    let mut bytes = [b'g'; 9];
    bytes[1..].copy_from_slice(&first.0.to_be_bytes());
    bytes
}

pub(super) fn read_u32(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(offset..offset + 4)?.try_into().ok()?))
}

pub(super) fn read_u64(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(offset..offset + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_message_key_decodes_to_what_was_encoded(queue: u32, key: u32, seq: u64, at: u64, size: u32, cost: u64, from: u32, expires_at: Option<u64>) {
            let id = MessageId { queue: QueueId(from ^ queue), key: KeyId(key), seq: Seq(at) };
            let from = (from != 0).then_some(MoveOrigin { queue: QueueId(from), id });
            let expires_at = expires_at.map(UnixMillis);
            let meta = MessageMeta { seq: Seq(seq), sent_at: UnixMillis(at), size, cost: Cost(cost), from, expires_at };
            let bytes = message_key(QueueId(queue), KeyId(key), &meta);
            prop_assert_eq!(read_message_key(bytes.as_slice()), Some((QueueId(queue), KeyId(key), meta)));
        }

        #[test]
        fn arbitrary_bytes_are_rejected_or_encode_back_unchanged(bytes: Vec<u8>) {
            if let Some((queue, key, meta)) = read_message_key(&bytes) {
                let encoded = message_key(queue, key, &meta);
                prop_assert_eq!(encoded.as_slice(), &bytes);
            }
            if let Some(payload) = read_message_value(&bytes.clone().into()) {
                prop_assert_eq!(payload.size() + 4, bytes.len());
            }
            if let Some(record) = KeyRecord::decode(&bytes) {
                prop_assert_eq!(record.encode(), bytes);
            }
        }

        #[test]
        fn a_payload_decodes_to_what_was_encoded(headers: Vec<u8>, body: Vec<u8>) {
            let payload = Payload { headers: headers.into(), body: body.into() };
            prop_assert_eq!(read_message_value(&message_value(&payload).into()), Some(payload));
        }
    }

    /// Stores of earlier versions contain these bytes.
    #[test]
    fn the_stored_bytes_do_not_change() {
        let id = MessageId { queue: QueueId(7), key: KeyId(8), seq: Seq(9) };
        let meta = MessageMeta {
            seq: Seq(3),
            sent_at: UnixMillis(4),
            size: 5,
            cost: Cost(6),
            from: Some(MoveOrigin { queue: QueueId(10), id }),
            expires_at: Some(UnixMillis(11)),
        };
        let key = message_key(QueueId(1), KeyId(2), &meta);
        let words = [1, 2, 0, 3, 0, 4, 5, 0, 6, 10, 7, 8, 0, 9, 0, 11_u32];
        assert_eq!(key.as_slice(), words.map(u32::to_be_bytes).as_flattened());
        let sent = message_key(QueueId(1), KeyId(2), &MessageMeta { from: None, expires_at: None, ..meta });
        let words = [1, 2, 0, 3, 0, 4, 5, 0, 6, 0_u32];
        assert_eq!(sent.as_slice(), words.map(u32::to_be_bytes).as_flattened());
        let payload = Payload { headers: "ab".into(), body: "c".into() };
        assert_eq!(message_value(&payload), [0, 0, 0, 2, b'a', b'b', b'c']);
        let deliveries = DeliveryCount { attempts: 1, released: 2 };
        let state = |state| state_value(deliveries, Some(UnixMillis(3)), state);
        let bytes = |kind: u8, until: u32, epoch: u32| {
            let words = [1, 0, 3, 0, until, 0, epoch, 2_u32].map(u32::to_be_bytes);
            [&[kind], words.as_flattened()].concat()
        };
        assert_eq!(state(StoredState::Leased { until: UnixMillis(4), epoch: Epoch(5) }), *bytes(1, 4, 5));
        assert_eq!(state(StoredState::Delayed { until: UnixMillis(4) }), *bytes(2, 4, 0));
        assert_eq!(state(StoredState::Ready), *bytes(3, 0, 0));
        let rule = KeyRule {
            weight: Some(Weight::whole(2).unwrap()),
            concurrency_max: NonZeroU32::new(3),
            rate: Rate::from_parts(4_000, 5),
        };
        let record = KeyRecord { name: "a/b".into(), rule, requested_weight: Some(Weight::ONE) };
        let words = [2_000, 3, 4_000, 5, 1_000_u32].map(u32::to_be_bytes);
        assert_eq!(record.encode(), [words.as_flattened(), b"a/b"].concat());
        assert_eq!((FORMAT, FORMAT_MIN), (4, 3));
    }

    #[test]
    fn keys_sort_by_queue_then_key_then_sequence_number() {
        let key = |queue, key, seq| message_prefix(QueueId(queue), KeyId(key), Seq(seq));
        assert!(
            key(1, 2, 300) < key(1, 2, 301) && key(1, 2, 301) < key(1, 3, 1) && key(1, 3, 9) < key(2, 0, 0)
        );
    }
}
