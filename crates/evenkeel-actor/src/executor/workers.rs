//! How many workers there are: changed while they work.

use alloc::boxed::Box;
use core::fmt;
use core::num::NonZeroUsize;

use super::slice::{SliceEnd, Worker};
use super::{Lifecycle, WorkerExecutor};
use crate::runtime::{RuntimeSpawnError, wait_with};
use crate::sync::Arc;
use crate::system::Core;

impl WorkerExecutor {
    pub(crate) fn set_workers(&self, workers: NonZeroUsize) -> Result<(), SetWorkersError> {
        set_workers(self.core(), workers)
    }
}

/// Changes how many workers there should be: starts those who lack, and wakes those who are to leave.
pub(crate) fn set_workers(core: &Arc<Core>, workers: NonZeroUsize) -> Result<(), SetWorkersError> {
    let workers_max = core.config.workers_max;
    if workers_max < workers {
        return Err(SetWorkersError::TooMany { workers, workers_max });
    }
    if core.lifecycle() != Lifecycle::Running {
        return Err(SetWorkersError::Stopping);
    }
    core.coordinator.queues.crew.set_target(workers);
    core.coordinator.idle.notify_from(workers.get());
    let filled = fill_places(core).map_err(|short| {
        core.coordinator.queues.crew.settle_for(short.reached, workers);
        core.coordinator.idle.notify_from(short.reached.get());
        SetWorkersError::Refused { reached: short.reached, refused: short.refused }
    });
    // With a second worker there is somebody to come to the rescue, and the clock is to look out.
    core.clock.wake_if_sleeping();
    // The caller may be in a handler, and its thread keep the last worker it started to itself.
    core.runtime.nudge();
    filled
}

/// The workers that there are without those that the runtime refused.
#[derive(Debug)]
pub(super) struct Short {
    reached: NonZeroUsize,
    pub(super) refused: RuntimeSpawnError,
}

/// Starts a worker in each place that is empty and should not be.
pub(super) fn fill_places(core: &Arc<Core>) -> Result<(), Short> {
    let crew = &core.coordinator.queues.crew;
    while let Some(place) = crew.next_to_fill() {
        if let Err(refused) = core.runtime.spawn(Box::pin(work(core.clone(), place))) {
            if let Some(own) = crew.take(place) {
                crew.give_back(place, own);
            }
            // Without a worker in the first place there is no system, so there is one there.
            let reached = NonZeroUsize::new(place).unwrap_or(NonZeroUsize::MIN);
            return Err(Short { reached, refused });
        }
    }
    Ok(())
}

/// The worker of one place, as long as it is wanted.
///
/// One that is wanted again while it leaves takes its place back, unless another has.
async fn work(core: Arc<Core>, place: usize) {
    while let Some(worker) = Worker::seat(&core, place) {
        serve(worker).await;
        if core.is_finished() {
            // The last actor may have ended while the others slept.
            core.wake_all_for_shutdown();
            return;
        }
        if !core.coordinator.queues.crew.is_wanted(place) {
            return;
        }
    }
}

/// One worker's life.
async fn serve(mut worker: Worker) {
    loop {
        match wait_with(|cx| worker.poll_slice(cx)).await {
            SliceEnd::Over => worker.yield_to_host().await,
            SliceEnd::Idle => worker.wait_for_signal().await,
            SliceEnd::Leave => return,
        }
    }
}

/// Why the number of workers is not as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetWorkersError {
    /// More than the system was made for.
    TooMany {
        /// What was asked for.
        workers: NonZeroUsize,
        /// How many there may be.
        workers_max: NonZeroUsize,
    },
    /// The system is shutting down, and its workers leave by themselves.
    Stopping,
    /// The runtime took fewer; there are as many as it took.
    Refused {
        /// How many there are.
        reached: NonZeroUsize,
        /// What the runtime said.
        refused: RuntimeSpawnError,
    },
}

impl fmt::Display for SetWorkersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooMany { workers, .. } if cfg!(not(feature = "std")) => {
                write!(f, "workers is {workers}; without std there is one")
            }
            Self::TooMany { workers, workers_max } => {
                write!(f, "workers is {workers}, above workers_max {workers_max}")
            }
            Self::Stopping => f.write_str("the system is shutting down"),
            Self::Refused { reached, refused } => write!(f, "{refused}, after {reached} workers"),
        }
    }
}

impl core::error::Error for SetWorkersError {}
