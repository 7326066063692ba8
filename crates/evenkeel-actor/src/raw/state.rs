//! State word of an actor cell: its run permit, pending work, and life-cycle flags (suspended, closed, dead).
//!
//! `SCHEDULED` is the run permit. It has exactly one owner: an entry of a ready queue, or the worker that
//! popped that entry.
//!
//! Guarantees: every transition is atomic (one read-modify-write or a compare-exchange loop), except
//! [`CellState::reset_as_scheduled`], which runs while no other reference exists. Notifying a cell that is
//! already scheduled with the same flag costs one relaxed load ([`CellState::raise`]).

use crate::sync::{AtomicU32, Ordering};

/// The run permit is held, by a ready-queue entry or by a worker.
pub(crate) const SCHEDULED: u32 = 1 << 0;
/// User messages are pending: in the shared half of the queue, where senders put them, or (suspended cells
/// only) in the private half, the batch that the permit holder has already taken.
pub(crate) const USER: u32 = 1 << 1;
/// System work is pending: a queued system message, or unstashed messages.
pub(crate) const SYSTEM: u32 = 1 << 2;
/// User messages are not processed.
pub(crate) const SUSPENDED: u32 = 1 << 3;
/// User messages are rejected.
pub(crate) const CLOSED: u32 = 1 << 4;
/// The cell has terminated and is never scheduled again.
pub(crate) const DEAD: u32 = 1 << 5;
/// The cell's waker fired: poll its future again, or retry the mailbox that was full.
pub(crate) const WOKEN: u32 = 1 << 6;
/// At least one producer waits for capacity in the user queue.
pub(crate) const WAITERS: u32 = 1 << 7;
/// The cell owns the counted reference of a waker that fired, and can reuse it for its next waker.
pub(crate) const WAKER_REF: u32 = 1 << 8;

/// Work that runs even while the cell is suspended.
const RUNS_WHILE_SUSPENDED: u32 = SYSTEM | WOKEN;

const fn runnable(word: u32) -> bool {
    word & DEAD == 0 && (word & RUNS_WHILE_SUSPENDED != 0 || word & (USER | SUSPENDED) == USER)
}

/// Next step for the caller that raised a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notify {
    /// The caller now holds the run permit and must put it into a ready queue.
    Schedule,
    /// The permit holder will see the flag, or the cell is suspended and will see it when it resumes.
    NotNeeded,
    /// The cell is dead; the flag changed nothing.
    Dead,
}

/// Outcome of ending a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReleaseOutcome {
    /// There is work left; the caller keeps the run permit.
    Kept,
    /// The run permit was released, and with it access to the cell.
    Released,
}

/// Atomic flags of one cell; see the module documentation.
#[derive(Debug)]
pub(crate) struct CellState(AtomicU32);

impl CellState {
    pub(crate) fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Loads all flags with acquire ordering.
    #[inline]
    pub(crate) fn flags(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    /// Loads all flags with relaxed ordering; enough for the permit holder's check between two messages.
    #[inline]
    pub(crate) fn flags_relaxed(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// Raises the flag of a queue that a lock guards.
    ///
    /// The early return without a write is only correct for such queues: the permit holder clears the flag
    /// before it takes that lock or while it holds it, so the side that locks second sees the other's change. A
    /// flag that no lock guards needs [`CellState::raise_always`].
    #[inline]
    pub(crate) fn raise(&self, flag: u32) -> Notify {
        let word = self.0.load(Ordering::Relaxed);
        if word & (flag | SCHEDULED | DEAD) == flag | SCHEDULED {
            return Notify::NotNeeded;
        }
        self.set_and_schedule(word, flag)
    }

    /// Raises a flag that no lock guards. Always writes, which publishes the caller's earlier writes.
    pub(crate) fn raise_always(&self, flag: u32) -> Notify {
        self.set_and_schedule(self.0.load(Ordering::Relaxed), flag)
    }

    /// Sets `flag` and, if that makes an unscheduled cell runnable, acquires the run permit.
    fn set_and_schedule(&self, mut word: u32, flag: u32) -> Notify {
        loop {
            if word & DEAD != 0 {
                return Notify::Dead;
            }
            let mut next = word | flag;
            let schedule = word & SCHEDULED == 0 && runnable(next);
            if schedule {
                next |= SCHEDULED;
            }
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if schedule => return Notify::Schedule,
                Ok(_) => return Notify::NotNeeded,
                Err(seen) => word = seen,
            }
        }
    }

    /// Raises `WOKEN` and transfers the waker's counted reference to the cell.
    ///
    /// The second value is `false` if the cell already owns such a reference or is dead; the caller then keeps
    /// its reference.
    #[cfg(any(feature = "std", loom))]
    #[inline]
    pub(crate) fn wake_and_transfer_ref(&self) -> (Notify, bool) {
        let mut word = self.0.load(Ordering::Relaxed);
        loop {
            if word & DEAD != 0 {
                return (Notify::Dead, false);
            }
            let woken = word | WOKEN | WAKER_REF;
            let notify = if word & SCHEDULED == 0 { Notify::Schedule } else { Notify::NotNeeded };
            match self.0.compare_exchange_weak(word, woken | SCHEDULED, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return (notify, word & WAKER_REF == 0),
                Err(seen) => word = seen,
            }
        }
    }

    /// Clears flags and returns the previous word. Only the permit holder may call this.
    ///
    /// Clear a flag before checking its queue, or do both under the queue's lock; otherwise a message that
    /// arrives in between gets no wake-up.
    #[inline]
    pub(crate) fn lower(&self, flags: u32) -> u32 {
        self.0.fetch_and(!flags, Ordering::AcqRel)
    }

    /// Sets flags without scheduling. Only the permit holder may call this.
    #[inline]
    pub(crate) fn set(&self, flags: u32) {
        self.0.fetch_or(flags, Ordering::AcqRel);
    }

    /// Ends a run: releases the run permit unless there is work left.
    ///
    /// Sets `flags` in the same transition, so that a cell that suspends or fails is never runnable in
    /// between. `SUSPENDED` is cleared unless `flags` contains it. A producer waiting for capacity counts as
    /// work.
    #[inline]
    pub(crate) fn release(&self, flags: u32) -> ReleaseOutcome {
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let updated = (word & !SUSPENDED) | flags;
            let has_work = runnable(updated) || updated & WAITERS != 0;
            let (next, outcome) = if has_work {
                (updated, ReleaseOutcome::Kept)
            } else {
                (updated & !SCHEDULED, ReleaseOutcome::Released)
            };
            if next == word {
                return outcome;
            }
            match self.0.compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return outcome,
                Err(seen) => word = seen,
            }
        }
    }

    /// Registers that a producer waits for capacity; returns whether the cell is scheduled.
    ///
    /// If it is, the permit holder sees the flag before it releases the permit. If not, no worker will check
    /// the queue, so the caller must check it once more.
    pub(crate) fn register_waiter(&self) -> bool {
        self.0.fetch_or(WAITERS, Ordering::AcqRel) & SCHEDULED != 0
    }

    /// Marks the cell dead and returns the previous flags.
    ///
    /// The run permit is never released: a dead cell is not scheduled again.
    pub(crate) fn mark_dead(&self) -> u32 {
        self.0.fetch_or(DEAD | CLOSED, Ordering::AcqRel)
    }

    /// Initialises the word of a vacant slot as scheduled. No other reference to the slot may exist.
    pub(crate) fn reset_as_scheduled(&self) {
        self.0.store(SCHEDULED, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
