//! Ready queue coordinator: decides which cell runs next and which worker is woken for it.
//!
//! A cell is registered by the caller that acquired its run permit, so it is never registered twice. No wake-up
//! is lost: work that arrives while the cell runs is seen in the transition that ends the run.

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

/// A second worker is woken when this many cells are queued behind a busy one.
///
/// Waking costs more than running a few short handlers. The timer driver watches for cells queued behind a
/// long handler.
const WAKE_AT: usize = 4;

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
    pub(crate) fn register_ready(&self, core: &Core, permit: RunPermit) {
        crate::raw::current::with(core, |local| match local {
            Some(local) => {
                if local.should_time_wait() {
                    record_ready(core, &permit);
                }
                if self.queues.push_lifo(&local.queue, permit) >= WAKE_AT {
                    self.wake_another(local);
                }
            }
            None => {
                if core.hub.samples_outside() {
                    record_ready(core, &permit);
                }
                self.queues.inject(permit);
                self.wake_one(core);
            }
        });
    }

    /// Queues a cell; callable from any context, including an interrupt handler.
    #[cfg(not(feature = "std"))]
    pub(crate) fn register_ready(&self, core: &Core, permit: RunPermit) {
        if core.hub.samples_outside() {
            record_ready(core, &permit);
        }
        self.queues.inject(permit);
        self.wake_one(core);
    }

    /// Wakes a worker for a cell queued from outside, and the timer driver, which watches for a worker stuck
    /// in a handler.
    ///
    /// The worker does not wake the driver, because the driver's task could be delayed on the worker's thread until
    /// a handler returns.
    fn wake_one(&self, core: &Core) {
        if self.idle.notify() {
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

    /// Runs a cell, and queues it again if its run permit was kept.
    #[inline]
    pub(crate) fn run_and_requeue(&self, local: &WorkerLocal, permit: RunPermit) {
        let (result, kept) = permit.run_cell(local);
        self.handle_invoke_result(local, result, kept);
    }

    /// Queues a cell again if its run permit was kept.
    pub(crate) fn handle_invoke_result(
        &self,
        local: &WorkerLocal,
        result: InvokeKind,
        kept: Option<RunPermit>,
    ) {
        let Some(permit) = kept else { return };
        if result == InvokeKind::Yielded {
            local.counters().yields.add(1);
        }
        if self.queues.requeue(&local.queue, permit) >= WAKE_AT {
            self.wake_another(local);
        }
    }

    fn wake_another(&self, local: &WorkerLocal) {
        if self.idle.notify() {
            local.record_wake();
        }
    }

    /// Ends a worker's search for work, after it found some.
    pub(crate) fn end_search(&self, local: &WorkerLocal) {
        if self.idle.end_search_and_notify_if(|| self.queues.has_work()) {
            local.record_wake();
        }
    }

    /// Counts the workers that are not parked.
    pub(crate) fn working(&self) -> usize {
        self.queues.worker_slots.wanted().saturating_sub(self.idle.parked_count())
    }

    /// Counts the queued cells.
    pub(crate) fn depth(&self) -> usize {
        self.queues.depth()
    }
}

/// Records when a cell was scheduled; called for one in [`SAMPLED`](crate::system_metrics::SAMPLED) cells.
#[cold]
fn record_ready(core: &Core, permit: &RunPermit) {
    permit.cell().header().ready_us.store(coarse_us(core.now()), Ordering::Relaxed);
}

#[cfg(all(test, feature = "std"))]
mod tests;
