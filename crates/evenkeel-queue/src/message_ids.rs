//! Message ids as clients see them: like UUIDs, and not to be guessed.
//!
//! The id of a message is also that of its job's result. Its numbers are a queue, a key and a counter, so a client that
//! knows one id could guess others, and count the messages of other tenants. So they are encrypted, as one AES block, with
//! a key that is derived from the store's 256 random bits.
//!
//! Guarantees: to guess the id of any of n messages succeeds with a probability of n × 2⁻¹²⁸. Ids that an earlier version
//! handed out in plain stay valid: messages with sequence numbers below a bound, which the store wrote down when this
//! version opened it first, have their plain ids.

use aes::Aes128;
use aes::cipher::{BlockDecrypt, BlockEncrypt, KeyInit};
use ring::hmac;

use crate::id::{MessageId, Seq};

/// Separates the derived key from others of the same secret.
const PURPOSE: &[u8] = b"message ids";
/// Positions of the dashes of a UUID.
const DASHES: [usize; 4] = [8, 13, 18, 23];
const TEXT_LEN: usize = 36;

/// Formats and parses message ids.
pub struct MessageIds {
    cipher: Aes128,
    /// First message whose id is encrypted.
    plain_before: Seq,
}

impl MessageIds {
    pub fn new(secret: &[u8; 32], plain_before: Seq) -> Self {
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret), PURPOSE);
        let mut key = [0; 16];
        key.copy_from_slice(&derived.as_ref()[..16]);
        Self { cipher: Aes128::new(&key.into()), plain_before }
    }

    /// Formats an id for clients.
    pub fn format(&self, id: MessageId) -> String {
        if id.seq < self.plain_before {
            return to_text(id.number());
        }
        let mut block = id.number().to_be_bytes().into();
        self.cipher.encrypt_block(&mut block);
        to_text(u128::from_be_bytes(block.into()))
    }

    /// Parses an id. A text that was never handed out is the id of a message that does not exist, except with a
    /// probability that can be neglected.
    pub fn parse(&self, text: &str) -> Result<MessageId, MessageIdError> {
        let number = from_text(text).ok_or(MessageIdError)?;
        let plain = MessageId::from_number(number);
        if plain.seq < self.plain_before {
            return Ok(plain);
        }
        let mut block = number.to_be_bytes().into();
        self.cipher.decrypt_block(&mut block);
        Ok(MessageId::from_number(u128::from_be_bytes(block.into())))
    }
}

fn to_text(number: u128) -> String {
    // Formatted by hand: `write!` takes ten times as long, and every message sent or delivered needs it.
    let mut text = String::with_capacity(TEXT_LEN);
    for digit in 0..32 {
        if DASHES.contains(&text.len()) {
            text.push('-');
        }
        let nibble = (number >> (124 - 4 * digit)) as usize & 15;
        text.push(char::from(b"0123456789abcdef"[nibble]));
    }
    text
}

fn from_text(text: &str) -> Option<u128> {
    let is_valid = |(index, byte): (usize, u8)| match DASHES.contains(&index) {
        true => byte == b'-',
        false => byte.is_ascii_hexdigit(),
    };
    if text.len() != TEXT_LEN || !text.bytes().enumerate().all(is_valid) {
        return None;
    }
    u128::from_str_radix(&text.replace('-', ""), 16).ok()
}

/// Error of parsing a text that is not a message id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message id, which looks like 5c2f0c3e-8d0b-4a51-9e07-1f6f3b0d2a94")]
pub struct MessageIdError;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{KeyId, QueueId};

    const SECRET: [u8; 32] = [3; 32];

    fn id(seq: u64) -> MessageId {
        MessageId { queue: QueueId(7), key: KeyId(2), seq: Seq(seq) }
    }

    #[test]
    fn a_formatted_id_parses_back_and_looks_like_a_uuid() {
        let ids = MessageIds::new(&SECRET, Seq(1));
        for seq in [1, 2, u64::MAX, 0x0123_4567_89ab_cdef] {
            let text = ids.format(id(seq));
            assert_eq!(ids.parse(&text), Ok(id(seq)));
            assert_eq!(ids.parse(&text.to_uppercase()), Ok(id(seq)));
            let lens: Vec<usize> = text.split('-').map(str::len).collect();
            assert_eq!(lens, [8, 4, 4, 4, 12], "{text}");
        }
    }

    #[test]
    fn the_ids_of_successive_messages_share_no_half() {
        let ids = MessageIds::new(&SECRET, Seq(1));
        let number = |seq| from_text(&ids.format(id(seq))).unwrap();
        for seq in 1..1_000 {
            let difference = number(seq) ^ number(seq + 1);
            assert!((40..=88).contains(&difference.count_ones()), "{seq}: {difference:032x}");
        }
    }

    #[test]
    fn the_plain_id_of_a_new_message_does_not_name_it() {
        let ids = MessageIds::new(&SECRET, Seq(10));
        for seq in [10, 11, 1_000] {
            assert_ne!(ids.parse(&to_text(id(seq).number())), Ok(id(seq)));
        }
    }

    #[test]
    fn ids_of_an_earlier_version_stay_valid_and_unchanged() {
        let ids = MessageIds::new(&SECRET, Seq(10));
        let old = "00000007-0000-0002-0000-000000000009";
        assert_eq!(ids.parse(old), Ok(id(9)));
        assert_eq!(ids.format(id(9)), old);
    }

    #[test]
    fn another_secret_opens_no_id() {
        let text = MessageIds::new(&SECRET, Seq(1)).format(id(5));
        assert_ne!(MessageIds::new(&[4; 32], Seq(1)).parse(&text), Ok(id(5)));
    }

    #[test]
    fn a_malformed_id_is_rejected() {
        let ids = MessageIds::new(&SECRET, Seq(1));
        for bad in [
            "",
            "-",
            "0000000100000002000000000000000003",
            "+0000001-0000-0002-0000-000000000003",
            "00000001-0000-0002-0000-00000000000g",
            "00000001-0000-0002-0000-0000000000030",
            "é0000001-0000-0002-0000-00000000000",
        ] {
            assert_eq!(ids.parse(bad), Err(MessageIdError), "{bad:?} was accepted");
        }
    }
}
