//! One direction of a path: rate, delay, queue, loss and faults.

use evenkeel_policy::time::{Duration, Instant};

use super::{LinkPathPlan, PathFault, PathFaultKind};
use crate::rng::Rng;

/// Length of a packet, for the number of packets that a frame takes.
pub(super) const PACKET_BYTES: u64 = 1_200;

/// One direction of a path.
#[derive(Debug)]
pub(super) struct Wire {
    plan: LinkPathPlan,
    /// Time at which everything in the queue has been sent.
    busy_until: Instant,
}

/// Fate of bytes on a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Arrive(Instant),
    /// Lost among others that arrive, so that the sender learns of it and sends this many bytes again.
    Lost {
        again: u64,
    },
    /// Lost with everything else.
    Swallowed,
}

impl Wire {
    pub(super) fn new(plan: &LinkPathPlan) -> Self {
        Self { plan: plan.clone(), busy_until: Instant::ORIGIN }
    }

    /// Sends bytes and draws their fate.
    pub(super) fn carry(&mut self, now: Instant, bytes: u64, rng: &mut Rng) -> Fate {
        if self.is_dead(now) {
            return Fate::Swallowed;
        }
        let start = self.busy_until.max(now);
        if self.plan.queue < start.since(now) {
            return Fate::Lost { again: bytes };
        }
        self.busy_until = start + Duration::from_secs_f64(bytes as f64 * 8.0 / (self.plan.mbit * 1e6));
        let packets = bytes.div_ceil(PACKET_BYTES).max(1);
        let survival = libm::pow(1.0 - self.plan.loss, packets as f64);
        if rng.unit() >= survival {
            return Fate::Lost { again: bytes.min(PACKET_BYTES) };
        }
        Fate::Arrive(self.busy_until + self.delay(now))
    }

    /// Returns the delay in this direction, without the queue.
    pub(super) fn delay(&self, now: Instant) -> Duration {
        let delay = |fault: &PathFault| match fault.kind {
            PathFaultKind::Limping(delay) => {
                let progress = now.since(Instant::ORIGIN + fault.from).as_secs_f64()
                    / (fault.until - fault.from).as_secs_f64();
                Some(delay.mul_f64(progress))
            }
            PathFaultKind::Delayed(delay) => Some(delay),
            _ => None,
        };
        let grown = self.plan.faults.iter().filter(|fault| fault.is_at(now)).find_map(delay);
        grown.unwrap_or_default().max(self.plan.delay)
    }

    pub(super) fn is_dead(&self, now: Instant) -> bool {
        let is_deadly = |fault: &PathFault| {
            matches!(fault.kind, PathFaultKind::BlackHole | PathFaultKind::Refused) && fault.is_at(now)
        };
        self.plan.faults.iter().any(is_deadly)
    }
}

impl PathFault {
    pub(super) fn is_at(&self, now: Instant) -> bool {
        (self.from..self.until).contains(&now.since(Instant::ORIGIN))
    }
}
