//! Receipt handles: proof that a consumer received a delivery, signed with HMAC-SHA256.
//!
//! Guarantees: a receipt handle is valid only for the queue, message, owner and attempt it was made for; without the
//! secret, forging one succeeds with a probability of 2⁻¹²⁸.

use core::fmt;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;

use crate::id::{Epoch, KeyId, QueueId, Seq};

const ID_LEN: usize = 28;
const MAC_LEN: usize = 16;
const LEN: usize = ID_LEN + MAC_LEN;
/// Length of a receipt handle as text.
const TEXT_LEN: usize = (LEN * 8).div_ceil(6);

/// A receipt handle, opaque to the consumer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Receipt(Arc<str>);

impl Receipt {
    /// Wraps a consumer's text; the signature is checked when it is used.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Identifies one delivery of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveryId {
    pub queue: QueueId,
    pub key: KeyId,
    pub seq: Seq,
    /// Owner that made the delivery.
    pub epoch: Epoch,
    /// Number of the delivery, released ones included.
    pub attempt: u32,
}

/// Signs and verifies receipt handles.
pub struct ReceiptSigner(hmac::Key);

impl ReceiptSigner {
    /// Creates a signer; receipts survive a restart if the secret does.
    pub fn new(secret: &[u8]) -> Self {
        Self(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    pub fn sign(&self, delivery: DeliveryId) -> Receipt {
        let bytes = delivery.encode();
        let mac = hmac::sign(&self.0, &bytes);
        let mut all = [0; LEN];
        all[..ID_LEN].copy_from_slice(&bytes);
        all[ID_LEN..].copy_from_slice(&mac.as_ref()[..MAC_LEN]);
        Receipt(URL_SAFE_NO_PAD.encode(all).into())
    }

    /// Returns the delivery that a receipt names, or `None` if its signature is wrong.
    pub fn verify(&self, receipt: &Receipt) -> Option<DeliveryId> {
        let text = Some(receipt.as_str()).filter(|text| text.len() == TEXT_LEN)?;
        let all = URL_SAFE_NO_PAD.decode(text).ok()?;
        let (bytes, mac) = all.split_first_chunk::<ID_LEN>()?;
        let expected = hmac::sign(&self.0, bytes);
        // Compared in constant time, so that timing reveals nothing.
        let differing = mac.iter().zip(expected.as_ref()).fold(0, |seen, (a, b)| seen | (a ^ b));
        (mac.len() == MAC_LEN && differing == 0).then(|| DeliveryId::decode(bytes))
    }
}

impl DeliveryId {
    fn encode(self) -> [u8; ID_LEN] {
        let mut bytes = [0; ID_LEN];
        bytes[..4].copy_from_slice(&self.queue.0.to_be_bytes());
        bytes[4..8].copy_from_slice(&self.key.0.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.seq.0.to_be_bytes());
        bytes[16..24].copy_from_slice(&self.epoch.0.to_be_bytes());
        bytes[24..].copy_from_slice(&self.attempt.to_be_bytes());
        bytes
    }

    fn decode(bytes: &[u8; ID_LEN]) -> Self {
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

    const DELIVERY: DeliveryId =
        DeliveryId { queue: QueueId(1), key: KeyId(2), seq: Seq(3), epoch: Epoch(4), attempt: 5 };

    #[test]
    fn another_secret_verifies_nothing() {
        let receipt = ReceiptSigner::new(b"one").sign(DELIVERY);
        assert_eq!(ReceiptSigner::new(b"one").verify(&receipt), Some(DELIVERY));
        assert_eq!(ReceiptSigner::new(b"other").verify(&receipt), None);
    }

    proptest! {
        #[test]
        fn a_verified_receipt_names_the_signed_delivery(queue: u32, key: u32, seq: u64, epoch: u64, attempt: u32) {
            let delivery = DeliveryId {
                queue: QueueId(queue), key: KeyId(key), seq: Seq(seq), epoch: Epoch(epoch), attempt,
            };
            let signer = ReceiptSigner::new(b"secret");
            prop_assert_eq!(signer.verify(&signer.sign(delivery)), Some(delivery));
        }

        #[test]
        fn any_change_invalidates_a_receipt(at in 0_usize..59, digit in "[A-Za-z0-9_-]") {
            let signer = ReceiptSigner::new(b"secret");
            let genuine = signer.sign(DELIVERY);
            let mut text = genuine.as_str().to_owned();
            text.replace_range(at..=at, &digit);
            prop_assert_eq!(signer.verify(&Receipt::new(text.clone())).is_some(), text == genuine.as_str());
        }

        #[test]
        fn arbitrary_text_is_no_receipt(text in ".*") {
            prop_assert_eq!(ReceiptSigner::new(b"secret").verify(&Receipt::new(text)), None);
        }
    }
}
