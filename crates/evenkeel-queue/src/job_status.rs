//! Last status of jobs run by the gateway's dispatcher, shown by `queue explain`.
//!
//! Limits: 10 000 entries per queue. Beyond that the oldest entry is evicted; only the status is lost.

use std::collections::{BTreeMap, HashMap};

use core::fmt;

use parking_lot::Mutex;

use crate::id::MessageId;
use crate::namespace::Namespace;
use crate::queue::Queue;
use crate::time::UnixMillis;

const ENTRIES_MAX: usize = 10_000;

/// Last known status of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// Submitted to the LLM API; not yet sent to a node.
    Admitted { attempt: u32, since: UnixMillis },
    /// Sent to a node; `path` is the URL of the chosen network path.
    Sent { node: String, path: String, attempt: u32, since: UnixMillis },
    /// Posted to a URL.
    Posted { to: String, attempt: u32, since: UnixMillis },
    /// The last attempt failed, or was deferred without counting; `Display` prints "failed" for both.
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

/// The statuses of a queue's jobs, in the order of their last update.
#[derive(Default)]
pub(crate) struct JobStatusTable(Mutex<StatusMap>);

#[derive(Default)]
struct StatusMap {
    by_id: HashMap<MessageId, StatusEntry>,
    by_update_seq: BTreeMap<u64, MessageId>,
    last_update_seq: u64,
}

struct StatusEntry {
    update_seq: u64,
    reader: Namespace,
    status: JobStatus,
}

impl StatusMap {
    fn insert(&mut self, id: MessageId, reader: Namespace, status: JobStatus) {
        self.last_update_seq += 1;
        let entry = StatusEntry { update_seq: self.last_update_seq, reader, status };
        if let Some(previous) = self.by_id.insert(id, entry) {
            self.by_update_seq.remove(&previous.update_seq);
        }
        self.by_update_seq.insert(self.last_update_seq, id);
        if self.by_id.len() > ENTRIES_MAX
            && let Some((_, oldest)) = self.by_update_seq.pop_first()
        {
            self.by_id.remove(&oldest);
        }
    }

    fn remove(&mut self, id: MessageId) {
        if let Some(entry) = self.by_id.remove(&id) {
            self.by_update_seq.remove(&entry.update_seq);
        }
    }
}

impl Queue {
    /// Records the status of a job, and the account that may read it; shared means every user of the queue.
    pub fn record_job(&self, id: MessageId, reader: Namespace, status: JobStatus) {
        self.0.job_statuses.0.lock().insert(id, reader, status);
    }

    /// Clears the status of a job that is done, was released at shutdown, or lost its lease.
    pub fn forget_job(&self, id: MessageId) {
        self.0.job_statuses.0.lock().remove(id);
    }

    /// Returns the last known status of a job, if `may_read` accepts its reader.
    pub fn job_status(&self, id: MessageId, may_read: impl Fn(Namespace) -> bool) -> Option<JobStatus> {
        let statuses = self.0.job_statuses.0.lock();
        let entry = statuses.by_id.get(&id).filter(|entry| may_read(entry.reader))?;
        Some(entry.status.clone())
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
        let mut statuses = StatusMap::default();
        // In descending order of ids, so that the oldest entry does not have the smallest id.
        for seq in (1..=ENTRIES_MAX as u64).rev() {
            statuses.insert(id(seq), Namespace::Shared, status());
        }
        let first = ENTRIES_MAX as u64;
        statuses.insert(id(first), Namespace::Shared, status());
        statuses.insert(id(0), Namespace::Shared, status());
        let has = |seq| statuses.by_id.contains_key(&id(seq));
        assert!(has(0), "the newest entry was evicted");
        assert!(has(first), "an entry that was just updated was evicted");
        assert!(!has(first - 1), "the oldest entry was kept");
        assert_eq!((statuses.by_id.len(), statuses.by_update_seq.len()), (ENTRIES_MAX, ENTRIES_MAX));
    }
}
