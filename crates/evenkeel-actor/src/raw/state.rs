//! State word of a cell: who may run it, what is queued, and whether it is suspended, closed or dead.
//!
//! `SCHEDULED` is the run permit. It has exactly one owner: an entry of a ready queue, or the worker that
//! popped that entry.
//!
//! Guarantees: every transition is one read-modify-write; the most frequent path of a busy mailbox is one
//! load.

use crate::sync::{AtomicU32, Ordering};

/// The run permit is held, by a ready-queue entry or by a worker.
pub(crate) const SCHEDULED: u32 = 1 << 0;
/// The shared half of the user queue is not empty, or the private half holds messages of a suspended cell.
pub(crate) const USER: u32 = 1 << 1;
/// The system queue is not empty.
pub(crate) const SYSTEM: u32 = 1 << 2;
/// User messages are not processed.
pub(crate) const SUSPENDED: u32 = 1 << 3;
/// User messages are rejected.
pub(crate) const CLOSED: u32 = 1 << 4;
/// The cell has terminated and is never scheduled again.
pub(crate) const DEAD: u32 = 1 << 5;
/// The waker of the future that the cell awaits has fired.
pub(crate) const SIGNAL: u32 = 1 << 6;
/// A producer waits for capacity in the user queue.
pub(crate) const WAITERS: u32 = 1 << 7;
/// The waker that fired left its counted reference with the cell.
pub(crate) const RETURNED: u32 = 1 << 8;

const URGENT: u32 = SYSTEM | SIGNAL;

const fn runnable(word: u32) -> bool {
    word & DEAD == 0 && (word & URGENT != 0 || word & (USER | SUSPENDED) == USER)
}

/// Next step for the caller that raised a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The caller now holds the run permit and must put it into a ready queue.
    Schedule,
    /// The current holder of the run permit will see the flag.
    Already,
    /// The cell is dead; the flag changed nothing.
    Dead,
}

/// Outcome of ending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Something arrived meanwhile; the caller keeps the run permit.
    Kept,
    /// The run permit was released, and with it access to the cell.
    Gone,
}

/// The state word of one cell.
#[derive(Debug)]
pub(crate) struct CellState(AtomicU32);

impl CellState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Reads all flags.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Reads all flags without ordering; for the permit holder's check between two messages.
    #[inline]
    pub(crate) fn flags_relaxed(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the flag of a queue that a lock guards.
    ///
    /// The early return without a write is only correct for such queues: the permit holder clears the flag
    /// inside the same lock, so whichever side locks second sees the other. A flag that no lock guards needs
    /// [`CellState::raise_unlocked`].
    #[inline]
    pub(crate) fn raise(&self, set: u32) -> Notify {
        let word = self.0.load(Ordering::Relaxed);
        if word & (set | SCHEDULED | DEAD) == set | SCHEDULED {
            return Notify::Already;
        }
        self.change(word, set)
    }

    /// Raises a flag that no lock guards: always a read-modify-write, which publishes the caller's earlier
    /// writes.
    pub(crate) fn raise_unlocked(&self, set: u32) -> Notify {
        self.change(self.0.load(Ordering::Relaxed), set)
    }

    fn change(&self, mut word: u32, set: u32) -> Notify {
        loop {
            if word & DEAD != 0 {
                return Notify::Dead;
            }
            let mut next = word | set;
            let schedule = word & SCHEDULED == 0 && runnable(next);
            if schedule {
                next |= SCHEDULED;
            }
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if schedule => return Notify::Schedule,
                Ok(_) => return Notify::Already,
                Err(seen) => word = seen,
            }
        }
    }

    /// Raises `SIGNAL` and leaves the caller's counted reference with the cell; the second value reports
    /// whether the cell took it.
    ///
    /// A cell holds at most one such reference: a cell that has one, or is dead, takes none.
    #[cfg(any(feature = "std", loom))]
    #[inline]
    pub(crate) fn return_reference(&self) -> (Notify, bool) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & DEAD != 0 {
                return (Notify::Dead, false);
            }
            let signalled = word | SIGNAL | RETURNED;
            let notify = if word & SCHEDULED == 0 { Notify::Schedule } else { Notify::Already };
            match self.0.compare_exchange_weak(
                word,
                signalled | SCHEDULED,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return (notify, word & RETURNED == 0),
                Err(seen) => word = seen,
            }
        }
    }

    /// Clears flags and returns the previous word; for the permit holder, *before* it checks what the flags
    /// announce.
    ///
    /// Checking first and clearing afterwards strands whatever arrives in between.
    #[inline]
    pub(crate) fn lower(&self, flags: u32) -> u32 {
        self.0.fetch_and(!flags, Ordering::AcqRel)
    }

    /// Sets flags without scheduling; for the permit holder.
    #[inline]
    pub(crate) fn set(&self, flags: u32) {
        self.0.fetch_or(flags, Ordering::AcqRel);
    }

    /// Ends a run: releases the run permit unless there is work left.
    ///
    /// `hold` is set in the same transition, so that a cell that suspends or fails is never seen runnable in
    /// between; a suspension ends if `hold` lacks `SUSPENDED`. A producer waiting for capacity counts as
    /// work.
    #[inline]
    pub(crate) fn release(&self, hold: u32) -> Release {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let held = (word & !SUSPENDED) | hold;
            let busy = runnable(held) || held & WAITERS != 0;
            let (next, release) =
                if busy { (held, Release::Kept) } else { (held & !SCHEDULED, Release::Gone) };
            if next == word {
                return release;
            }
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return release,
                Err(seen) => word = seen,
            }
        }
    }

    /// Registers that a producer waits for capacity; returns whether the cell is scheduled.
    ///
    /// If so, the permit holder sees the flag before it releases the permit. If not, no worker will look at
    /// the queue, so the caller must check it once more.
    pub(crate) fn register_waiter(&self) -> bool {
        self.0.fetch_or(WAITERS, Ordering::AcqRel) & SCHEDULED != 0
    }

    /// Marks the cell dead and returns the previous flags; the run permit is never released again.
    pub(crate) fn mark_dead(&self) -> u32 {
        self.0.fetch_or(DEAD | CLOSED, Ordering::AcqRel)
    }

    /// Resets the word of a vacant slot to scheduled. No other reference to the slot may exist.
    pub(crate) fn renew(&self) {
        self.0.store(SCHEDULED, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
