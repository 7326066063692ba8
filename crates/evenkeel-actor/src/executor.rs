//! Worker executor: starts the workers, each of which runs cells until the system stops.

mod host_task;
mod shutdown;
mod slice;
mod workers;

pub(crate) use host_task::{HostTask, HostTaskKind, run_remaining};
pub use shutdown::{Lifecycle, ShutdownReport};
pub use workers::SetWorkersError;
#[cfg(all(feature = "patterns", feature = "std"))]
pub(crate) use workers::set_workers;

use alloc::boxed::Box;

use crate::props::Props;
use crate::runtime::RuntimeSpawnError;
use crate::sync::Arc;
use crate::system::Core;
use crate::task::TaskActor;
use crate::timer_driver;

/// Runs the workers of one system.
pub(crate) struct WorkerExecutor {
    core: Arc<Core>,
    pub(crate) task_props: Props<TaskActor>,
}

impl WorkerExecutor {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self { core, task_props: Props::of_values().label("task").build() }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Starts all workers and the timer driver.
    pub(crate) fn start_workers(&self) -> Result<(), RuntimeSpawnError> {
        workers::fill_worker_slots(&self.core).map_err(|shortfall| shortfall.error)?;
        self.core.runtime.spawn(Box::pin(timer_driver::drive(self.core.clone())))
    }
}

impl Drop for WorkerExecutor {
    fn drop(&mut self) {
        self.force_stop();
        self.core.close_dead_letters();
    }
}
