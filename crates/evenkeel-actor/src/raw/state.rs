//! One word per cell: who may run it, what waits in it, whether it is suspended, closed or dead.
//!
//! `SCHEDULED` is the right to run the cell. It has exactly one owner: an entry of a ready queue, or the
//! worker that took that entry. Bound: every transition is one read-modify-write, and the way a busy
//! mailbox takes most often is one load.

use crate::sync::{AtomicU32, Ordering};

/// Somebody has the right to run the cell.
pub(crate) const SCHEDULED: u32 = 1 << 0;
/// The shared half of the user lane is not empty, or the private half holds messages back.
pub(crate) const USER: u32 = 1 << 1;
/// The system lane is not empty.
pub(crate) const SYSTEM: u32 = 1 << 2;
/// The user lane is not served.
pub(crate) const SUSPENDED: u32 = 1 << 3;
/// No user message is accepted any more.
pub(crate) const CLOSED: u32 = 1 << 4;
/// The cell has ended and is never scheduled again.
pub(crate) const DEAD: u32 = 1 << 5;
/// The waker of the future the cell waits for has fired.
pub(crate) const SIGNAL: u32 = 1 << 6;
/// Somebody waits for room in the user lane.
pub(crate) const WAITERS: u32 = 1 << 7;
/// A counted reference to the cell was left with it, by the waker that fired.
pub(crate) const RETURNED: u32 = 1 << 8;

const URGENT: u32 = SYSTEM | SIGNAL;

const fn runnable(word: u32) -> bool {
    word & DEAD == 0 && (word & URGENT != 0 || word & (USER | SUSPENDED) == USER)
}

/// What somebody who raised a flag must do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The caller holds the run right now and must put it into a ready queue.
    Schedule,
    /// Whoever holds the run right will see the flag.
    Already,
    /// The cell is dead; the flag changed nothing.
    Dead,
}

/// What became of the run right at the end of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Release {
    /// Something arrived meanwhile; the run right stays with the caller.
    Kept,
    /// The run right is gone, and with it the right to touch the cell.
    Gone,
}

/// The state word of one cell.
#[derive(Debug)]
pub(crate) struct CellState(AtomicU32);

impl CellState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Reads every flag.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Reads every flag without ordering anything by it; for the owner's look between two messages.
    #[inline]
    pub(crate) fn flags_relaxed(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Tells the cell that something waits in a lane guarded by a lock.
    ///
    /// The way out without a write is right only for such lanes: the owner clears the flag inside the
    /// same lock, so whoever is second in that lock sees the other. A flag that no lock guards needs
    /// [`CellState::announce`].
    #[inline]
    pub(crate) fn raise(&self, set: u32) -> Notify {
        let word = self.0.load(Ordering::Relaxed);
        if word & (set | SCHEDULED | DEAD) == set | SCHEDULED {
            return Notify::Already;
        }
        self.change(word, set)
    }

    /// The same for a flag that no lock guards: always a read-modify-write, which publishes what the
    /// caller wrote before.
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

    /// Announces `SIGNAL` and leaves the caller's counted reference with the cell; tells whether it was taken.
    ///
    /// One at a time: a cell that has one, or is dead, takes none.
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

    /// Clears flags, and returns those that were set before; for the owner of the run right, *before* it looks
    /// at what they announce.
    ///
    /// Looking first and clearing afterwards strands what arrives in between.
    #[inline]
    pub(crate) fn lower(&self, flags: u32) -> u32 {
        self.0.fetch_and(!flags, Ordering::AcqRel)
    }

    /// Sets flags without scheduling; for the owner of the run right.
    #[inline]
    pub(crate) fn set(&self, flags: u32) {
        self.0.fetch_or(flags, Ordering::AcqRel);
    }

    /// Ends a run: gives the run right back unless something is to be done.
    ///
    /// `hold` is set in the same transition, so that a cell that suspends or fails is never seen
    /// runnable in between; without `SUSPENDED` in it a suspension ends. Somebody who came to wait for
    /// room is something to be done too.
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

    /// Tells that the caller waits for room, and whether anybody runs the cell.
    ///
    /// `true`: the owner will see the flag before it gives up the run right. `false`: nobody runs the
    /// cell, so the caller must look at the lane once more itself.
    pub(crate) fn await_room(&self) -> bool {
        self.0.fetch_or(WAITERS, Ordering::AcqRel) & SCHEDULED != 0
    }

    /// Ends the cell, and returns the flags before; the run right is never given back.
    pub(crate) fn mark_dead(&self) -> u32 {
        self.0.fetch_or(DEAD | CLOSED, Ordering::AcqRel)
    }

    /// Makes the word of an unoccupied slot new; nobody else may hold a reference.
    pub(crate) fn renew(&self) {
        self.0.store(SCHEDULED, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
