//! Takes readings of a running system and has it follow the decisions.

use alloc::boxed::Box;
use core::fmt;
use core::time::Duration;

use super::{AdaptiveDispatcher, Decision, LoadSample};
use crate::executor::{Lifecycle, SetWorkersError, set_workers};
use crate::sync::Arc;
use crate::system::Core;
use crate::system_metrics::WaitTotals;

/// Keeps the number of workers adapted until it is dropped; the number stays as it is then.
#[must_use = "dropped, it adapts no more"]
pub struct AdaptiveHandle(
    /// What the task looks at to see whether somebody still wants it.
    #[expect(dead_code, reason = "it counts by being there")]
    Arc<()>,
);

impl fmt::Debug for AdaptiveHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Adapting")
    }
}

/// Starts a task beside the workers, which they cannot keep waiting; it holds on to nothing of the
/// system's while it sleeps.
pub(crate) fn adapt(
    core: &Arc<Core>,
    dispatcher: AdaptiveDispatcher,
) -> Result<AdaptiveHandle, SetWorkersError> {
    let workers = dispatcher.options.workers_max;
    let workers_max = core.config.workers_max;
    if workers_max < workers {
        return Err(SetWorkersError::TooMany { workers, workers_max });
    }
    if core.lifecycle() != Lifecycle::Running {
        return Err(SetWorkersError::Stopping);
    }
    let wanted = Arc::new(());
    let there = Arc::downgrade(core);
    let theirs = Arc::downgrade(&wanted);
    let mut adaptation = AdaptiveTask { dispatcher, before: core.hub.waits() };
    let task = async move {
        while let Some(sleep) = there.upgrade().map(|core| adaptation.sleep(&core)) {
            sleep.await;
            let Some(core) = there.upgrade() else { return };
            if theirs.strong_count() == 0 || core.lifecycle() != Lifecycle::Running {
                return;
            }
            adaptation.step(&core);
        }
    };
    let spawned = core.runtime.spawn(Box::pin(task));
    spawned.map_err(|refused| SetWorkersError::Refused { reached: core.workers(), refused })?;
    Ok(AdaptiveHandle(wanted))
}

struct AdaptiveTask {
    dispatcher: AdaptiveDispatcher,
    /// The waits of all time at the last reading.
    before: WaitTotals,
}

impl AdaptiveTask {
    fn sleep(&self, core: &Core) -> crate::runtime::TaskFuture {
        core.runtime.sleep_until(core.now() + self.dispatcher.options.period)
    }

    fn step(&mut self, core: &Arc<Core>) {
        let waits = core.hub.waits();
        let wait = mean_since(core::mem::replace(&mut self.before, waits), waits);
        let reading = LoadSample { workers: core.workers(), ready_depth: core.coordinator.depth(), wait };
        if let Decision::Change(workers) = self.dispatcher.decide(&reading) {
            // What a runtime refuses is asked for again when the pressure lasts.
            let _refused = set_workers(core, workers);
        }
    }
}

fn mean_since(before: WaitTotals, waits: WaitTotals) -> Option<Duration> {
    let count = u32::try_from(waits.count.saturating_sub(before.count)).unwrap_or(u32::MAX);
    waits.sum.saturating_sub(before.sum).checked_div(count)
}
