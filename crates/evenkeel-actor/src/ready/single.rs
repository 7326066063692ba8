//! A single ready queue for one worker, without `std`.

use alloc::collections::VecDeque;
use core::num::NonZeroUsize;

use crate::raw::run_permit::RunPermit;
use crate::sync::Lock;
use crate::worker_slots::WorkerSlots;

/// The ready queue of the only worker.
#[derive(Debug)]
pub(crate) struct ReadyQueues {
    queue: Lock<VecDeque<RunPermit>>,
    pub(crate) crew: WorkerSlots<LocalQueue>,
}

/// The only worker's claim on the queue.
#[derive(Debug)]
pub(crate) struct LocalQueue;

impl ReadyQueues {
    pub(crate) fn new(workers: NonZeroUsize, _workers_max: NonZeroUsize) -> Self {
        Self { queue: Lock::new(VecDeque::new()), crew: WorkerSlots::new([LocalQueue], workers) }
    }

    pub(crate) fn claim(&self, worker: usize) -> Option<LocalQueue> {
        self.crew.take(worker)
    }

    pub(crate) fn inject(&self, ready: RunPermit) {
        self.queue.with(|queue| queue.push_back(ready));
    }

    pub(crate) fn requeue(&self, _local: &LocalQueue, ready: RunPermit) -> usize {
        self.inject(ready);
        0
    }

    pub(crate) fn next(&self, _local: &LocalQueue) -> Option<RunPermit> {
        self.queue.with(VecDeque::pop_front)
    }

    pub(crate) fn steal(&self, _local: &LocalQueue) -> Option<RunPermit> {
        None
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.with(|queue| queue.is_empty())
    }

    pub(crate) fn depth(&self) -> usize {
        self.queue.with(|queue| queue.len())
    }

    pub(crate) fn leave(&self, _local: &mut LocalQueue) {
        self.crew.give_back(0, LocalQueue);
    }
}
