//! The master key, from which the secret keys of SQS clients and the key that signs transaction ids are derived. It is
//! generated once and stored in the data directory.

use std::path::PathBuf;

use evenkeel_server::access_key::MasterKey;
use evenkeel_telemetry::Secret;
use ring::hmac;
use thiserror::Error;

use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "sqs-master-key";

/// Reads the master key; generates and stores it on the first call.
pub fn master_key(data_dir: &DataDir) -> Result<MasterKey, SqsKeyError> {
    Ok(MasterKey::parse(read_text(data_dir)?.expose()).expect("the text was checked"))
}

/// Derives a key for another purpose; the same on every call with this data directory.
pub(crate) fn derive_key(data_dir: &DataDir, purpose: &str) -> Result<[u8; 32], SqsKeyError> {
    let text = read_text(data_dir)?;
    let master = hmac::Key::new(hmac::HMAC_SHA256, text.expose().trim().as_bytes());
    let mut key = [0; 32];
    key.copy_from_slice(hmac::sign(&master, purpose.as_bytes()).as_ref());
    Ok(key)
}

/// Returns the text of a valid master key.
fn read_text(data_dir: &DataDir) -> Result<Secret<String>, SqsKeyError> {
    if let Some(text) = DataDir::read_private(data_dir.path(), FILE)? {
        return match MasterKey::parse(&text) {
            Ok(_) => Ok(Secret::new(text)),
            Err(_) => Err(SqsKeyError::Malformed { path: data_dir.path().join(FILE) }),
        };
    }
    let text = MasterKey::draw().map_err(|_| SqsKeyError::NoRandomness)?;
    data_dir.replace(FILE, &format!("{}\n", text.expose()))?;
    Ok(text)
}

#[derive(Debug, Error)]
pub enum SqsKeyError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{}: not 64 hexadecimal digits; restore the file, or delete it to invalidate all SQS keys", path.display())]
    Malformed { path: PathBuf },
    #[error("the system's random number generator failed")]
    NoRandomness,
}
