//! Who runs next, and which worker is woken for it.
//!
//! A cell is registered by whoever was given its run right, so it is never registered twice and never
//! forgotten: what arrives while it runs is seen in the transition that ends the run.

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

/// A second worker is woken when this many cells wait behind a busy one.
///
/// Waking costs more than running a few short handlers. The clock looks after cells that wait behind a
/// long one.
const WAKE_AT: usize = 4;

/// The ready queue and those who serve it.
#[derive(Debug)]
pub(crate) struct ReadyQueueCoordinator {
    pub(crate) queues: ReadyQueues,
    pub(crate) idle: IdleWorkers,
}

impl ReadyQueueCoordinator {
    pub(crate) fn new(workers: NonZeroUsize, workers_max: NonZeroUsize) -> Self {
        Self { queues: ReadyQueues::new(workers, workers_max), idle: IdleWorkers::new() }
    }

    /// Queues a cell, from anywhere.
    #[cfg(feature = "std")]
    pub(crate) fn register_ready(&self, core: &Core, ready: RunPermit) {
        crate::raw::current::with(core, |local| match local {
            Some(local) => {
                if local.times_wait() {
                    record_ready(core, &ready);
                }
                if WAKE_AT <= self.queues.push_lifo(&local.queue, ready) {
                    self.wake_another(local);
                }
            }
            None => {
                if core.hub.samples_outside() {
                    record_ready(core, &ready);
                }
                self.queues.inject(ready);
                self.wake_one(core);
            }
        });
    }

    /// Queues a cell, from anywhere, an interrupt handler included.
    #[cfg(not(feature = "std"))]
    pub(crate) fn register_ready(&self, core: &Core, ready: RunPermit) {
        if core.hub.samples_outside() {
            record_ready(core, &ready);
        }
        self.queues.inject(ready);
        self.wake_one(core);
    }

    /// Wakes a worker from outside, and the clock, to look after what it may get stuck in.
    ///
    /// Here and not by the worker, whose thread might keep the clock to itself while a handler runs.
    fn wake_one(&self, core: &Core) {
        if self.idle.notify() {
            core.clock.wake_if_sleeping();
        }
    }

    /// Takes up to `batch_max` cells that this worker should run.
    ///
    /// What is taken can no longer be stolen, so more than one at a time pays only for short handlers.
    pub(crate) fn drain_ready_cycle(&self, local: &WorkerLocal, batch_max: usize, out: &mut Vec<RunPermit>) {
        while out.len() < batch_max
            && let Some(ready) = self.queues.next(&local.queue)
        {
            out.push(ready);
        }
    }

    /// Sleeps until there is something to run, or nothing will be; ready at once when it is so.
    pub(crate) fn poll_wait_signal(&self, local: &WorkerLocal, cx: &mut Context<'_>) -> Poll<()> {
        self.idle.poll_sleep(local.id, cx.waker(), || {
            self.queues.has_work() || local.core().is_finished() || !self.is_wanted(local)
        })
    }

    /// Whether a worker should stay; one that should not hands its cells over and leaves.
    #[inline]
    pub(crate) fn is_wanted(&self, local: &WorkerLocal) -> bool {
        self.queues.crew.is_wanted(local.id)
    }

    /// Runs a cell, and puts it back if its run right was kept.
    #[inline]
    pub(crate) fn run(&self, local: &WorkerLocal, ready: RunPermit) {
        let (result, kept) = ready.run(local);
        self.handle_invoke_result(local, result, kept);
    }

    /// Puts a cell back whose run right was kept.
    pub(crate) fn handle_invoke_result(
        &self,
        local: &WorkerLocal,
        result: InvokeKind,
        kept: Option<RunPermit>,
    ) {
        let Some(ready) = kept else { return };
        if result == InvokeKind::Yielded {
            local.counters().yields.add(1);
        }
        if WAKE_AT <= self.queues.requeue(&local.queue, ready) {
            self.wake_another(local);
        }
    }

    fn wake_another(&self, local: &WorkerLocal) {
        if self.idle.notify() {
            local.record_wake();
        }
    }

    /// Takes a worker off those who search, with something found.
    pub(crate) fn end_search(&self, local: &WorkerLocal) {
        if self.idle.end_search_if(|| self.queues.has_work()) {
            local.record_wake();
        }
    }

    /// Counts the workers that do not sleep.
    pub(crate) fn working(&self) -> usize {
        self.queues.crew.wanted().saturating_sub(self.idle.sleeping())
    }

    /// Counts the cells whose turn has come.
    pub(crate) fn depth(&self) -> usize {
        self.queues.depth()
    }
}

/// Notes when a cell was scheduled; for one in [`SAMPLED`](crate::observe::SAMPLED).
#[cold]
fn record_ready(core: &Core, ready: &RunPermit) {
    ready.cell().head().ready_us.store(coarse_us(core.now()), Ordering::Relaxed);
}

#[cfg(all(test, feature = "std"))]
mod tests;
