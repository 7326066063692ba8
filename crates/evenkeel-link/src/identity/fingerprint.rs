//! Fingerprint of a public key: `sha256:` and the SHA-256 of its SubjectPublicKeyInfo in base64url.

use std::fmt;
use std::str::FromStr;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{SHA256, digest};
use rustls::pki_types::CertificateDer;
use rustls::server::ParsedCertificate;
use subtle::ConstantTimeEq;

const PREFIX: &str = "sha256:";
const LEN: usize = 32;
/// SubjectPublicKeyInfo of an Ed25519 key before its 32 bytes (RFC 8410).
pub(super) const ED25519_PREFIX: &[u8] = &[0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];

/// SHA-256 of a public key; comparison takes constant time.
#[derive(Clone, Copy, Eq)]
pub struct Fingerprint([u8; LEN]);

impl Fingerprint {
    /// Returns the fingerprint of a certificate's public key.
    pub(crate) fn of(certificate: &CertificateDer<'_>) -> Result<Self, rustls::Error> {
        let public_key = ParsedCertificate::try_from(certificate)?.subject_public_key_info();
        Ok(Self::of_public_key(&public_key))
    }

    /// Returns the fingerprint of an Ed25519 key.
    pub(crate) fn of_ed25519(key: &[u8; 32]) -> Self {
        Self::of_public_key(&[ED25519_PREFIX, key].concat())
    }

    fn of_public_key(public_key: &[u8]) -> Self {
        let hash = digest(&SHA256, public_key);
        Self(hash.as_ref().try_into().expect("SHA-256 has 32 bytes"))
    }

    pub(crate) fn to_bytes(self) -> [u8; LEN] {
        self.0
    }

    /// Creates the fingerprint from its hash.
    pub fn from_bytes(hash: [u8; LEN]) -> Self {
        Self(hash)
    }
}

impl PartialEq for Fingerprint {
    fn eq(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", URL_SAFE_NO_PAD.encode(self.0))
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Fingerprint {
    type Err = FingerprintError;

    fn from_str(text: &str) -> Result<Self, FingerprintError> {
        let encoded = text.trim().strip_prefix(PREFIX).ok_or(FingerprintError::Prefix)?;
        let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| FingerprintError::Encoding)?;
        let hash = bytes.try_into().map_err(|_| FingerprintError::Encoding)?;
        Ok(Self(hash))
    }
}

/// Error for a text that is not a fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FingerprintError {
    /// The text does not start with `sha256:`.
    #[error("a fingerprint starts with `sha256:`, as `evenkeel link keys` prints it")]
    Prefix,
    /// The rest is not a hash.
    #[error("`sha256:` must be followed by 43 characters of base64url, as `evenkeel link keys` prints it")]
    Encoding,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_parses_back() {
        let fingerprint = Fingerprint([0xfb; LEN]);
        let text = fingerprint.to_string();
        assert_eq!(text, "sha256:-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s");
        assert_eq!(text.parse(), Ok(fingerprint));
        assert_ne!(text.parse(), Ok(Fingerprint([0; LEN])));
    }

    #[test]
    fn other_texts_are_rejected() {
        let text = Fingerprint([7; LEN]).to_string();
        assert_eq!(text[7..].parse::<Fingerprint>(), Err(FingerprintError::Prefix));
        for wrong in [&text[..49], &format!("{text}A"), "sha256:", "sha256:++++"] {
            assert_eq!(wrong.parse::<Fingerprint>(), Err(FingerprintError::Encoding), "{wrong}");
        }
    }

    #[test]
    fn the_certificate_of_the_same_key_issued_again_has_the_same_fingerprint() {
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let first = rcgen::CertificateParams::new(["a".to_owned()]).unwrap().self_signed(&key).unwrap();
        let second = rcgen::CertificateParams::new(["b".to_owned()]).unwrap().self_signed(&key).unwrap();
        assert_ne!(first.der(), second.der());
        assert_eq!(Fingerprint::of(first.der()).unwrap(), Fingerprint::of(second.der()).unwrap());
    }
}
