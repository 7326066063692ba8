//! A queue per worker, a slot for the newest, one queue for everybody else's, and stealing.
//!
//! Bound: the newest cell runs next at most [`NEWEST_IN_A_ROW_MAX`] times before the worker's queue has
//! its turn, and the common queue is looked at every [`INJECTED_EVERY`] turns, so nothing waits behind a
//! pair of cells that keep each other busy.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::num::NonZeroUsize;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use crate::raw::run_permit::{LifoSlot, RunPermit};
use crate::sync::{AtomicU32, Ordering};
use crate::worker_slots::WorkerSlots;

/// A cell that was just told something is likely in the cache, and its sender likely waits for it.
const LIFO_RUNS_MAX: u32 = 3;
const INJECTED_EVERY: u32 = 61;

/// The queues of all workers.
pub(crate) struct ReadyQueues {
    injector: Injector<RunPermit>,
    /// One for each worker there may ever be.
    seats: Box<[Remote]>,
    pub(crate) crew: WorkerSlots<Worker<RunPermit>>,
}

/// What others see of a worker.
#[repr(align(64))]
struct Remote {
    stealer: Stealer<RunPermit>,
    newest: LifoSlot,
    /// Counts the worker's turns; one that stands still while something waits is stuck in a handler.
    turns: AtomicU32,
}

/// What only the worker touches.
pub(crate) struct LocalQueue {
    worker: usize,
    deque: Worker<RunPermit>,
    in_a_row: Cell<u32>,
    turn: Cell<u32>,
}

impl LocalQueue {
    /// Whether the newest cell may run before those that wait; counts it as run if so.
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

    /// Hands a worker its queue; `None` when there is none or another has it.
    pub(crate) fn claim(&self, worker: usize) -> Option<LocalQueue> {
        let deque = self.crew.take(worker)?;
        Some(LocalQueue { worker, deque, in_a_row: Cell::new(0), turn: Cell::new(0) })
    }

    /// Queues a cell from outside of all workers.
    pub(crate) fn inject(&self, ready: RunPermit) {
        self.injector.push(ready);
    }

    /// Queues a cell next on this worker; returns how many others wait here.
    #[inline]
    pub(crate) fn push_lifo(&self, local: &LocalQueue, ready: RunPermit) -> usize {
        match self.seats[local.worker].newest.replace(ready) {
            Some(older) => self.requeue(local, older),
            None => 0,
        }
    }

    /// Queues a cell behind the others of this worker; returns how many wait here.
    pub(crate) fn requeue(&self, local: &LocalQueue, ready: RunPermit) -> usize {
        local.deque.push(ready);
        local.deque.len()
    }

    /// Takes what this worker should run next.
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

    /// Takes the newest cell, if it would be the next anyway.
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

    /// Takes half of what another worker has.
    pub(crate) fn steal(&self, local: &LocalQueue) -> Option<RunPermit> {
        let seats = self.taken();
        let mut others = (1..seats.len()).map(|step| &seats[(local.worker + step) % seats.len()]);
        others
            .find_map(|seat| insist(|| seat.stealer.steal_batch_and_pop(&local.deque)))
            .or_else(|| insist(|| self.injector.steal_batch_and_pop(&local.deque)))
    }

    /// Frees what waits behind workers that have been in one turn since `before` was noted.
    ///
    /// Returns whether somebody should come for it.
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

    /// Whether a worker that is about to sleep would find something.
    pub(crate) fn has_work(&self) -> bool {
        !self.injector.is_empty() || self.taken().iter().any(|seat| !seat.stealer.is_empty())
    }

    /// Counts what waits.
    pub(crate) fn depth(&self) -> usize {
        let local = self.taken().iter().map(|seat| seat.stealer.len() + usize::from(!seat.newest.is_empty()));
        self.injector.len() + local.sum::<usize>()
    }

    /// The seats that something may wait in, and a few empty ones between them.
    fn taken(&self) -> &[Remote] {
        &self.seats[..self.crew.reach()]
    }

    /// Leaves a worker's cells to the others, and its seat to the next.
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
