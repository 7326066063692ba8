//! Status of the jobs that the gateway dispatches itself, for `explain`.
//!
//! Limits: 10 000 entries per queue. Beyond that the oldest entry is evicted; only status text is lost.

use std::collections::{BTreeMap, HashMap};

use core::fmt;

use parking_lot::Mutex;

use crate::id::MessageId;
use crate::queue::Queue;
use crate::time::UnixMillis;

const ENTRIES_MAX: usize = 10_000;

/// Last known status of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// Admitted, waiting for a slot of a node; interactive requests come first.
    Admitted { attempt: u32, since: UnixMillis },
    /// Sent to a node.
    Sent { node: String, path: String, attempt: u32, since: UnixMillis },
    /// Posted to a URL.
    Posted { to: String, attempt: u32, since: UnixMillis },
    /// Failed, and to be retried.
    Failed { attempt: u32, reason: String, at: UnixMillis },
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted { attempt, since } => {
                write!(f, "attempt {attempt}: waiting for a free slot since {since}")
            }
            Self::Sent { node, path, attempt, since } => {
                write!(f, "attempt {attempt}: sent to node {node} over {path}, since {since}")
            }
            Self::Posted { to, attempt, since } => {
                write!(f, "attempt {attempt}: posted to {to}, since {since}")
            }
            Self::Failed { attempt, reason, at } => write!(f, "attempt {attempt} failed at {at}: {reason}"),
        }
    }
}

/// The statuses of a queue's jobs, in the order of their last change.
#[derive(Default)]
pub(crate) struct JobStatusTable(Mutex<Statuses>);

#[derive(Default)]
struct Statuses {
    by_id: HashMap<MessageId, (u64, JobStatus)>,
    by_change: BTreeMap<u64, MessageId>,
    changes: u64,
}

impl Statuses {
    fn insert(&mut self, id: MessageId, status: JobStatus) {
        self.changes += 1;
        if let Some((before, _)) = self.by_id.insert(id, (self.changes, status)) {
            self.by_change.remove(&before);
        }
        self.by_change.insert(self.changes, id);
        if ENTRIES_MAX < self.by_id.len()
            && let Some((_, oldest)) = self.by_change.pop_first()
        {
            self.by_id.remove(&oldest);
        }
    }

    fn remove(&mut self, id: MessageId) {
        if let Some((change, _)) = self.by_id.remove(&id) {
            self.by_change.remove(&change);
        }
    }
}

impl Queue {
    /// Records the status of a job.
    pub fn record_job(&self, id: MessageId, status: JobStatus) {
        self.0.job_statuses.0.lock().insert(id, status);
    }

    /// Removes the status of a job that is done, or that waits through no failure of its own.
    pub fn forget_job(&self, id: MessageId) {
        self.0.job_statuses.0.lock().remove(id);
    }

    /// Returns the last known status of a job.
    pub fn job_status(&self, id: MessageId) -> Option<JobStatus> {
        self.0.job_statuses.0.lock().by_id.get(&id).map(|(_, status)| status.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{KeyId, QueueId, Seq};

    #[test]
    fn a_full_table_evicts_the_oldest_entry_not_the_smallest_id() {
        let id = |seq| MessageId { queue: QueueId(1), key: KeyId(1), seq: Seq(seq) };
        let status = || JobStatus::Admitted { attempt: 1, since: UnixMillis(1) };
        let mut statuses = Statuses::default();
        // Later jobs have smaller ids, as those of a key that was created earlier do.
        for seq in (1..=ENTRIES_MAX as u64).rev() {
            statuses.insert(id(seq), status());
        }
        let first = ENTRIES_MAX as u64;
        statuses.insert(id(first), status());
        statuses.insert(id(0), status());
        let has = |seq| statuses.by_id.contains_key(&id(seq));
        assert!(has(0), "the newest entry was evicted");
        assert!(has(first), "an entry that was just updated was evicted");
        assert!(!has(first - 1), "the oldest entry was kept");
        assert_eq!((statuses.by_id.len(), statuses.by_change.len()), (ENTRIES_MAX, ENTRIES_MAX));
    }
}
