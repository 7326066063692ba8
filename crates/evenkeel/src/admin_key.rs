//! The admin key that `serve` creates if none is configured. It is stored in the data directory, where the command line
//! reads it.
//!
//! The file is written atomically with mode 0600 and kept across restarts. A file that another user may have read or put
//! there is rejected. If admin keys are configured, the server does not create or use it.

use std::path::{Path, PathBuf};

use evenkeel_server::api_key::{KeyHash, is_generated, make_key};
use evenkeel_telemetry::Secret;
use thiserror::Error;

use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "admin.key";

/// Returns the path of the admin key of a data directory.
pub fn path(data_dir: &Path) -> PathBuf {
    data_dir.join(FILE)
}

/// Reads the admin key of a data directory; `None` if it has none.
pub fn read(data_dir: &Path) -> Result<Option<Secret<String>>, AdminKeyError> {
    let Some(text) = DataDir::read_secret(data_dir, FILE)? else { return Ok(None) };
    let key = text.trim();
    if !is_generated(key) {
        return Err(AdminKeyError::Malformed { path: path(data_dir) });
    }
    Ok(Some(Secret::new(key.to_owned())))
}

/// Returns the hashes of the configured admin keys, or else of the key in the data directory, which is created if it
/// does not exist.
pub(crate) fn hashes(data_dir: &DataDir, configured: &[KeyHash]) -> Result<Vec<KeyHash>, AdminKeyError> {
    if !configured.is_empty() {
        return Ok(configured.to_vec());
    }
    if let Some(key) = read(data_dir.path())? {
        return Ok(vec![KeyHash::of(key.expose())]);
    }
    let key = make_key().map_err(|_| AdminKeyError::NoRandomness)?;
    data_dir.replace(FILE, &format!("{key}\n"))?;
    // On a volume without file modes, other users can read the new file.
    read(data_dir.path())?;
    let path = path(data_dir.path());
    tracing::info!(target: "evenkeel", path = %path.display(), "created an admin key, because admin_key_hashes is not set; the command line reads it from this file");
    Ok(vec![KeyHash::of(&key)])
}

#[derive(Debug, Error)]
pub enum AdminKeyError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{}: not an admin key; restore the file, or delete it and restart the server to create a new key", path.display())]
    Malformed { path: PathBuf },
    #[error("the system's random number generator failed")]
    NoRandomness,
}
