//! Identifiers of queues, keys, messages and owners.
//!
//! The owner epoch is a fencing token: the store rejects writes of an owner that another has replaced.

use core::fmt;
use core::str::FromStr;

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
/// Formatted like a UUID, as clients of SQS expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    pub queue: QueueId,
    pub key: KeyId,
    pub seq: Seq,
}

impl MessageId {
    const fn number(self) -> u128 {
        (self.queue.0 as u128) << 96 | (self.key.0 as u128) << 64 | self.seq.0 as u128
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Formatted by hand: `write!` takes ten times as long, and every message sent or delivered needs it.
        let number = self.number();
        let mut text = [b'-'; 36];
        let positions = (0..text.len()).filter(|position| ![8, 13, 18, 23].contains(position));
        for (digit, position) in positions.enumerate() {
            text[position] = b"0123456789abcdef"[(number >> (124 - 4 * digit)) as usize & 15];
        }
        f.write_str(str::from_utf8(&text).map_err(|_| fmt::Error)?)
    }
}

impl FromStr for MessageId {
    type Err = MessageIdError;

    fn from_str(text: &str) -> Result<Self, MessageIdError> {
        let parts: Vec<&str> = text.split('-').collect();
        let lens = parts.iter().map(|part| part.len());
        let is_hex = parts.iter().all(|part| part.bytes().all(|byte| byte.is_ascii_hexdigit()));
        if !is_hex || !lens.eq([8, 4, 4, 4, 12]) {
            return Err(MessageIdError);
        }
        let number = u128::from_str_radix(&parts.concat(), 16).map_err(|_| MessageIdError)?;
        // The casts truncate on purpose.
        Ok(Self {
            queue: QueueId((number >> 96) as u32),
            key: KeyId((number >> 64) as u32),
            seq: Seq(number as u64),
        })
    }
}

/// Error of parsing a text that is not a message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message id, which looks like 00000001-0000-0002-0000-000000000003")]
pub struct MessageIdError;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_formatted_message_id_parses_back() {
        for seq in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef] {
            let id = MessageId { queue: QueueId(7), key: KeyId(u32::MAX), seq: Seq(seq) };
            assert_eq!(id.to_string().parse(), Ok(id));
        }
    }

    #[test]
    fn a_message_id_looks_like_a_uuid() {
        let id = MessageId { queue: QueueId(0x0123_4567), key: KeyId(0x89ab_cdef), seq: Seq(3) };
        assert_eq!(id.to_string(), "01234567-89ab-cdef-0000-000000000003");
    }

    #[test]
    fn a_malformed_message_id_is_rejected() {
        for bad in ["", "-", "0000000100000002000000000000000003", "+0000001-0000-0002-0000-000000000003"] {
            assert_eq!(bad.parse::<MessageId>(), Err(MessageIdError), "{bad:?} was accepted");
        }
    }
}
