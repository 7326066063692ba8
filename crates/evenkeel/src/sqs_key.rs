//! The master key, from which the secret keys of SQS clients are derived. It is generated once and stored in the data
//! directory.

use std::path::PathBuf;

use evenkeel_sqs::MasterKey;
use thiserror::Error;

use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "sqs-master-key";

/// Reads the master key; generates and stores it on the first call.
pub fn master_key(data_dir: &DataDir) -> Result<MasterKey, SqsKeyError> {
    if let Some(text) = DataDir::read(data_dir.path(), FILE)? {
        return MasterKey::parse(&text)
            .map_err(|_| SqsKeyError::Malformed { path: data_dir.path().join(FILE) });
    }
    let text = MasterKey::draw().map_err(|_| SqsKeyError::NoRandomness)?;
    data_dir.replace(FILE, &format!("{}\n", text.expose()))?;
    Ok(MasterKey::parse(text.expose()).expect("a generated key parses"))
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
