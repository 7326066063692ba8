//! The workers: each takes a cell, runs it, and says what is to become of it; until the end.

mod shutdown;
mod slice;

pub use shutdown::{Lifecycle, Shutdown};

use alloc::boxed::Box;

use slice::{SliceEnd, Worker};

use crate::clock;
use crate::props::Props;
use crate::runtime::{SpawnRefused, wait_with};
use crate::sync::Arc;
use crate::system::Core;
use crate::task::TaskActor;

/// Drives the workers of one system.
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

    /// Starts every worker, and the task that turns the clock.
    pub(crate) fn start_workers(&self) -> Result<(), SpawnRefused> {
        for id in 0..self.core.workers() {
            let core = self.core.clone();
            self.core.runtime.spawn(Box::pin(work(core, id)))?;
        }
        self.core.runtime.spawn(Box::pin(clock::turn(self.core.clone())))
    }
}

/// One worker's life.
async fn work(core: Arc<Core>, id: usize) {
    let Some(mut worker) = Worker::seat(&core, id) else { return };
    loop {
        match wait_with(|cx| worker.poll_slice(cx)).await {
            SliceEnd::Over => core.runtime.yield_now().await,
            SliceEnd::Leave => {
                // The last actor may have ended while the others slept.
                core.send_home();
                return;
            }
        }
    }
}

impl Drop for WorkerExecutor {
    fn drop(&mut self) {
        self.force_stop();
        self.core.forget_letters();
    }
}
