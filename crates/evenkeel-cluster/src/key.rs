//! Keys derived from the cluster's shared secret, one per purpose, and signatures with them (HMAC-SHA256).
//!
//! Guarantees: a signature for one purpose is never valid for another; signatures are compared in constant time.

use core::fmt;

use evenkeel_telemetry::Secret;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

/// Shortest accepted secret.
pub const SECRET_BYTES_MIN: usize = 16;
/// Longest accepted secret.
pub const SECRET_BYTES_MAX: usize = 1024;

/// The secret that all nodes of a cluster share.
#[derive(Clone, Debug)]
pub struct ClusterSecret(Secret<String>);

impl ClusterSecret {
    pub fn new(secret: impl Into<String>) -> Result<Self, ClusterSecretError> {
        let secret = secret.into();
        if (SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            return Ok(Self(Secret::new(secret)));
        }
        Err(ClusterSecretError { bytes: secret.len() })
    }
}

/// A secret of the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the cluster secret has {bytes} bytes; it needs {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}")]
pub struct ClusterSecretError {
    pub bytes: usize,
}

/// Keys of one cluster; every node derives the same ones.
pub(crate) struct ClusterKeys {
    root: SigningKey,
    pub(crate) poll: SigningKey,
    pub(crate) report: SigningKey,
    pub(crate) ticket: SigningKey,
}

impl ClusterKeys {
    pub(crate) fn new(secret: &ClusterSecret) -> Self {
        let root = SigningKey(hmac::Key::new(hmac::HMAC_SHA256, secret.0.expose().as_bytes()));
        let derive = |purpose: &[u8]| {
            SigningKey(hmac::Key::new(hmac::HMAC_SHA256, &root.sign(&[b"internal", purpose])))
        };
        Self { poll: derive(b"poll"), report: derive(b"report"), ticket: derive(b"ticket"), root }
    }

    /// Derives a key for a purpose outside of this crate.
    pub(crate) fn derive(&self, purpose: &[u8]) -> [u8; 32] {
        self.root.sign(&[b"external", purpose])
    }
}

impl fmt::Debug for ClusterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClusterKeys")
    }
}

pub(crate) struct SigningKey(hmac::Key);

impl SigningKey {
    /// Signs a sequence of parts; each is prefixed with its length, so that no two sequences are signed alike.
    pub(crate) fn sign(&self, parts: &[&[u8]]) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.0);
        for part in parts {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part);
        }
        let mut signature = [0; 32];
        signature.copy_from_slice(context.sign().as_ref());
        signature
    }

    pub(crate) fn is_valid(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        self.sign(parts).ct_eq(signature).into()
    }

    /// Verifies a signature of which the last half was dropped.
    pub(crate) fn is_truncated_valid(&self, parts: &[&[u8]], signature: &[u8]) -> bool {
        self.sign(parts)[..16].ct_eq(signature).into()
    }
}

/// Random number that is used once.
pub(crate) type Nonce = [u8; 16];

/// Draws random bytes from the operating system.
pub(crate) fn draw<const N: usize>() -> Result<[u8; N], NoRandomness> {
    let mut bytes = [0; N];
    SystemRandom::new().fill(&mut bytes).map_err(|_| NoRandomness)?;
    Ok(bytes)
}

/// The operating system returned no random bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the operating system returned no random numbers")]
pub struct NoRandomness;

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(secret: &str) -> ClusterKeys {
        ClusterKeys::new(&ClusterSecret::new(secret).unwrap())
    }

    #[test]
    fn every_purpose_has_a_key_of_its_own() {
        let keys = keys("a secret of 23 bytes ..");
        let parts: &[&[u8]] = &[b"one", b"two"];
        let signatures = [keys.poll.sign(parts), keys.report.sign(parts), keys.ticket.sign(parts)];
        assert!(signatures[0] != signatures[1] && signatures[1] != signatures[2]);
        assert_ne!(keys.derive(b"poll"), keys.root.sign(&[b"internal", b"poll"]));
        assert_ne!(keys.derive(b"one"), keys.derive(b"two"));
        assert_eq!(keys.derive(b"one"), self::keys("a secret of 23 bytes ..").derive(b"one"));
        assert_ne!(keys.derive(b"one"), self::keys("another secret, as long").derive(b"one"));
    }

    #[test]
    fn a_signature_depends_on_where_a_part_ends() {
        let key = keys("a secret of 23 bytes ..").poll;
        let signature = key.sign(&[b"ab", b"c"]);
        assert!(key.is_valid(&[b"ab", b"c"], &signature));
        assert!(!key.is_valid(&[b"a", b"bc"], &signature));
        assert!(!key.is_valid(&[b"abc"], &signature));
        assert!(!key.is_valid(&[b"ab", b"c"], &signature[..16]));
    }

    #[test]
    fn a_secret_that_is_too_short_or_too_long_is_refused_and_none_is_printed() {
        for bytes in [0, SECRET_BYTES_MIN - 1, SECRET_BYTES_MAX + 1] {
            assert_eq!(ClusterSecret::new("x".repeat(bytes)).unwrap_err(), ClusterSecretError { bytes });
        }
        let secret = ClusterSecret::new("x".repeat(SECRET_BYTES_MIN)).unwrap();
        assert!(!format!("{secret:?}").contains("xx"));
    }
}
