//! The master key that secrets of SQS clients are derived from: drawn once, kept in the data folder.

use std::fmt;
use std::path::PathBuf;

use evenkeel_sqs::MasterKey;

use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "sqs-master-key";

/// Reads the master key of a folder; draws one if there is none yet.
pub fn master_key(folder: &DataDir) -> Result<MasterKey, SqsKeyError> {
    if let Some(text) = DataDir::read(folder.path(), FILE)? {
        return MasterKey::parse(&text).map_err(|_| SqsKeyError::Broken { path: folder.path().join(FILE) });
    }
    let text = MasterKey::draw().map_err(|_| SqsKeyError::NoRandomness)?;
    folder.replace(FILE, &format!("{}\n", text.expose()))?;
    Ok(MasterKey::parse(text.expose()).expect("what was drawn is one"))
}

/// Why there is no master key.
#[derive(Debug)]
pub enum SqsKeyError {
    /// The folder does not do its part.
    Folder(DataDirError),
    /// The file holds something else.
    Broken {
        /// The file.
        path: PathBuf,
    },
    /// The system gives no random numbers.
    NoRandomness,
}

impl fmt::Display for SqsKeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(error) => error.fmt(f),
            Self::Broken { path } => write!(f, "{}: not 64 hexadecimal digits", path.display()),
            Self::NoRandomness => f.write_str("the system gives no random numbers"),
        }
    }
}

impl std::error::Error for SqsKeyError {}

impl From<DataDirError> for SqsKeyError {
    fn from(error: DataDirError) -> Self {
        Self::Folder(error)
    }
}
