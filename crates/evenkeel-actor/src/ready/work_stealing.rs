//! Work stealing: a deque and a LIFO slot per worker, an injection queue for cells scheduled from outside,
//! and stealing between workers.
//!
//! Limits: the LIFO slot is served at most [`LIFO_RUNS_MAX`] times in a row before the worker's deque, and
//! the injection queue is checked every [`INJECTION_INTERVAL`] runs, so that no cell waits behind a pair of
//! cells that keep scheduling each other.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::num::NonZeroUsize;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use crate::raw::run_permit::{LifoSlot, RunPermit};
use crate::sync::{AtomicU32, Ordering};
use crate::worker_slots::WorkerSlots;

/// A cell that was just scheduled is likely in the cache, and its sender likely waits for it.
const LIFO_RUNS_MAX: u32 = 3;
const INJECTED_EVERY: u32 = 61;

/// The queues of all workers.
pub(crate) struct ReadyQueues {
    injector: Injector<RunPermit>,
    /// One per possible worker.
    seats: Box<[Remote]>,
    pub(crate) crew: WorkerSlots<Worker<RunPermit>>,
}

/// The part of a worker's queue that other workers access.
#[repr(align(64))]
struct Remote {
    stealer: Stealer<RunPermit>,
    newest: LifoSlot,
    /// Counts the worker's turns; a counter that does not move while cells are queued means a stuck handler.
    turns: AtomicU32,
}

/// The part of a worker's queue that only the worker accesses.
pub(crate) struct LocalQueue {
    worker: usize,
    deque: Worker<RunPermit>,
    in_a_row: Cell<u32>,
    turn: Cell<u32>,
}

impl LocalQueue {
    /// Reports whether the LIFO slot may be served before the deque; counts it as served if so.
    #[inline]
    fn may_go_first(&self) -> bool {
        let may = self.in_a_row.get() < LIFO_RUNS_MAX || self.deque.is_empty();
        if may {
            self.in_a_row.set(self.in_a_row.get().saturating_add(1));
        }
        may
    }
}

impl ReadyQueues {
    pub(crate) fn new(workers: NonZeroUsize, workers_max: NonZeroUsize) -> Self {
        let deques: Vec<_> = (0..workers_max.get()).map(|_| Worker::new_fifo()).collect();
        let seats = deques.iter().map(|deque| Remote {
            stealer: deque.stealer(),
            newest: LifoSlot::default(),
            turns: AtomicU32::new(0),
        });
        let seats = seats.collect();
        Self { injector: Injector::new(), seats, crew: WorkerSlots::new(deques, workers) }
    }

    /// Claims a worker's queue; `None` if there is none or another worker has it.
    pub(crate) fn claim(&self, worker: usize) -> Option<LocalQueue> {
        let deque = self.crew.take(worker)?;
        Some(LocalQueue { worker, deque, in_a_row: Cell::new(0), turn: Cell::new(0) })
    }

    /// Queues a cell from outside all workers.
    pub(crate) fn inject(&self, ready: RunPermit) {
        self.injector.push(ready);
    }

    /// Puts a cell into this worker's LIFO slot; returns the length of its deque.
    #[inline]
    pub(crate) fn push_lifo(&self, local: &LocalQueue, ready: RunPermit) -> usize {
        match self.seats[local.worker].newest.replace(ready) {
            Some(older) => self.requeue(local, older),
            None => 0,
        }
    }

    /// Queues a cell at the end of this worker's deque; returns the deque's length.
    pub(crate) fn requeue(&self, local: &LocalQueue, ready: RunPermit) -> usize {
        local.deque.push(ready);
        local.deque.len()
    }

    /// Takes the cell that this worker should run next.
    pub(crate) fn next(&self, local: &LocalQueue) -> Option<RunPermit> {
        let seat = &self.seats[local.worker];
        let turn = local.turn.get().wrapping_add(1);
        local.turn.set(turn);
        seat.turns.store(turn, Ordering::Relaxed);
        if turn.is_multiple_of(INJECTED_EVERY)
            && let Some(ready) = insist(|| self.injector.steal())
        {
            return Some(ready);
        }
        if let Some(ready) = seat.newest.take() {
            if local.may_go_first() {
                return Some(ready);
            }
            local.deque.push(ready);
        }
        local.in_a_row.set(0);
        local.deque.pop().or_else(|| insist(|| self.injector.steal_batch_and_pop(&local.deque)))
    }

    /// Takes the cell in the LIFO slot, if it would be the next one anyway.
    #[inline]
    pub(crate) fn take_lifo(&self, local: &LocalQueue) -> Option<RunPermit> {
        let turn = local.turn.get().wrapping_add(1);
        if turn.is_multiple_of(INJECTED_EVERY) || !local.may_go_first() {
            return None;
        }
        let seat = &self.seats[local.worker];
        local.turn.set(turn);
        seat.turns.store(turn, Ordering::Relaxed);
        seat.newest.take()
    }

    /// Steals half of another worker's deque.
    pub(crate) fn steal(&self, local: &LocalQueue) -> Option<RunPermit> {
        let seats = self.taken();
        let mut others = (1..seats.len()).map(|step| &seats[(local.worker + step) % seats.len()]);
        others
            .find_map(|seat| insist(|| seat.stealer.steal_batch_and_pop(&local.deque)))
            .or_else(|| insist(|| self.injector.steal_batch_and_pop(&local.deque)))
    }

    /// Frees the LIFO slots of workers that are stuck in one turn since `before` was recorded.
    ///
    /// Returns whether there are cells for another worker to take.
    pub(crate) fn steal_from_stuck(&self, before: &mut [u32]) -> bool {
        let mut waiting = false;
        for (seat, before) in self.taken().iter().zip(before) {
            let turns = seat.turns.load(Ordering::Relaxed);
            if core::mem::replace(before, turns) != turns {
                continue;
            }
            waiting |= !seat.stealer.is_empty();
            if let Some(ready) = seat.newest.take() {
                self.inject(ready);
                waiting = true;
            }
        }
        waiting
    }

    /// Reports whether a worker about to park would find work.
    pub(crate) fn has_work(&self) -> bool {
        !self.injector.is_empty() || self.taken().iter().any(|seat| !seat.stealer.is_empty())
    }

    /// Counts the queued cells.
    pub(crate) fn depth(&self) -> usize {
        let local = self.taken().iter().map(|seat| seat.stealer.len() + usize::from(!seat.newest.is_empty()));
        self.injector.len() + local.sum::<usize>()
    }

    /// Returns the slots of the running workers, and of a few empty ones between them.
    fn taken(&self) -> &[Remote] {
        &self.seats[..self.crew.reach()]
    }

    /// Hands a worker's cells over to the others and releases its slot.
    pub(crate) fn leave(&self, local: &mut LocalQueue) {
        let newest = self.seats[local.worker].newest.take();
        newest
            .into_iter()
            .chain(core::iter::from_fn(|| local.deque.pop()))
            .for_each(|ready| self.inject(ready));
        self.crew.give_back(local.worker, core::mem::replace(&mut local.deque, Worker::new_fifo()));
    }
}

fn insist<T>(mut attempt: impl FnMut() -> Steal<T>) -> Option<T> {
    loop {
        match attempt() {
            Steal::Success(found) => return Some(found),
            Steal::Empty => return None,
            Steal::Retry => core::hint::spin_loop(),
        }
    }
}

impl fmt::Debug for ReadyQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadyQueues").field("depth", &self.depth()).finish_non_exhaustive()
    }
}
