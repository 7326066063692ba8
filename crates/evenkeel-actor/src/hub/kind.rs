//! Counters by kind of actor, shared by all workers and senders.
//!
//! Limits: each counter is one machine word and wraps; only infrequent events write here.

use core::ops::AddAssign;

use portable_atomic::AtomicUsize;
use portable_atomic::Ordering::{Acquire, Relaxed, Release};

/// Outcome of a send to a full mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OverflowReason {
    /// The message displaced the oldest one.
    DroppedOldest,
    /// The message was dropped.
    DroppedNewest,
    /// The sender waited for capacity.
    Blocked,
    /// The message was returned to the sender.
    Rejected,
    /// The message was dead-lettered.
    DeadLetter,
    /// The sender, an actor, was suspended for capacity and resumed at the limit of the wait.
    WaitTimedOut,
}

impl OverflowReason {
    /// Every reason, in reporting order.
    pub const ALL: [Self; 6] = [
        Self::DroppedOldest,
        Self::DroppedNewest,
        Self::Blocked,
        Self::Rejected,
        Self::DeadLetter,
        Self::WaitTimedOut,
    ];

    /// Returns the metric label.
    pub const fn as_label(self) -> &'static str {
        match self {
            Self::DroppedOldest => "dropped_oldest",
            Self::DroppedNewest => "dropped_newest",
            Self::Blocked => "blocked",
            Self::Rejected => "rejected",
            Self::DeadLetter => "dead_letter",
            Self::WaitTimedOut => "wait_timed_out",
        }
    }
}

/// Message totals of one or more mailboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MailboxTotals {
    /// Enqueued messages.
    pub enqueued: UserSystemTotals,
    /// Dequeued messages, handled or dead-lettered.
    pub dequeued: UserSystemTotals,
}

/// Message totals of a mailbox's user queue and system queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UserSystemTotals {
    /// User messages.
    pub user: u64,
    /// System messages.
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

/// The counters of one kind of actor; any thread may add to them.
#[derive(Debug, Default)]
pub struct KindCounters {
    overflow: [AtomicUsize; OverflowReason::ALL.len()],
    spawned: AtomicUsize,
    stopped: AtomicUsize,
    failures: AtomicUsize,
    restarts: AtomicUsize,
    mailbox_failures: AtomicUsize,
    enqueued: RetainedTotals,
    dequeued: RetainedTotals,
}

#[derive(Debug, Default)]
struct RetainedTotals {
    user: AtomicUsize,
    system: AtomicUsize,
}

impl KindCounters {
    /// Counts a spawned actor.
    pub fn add_spawned(&self) {
        self.spawned.fetch_add(1, Relaxed);
    }

    /// Counts a stopped actor and retains the totals of its mailbox.
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

    /// Counts a mailbox that failed.
    pub fn add_mailbox_failure(&self) {
        self.mailbox_failures.fetch_add(1, Relaxed);
    }

    /// Counts a send to a full mailbox.
    pub fn add_overflow(&self, reason: OverflowReason) {
        self.overflow[reason as usize].fetch_add(1, Relaxed);
    }

    /// Returns the number of actors that are alive.
    pub fn alive(&self) -> u64 {
        // Loads `stopped` first: if the stop of an actor is visible, so is its spawn.
        let stopped = self.stopped.load(Acquire);
        self.spawned.load(Relaxed).wrapping_sub(stopped) as u64
    }

    /// Returns the number of failures.
    pub fn failures(&self) -> u64 {
        self.failures.load(Relaxed) as u64
    }

    /// Returns the number of restarts.
    pub fn restarts(&self) -> u64 {
        self.restarts.load(Relaxed) as u64
    }

    /// Returns the number of mailboxes that failed.
    pub fn mailbox_failures(&self) -> u64 {
        self.mailbox_failures.load(Relaxed) as u64
    }

    /// Returns the number of sends to a full mailbox with this outcome.
    pub fn overflow(&self, reason: OverflowReason) -> u64 {
        self.overflow[reason as usize].load(Relaxed) as u64
    }

    /// Returns the mailbox totals of the stopped actors.
    pub fn retained(&self) -> MailboxTotals {
        MailboxTotals { enqueued: self.enqueued.read(), dequeued: self.dequeued.read() }
    }
}

impl RetainedTotals {
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
    fn the_totals_of_a_stopped_actor_stay_counted() {
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
    fn failures_and_restarts_count_separately() {
        let kind = KindCounters::default();
        (0..3).for_each(|_| kind.add_failure());
        (0..2).for_each(|_| kind.add_restart());
        kind.add_mailbox_failure();
        assert_eq!((kind.failures(), kind.restarts(), kind.mailbox_failures()), (3, 2, 1));
    }

    #[test]
    fn each_overflow_reason_counts_separately() {
        let kind = KindCounters::default();
        for (times, reason) in OverflowReason::ALL.into_iter().enumerate() {
            (0..=times).for_each(|_| kind.add_overflow(reason));
        }
        assert_eq!(OverflowReason::ALL.map(|reason| kind.overflow(reason)), [1, 2, 3, 4, 5, 6]);
    }
}
