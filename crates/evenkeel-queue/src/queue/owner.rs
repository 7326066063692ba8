//! The owner of a queue, which is its running actor. Requests wait while it restarts.

use core::time::Duration;
use std::time::Instant;

use evenkeel_actor::{ActorRef, AskError};

use super::Queue;
use crate::id::Epoch;
use crate::queue_actor::Msg;
use crate::rejection::Rejection;

/// Crashes that are less than this apart belong to one series.
const SERIES_GAP_MAX: Duration = Duration::from_secs(60);
/// Backoff before the second restart of a series; it doubles every time.
const BACKOFF_MIN: Duration = Duration::from_millis(100);
const BACKOFF_MAX: Duration = Duration::from_secs(10);

/// State of a queue's ownership.
#[derive(Clone)]
pub(crate) enum Owner {
    Active(ActiveOwner),
    /// The actor stopped unexpectedly; another is about to start.
    Restarting,
    Deleted,
    /// The gateway is stopping.
    Stopping,
}

/// The running actor of a queue, with its owner epoch.
#[derive(Clone)]
pub(crate) struct ActiveOwner {
    pub(crate) actor: ActorRef<Msg>,
    pub(crate) epoch: Epoch,
}

impl Queue {
    /// Waits for a running actor; if `stopped` is given, for one with a higher epoch.
    pub(super) async fn wait_for_owner(
        &self,
        stopped: Option<Epoch>,
        timeout: Duration,
    ) -> Result<ActiveOwner, Rejection> {
        let is_settled = |owner: &Owner| match owner {
            Owner::Active(owner) => stopped.is_none_or(|stopped| stopped < owner.epoch),
            Owner::Restarting => false,
            Owner::Deleted | Owner::Stopping => true,
        };
        let current = self.0.owner.borrow().clone();
        let owner = if is_settled(&current) {
            current
        } else {
            let mut changes = self.0.owner.subscribe();
            let settled = tokio::time::timeout(timeout, changes.wait_for(is_settled)).await;
            settled.ok().and_then(Result::ok).map_or(Owner::Restarting, |owner| owner.clone())
        };
        match owner {
            Owner::Active(owner) => Ok(owner),
            Owner::Restarting => Err(Rejection::Interrupted),
            Owner::Deleted => Err(Rejection::QueueDeleted),
            Owner::Stopping => Err(Rejection::Stopping),
        }
    }

    /// Returns the rejection for a request that the actor did not answer.
    pub(super) fn ask_rejection(&self, error: AskError) -> Rejection {
        match (error, &*self.0.owner.borrow()) {
            (AskError::TimedOut, _) => Rejection::NoAnswer,
            (AskError::Full, _) => Rejection::Busy,
            (_, Owner::Deleted) => Rejection::QueueDeleted,
            (_, Owner::Stopping) => Rejection::Stopping,
            (_, Owner::Active(_) | Owner::Restarting) => Rejection::Interrupted,
        }
    }

    /// Records that the owner with epoch `stopped` has stopped; returns `false` if no restart is needed.
    pub(crate) fn mark_stopped(&self, stopped: Epoch) -> bool {
        let mut needs_restart = false;
        self.0.owner.send_if_modified(|owner| match owner {
            Owner::Active(active) if active.epoch == stopped => {
                needs_restart = true;
                *owner = Owner::Restarting;
                true
            }
            Owner::Restarting => {
                needs_restart = true;
                false
            }
            Owner::Active(_) | Owner::Deleted | Owner::Stopping => false,
        });
        needs_restart
    }

    /// Starts the timers of the running actor.
    pub(crate) fn start(&self) {
        if let Owner::Active(owner) = &*self.0.owner.borrow() {
            owner.actor.tell(Msg::Start);
        }
    }
}

/// Exponential backoff between restarts of a queue's actor.
#[derive(Debug, Default)]
pub(crate) struct RestartBackoff {
    /// Restarts so far.
    pub(crate) restarts: u64,
    /// Crashes of the current series after the first.
    recent: u32,
    last: Option<Instant>,
}

impl RestartBackoff {
    /// Counts a crash and returns the delay before the restart.
    pub(crate) fn next_delay(&mut self, now: Instant) -> Duration {
        let is_recent = self.last.is_some_and(|last| now.saturating_duration_since(last) < SERIES_GAP_MAX);
        self.recent = if is_recent { self.recent.saturating_add(1) } else { 0 };
        self.last = Some(now);
        match self.recent {
            0 => Duration::ZERO,
            recent => BACKOFF_MIN.saturating_mul(1 << (recent - 1).min(16)).min(BACKOFF_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::namespace::Namespace;
    use crate::queues::Queues;
    use crate::settings::QueueSettings;
    use crate::store::memory::MemoryStore;

    #[test]
    fn restarts_of_a_crashing_actor_back_off_exponentially() {
        let mut backoff = RestartBackoff::default();
        let start = Instant::now();
        let delays: Vec<u128> = (0..10).map(|_| backoff.next_delay(start).as_millis()).collect();
        assert_eq!(delays, [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert_eq!(backoff.next_delay(start + SERIES_GAP_MAX), Duration::ZERO);
    }

    #[tokio::test]
    async fn a_request_without_an_answer_is_not_rejected_as_an_overload() {
        let queues = Queues::open(Arc::new(MemoryStore::new()), 10).await.unwrap();
        let settings = QueueSettings::default();
        let made = queues.create(Namespace::Shared, "jobs", settings, String::new()).await.unwrap();
        let text = made.queue().ask_rejection(AskError::TimedOut).to_string();
        assert!(text.contains("did not answer in time") && text.contains("outcome"), "{text}");
    }
}
