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
    pub(crate) worker_slots: WorkerSlots<LocalQueue>,
}

/// The only worker's claim on the queue.
#[derive(Debug)]
pub(crate) struct LocalQueue;

impl ReadyQueues {
    pub(crate) fn new(workers: NonZeroUsize, _workers_max: NonZeroUsize) -> Self {
        Self { queue: Lock::new(VecDeque::new()), worker_slots: WorkerSlots::new([LocalQueue], workers) }
    }

    pub(crate) fn claim(&self, worker: usize) -> Option<LocalQueue> {
        self.worker_slots.claim(worker)
    }

    pub(crate) fn inject(&self, permit: RunPermit) {
        self.queue.with(|queue| queue.push_back(permit));
    }

    pub(crate) fn requeue(&self, _local: &LocalQueue, permit: RunPermit) -> usize {
        self.inject(permit);
        0
    }

    pub(crate) fn requeue_yielded(&self, local: &LocalQueue, permit: RunPermit) -> usize {
        self.requeue(local, permit)
    }

    pub(crate) fn next(&self, _local: &LocalQueue) -> Option<RunPermit> {
        self.queue.with(VecDeque::pop_front)
    }

    pub(crate) fn steal(&self, _local: &LocalQueue) -> Option<RunPermit> {
        None
    }

    pub(crate) fn has_next(&self, _local: &LocalQueue) -> bool {
        self.has_work()
    }

    /// Reports that no asked cell is preferred: there is one queue, in the order of arrival.
    pub(crate) fn has_asked(&self) -> bool {
        false
    }

    pub(crate) fn has_work(&self) -> bool {
        !self.queue.with(|queue| queue.is_empty())
    }

    pub(crate) fn depth(&self) -> usize {
        self.queue.with(|queue| queue.len())
    }

    pub(crate) fn release_worker(&self, _local: &mut LocalQueue) {
        self.worker_slots.release(0, LocalQueue);
    }
}
