//! What all workers and senders count together, by kind of actor.
//!
//! Bound: each number is a machine word and wraps; the paths that write here are rare ones.

use core::ops::AddAssign;

use portable_atomic::AtomicUsize;
use portable_atomic::Ordering::{Acquire, Relaxed, Release};

/// What became of a message that found the mailbox full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverflowReason {
    /// It took the place of what had waited longest.
    DroppedOldest,
    /// It was dropped.
    DroppedNewest,
    /// Its sender waited for room.
    Blocked,
    /// Its sender has it back.
    Rejected,
    /// It became a dead letter.
    DeadLetter,
}

impl OverflowReason {
    /// Every reason, in the order in which they are reported.
    pub const ALL: [Self; 5] =
        [Self::DroppedOldest, Self::DroppedNewest, Self::Blocked, Self::Rejected, Self::DeadLetter];

    /// The reason as a metric's label.
    pub const fn as_label(self) -> &'static str {
        match self {
            Self::DroppedOldest => "dropped_oldest",
            Self::DroppedNewest => "dropped_newest",
            Self::Blocked => "blocked",
            Self::Rejected => "rejected",
            Self::DeadLetter => "dead_letter",
        }
    }
}

/// What went through mailboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailboxTotals {
    /// Messages taken in.
    pub enqueued: UserSystemTotals,
    /// Messages taken out, to be handled or buried.
    pub dequeued: UserSystemTotals,
}

/// A number for each lane of a mailbox.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSystemTotals {
    /// The lane of what actors send each other.
    pub user: u64,
    /// The lane of what the system tells them.
    pub system: u64,
}

impl AddAssign for MailboxTotals {
    fn add_assign(&mut self, more: Self) {
        self.enqueued += more.enqueued;
        self.dequeued += more.dequeued;
    }
}

impl AddAssign for UserSystemTotals {
    fn add_assign(&mut self, more: Self) {
        self.user = self.user.saturating_add(more.user);
        self.system = self.system.saturating_add(more.system);
    }
}

/// The numbers of one kind of actor that anybody may add to.
#[derive(Debug, Default)]
pub struct KindCounters {
    overflow: [AtomicUsize; OverflowReason::ALL.len()],
    spawned: AtomicUsize,
    stopped: AtomicUsize,
    failures: AtomicUsize,
    restarts: AtomicUsize,
    enqueued: RetainedLanes,
    dequeued: RetainedLanes,
}

#[derive(Debug, Default)]
struct RetainedLanes {
    user: AtomicUsize,
    system: AtomicUsize,
}

impl KindCounters {
    /// Counts an actor that begins.
    pub fn add_spawned(&self) {
        self.spawned.fetch_add(1, Relaxed);
    }

    /// Counts an actor that ended, and keeps what went through its mailbox.
    pub fn add_stopped(&self, totals: MailboxTotals) {
        self.enqueued.add(totals.enqueued);
        self.dequeued.add(totals.dequeued);
        self.stopped.fetch_add(1, Release);
    }

    /// Counts a failure.
    pub fn add_failure(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Counts a restart.
    pub fn add_restart(&self) {
        self.restarts.fetch_add(1, Relaxed);
    }

    /// Counts a message that found the mailbox full.
    pub fn add_overflow(&self, reason: OverflowReason) {
        self.overflow[reason as usize].fetch_add(1, Relaxed);
    }

    /// Counts the actors that began and did not end.
    pub fn alive(&self) -> u64 {
        // Ends first, and acquired: with every end that is seen, its beginning is.
        let stopped = self.stopped.load(Acquire);
        self.spawned.load(Relaxed).wrapping_sub(stopped) as u64
    }

    /// Reads how many failures there were.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed) as u64
    }

    /// Reads how many restarts there were.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Relaxed) as u64
    }

    /// Reads how many messages found the mailbox full.
    pub fn overflow(&self, reason: OverflowReason) -> u64 {
        self.overflow[reason as usize].load(Relaxed) as u64
    }

    /// Reads what went through the mailboxes of the actors that ended.
    pub fn retained(&self) -> MailboxTotals {
        MailboxTotals { enqueued: self.enqueued.read(), dequeued: self.dequeued.read() }
    }
}

impl RetainedLanes {
    fn add(&self, totals: UserSystemTotals) {
        self.user.fetch_add(totals.user as usize, Relaxed);
        self.system.fetch_add(totals.system as usize, Relaxed);
    }

    fn read(&self) -> UserSystemTotals {
        UserSystemTotals { user: self.user.load(Relaxed) as u64, system: self.system.load(Relaxed) as u64 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_stopped_actor_handled_stays_counted() {
        let kind = KindCounters::default();
        let totals = MailboxTotals {
            enqueued: UserSystemTotals { user: 5, system: 1 },
            dequeued: UserSystemTotals { user: 4, system: 1 },
        };
        kind.add_spawned();
        kind.add_spawned();
        kind.add_stopped(totals);
        assert_eq!((kind.alive(), kind.retained()), (1, totals));
        kind.add_stopped(totals);
        assert_eq!((kind.alive(), kind.retained().enqueued.user, kind.retained().dequeued.user), (0, 10, 8));
    }

    #[test]
    fn failures_and_restarts_count_apart() {
        let kind = KindCounters::default();
        (0..3).for_each(|_| kind.add_failure());
        (0..2).for_each(|_| kind.add_restart());
        assert_eq!((kind.failures(), kind.restarts()), (3, 2));
    }

    #[test]
    fn each_reason_to_overflow_counts_apart() {
        let kind = KindCounters::default();
        for (times, reason) in OverflowReason::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| kind.add_overflow(reason));
        }
        assert_eq!(OverflowReason::ALL.map(|reason| kind.overflow(reason)), [1, 2, 3, 4, 5]);
    }
}
