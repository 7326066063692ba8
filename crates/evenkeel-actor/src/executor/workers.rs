//! Number of workers, which can change while the system runs.

use alloc::boxed::Box;
use core::future::Future;
use core::num::NonZeroUsize;

use super::slice::{SliceEnd, Worker};
use super::{HostTask, HostTaskKind, Lifecycle, WorkerExecutor};
use crate::runtime::{RuntimeSpawnError, wait_with};
use crate::sync::Arc;
use crate::system::Core;

impl WorkerExecutor {
    pub(crate) fn set_workers(&self, workers: NonZeroUsize) -> Result<(), SetWorkersError> {
        set_workers(self.core(), workers)
    }
}

/// Changes the number of workers: starts missing ones and wakes those that should exit.
pub(crate) fn set_workers(core: &Arc<Core>, workers: NonZeroUsize) -> Result<(), SetWorkersError> {
    let workers_max = core.config.workers_max;
    if workers > workers_max {
        return Err(SetWorkersError::TooMany { workers, workers_max });
    }
    if core.lifecycle() != Lifecycle::Running {
        return Err(SetWorkersError::Stopping);
    }
    core.coordinator.queues.worker_slots.set_target(workers);
    core.coordinator.idle.notify_from(workers.get());
    let filled = fill_worker_slots(core).map_err(|shortfall| {
        core.coordinator.queues.worker_slots.lower_target(shortfall.reached, workers);
        core.coordinator.idle.notify_from(shortfall.reached.get());
        SetWorkersError::SpawnFailed { reached: shortfall.reached, source: shortfall.error }
    });
    // A second worker can steal from a stuck one, so the timer driver must start to watch for stuck workers.
    core.timer_driver.wake_if_sleeping();
    // If the caller is in a handler, the last worker task it started may sit in this thread's LIFO slot.
    core.runtime.nudge();
    filled
}

/// Error when the runtime started fewer workers than requested.
#[derive(Debug)]
pub(super) struct SpawnShortfall {
    reached: NonZeroUsize,
    pub(super) error: RuntimeSpawnError,
}

/// Starts a worker in each empty slot below the target.
pub(super) fn fill_worker_slots(core: &Arc<Core>) -> Result<(), SpawnShortfall> {
    let worker_slots = &core.coordinator.queues.worker_slots;
    while let Some(slot) = worker_slots.next_to_fill() {
        if let Err(error) = core.runtime.spawn(Box::pin(run_slot(core.clone(), slot))) {
            if let Some(queue) = worker_slots.claim(slot) {
                worker_slots.release(slot, queue);
            }
            // The first slot always has a worker, because a system does not start without one.
            let reached = NonZeroUsize::new(slot).unwrap_or(NonZeroUsize::MIN);
            return Err(SpawnShortfall { reached, error });
        }
    }
    Ok(())
}

/// Runs the worker of one slot for as long as it is wanted.
///
/// A worker that is wanted again while it exits claims its slot back, unless another has.
fn run_slot(core: Arc<Core>, slot: usize) -> impl Future<Output = ()> {
    let task = HostTask::new(core, HostTaskKind::Worker);
    async move {
        let core = task.core();
        while let Some(worker) = Worker::claim(core, slot) {
            run_worker(worker).await;
            if core.is_finished() {
                // The last actor may have terminated while the others were parked.
                core.wake_all_for_shutdown();
                break;
            }
            if !core.coordinator.queues.worker_slots.is_wanted(slot) {
                break;
            }
        }
        task.finish();
    }
}

/// Runs a worker until it should exit.
async fn run_worker(mut worker: Worker) {
    loop {
        match wait_with(|cx| worker.poll_slice(cx)).await {
            SliceEnd::Yield => worker.yield_to_host().await,
            SliceEnd::Idle => worker.wait_for_signal().await,
            SliceEnd::Exit => return,
        }
    }
}

/// Error of changing the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetWorkersError {
    /// More workers than the system was configured for.
    #[cfg_attr(feature = "std", error("workers is {workers}, above workers_max {workers_max}"))]
    #[cfg_attr(not(feature = "std"), error("workers is {workers}; without std there is one"))]
    TooMany {
        /// The requested number.
        workers: NonZeroUsize,
        /// The configured maximum.
        workers_max: NonZeroUsize,
    },
    /// The system is shutting down, and its workers exit by themselves.
    #[error("the system is shutting down")]
    Stopping,
    /// The runtime did not start all of the workers; those that it started keep running.
    #[error("{source}, after {reached} workers")]
    SpawnFailed {
        /// The number of workers now.
        reached: NonZeroUsize,
        /// The error of the runtime.
        source: RuntimeSpawnError,
    },
}
