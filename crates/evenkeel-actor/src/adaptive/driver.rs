//! Samples the load of a running system and applies the decisions.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::{AdaptiveDispatcher, Decision, LoadSample};
use crate::executor::{Lifecycle, SetWorkersError, set_workers};
use crate::sync::Arc;
use crate::system::Core;
use crate::system_metrics::WaitTotals;

/// A handle that keeps adapting the number of workers until it is dropped; the number then stays as it is.
#[must_use = "dropping the handle stops the adaptation"]
pub struct AdaptiveHandle(
    /// The task exits once this has been dropped.
    #[expect(dead_code, reason = "only its reference count is used")]
    Arc<()>,
);

impl fmt::Debug for AdaptiveHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AdaptiveHandle")
    }
}

/// Spawns the sampling task on the host's runtime, so that busy workers do not delay it.
///
/// The task holds only weak references while it sleeps.
pub(crate) fn adapt(
    core: &Arc<Core>,
    dispatcher: AdaptiveDispatcher,
) -> Result<AdaptiveHandle, SetWorkersError> {
    let workers = dispatcher.options.workers_max;
    let workers_max = core.config.workers_max;
    if workers > workers_max {
        return Err(SetWorkersError::TooMany { workers, workers_max });
    }
    if core.lifecycle() != Lifecycle::Running {
        return Err(SetWorkersError::Stopping);
    }
    let handle = Arc::new(());
    let weak_core = Arc::downgrade(core);
    let weak_handle = Arc::downgrade(&handle);
    let mut adaptive = AdaptiveTask { dispatcher, before: core.hub.waits() };
    let task = async move {
        while let Some(sleep) = weak_core.upgrade().map(|core| adaptive.sleep(&core)) {
            sleep.await;
            let Some(core) = weak_core.upgrade() else { return };
            if weak_handle.strong_count() == 0 || core.lifecycle() != Lifecycle::Running {
                return;
            }
            adaptive.step(&core);
        }
    };
    let spawned = core.runtime.spawn(Box::pin(task));
    spawned.map_err(|source| SetWorkersError::SpawnFailed { reached: core.workers(), source })?;
    Ok(AdaptiveHandle(handle))
}

struct AdaptiveTask {
    dispatcher: AdaptiveDispatcher,
    /// The wait totals at the last sample.
    before: WaitTotals,
}

impl AdaptiveTask {
    fn sleep(&self, core: &Core) -> crate::runtime::TaskFuture {
        core.runtime.sleep_until(core.now() + self.dispatcher.options.period)
    }

    fn step(&mut self, core: &Arc<Core>) {
        let waits = core.hub.waits();
        let wait = mean_since(core::mem::replace(&mut self.before, waits), waits);
        let sample = LoadSample { workers: core.workers(), ready_depth: core.coordinator.depth(), wait };
        if let Decision::Change(workers) = self.dispatcher.decide(&sample) {
            // If the runtime rejects a worker, it is requested again while the pressure lasts.
            let _error = set_workers(core, workers);
        }
    }
}

fn mean_since(before: WaitTotals, waits: WaitTotals) -> Option<Duration> {
    let count = u32::try_from(waits.count.saturating_sub(before.count)).unwrap_or(u32::MAX);
    waits.sum.saturating_sub(before.sum).checked_div(count)
}
