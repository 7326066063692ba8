//! Ready queue coordinator: decides which cell runs next and which worker is woken for it.
//!
//! Only the holder of a cell's run permit queues it, so a cell is never queued twice. No wake-up is lost: work that
//! arrives while a cell runs is found when the run permit is released.

use alloc::vec::Vec;
use core::num::NonZeroUsize;
use core::task::{Context, Poll};

use crate::idle_workers::IdleWorkers;
use crate::invoke::InvokeKind;
use crate::raw::run_permit::RunPermit;
use crate::ready::ReadyQueues;
use crate::sync::Ordering;
use crate::system::Core;
use crate::timer_driver::coarse_us;
use crate::worker_local::WorkerLocal;

/// Length of a busy worker's queue at which another worker is woken.
///
/// Waking a worker costs more than running a few short handlers. If fewer cells wait behind a long handler, the timer
/// driver moves them to another worker.
const WAKE_QUEUE_LEN: usize = 4;

/// Urgency of a cell that is queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    Normal,
    /// The sender waits for the reply.
    Awaited,
}

/// The ready queues and the workers that serve them.
#[derive(Debug)]
pub(crate) struct ReadyQueueCoordinator {
    pub(crate) queues: ReadyQueues,
    pub(crate) idle: IdleWorkers,
}

impl ReadyQueueCoordinator {
    pub(crate) fn new(workers: NonZeroUsize, workers_max: NonZeroUsize) -> Self {
        Self { queues: ReadyQueues::new(workers, workers_max), idle: IdleWorkers::new() }
    }

    /// Queues a cell; callable from any thread.
    #[cfg(feature = "std")]
    pub(crate) fn register_ready(&self, core: &Core, permit: RunPermit, urgency: Urgency) {
        crate::raw::current::with(core, |local| match local {
            Some(local) => {
                if local.should_sample_wait() {
                    record_ready(core, &permit);
                }
                if self.queues.push_lifo(&local.queue, permit) >= WAKE_QUEUE_LEN {
                    self.wake_from_worker(local);
                }
            }
            None => {
                if core.hub.should_sample_wait() {
                    record_ready(core, &permit);
                }
                match urgency {
                    Urgency::Awaited => self.queues.inject_asked(permit),
                    Urgency::Normal => self.queues.inject(permit),
                }
                self.wake_from_outside(core, urgency);
            }
        });
    }

    /// Queues a cell; callable from any context, including an interrupt handler.
    #[cfg(not(feature = "std"))]
    pub(crate) fn register_ready(&self, core: &Core, permit: RunPermit, urgency: Urgency) {
        if core.hub.should_sample_wait() {
            record_ready(core, &permit);
        }
        self.queues.inject(permit);
        self.wake_from_outside(core, urgency);
    }

    /// Wakes a worker for a cell queued from outside, and, if one was woken, the timer driver, which watches for a
    /// worker stuck in a handler.
    ///
    /// The woken worker must not wake the driver itself: the host could schedule the driver on that worker's thread,
    /// where it would have to wait until the handler returns.
    fn wake_from_outside(&self, core: &Core, urgency: Urgency) {
        let woken = match urgency {
            // A worker that has been woken may wait long for its thread. A host polls the task that it woke last as soon as the
            // waking one waits, so a worker that is woken by an asking task of the host runs at once.
            Urgency::Awaited if core.runtime.is_host_task() => self.idle.notify_another(),
            Urgency::Awaited | Urgency::Normal => self.idle.notify(),
        };
        if woken {
            core.timer_driver.wake_if_sleeping();
        }
    }

    /// Takes up to `batch_max` cells for this worker to run.
    ///
    /// Cells in a batch can no longer be stolen, so batches above one pay off only for short handlers.
    pub(crate) fn drain_ready_cycle(&self, local: &WorkerLocal, batch_max: usize, out: &mut Vec<RunPermit>) {
        while out.len() < batch_max
            && let Some(permit) = self.queues.next(&local.queue)
        {
            out.push(permit);
        }
    }

    /// Parks the worker until there is work or it should exit; ready at once if either is already the case.
    pub(crate) fn poll_wait_signal(&self, local: &WorkerLocal, cx: &mut Context<'_>) -> Poll<()> {
        self.idle.poll_park(local.id, cx.waker(), || {
            self.queues.has_work() || local.core().is_finished() || !self.is_wanted(local)
        })
    }

    /// Reports whether a worker should keep running; otherwise it hands its cells over and exits.
    #[inline]
    pub(crate) fn is_wanted(&self, local: &WorkerLocal) -> bool {
        self.queues.worker_slots.is_wanted(local.id)
    }

    /// Runs a cell, and queues it again if it has more work and so still holds its run permit.
    #[inline]
    pub(crate) fn run_and_requeue(&self, local: &WorkerLocal, permit: RunPermit) {
        let (kind, kept) = permit.run_cell(local);
        self.handle_invoke_result(local, kind, kept);
    }

    /// Queues a cell again if it has more work and so still holds its run permit.
    pub(crate) fn handle_invoke_result(
        &self,
        local: &WorkerLocal,
        kind: InvokeKind,
        kept: Option<RunPermit>,
    ) {
        let Some(permit) = kept else { return };
        let queued = if kind == InvokeKind::Yielded {
            local.counters().yields.add(1);
            self.queues.requeue_yielded(&local.queue, permit)
        } else {
            self.queues.requeue(&local.queue, permit)
        };
        if queued >= WAKE_QUEUE_LEN {
            self.wake_from_worker(local);
        }
    }

    fn wake_from_worker(&self, local: &WorkerLocal) {
        if self.idle.notify() {
            local.record_wake();
        }
    }

    /// Ends the search of a worker that found work, and wakes another worker if more work is queued.
    pub(crate) fn end_search(&self, local: &WorkerLocal) {
        if self.idle.end_search_and_notify_if(|| self.queues.has_work()) {
            local.record_wake();
        }
    }

    /// Returns the approximate number of workers that are not parked.
    pub(crate) fn active_workers(&self) -> usize {
        self.queues.worker_slots.wanted().saturating_sub(self.idle.parked_count())
    }

    /// Counts the queued cells.
    pub(crate) fn depth(&self) -> usize {
        self.queues.depth()
    }
}

/// Records when a cell became ready; called for one in every
/// [`SAMPLE_INTERVAL`](crate::system_metrics::SAMPLE_INTERVAL) cells.
#[cold]
fn record_ready(core: &Core, permit: &RunPermit) {
    permit.cell().header().ready_us.store(coarse_us(core.now()), Ordering::Relaxed);
}

#[cfg(all(test, feature = "std"))]
mod tests;
