//! Metadata of a queue that only the SQS API uses, stored as JSON with the queue.
//!
//! Guarantees: the stored format does not change; a test pins it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::fifo::FifoSettings;

/// Metadata of a queue. Field names are part of the stored format.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct QueueMetadata {
    /// Policy of the owner. On a shared queue it has no effect, unless the administrator has set it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) policy: Option<String>,
    /// The administrator has set the policy of this shared queue.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub(crate) policy_enforced: bool,
    /// The administrator has decided that this queue is shared.
    #[serde(skip_serializing_if = "core::ops::Not::not")]
    pub(crate) shared_on_purpose: bool,
    /// The dead-letter queue by name, so that it can be deleted and created again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dead_letters: Option<DeadLetterTarget>,
    /// The queues that may use this one as dead-letter queue.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) redrive_allow: Option<String>,
    /// Stored, but without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kms_key: Option<String>,
    /// Stored, but without effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kms_reuse_secs: Option<u64>,
    /// Stored, but without effect.
    pub(crate) managed_sse: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub(crate) fifo: FifoSettings,
    /// The move task from this queue that has not finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) move_task: Option<MoveTaskRecord>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) tags: BTreeMap<String, String>,
}

/// The dead-letter queue of a queue, and the number of deliveries after which a message moves there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeadLetterTarget {
    pub(crate) arn: String,
    pub(crate) receives_max: u32,
}

/// A move task that was started, stored until it finishes.
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
    /// Parses stored metadata; returns the default if it is not in this format.
    pub(crate) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    pub(crate) fn to_json(&self) -> String {
        serde_json::to_string(self).expect("texts and numbers are JSON")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Metadata as released versions store it. If this test fails, existing data directories become unreadable.
    const STORED: &str = concat!(
        r#"{"policy":"{}","dead_letters":{"arn":"arn:aws:sqs:us-east-1:000000000000:dead","receives_max":3},"#,
        r#""redrive_allow":"{\"redrivePermission\":\"allowAll\"}","kms_key":"alias/k","kms_reuse_secs":300,"#,
        r#""managed_sse":true,"#,
        r#""fifo":{"content_based":true,"scope":"messageGroup","throughput":"perMessageGroupId"},"#,
        r#""move_task":{"id":"t","source_arn":"a","destination_arn":"b","rate":5,"started_ms":1,"to_move":2},"#,
        r#""tags":{"team":"a"}}"#,
    );

    #[test]
    fn the_stored_format_is_unchanged() {
        let metadata = QueueMetadata::read(STORED);
        assert_eq!(metadata.to_json(), STORED);
        assert_eq!(metadata.dead_letters.unwrap().receives_max, 3);
        assert_eq!(metadata.move_task.unwrap().to_move, 2);
        let shared = STORED.replacen(
            r#""policy":"{}","#,
            r#""policy":"{}","policy_enforced":true,"shared_on_purpose":true,"#,
            1,
        );
        assert_eq!(QueueMetadata::read(&shared).to_json(), shared);
        assert_eq!(QueueMetadata::default().to_json(), r#"{"managed_sse":false}"#);
        assert_eq!(QueueMetadata::read(""), QueueMetadata::default());
    }
}
