//! Work stealing: a deque and a LIFO slot per worker, an injection queue for cells scheduled from outside, another for cells
//! that were asked from outside, and stealing between workers.
//!
//! Limits: while cells wait in the worker's deque, the LIFO slot is served at most [`LIFO_RUNS_MAX`] times in a
//! row, and the injection queue is checked every [`INJECTION_INTERVAL`] turns, so that no cell waits behind a pair
//! of cells that keep scheduling each other. The queue of asked cells is served first, but never twice in a row. After a cell of the worker has
//! yielded, the injection queue is served before the worker's own cells, again never twice in a row.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::cell::Cell;
use core::fmt;
use core::num::NonZeroUsize;

use crossbeam_deque::{Injector, Steal, Stealer, Worker};

use super::WorkerTurns;
use crate::raw::run_permit::{LifoSlot, RunPermit};
use crate::sync::{AtomicU32, Ordering};
use crate::worker_slots::WorkerSlots;

/// Maximum number of runs in a row from the LIFO slot while cells wait in the worker's deque.
///
/// The slot is served first because a cell that was just scheduled is likely in the cache, and its sender likely waits
/// for it.
const LIFO_RUNS_MAX: u32 = 3;
const INJECTION_INTERVAL: u32 = 61;

/// The queues of all workers.
pub(crate) struct ReadyQueues {
    injector: Injector<RunPermit>,
    /// Cells whose reply a task or thread outside the workers awaits.
    asked: Injector<RunPermit>,
    /// One per possible worker.
    remotes: Box<[Remote]>,
    pub(crate) worker_slots: WorkerSlots<Worker<RunPermit>>,
}

/// The part of a worker's queue that other workers access.
#[repr(align(64))]
struct Remote {
    stealer: Stealer<RunPermit>,
    lifo_slot: LifoSlot,
    /// Number of times the worker looked for a cell; if it stays the same while cells are queued, a handler is stuck.
    turns: AtomicU32,
}

/// The part of a worker's queue that only the worker accesses.
pub(crate) struct LocalQueue {
    worker: usize,
    deque: Worker<RunPermit>,
    lifo_runs: Cell<u32>,
    turn: Cell<u32>,
    /// Set when a cell yielded: the next cell comes from the injection queue, if there is one, unless the last one did.
    injected_first: Cell<bool>,
    /// The last cell came from the injection queue before this worker's own cells.
    injected_last: Cell<bool>,
    /// The last cell came from the queue of asked cells.
    asked_last: Cell<bool>,
}

impl LocalQueue {
    /// Reports whether the LIFO slot may be served before the deque, and counts the run if so.
    #[inline]
    fn try_count_lifo_run(&self) -> bool {
        let may = self.lifo_runs.get() < LIFO_RUNS_MAX || self.deque.is_empty();
        if may {
            self.lifo_runs.set(self.lifo_runs.get().saturating_add(1));
        }
        may
    }
}

impl ReadyQueues {
    pub(crate) fn new(workers: NonZeroUsize, workers_max: NonZeroUsize) -> Self {
        let deques: Vec<_> = (0..workers_max.get()).map(|_| Worker::new_fifo()).collect();
        let remotes = deques.iter().map(|deque| Remote {
            stealer: deque.stealer(),
            lifo_slot: LifoSlot::new(),
            turns: AtomicU32::new(0),
        });
        let remotes = remotes.collect();
        let worker_slots = WorkerSlots::new(deques, workers);
        Self { injector: Injector::new(), asked: Injector::new(), remotes, worker_slots }
    }

    /// Claims a worker's queue; `None` if there is none or another worker has it.
    pub(crate) fn claim(&self, worker: usize) -> Option<LocalQueue> {
        let deque = self.worker_slots.claim(worker)?;
        Some(LocalQueue {
            worker,
            deque,
            lifo_runs: Cell::new(0),
            turn: Cell::new(0),
            injected_first: Cell::new(false),
            injected_last: Cell::new(false),
            asked_last: Cell::new(false),
        })
    }

    /// Appends a cell to the injection queue; callable from any thread.
    pub(crate) fn inject(&self, permit: RunPermit) {
        self.injector.push(permit);
    }

    /// Appends a cell to the queue of asked cells; callable from any thread.
    pub(crate) fn inject_asked(&self, permit: RunPermit) {
        self.asked.push(permit);
    }

    /// Puts a cell into this worker's LIFO slot and moves the cell that was there to the deque; returns the length of
    /// the deque, or 0 if the slot was empty.
    #[inline]
    pub(crate) fn push_lifo(&self, local: &LocalQueue, permit: RunPermit) -> usize {
        match self.remotes[local.worker].lifo_slot.replace(permit) {
            Some(older) => self.requeue(local, older),
            None => 0,
        }
    }

    /// Queues a cell at the end of this worker's deque; returns the deque's length.
    pub(crate) fn requeue(&self, local: &LocalQueue, permit: RunPermit) -> usize {
        local.deque.push(permit);
        local.deque.len()
    }

    /// Queues a cell that yielded, at the end; the injection queue is then served before this worker's own cells.
    ///
    /// Returns the deque's length.
    pub(crate) fn requeue_yielded(&self, local: &LocalQueue, permit: RunPermit) -> usize {
        local.injected_first.set(true);
        self.requeue(local, permit)
    }

    /// Takes the cell that this worker should run next.
    pub(crate) fn next(&self, local: &LocalQueue) -> Option<RunPermit> {
        let remote = &self.remotes[local.worker];
        let turn = local.turn.get().wrapping_add(1);
        local.turn.set(turn);
        remote.turns.store(turn, Ordering::Relaxed);
        if !local.asked_last.replace(false)
            && let Some(permit) = self.take_asked()
        {
            local.asked_last.set(true);
            return Some(permit);
        }
        let injected_last = local.injected_last.replace(false);
        let injected_first = local.injected_first.replace(false) && !injected_last;
        if (injected_first || turn.is_multiple_of(INJECTION_INTERVAL))
            && !self.injector.is_empty()
            && let Some(permit) = retry_steal(|| self.injector.steal())
        {
            local.injected_last.set(true);
            return Some(permit);
        }
        if let Some(permit) = remote.lifo_slot.take() {
            if local.try_count_lifo_run() {
                return Some(permit);
            }
            local.deque.push(permit);
        }
        local.lifo_runs.set(0);
        let queued =
            local.deque.pop().or_else(|| retry_steal(|| self.injector.steal_batch_and_pop(&local.deque)));
        queued.or_else(|| self.take_asked())
    }

    /// Reports whether a cell waits that was asked from outside all workers.
    #[inline]
    pub(crate) fn has_asked(&self) -> bool {
        !self.asked.is_empty()
    }

    #[inline]
    fn take_asked(&self) -> Option<RunPermit> {
        if self.asked.is_empty() { None } else { retry_steal(|| self.asked.steal()) }
    }

    /// Takes the cell in the LIFO slot, if it would be the next one anyway.
    #[inline]
    pub(crate) fn take_lifo(&self, local: &LocalQueue) -> Option<RunPermit> {
        let turn = local.turn.get().wrapping_add(1);
        if turn.is_multiple_of(INJECTION_INTERVAL) || !self.asked.is_empty() || !local.try_count_lifo_run() {
            return None;
        }
        let remote = &self.remotes[local.worker];
        local.turn.set(turn);
        remote.turns.store(turn, Ordering::Relaxed);
        remote.lifo_slot.take()
    }

    /// Steals about half of another worker's deque; if all are empty, takes a batch of injected cells or an asked one. Returns the
    /// first cell.
    ///
    /// Leaves LIFO slots alone; see [`steal_from_stuck`](Self::steal_from_stuck).
    pub(crate) fn steal(&self, local: &LocalQueue) -> Option<RunPermit> {
        let remotes = self.running();
        let mut others = (1..remotes.len()).map(|step| &remotes[(local.worker + step) % remotes.len()]);
        others
            .find_map(|remote| retry_steal(|| remote.stealer.steal_batch_and_pop(&local.deque)))
            .or_else(|| retry_steal(|| self.injector.steal_batch_and_pop(&local.deque)))
            .or_else(|| self.take_asked())
    }

    /// Moves cells out of the LIFO slots of workers that have not looked for a cell since the last check.
    ///
    /// Returns whether there are cells for another worker to take: those of a stuck worker and, if no worker has looked for
    /// a cell, injected ones. A worker that was woken for these may be waiting for its thread.
    pub(crate) fn steal_from_stuck(&self, last: &mut WorkerTurns) -> bool {
        let mut waiting = false;
        last.have_changed = false;
        for (remote, before) in self.running().iter().zip(&mut last.counts) {
            let turns = remote.turns.load(Ordering::Relaxed);
            if core::mem::replace(before, turns) != turns {
                last.have_changed = true;
                continue;
            }
            waiting |= !remote.stealer.is_empty();
            if let Some(permit) = remote.lifo_slot.take() {
                self.inject(permit);
                waiting = true;
            }
        }
        waiting || (!last.have_changed && self.has_injected())
    }

    /// Reports whether this worker has a next cell: in its LIFO slot, in any deque, or injected.
    pub(crate) fn has_next(&self, local: &LocalQueue) -> bool {
        !self.remotes[local.worker].lifo_slot.is_empty() || self.has_work()
    }

    /// Reports whether cells are queued where any worker may take them; LIFO slots do not count.
    pub(crate) fn has_work(&self) -> bool {
        self.has_injected() || self.running().iter().any(|remote| !remote.stealer.is_empty())
    }

    fn has_injected(&self) -> bool {
        !self.injector.is_empty() || !self.asked.is_empty()
    }

    /// Counts the queued cells.
    pub(crate) fn depth(&self) -> usize {
        let local = self
            .running()
            .iter()
            .map(|remote| remote.stealer.len() + usize::from(!remote.lifo_slot.is_empty()));
        self.injector.len() + self.asked.len() + local.sum::<usize>()
    }

    /// Returns the shared parts of all slots up to the last running worker; slots in between may be empty.
    fn running(&self) -> &[Remote] {
        &self.remotes[..self.worker_slots.running_end()]
    }

    /// Hands a worker's cells over to the others and releases its slot.
    pub(crate) fn release_worker(&self, local: &mut LocalQueue) {
        let lifo_slot = self.remotes[local.worker].lifo_slot.take();
        lifo_slot
            .into_iter()
            .chain(core::iter::from_fn(|| local.deque.pop()))
            .for_each(|permit| self.inject(permit));
        self.worker_slots.release(local.worker, core::mem::replace(&mut local.deque, Worker::new_fifo()));
    }
}

fn retry_steal<T>(mut attempt: impl FnMut() -> Steal<T>) -> Option<T> {
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
