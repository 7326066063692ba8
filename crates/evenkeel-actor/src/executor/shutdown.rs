//! How a system ends: nothing new, then nothing left, then nobody.

use core::time::Duration;

use super::WorkerExecutor;
use crate::raw::state::{DEAD, SCHEDULED, USER};
use crate::stop::StopMode;

/// How often a shutdown looks whether it is done.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Where a system is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lifecycle {
    /// Takes everything.
    Running,
    /// Takes nothing new; handles what was accepted.
    Stopping,
    /// Nothing waits any more; its actors end.
    Draining,
    /// Over.
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

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownReport {
    /// Whether everything that was accepted was handled in time.
    pub drained: bool,
    /// Actors that had not ended in time: their handlers do not return.
    pub abandoned: u64,
}

impl WorkerExecutor {
    pub(crate) async fn graceful_shutdown(&self, within: Duration) -> ShutdownReport {
        let core = self.core();
        let deadline = core.now() + within;
        core.advance(Lifecycle::Stopping);
        self.close_lanes();
        let drained = self.wait_until(deadline, || self.is_idle()).await;
        core.advance(Lifecycle::Draining);
        self.stop_actors();
        // Actors are given as long again to end; whoever handles no message ends at once.
        self.wait_until(deadline + within, || core.hub.alive() == 0).await;
        let abandoned = core.hub.alive();
        self.leave();
        ShutdownReport { drained, abandoned }
    }

    pub(crate) fn force_stop(&self) {
        self.core().advance(Lifecycle::Stopped);
        self.close_lanes();
        self.stop_actors();
        self.leave();
    }

    /// Sends the workers and the clock home; those with actors left go when the last has ended.
    fn leave(&self) {
        self.core().advance(Lifecycle::Stopped);
        self.core().wake_all_for_shutdown();
    }

    fn close_lanes(&self) {
        self.core().slab.iter().for_each(|cell| cell.occupant().body.close());
    }

    /// Ends the actors without parents; the others end with theirs.
    fn stop_actors(&self) {
        for cell in self.core().slab.iter().filter(|cell| cell.head().parent.is_none()) {
            cell.stop(StopMode::Now);
        }
    }

    /// Whether nobody runs and nothing waits, in a mailbox, in a stash or for a future.
    fn is_idle(&self) -> bool {
        self.core().slab.iter().all(|cell| {
            let flags = cell.slot().state.flags();
            // A message may be in its lane whose sender has yet to raise the flag.
            let waits =
                || cell.is_awaiting() || cell.has_stashed() || cell.occupant().body.stats().depth != 0;
            flags & DEAD != 0 || (flags & (SCHEDULED | USER) == 0 && !waits())
        })
    }

    async fn wait_until(&self, deadline: evenkeel_policy::time::Instant, done: impl Fn() -> bool) -> bool {
        let core = self.core();
        while !done() {
            let now = core.now();
            if deadline <= now {
                return false;
            }
            core.runtime.sleep_until(now + LOOK_EVERY).await;
        }
        true
    }
}
