//! Graceful shutdown: reject new messages, drain the mailboxes, stop the actors, end the workers.

use core::time::Duration;

use super::WorkerExecutor;
use crate::raw::state::{DEAD, SCHEDULED, USER};
use crate::stop::StopMode;
use crate::system::Core;

/// Interval at which a shutdown checks whether it is done.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Lifecycle phase of a system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Accepts everything.
    Running,
    /// Rejects new messages; handles those already accepted.
    Stopping,
    /// All mailboxes are drained; the actors are being stopped.
    Draining,
    /// The system has stopped.
    Stopped,
}

impl Lifecycle {
    pub(crate) fn from_word(word: u32) -> Self {
        match word {
            0 => Self::Running,
            1 => Self::Stopping,
            2 => Self::Draining,
            _ => Self::Stopped,
        }
    }
}

/// Result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Set if every accepted message was handled in time; never set if the host runtime was dropped.
    pub drained: bool,
    /// Number of actors that did not terminate in time because their handlers did not return.
    pub abandoned: u64,
}

impl WorkerExecutor {
    pub(crate) async fn graceful_shutdown(&self, timeout: Duration) -> ShutdownReport {
        let core = self.core();
        let deadline = core.now() + timeout;
        core.advance(Lifecycle::Stopping);
        core.close_mailboxes();
        let drained = self.wait_until(deadline, || core.is_idle()).await;
        core.advance(Lifecycle::Draining);
        core.stop_actors();
        // The actors get the same timeout again to terminate; only running handlers take time.
        self.wait_until(deadline + timeout, || core.hub.alive() == 0).await;
        let abandoned = core.hub.alive();
        self.end_workers();
        ShutdownReport { drained, abandoned }
    }

    pub(crate) fn force_stop(&self) {
        self.core().advance(Lifecycle::Stopped);
        self.core().close_mailboxes();
        self.core().stop_actors();
        self.end_workers();
    }

    /// Ends the workers and the timer driver; workers exit once the last actor has terminated.
    fn end_workers(&self) {
        self.core().advance(Lifecycle::Stopped);
        self.core().wake_all_for_shutdown();
    }

    /// Waits until `done` returns `true`; returns `false` at the deadline, or once the host is gone.
    async fn wait_until(&self, deadline: evenkeel_policy::time::Instant, done: impl Fn() -> bool) -> bool {
        let core = self.core();
        while !core.is_host_gone() {
            if done() {
                return true;
            }
            if deadline <= core.now() {
                return false;
            }
            core.timer_driver.sleep(POLL_INTERVAL).await;
        }
        false
    }
}

impl Core {
    pub(super) fn close_mailboxes(&self) {
        self.slab.iter().for_each(|cell| cell.occupant().body.close());
    }

    /// Stops the actors without a parent; the others stop with their parents.
    pub(super) fn stop_actors(&self) {
        for cell in self.slab.iter().filter(|cell| cell.header().parent.is_none()) {
            cell.stop(StopMode::Now);
        }
    }

    /// Reports whether no actor runs, awaits a future, or has queued or stashed messages.
    fn is_idle(&self) -> bool {
        self.slab.iter().all(|cell| {
            let flags = cell.slot().state.flags();
            // A sender may have queued a message without having raised the flag yet.
            let has_pending =
                || cell.is_awaiting() || cell.has_stashed() || cell.occupant().body.stats().depth != 0;
            flags & DEAD != 0 || (flags & (SCHEDULED | USER) == 0 && !has_pending())
        })
    }
}
