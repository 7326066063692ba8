//! Who keeps a queue, and what callers do while nobody does.

use core::time::Duration;
use std::time::Instant;

use evenkeel_actor::{ActorRef, AskError};

use super::Queue;
use crate::id::Epoch;
use crate::queue_actor::Msg;
use crate::rejection::Rejection;

/// Keepers that fall within this time of each other fall for one reason.
const RECENTLY: Duration = Duration::from_secs(60);
/// The wait before the second of them is replaced; then twice as long every time.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// Who keeps a queue.
#[derive(Clone)]
pub(crate) enum Owner {
    /// A keeper.
    Active(ActiveOwner),
    /// Nobody for the moment: the last one fell, another is on its way.
    Restarting,
    /// Nobody: the queue was deleted.
    Deleted,
    /// Nobody: the gateway stops.
    Stopping,
}

/// A keeper, and which owner of the queue it is.
#[derive(Clone)]
pub(crate) struct ActiveOwner {
    pub(crate) keeper: ActorRef<Msg>,
    pub(crate) epoch: Epoch,
}

impl Queue {
    /// Waits for a keeper, one after the owner `fallen`.
    pub(super) async fn wait_for_owner(
        &self,
        fallen: Option<Epoch>,
        within: Duration,
    ) -> Result<ActiveOwner, Rejection> {
        let is_known = |owner: &Owner| match owner {
            Owner::Active(kept) => fallen.is_none_or(|fallen| fallen < kept.epoch),
            Owner::Restarting => false,
            Owner::Deleted | Owner::Stopping => true,
        };
        let now = self.0.owner.borrow().clone();
        let owner = if is_known(&now) {
            now
        } else {
            let mut changes = self.0.owner.subscribe();
            let known = tokio::time::timeout(within, changes.wait_for(is_known)).await;
            known.ok().and_then(Result::ok).map_or(Owner::Restarting, |owner| owner.clone())
        };
        match owner {
            Owner::Active(kept) => Ok(kept),
            Owner::Restarting => Err(Rejection::Interrupted),
            Owner::Deleted => Err(Rejection::QueueDeleted),
            Owner::Stopping => Err(Rejection::Stopping),
        }
    }

    /// Says why a keeper did not answer.
    pub(super) fn refusal(&self, error: AskError) -> Rejection {
        match (error, &*self.0.owner.borrow()) {
            (AskError::TimedOut | AskError::Full, _) => Rejection::Busy,
            (_, Owner::Deleted) => Rejection::QueueDeleted,
            (_, Owner::Stopping) => Rejection::Stopping,
            (_, Owner::Active(_) | Owner::Restarting) => Rejection::Interrupted,
        }
    }

    /// Notes that the keeper `fallen` is no more; `false` when another has followed, or none is to.
    pub(crate) fn mark_stopped(&self, fallen: Epoch) -> bool {
        let mut is_missed = false;
        self.0.owner.send_if_modified(|owner| match owner {
            Owner::Active(kept) if kept.epoch == fallen => {
                is_missed = true;
                *owner = Owner::Restarting;
                true
            }
            Owner::Restarting => {
                is_missed = true;
                false
            }
            Owner::Active(_) | Owner::Deleted | Owner::Stopping => false,
        });
        is_missed
    }

    /// Has a keeper begin that is there.
    pub(crate) fn begin(&self) {
        if let Owner::Active(kept) = &*self.0.owner.borrow() {
            kept.keeper.tell(Msg::Start);
        }
    }
}

/// How often a queue's keepers fell.
#[derive(Debug, Default)]
pub(crate) struct RestartBackoff {
    /// How many were replaced.
    pub(crate) replaced: u64,
    /// How many fell shortly after each other.
    recent: u32,
    last: Option<Instant>,
}

impl RestartBackoff {
    /// Counts a fall, and says how long to wait before another keeper is tried.
    pub(crate) fn add(&mut self, now: Instant) -> Duration {
        let is_recent = self.last.is_some_and(|last| now.saturating_duration_since(last) < RECENTLY);
        self.recent = if is_recent { self.recent.saturating_add(1) } else { 0 };
        self.last = Some(now);
        match self.recent {
            0 => Duration::ZERO,
            recent => PAUSE_MIN.saturating_mul(1 << (recent - 1).min(16)).min(PAUSE_MAX),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_keeper_that_falls_again_and_again_is_replaced_ever_later() {
        let mut falls = RestartBackoff::default();
        let start = Instant::now();
        let pauses: Vec<u128> = (0..10).map(|_| falls.add(start).as_millis()).collect();
        assert_eq!(pauses, [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]);
        assert_eq!(falls.add(start + RECENTLY), Duration::ZERO);
    }
}
