//! What the door keeps with a queue that the queue itself does not read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fifo::FifoSettings;

/// What the door keeps with a queue.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct QueueMetadata {
    /// Kept, and not enforced.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// Where dead letters go, by a name that outlives the queue which has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dead_letters: Option<DeadLetterTarget>,
    /// Who may use this queue for dead letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redrive_allow: Option<String>,
    /// Kept, and not acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kms_key: Option<String>,
    /// Kept, and not acted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kms_reuse_secs: Option<u64>,
    /// Kept, and not acted on.
    pub(crate) managed_sse: bool,
    /// What a FIFO queue was told.
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) fifo: FifoSettings,
    /// The last move of its messages that began and did not come to its end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) move_task: Option<MoveTaskRecord>,
    /// What users label it with.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

/// Where dead letters go, and when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeadLetterTarget {
    pub(crate) arn: String,
    pub(crate) receives_max: u32,
}

/// A move of messages that began.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct MoveTaskRecord {
    pub(crate) id: String,
    pub(crate) source_arn: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) destination_arn: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<u64>,
    pub(crate) started_ms: u64,
    pub(crate) to_move: u64,
}

fn is_default(fifo: &FifoSettings) -> bool {
    *fifo == FifoSettings::default()
}

impl QueueMetadata {
    /// Reads them; what another door wrote is as if there were none.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Writes them.
    pub(crate) fn write(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}
