//! Transaction ids: signed, so that nobody can guess or forge one, and readable by every node that has the signing key.
//!
//! An id is base64url of: version, boot id, transaction number, hash of the tenant's name, name of the node, and a truncated
//! HMAC-SHA256 of all that.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

const VERSION: u8 = 1;
const NUMBERS: usize = 1 + 8 + 8 + 8;
const MAC: usize = 16;
/// Separates this use of the key from others.
const PURPOSE: &[u8] = b"evenkeel transaction id";
/// Longest accepted id.
const ID_BYTES_MAX: usize = 512;

/// Signs and verifies the transaction ids of one node.
pub(super) struct TxIdSigner {
    key: hmac::Key,
    /// Drawn at start, so that ids from before a restart are recognised.
    boot: u64,
    node: String,
}

/// The contents of a verified id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TxId {
    pub(crate) number: u64,
    pub(crate) issuer: TxIdIssuer,
    /// `name_hash` of the tenant that began the transaction.
    pub(crate) tenant_hash: [u8; 8],
}

/// The process that issued an id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum TxIdIssuer {
    ThisProcess,
    /// This node, before it was restarted.
    EarlierProcess,
    /// Another node, by name.
    Peer(String),
}

impl TxIdSigner {
    pub(super) fn new(node: &str, signing_key: &[u8; 32]) -> Result<Self, ring::error::Unspecified> {
        let mut boot = [0; 8];
        SystemRandom::new().fill(&mut boot)?;
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, signing_key), PURPOSE);
        let key = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        Ok(Self { key, boot: u64::from_be_bytes(boot), node: node.to_owned() })
    }

    pub(super) fn sign(&self, number: u64, tenant_hash: [u8; 8]) -> String {
        let mut bytes = Vec::with_capacity(NUMBERS + self.node.len() + MAC);
        bytes.push(VERSION);
        bytes.extend_from_slice(&self.boot.to_be_bytes());
        bytes.extend_from_slice(&number.to_be_bytes());
        bytes.extend_from_slice(&tenant_hash);
        bytes.extend_from_slice(self.node.as_bytes());
        let mac = hmac::sign(&self.key, &bytes);
        bytes.extend_from_slice(&mac.as_ref()[..MAC]);
        URL_SAFE_NO_PAD.encode(bytes)
    }

    /// Returns the contents of an id; `None` if it was not signed with this key.
    pub(super) fn verify(&self, id: &str) -> Option<TxId> {
        if ID_BYTES_MAX < id.len() {
            return None;
        }
        let bytes = URL_SAFE_NO_PAD.decode(id).ok()?;
        let (signed, mac) = bytes.split_at_checked(bytes.len().checked_sub(MAC)?)?;
        let expected = hmac::sign(&self.key, signed);
        let is_valid = bool::from(subtle::ConstantTimeEq::ct_eq(&expected.as_ref()[..MAC], mac));
        if !is_valid || signed.len() < NUMBERS || signed[0] != VERSION {
            return None;
        }
        let number_at = |start: usize| signed[start..start + 8].try_into().map(u64::from_be_bytes).ok();
        let node = core::str::from_utf8(&signed[NUMBERS..]).ok()?;
        let issuer = if node != self.node {
            TxIdIssuer::Peer(node.to_owned())
        } else if number_at(1)? == self.boot {
            TxIdIssuer::ThisProcess
        } else {
            TxIdIssuer::EarlierProcess
        };
        Some(TxId { number: number_at(9)?, issuer, tenant_hash: signed[17..NUMBERS].try_into().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [7; 32];
    const ACME: [u8; 8] = *b"acme1234";

    fn signer(node: &str) -> TxIdSigner {
        TxIdSigner::new(node, &KEY).unwrap()
    }

    #[test]
    fn an_id_is_read_by_its_own_node() {
        let signer = signer("a");
        let tx_id = TxId { number: 9, issuer: TxIdIssuer::ThisProcess, tenant_hash: ACME };
        assert_eq!(signer.verify(&signer.sign(9, ACME)), Some(tx_id));
    }

    #[test]
    fn an_id_from_before_a_restart_or_of_another_node_is_recognised() {
        let id = signer("a").sign(9, ACME);
        assert_eq!(signer("a").verify(&id).unwrap().issuer, TxIdIssuer::EarlierProcess);
        assert_eq!(signer("b").verify(&id).unwrap().issuer, TxIdIssuer::Peer("a".to_owned()));
    }

    #[test]
    fn a_changed_id_is_rejected() {
        let signer = signer("a");
        let bytes = URL_SAFE_NO_PAD.decode(signer.sign(9, ACME)).unwrap();
        for index in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[index] ^= 1;
            assert_eq!(signer.verify(&URL_SAFE_NO_PAD.encode(changed)), None, "byte {index}");
        }
        let other = TxIdSigner::new("a", &[8; 32]).unwrap();
        assert_eq!(other.verify(&signer.sign(9, ACME)), None);
        for text in ["", "x", "!!", &"A".repeat(ID_BYTES_MAX + 1)] {
            assert_eq!(signer.verify(text), None);
        }
    }
}
