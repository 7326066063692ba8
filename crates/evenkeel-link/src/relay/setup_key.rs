//! Signatures of a set-up: Ed25519 over a transcript that names its purpose, the relay, the client and the exchange.

use std::net::SocketAddr;

use ring::signature::{ED25519, UnparsedPublicKey};
use rustls::SignatureScheme;
use rustls::crypto::ring::sign::any_supported_type;
use rustls::sign::Signer;

use super::message::{COOKIE_LEN, KEY_LEN, NONCE_LEN, SIGNATURE_LEN, encode_address};
use crate::identity::{Fingerprint, Identity};

const TOKEN_PURPOSE: &[u8] = b"evenkeel link relay v1: token of the client\0";
const ACCEPTANCE_PURPOSE: &[u8] = b"evenkeel link relay v1: acceptance of the relay\0";

/// Ed25519 key pair that signs set-ups.
#[derive(Debug)]
pub struct SetupKey {
    signer: Box<dyn Signer>,
    public: [u8; KEY_LEN],
    fingerprint: Fingerprint,
}

/// Error for a key pair of another algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("relays need an Ed25519 key pair; create one with `evenkeel link keys`")]
pub struct NotEd25519;

impl SetupKey {
    /// Prepares the key pair of an identity.
    pub fn new(identity: &Identity) -> Result<Self, NotEd25519> {
        let key = any_supported_type(&identity.key()).map_err(|_| NotEd25519)?;
        let signer = key.choose_scheme(&[SignatureScheme::ED25519]).ok_or(NotEd25519)?;
        let public = identity.ed25519_public_key().ok_or(NotEd25519)?;
        Ok(Self { signer, public, fingerprint: identity.fingerprint() })
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(super) fn public(&self) -> [u8; KEY_LEN] {
        self.public
    }

    pub(super) fn sign(&self, purpose: SignaturePurpose, transcript: &Transcript) -> [u8; SIGNATURE_LEN] {
        let signature = self.signer.sign(&transcript.message(purpose));
        let signature = signature.expect("an Ed25519 key that was checked signs every message");
        signature.try_into().expect("an Ed25519 signature has 64 bytes")
    }
}

/// Reports whether a signature is valid.
pub(super) fn is_signed(
    key: &[u8; KEY_LEN],
    purpose: SignaturePurpose,
    transcript: &Transcript,
    signature: &[u8; SIGNATURE_LEN],
) -> bool {
    UnparsedPublicKey::new(&ED25519, key).verify(&transcript.message(purpose), signature).is_ok()
}

/// Purpose of a signature, which is invalid for any other purpose.
#[derive(Clone, Copy, Debug)]
pub(super) enum SignaturePurpose {
    Token,
    Acceptance,
}

/// Everything that both sides of a set-up sign.
#[derive(Clone, Debug)]
pub(super) struct Transcript {
    pub(super) relay: Fingerprint,
    pub(super) client: Fingerprint,
    pub(super) nonce: [u8; NONCE_LEN],
    pub(super) cookie: [u8; COOKIE_LEN],
    pub(super) next: SocketAddr,
}

impl Transcript {
    fn message(&self, purpose: SignaturePurpose) -> Vec<u8> {
        let purpose = match purpose {
            SignaturePurpose::Token => TOKEN_PURPOSE,
            SignaturePurpose::Acceptance => ACCEPTANCE_PURPOSE,
        };
        let relay = self.relay.to_bytes();
        let client = self.client.to_bytes();
        [purpose, &relay, &client, &self.nonce, &self.cookie, &encode_address(self.next)].concat()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::identity::ExistingKey;

    #[test]
    fn a_signature_holds_for_its_purpose_and_every_field() {
        let key = key();
        let signed = transcript();
        let signature = key.sign(SignaturePurpose::Token, &signed);
        let holds =
            |purpose, transcript: &Transcript| is_signed(&key.public(), purpose, transcript, &signature);
        assert!(holds(SignaturePurpose::Token, &signed));
        assert!(!holds(SignaturePurpose::Acceptance, &signed));
        let other = Fingerprint::from_bytes([9; 32]);
        assert!(!holds(SignaturePurpose::Token, &Transcript { relay: other, ..transcript() }));
        assert!(!holds(SignaturePurpose::Token, &Transcript { client: other, ..transcript() }));
        assert!(!holds(SignaturePurpose::Token, &Transcript { nonce: [9; NONCE_LEN], ..transcript() }));
        assert!(!holds(SignaturePurpose::Token, &Transcript { cookie: [9; COOKIE_LEN], ..transcript() }));
        let next = "192.0.2.1:7444".parse().unwrap();
        assert!(!holds(SignaturePurpose::Token, &Transcript { next, ..transcript() }));
    }

    #[test]
    fn the_public_key_has_the_fingerprint_of_its_identity() {
        let key = key();
        assert_eq!(Fingerprint::of_ed25519(&key.public()), key.fingerprint());
    }

    fn transcript() -> Transcript {
        Transcript {
            relay: Fingerprint::from_bytes([1; 32]),
            client: Fingerprint::from_bytes([2; 32]),
            nonce: [3; NONCE_LEN],
            cookie: [4; COOKIE_LEN],
            next: "192.0.2.1:7443".parse().unwrap(),
        }
    }

    /// Creates a key pair whose files are deleted at once.
    pub(in crate::relay) fn key() -> SetupKey {
        let dir = TempDir::new().unwrap();
        SetupKey::new(&Identity::create(dir.path(), ExistingKey::Keep).unwrap()).unwrap()
    }
}
