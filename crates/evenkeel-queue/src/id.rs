//! What queues, keys, messages and owners are called.

use core::fmt;
use core::str::FromStr;

use serde::{Deserialize, Serialize};

/// Names a queue; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueId(pub u32);

/// Names a fairness key within its queue; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub u32);

/// A message's place in the order of all messages ever written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(pub u64);

/// Counts who has owned a queue; a later owner's is larger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub u64);

/// Names a message, and says where it was sent; moved to another queue it keeps its name.
///
/// Shown in the shape of a UUID, which is what clients of such queues expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageId {
    /// The queue it was sent to.
    pub queue: QueueId,
    /// Its fairness key.
    pub key: KeyId,
    /// Its place in the order.
    pub seq: Seq,
}

impl MessageId {
    const fn number(self) -> u128 {
        (self.queue.0 as u128) << 96 | (self.key.0 as u128) << 64 | self.seq.0 as u128
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // By hand: every message that is sent or delivered is named, and the formatter takes ten times as long.
        let number = self.number();
        let mut text = [b'-'; 36];
        let places = (0..text.len()).filter(|place| ![8, 13, 18, 23].contains(place));
        for (digit, place) in places.enumerate() {
            text[place] = b"0123456789abcdef"[(number >> (124 - 4 * digit)) as usize & 15];
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
        // Each cast keeps exactly the part meant.
        Ok(Self {
            queue: QueueId((number >> 96) as u32),
            key: KeyId((number >> 64) as u32),
            seq: Seq(number as u64),
        })
    }
}

/// Text that names no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageIdError;

impl fmt::Display for MessageIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a message id, which looks like 00000001-0000-0002-0000-000000000003")
    }
}

impl core::error::Error for MessageIdError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_id_reads_back_as_it_was_shown() {
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
    fn what_is_no_message_id_is_refused() {
        for bad in ["", "-", "0000000100000002000000000000000003", "+0000001-0000-0002-0000-000000000003"] {
            assert_eq!(bad.parse::<MessageId>(), Err(MessageIdError), "{bad:?} was taken");
        }
    }
}
