//! Counts of a pool's connections and statements since it was created.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Reason why a connection was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DiscardReason {
    /// An I/O error, or the server closed the connection.
    Lost,
    /// The server sent an invalid message.
    Protocol,
    /// The session could not be reset or set up.
    Session,
    /// A statement could not be cancelled, or a transaction not rolled back, in time.
    Recovery,
    /// As `Recovery`, and the server's process could not be terminated: the statement may run on.
    StillRunning,
    /// The server closed the idle connection, or sent something on it.
    Stale,
    /// Idle for longer than `idle_max`.
    Expired,
    /// The pool was closed.
    Closed,
}

impl DiscardReason {
    pub const ALL: [Self; 8] = [
        Self::Lost,
        Self::Protocol,
        Self::Session,
        Self::Recovery,
        Self::StillRunning,
        Self::Stale,
        Self::Expired,
        Self::Closed,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Protocol => "protocol",
            Self::Session => "session",
            Self::Recovery => "recovery",
            Self::StillRunning => "still_running",
            Self::Stale => "stale",
            Self::Expired => "expired",
            Self::Closed => "closed",
        }
    }
}

/// Counts since the pool was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    pub connections_opened: u64,
    /// Indexed by the position in [`DiscardReason::ALL`].
    pub discarded: [u64; DiscardReason::ALL.len()],
    pub cancels_sent: u64,
    /// Server processes that were terminated because their statements could not be cancelled.
    pub processes_terminated: u64,
    /// Sessions that were reset for another owner.
    pub resets: u64,
    pub statement_hits: u64,
    pub statement_misses: u64,
}

impl PoolCounts {
    pub fn discarded(&self, reason: DiscardReason) -> u64 {
        self.discarded[reason as usize]
    }
}

#[derive(Debug, Default)]
pub(crate) struct PoolCounters {
    pub(crate) connections_opened: AtomicU64,
    discarded: [AtomicU64; DiscardReason::ALL.len()],
    pub(crate) cancels_sent: AtomicU64,
    pub(crate) processes_terminated: AtomicU64,
    pub(crate) resets: AtomicU64,
    pub(crate) statement_hits: AtomicU64,
    pub(crate) statement_misses: AtomicU64,
}

impl PoolCounters {
    pub(crate) fn count_discard(&self, reason: DiscardReason) {
        increment(&self.discarded[reason as usize]);
    }

    pub(crate) fn counts(&self) -> PoolCounts {
        PoolCounts {
            connections_opened: self.connections_opened.load(Relaxed),
            discarded: std::array::from_fn(|index| self.discarded[index].load(Relaxed)),
            cancels_sent: self.cancels_sent.load(Relaxed),
            processes_terminated: self.processes_terminated.load(Relaxed),
            resets: self.resets.load(Relaxed),
            statement_hits: self.statement_hits.load(Relaxed),
            statement_misses: self.statement_misses.load(Relaxed),
        }
    }
}

pub(crate) fn increment(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_its_own_count() {
        let counters = PoolCounters::default();
        for reason in DiscardReason::ALL {
            counters.count_discard(reason);
        }
        for reason in DiscardReason::ALL {
            assert_eq!(counters.counts().discarded(reason), 1, "{}", reason.as_str());
        }
    }
}
