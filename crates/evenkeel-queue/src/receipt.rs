//! Receipts: who may acknowledge a delivery.
//!
//! Bound: a receipt is accepted only by the queue, the message, the owner and the attempt it was made for;
//! whoever lacks the secret makes one with a chance of 2⁻¹²⁸.

use core::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::id::{Epoch, KeyId, QueueId, Seq};

const CLAIM_LEN: usize = 28;
const MAC_LEN: usize = 16;

/// What a consumer hands back to acknowledge a delivery; opaque to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(Arc<str>);

impl Receipt {
    /// Reads what a consumer handed back; whether it is genuine is seen when it is used.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    /// Shows it as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a receipt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryId {
    /// The queue that delivered.
    pub queue: QueueId,
    /// The message's key.
    pub key: KeyId,
    /// The message.
    pub seq: Seq,
    /// Who owned the queue.
    pub epoch: Epoch,
    /// Which delivery of the message.
    pub attempt: u32,
}

/// Makes receipts and knows its own again.
pub struct ReceiptSigner(hmac::Key);

impl ReceiptSigner {
    /// Makes a seal of a secret that survives restarts, so that receipts do.
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Writes a receipt.
    pub fn sign(&self, claim: DeliveryId) -> Receipt {
        let bytes = claim.encode();
        let mac = hmac::sign(&self.0, &bytes);
        let mut all = [0; CLAIM_LEN + MAC_LEN];
        all[..CLAIM_LEN].copy_from_slice(&bytes);
        all[CLAIM_LEN..].copy_from_slice(&mac.as_ref()[..MAC_LEN]);
        Receipt(URL_SAFE_NO_PAD.encode(all).into())
    }

    /// Reads a receipt; `None` when it is not one of ours.
    pub fn verify(&self, receipt: &Receipt) -> Option<DeliveryId> {
        let mut all = [0; CLAIM_LEN + MAC_LEN];
        // Non-zero bits after the last byte are rejected: they would spell the same receipt in another way.
        let len = URL_SAFE_NO_PAD.decode_slice(receipt.as_str(), &mut all).ok()?;
        let (bytes, mac) = all[..len].split_first_chunk::<CLAIM_LEN>()?;
        let expected = hmac::sign(&self.0, bytes);
        // Every byte is compared whatever the first ones are, so that time tells nothing.
        let differing = mac.iter().zip(expected.as_ref()).fold(0, |seen, (a, b)| seen | (a ^ b));
        (mac.len() == MAC_LEN && differing == 0).then(|| DeliveryId::decode(bytes))
    }
}

impl DeliveryId {
    fn encode(self) -> [u8; CLAIM_LEN] {
        let mut bytes = [0; CLAIM_LEN];
        bytes[..4].copy_from_slice(&self.queue.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.0.to_be_bytes());
        bytes[24..].copy_from_slice(&self.attempt.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; CLAIM_LEN]) -> Self {
        let word = |at: usize| u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) << 32 | u64::from(word(at + 4));
        Self {
            queue: QueueId(word(0)),
            key: KeyId(word(4)),
            seq: Seq(long(8)),
            epoch: Epoch(long(16)),
            attempt: word(24),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CLAIM: DeliveryId =
        DeliveryId { queue: QueueId(1), key: KeyId(2), seq: Seq(3), epoch: Epoch(4), attempt: 5 };

    #[test]
    fn another_secret_opens_nothing() {
        let receipt = ReceiptSigner::new(b"one").sign(CLAIM);
        assert_eq!(ReceiptSigner::new(b"one").verify(&receipt), Some(CLAIM));
        assert_eq!(ReceiptSigner::new(b"other").verify(&receipt), None);
    }

    proptest! {
        #[test]
        fn a_receipt_says_what_was_signed(queue: u32, key: u32, seq: u64, epoch: u64, attempt: u32) {
            let claim = DeliveryId {
                queue: QueueId(queue), key: KeyId(key), seq: Seq(seq), epoch: Epoch(epoch), attempt,
            };
            let seal = ReceiptSigner::new(b"secret");
            prop_assert_eq!(seal.verify(&seal.sign(claim)), Some(claim));
        }

        #[test]
        fn any_change_of_a_receipt_is_seen(at in 0_usize..59, digit in "[A-Za-z0-9_-]") {
            let seal = ReceiptSigner::new(b"secret");
            let genuine = seal.sign(CLAIM);
            let mut text = genuine.as_str().to_owned();
            text.replace_range(at..=at, &digit);
            prop_assert_eq!(seal.verify(&Receipt::new(text.clone())).is_some(), text == genuine.as_str());
        }

        #[test]
        fn what_is_no_receipt_is_refused(text in ".*") {
            prop_assert_eq!(ReceiptSigner::new(b"secret").verify(&Receipt::new(text)), None);
        }
    }
}
