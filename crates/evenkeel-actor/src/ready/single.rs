//! One worker, one queue: for machines with one core.

use alloc::collections::VecDeque;

use crate::raw::run::Ready;
use crate::sync::Lock;

/// The queue of the only worker.
#[derive(Debug)]
pub(crate) struct ReadyQueues(Lock<VecDeque<Ready>>);

/// The only worker's right to take from the queue.
#[derive(Debug)]
pub(crate) struct LocalQueue;

impl ReadyQueues {
    pub(crate) fn new(_workers: usize) -> Self {
        Self(Lock::new(VecDeque::new()))
    }

    pub(crate) fn seat(&self, _worker: usize) -> Option<LocalQueue> {
        Some(LocalQueue)
    }

    pub(crate) fn inject(&self, ready: Ready) {
        self.0.with(|queue| queue.push_back(ready));
    }

    pub(crate) fn requeue(&self, _local: &LocalQueue, ready: Ready) -> usize {
        self.inject(ready);
        0
    }

    pub(crate) fn next(&self, _local: &LocalQueue) -> Option<Ready> {
        self.0.with(VecDeque::pop_front)
    }

    pub(crate) fn steal(&self, _local: &LocalQueue) -> Option<Ready> {
        None
    }

    pub(crate) fn has_work(&self) -> bool {
        0 < self.depth()
    }

    pub(crate) fn depth(&self) -> usize {
        self.0.with(|queue| queue.len())
    }

    pub(crate) fn leave(&self, _local: &LocalQueue) {}
}
