//! Detects that the host runtime drops the tasks of a system, and ends the system without it.
//!
//! A host that shuts down drops its tasks in any order, on any thread, while other workers may still be in a handler. The
//! system ends with its timer task or its last worker; while other workers are left, a worker that is dropped leaves its
//! work to them. From then on each dropped task closes the mailboxes, stops the actors and runs those that are ready, on
//! the thread that drops it. An actor whose handler has not returned is run by the task of its worker, which is dropped
//! later. Guarantee: once the last task is dropped, every actor has terminated and no message waits.

use core::task::{Context, Poll, Waker};

use super::slice::{SliceEnd, Worker};
use crate::sync::{Arc, Ordering};
use crate::system::Core;

/// Guard of a task of the system on its host runtime.
pub(crate) struct HostTask {
    core: Arc<Core>,
    kind: HostTaskKind,
    has_finished: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostTaskKind {
    Worker,
    Timer,
}

impl HostTask {
    /// Creates the task's guard, before the task is passed to the host: a host may drop a task that it never polled.
    pub(crate) fn new(core: Arc<Core>, kind: HostTaskKind) -> Self {
        if kind == HostTaskKind::Worker {
            core.worker_tasks.fetch_add(1, Ordering::SeqCst);
        }
        Self { core, kind, has_finished: false }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Records that the task ends by itself.
    pub(crate) fn finish(mut self) {
        self.has_finished = true;
    }
}

impl Drop for HostTask {
    fn drop(&mut self) {
        let is_needed = match self.kind {
            HostTaskKind::Worker => self.core.worker_tasks.fetch_sub(1, Ordering::SeqCst) == 1,
            HostTaskKind::Timer => true,
        };
        // A task that panicked was not dropped by its host, which may still run the others.
        if self.has_finished || self.core.is_finished() || is_panicking() {
            return;
        }
        if is_needed || self.core.is_host_gone() {
            end_without_host(&self.core);
        }
    }
}

#[cfg(feature = "std")]
fn is_panicking() -> bool {
    std::thread::panicking()
}

#[cfg(not(feature = "std"))]
fn is_panicking() -> bool {
    false
}

fn end_without_host(core: &Arc<Core>) {
    core.record_host_gone();
    core.timer_driver.close();
    core.close_mailboxes();
    core.stop_actors();
    run_remaining(core);
    core.wake_all_for_shutdown();
}

/// Runs the ready actors of a system whose host is gone, on the current thread.
///
/// Does nothing on a worker of the system, which runs them itself, or if all slots are held by workers that the host
/// has not dropped yet.
pub(crate) fn run_remaining(core: &Arc<Core>) {
    #[cfg(feature = "std")]
    if crate::raw::current::with(core, |local| local.is_some()) {
        return;
    }
    let worker = (0..core.config.workers_max.get()).find_map(|slot| Worker::claim(core, slot));
    let Some(mut worker) = worker else { return };
    let mut cx = Context::from_waker(Waker::noop());
    while !matches!(worker.run_ready(&mut cx), Poll::Ready(SliceEnd::Idle | SliceEnd::Exit)) {}
}
