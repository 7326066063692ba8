//! Where the jobs of a queue are that the gateway runs itself, for whoever asks.
//!
//! Bound: at most 10 000 notes per queue; beyond, the oldest is forgotten, which loses words and nothing else.

use std::collections::BTreeMap;

use core::fmt;

use parking_lot::Mutex;

use crate::id::MessageId;
use crate::queue::Queue;
use crate::time::UnixMillis;

/// Notes of one queue.
const NOTES_MAX: usize = 10_000;

/// Where a job was last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobStatus {
    /// It waits for a slot of a node, behind whoever asks in person.
    Admitted {
        /// Which delivery.
        attempt: u32,
        /// Since then.
        since: UnixMillis,
    },
    /// A node works on it.
    Sent {
        /// The node.
        node: String,
        /// The way to it.
        path: String,
        /// Which delivery.
        attempt: u32,
        /// Since then.
        since: UnixMillis,
    },
    /// Whoever listens at a URL works on it.
    Posted {
        /// The URL.
        to: String,
        /// Which delivery.
        attempt: u32,
        /// Since then.
        since: UnixMillis,
    },
    /// It was not served, and is tried again.
    Failed {
        /// Which delivery.
        attempt: u32,
        /// Why.
        why: String,
        /// Then.
        at: UnixMillis,
    },
}

impl fmt::Display for JobStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Admitted { attempt, since } => {
                write!(f, "attempt {attempt}: waits for a free slot since {since}")
            }
            Self::Sent { node, path, attempt, since } => {
                write!(f, "attempt {attempt}: sent to node {node} over {path}, since {since}")
            }
            Self::Posted { to, attempt, since } => {
                write!(f, "attempt {attempt}: posted to {to}, since {since}")
            }
            Self::Failed { attempt, why, at } => write!(f, "attempt {attempt} failed at {at}: {why}"),
        }
    }
}

#[derive(Default)]
pub(crate) struct JobStatusTable(Mutex<BTreeMap<MessageId, JobStatus>>);

impl Queue {
    /// Notes where a job is.
    pub fn record_job(&self, of: MessageId, whereabouts: JobStatus) {
        let mut notes = self.0.notes.0.lock();
        notes.insert(of, whereabouts);
        if NOTES_MAX < notes.len() {
            notes.pop_first();
        }
    }

    /// Forgets where a job was: it is over, or its wait is nobody's failure.
    pub fn forget_job(&self, of: MessageId) {
        self.0.notes.0.lock().remove(&of);
    }

    /// Tells where a job was last, if that is known.
    pub fn job_status(&self, of: MessageId) -> Option<JobStatus> {
        self.0.notes.0.lock().get(&of).cloned()
    }
}
