//! Schedule of the acknowledgements that this side sends.
//!
//! Acknowledgements go out in batches, at most one per [`ACK_INTERVAL`] unless one is urgent. A datagram may be lost, so
//! each acknowledgement is repeated after growing pauses, until there is a newer one.
//!
//! Limits: at most [`PENDING_MAX`] flows wait for a batch; further ones are left to the peer's next request.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::time::{Duration, Instant};

use crate::flow::FlowId;

/// Time between two batches.
pub(super) const ACK_INTERVAL: Duration = Duration::from_millis(10);

/// Pauses after which an acknowledgement is repeated.
const REPEAT_AFTER: [Duration; 4] = [
    Duration::from_millis(20),
    Duration::from_millis(40),
    Duration::from_millis(80),
    Duration::from_millis(160),
];

const PENDING_MAX: usize = 8_192;

/// Urgency of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Urgency {
    /// With the next batch.
    Soon,
    AtOnce,
}

/// Flows whose acknowledgement must be sent.
#[derive(Debug, Default)]
pub(super) struct AckSchedule {
    fresh: BTreeSet<FlowId>,
    is_urgent: bool,
    repeats: BTreeMap<FlowId, AckRepeat>,
    /// Time of the next repetition, or earlier.
    repeat_at: Option<Instant>,
    /// Flows whose acknowledgement by the peer is requested.
    requests: BTreeSet<FlowId>,
    /// Time of the last batch.
    sent_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct AckRepeat {
    at: Instant,
    /// Number of repetitions so far.
    count: usize,
}

/// Entries of one batch.
#[derive(Debug, Default)]
pub(super) struct AckBatch {
    pub(super) acks: Vec<FlowId>,
    pub(super) requests: Vec<FlowId>,
}

impl AckSchedule {
    /// Schedules a new acknowledgement of a flow.
    pub(super) fn mark(&mut self, flow: FlowId, urgency: Urgency) {
        if PENDING_MAX <= self.fresh.len() {
            return;
        }
        self.fresh.insert(flow);
        self.is_urgent |= urgency == Urgency::AtOnce;
    }

    /// Schedules a request for an acknowledgement by the peer.
    pub(super) fn request(&mut self, flow: FlowId) {
        self.requests.insert(flow);
    }

    /// Returns the time at which the next batch is due.
    pub(super) fn due_at(&self) -> Option<Instant> {
        if self.is_urgent || !self.requests.is_empty() {
            return Some(Instant::ORIGIN);
        }
        let fresh = (!self.fresh.is_empty())
            .then(|| self.sent_at.map_or(Instant::ORIGIN, |sent_at| sent_at + ACK_INTERVAL));
        [self.repeat_at, fresh].into_iter().flatten().min()
    }

    /// Returns the flows of the batch that is due at `now`, and schedules their repetitions; `None` if none is due.
    pub(super) fn take(&mut self, now: Instant) -> Option<AckBatch> {
        self.due_at().filter(|due| *due <= now)?;
        self.sent_at = Some(now);
        self.is_urgent = false;
        let mut acks = std::mem::take(&mut self.fresh);
        for flow in &acks {
            self.repeats.insert(*flow, AckRepeat { at: now + REPEAT_AFTER[0], count: 0 });
        }
        self.repeats.retain(|flow, repeat| {
            if now < repeat.at {
                return true;
            }
            acks.insert(*flow);
            repeat.count += 1;
            let Some(pause) = REPEAT_AFTER.get(repeat.count) else { return false };
            repeat.at = now + *pause;
            true
        });
        self.repeat_at = self.repeats.values().map(|repeat| repeat.at).min();
        let requests = std::mem::take(&mut self.requests);
        Some(AckBatch { acks: acks.into_iter().collect(), requests: requests.into_iter().collect() })
    }

    /// Cancels the repetitions of a flow's acknowledgement.
    pub(super) fn forget(&mut self, flow: FlowId) {
        self.fresh.remove(&flow);
        self.repeats.remove(&flow);
        self.requests.remove(&flow);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FLOW: FlowId = FlowId(2);

    #[test]
    fn batches_are_at_least_10_ms_apart_unless_one_is_urgent() {
        let mut acks = AckSchedule::default();
        acks.mark(FLOW, Urgency::Soon);
        assert!(acks.take(at(0)).is_some(), "nothing was sent before");
        acks.mark(FLOW, Urgency::Soon);
        assert!(acks.take(at(9)).is_none());
        assert!(acks.take(at(10)).is_some());
        acks.mark(FLOW, Urgency::AtOnce);
        assert!(acks.take(at(11)).is_some());
        acks.request(FLOW);
        assert_eq!(acks.take(at(12)).unwrap().requests, [FLOW]);
    }

    #[test]
    fn an_acknowledgement_is_repeated_four_times_with_growing_pauses() {
        let mut acks = AckSchedule::default();
        acks.mark(FLOW, Urgency::Soon);
        let mut sent = Vec::new();
        for millis in 0..1_000 {
            if acks.take(at(millis)).is_some_and(|batch| batch.acks == [FLOW]) {
                sent.push(millis);
            }
        }
        assert_eq!(sent, [0, 20, 60, 140, 300]);
        assert_eq!(acks.due_at(), None);
    }

    #[test]
    fn flows_beyond_the_limit_are_left_out() {
        let mut acks = AckSchedule::default();
        (0..20_000).for_each(|flow| acks.mark(FlowId(flow), Urgency::Soon));
        assert_eq!(acks.take(at(0)).unwrap().acks.len(), PENDING_MAX);
    }

    fn at(millis: u64) -> Instant {
        Instant::from_millis(millis)
    }
}
