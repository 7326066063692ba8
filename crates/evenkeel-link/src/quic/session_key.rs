//! Key of a session, and the proofs by which both sides of a later path show that they know it.
//!
//! The key is the exporter value of the session's first connection. A proof is an HMAC with that key over the session,
//! the path and the exporter value of the connection that carries the proof: a copy of it is worthless on any other
//! connection.

use std::fmt;

use noq::Connection;
use ring::error::Unspecified;
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

const SESSION_LABEL: &[u8] = b"EXPORTER-evenkeel-link-session";
const PATH_LABEL: &[u8] = b"EXPORTER-evenkeel-link-path";
pub(super) const SESSION_ID_LEN: usize = 16;
pub(super) const PROOF_LEN: usize = 32;
/// Bytes of exported keying material.
const EXPORT_LEN: usize = 32;

/// Random number that names a session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId(pub(super) [u8; SESSION_ID_LEN]);

impl SessionId {
    pub(super) fn random() -> Result<Self, Unspecified> {
        let mut bytes = [0; SESSION_ID_LEN];
        SystemRandom::new().fill(&mut bytes)?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Secret of a session, known to its two sides only.
#[derive(Clone, Debug)]
pub struct SessionKey {
    id: SessionId,
    /// Its debug output names the algorithm only.
    secret: hmac::Key,
}

impl SessionKey {
    /// Derives the key of a session from its first connection.
    pub(super) fn derive(connection: &Connection, id: SessionId) -> Result<Self, Unspecified> {
        let secret = export(connection, SESSION_LABEL, &id.0)?;
        Ok(Self { id, secret: hmac::Key::new(hmac::HMAC_SHA256, &secret) })
    }

    /// Returns the number of the session.
    pub fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn prove(&self, side: ProofSide, path: &PathExport) -> [u8; PROOF_LEN] {
        let proof = hmac::sign(&self.secret, &self.message(side, path));
        proof.as_ref().try_into().expect("HMAC-SHA-256 has 32 bytes")
    }

    /// Checks a proof in constant time.
    pub(super) fn verify(&self, side: ProofSide, path: &PathExport, proof: &[u8; PROOF_LEN]) -> bool {
        hmac::verify(&self.secret, &self.message(side, path), proof).is_ok()
    }

    fn message(&self, side: ProofSide, path: &PathExport) -> Vec<u8> {
        [side.prefix(), &self.id.0, &[path.path], &path.exported].concat()
    }
}

/// Sender of a proof.
#[derive(Clone, Copy, Debug)]
pub(super) enum ProofSide {
    Connecting,
    Accepting,
}

impl ProofSide {
    fn prefix(self) -> &'static [u8] {
        match self {
            Self::Connecting => b"join",
            Self::Accepting => b"welcome",
        }
    }
}

/// Exported value of the connection that carries a proof.
pub(super) struct PathExport {
    path: u8,
    exported: [u8; EXPORT_LEN],
}

impl PathExport {
    pub(super) fn new(connection: &Connection, path: u8) -> Result<Self, Unspecified> {
        Ok(Self { path, exported: export(connection, PATH_LABEL, &[path])? })
    }
}

fn export(connection: &Connection, label: &[u8], context: &[u8]) -> Result<[u8; EXPORT_LEN], Unspecified> {
    let mut exported = [0; EXPORT_LEN];
    connection.export_keying_material(&mut exported, label, context).map_err(|_| Unspecified)?;
    Ok(exported)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_holds_for_its_session_side_path_and_connection_only() {
        let ours = key(1, 1);
        let export = path(3, 3);
        let proof = ours.prove(ProofSide::Connecting, &export);
        assert!(ours.verify(ProofSide::Connecting, &export, &proof));
        assert!(!ours.verify(ProofSide::Accepting, &export, &proof));
        assert!(!ours.verify(ProofSide::Connecting, &path(4, 3), &proof));
        assert!(!ours.verify(ProofSide::Connecting, &path(3, 4), &proof));
        assert!(!key(2, 1).verify(ProofSide::Connecting, &export, &proof));
        assert!(!key(1, 2).verify(ProofSide::Connecting, &export, &proof));
    }

    #[test]
    fn the_debug_output_of_a_key_is_the_same_for_every_secret() {
        assert_eq!(format!("{:?}", key(1, 1)), format!("{:?}", key(1, 2)));
    }

    fn key(id: u8, secret: u8) -> SessionKey {
        let secret = hmac::Key::new(hmac::HMAC_SHA256, &[secret; EXPORT_LEN]);
        SessionKey { id: SessionId([id; SESSION_ID_LEN]), secret }
    }

    fn path(path: u8, exported: u8) -> PathExport {
        PathExport { path, exported: [exported; EXPORT_LEN] }
    }
}
