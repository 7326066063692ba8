//! Timers: one per waiting request, one per node with a pending change, and one for the pipeline itself.
//!
//! Limits: at most one entry for each target; setting and popping are O(log n).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::id::{NodeId, RequestId};
use evenkeel_policy::time::Instant;

use crate::accept::RequestRecord;

/// Target of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerTarget {
    /// The request's delay or the hold of a node ends, or its wait times out.
    Request(RequestId),
    /// The node's cooldown, probe or backoff ends.
    Node(NodeId),
    /// Requests wait although a slot is free: try to dispatch again.
    Recheck,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    by_time: BTreeSet<(Instant, TimerTarget)>,
    by_target: BTreeMap<TimerTarget, Instant>,
}

impl Timers {
    /// Sets a waiting request's timer to its next deadline.
    pub(crate) fn set_request(&mut self, request: RequestId, record: &RequestRecord) {
        self.set(TimerTarget::Request(request), record.due_at());
    }

    pub(crate) fn clear_request(&mut self, request: RequestId) {
        self.set(TimerTarget::Request(request), None);
    }

    pub(crate) fn set_node(&mut self, node: NodeId, at: Option<Instant>) {
        self.set(TimerTarget::Node(node), at);
    }

    pub(crate) fn set_recheck(&mut self, at: Option<Instant>) {
        self.set(TimerTarget::Recheck, at);
    }

    /// Removes and returns the first timer that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<TimerTarget> {
        let (_, target) = self.by_time.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(target, None);
        Some(target)
    }

    /// Returns the time of the next timer.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    pub(crate) fn due_at(&self, target: TimerTarget) -> Option<Instant> {
        self.by_target.get(&target).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.by_time.len()
    }

    fn set(&mut self, target: TimerTarget, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.by_target.insert(target, at),
            None => self.by_target.remove(&target),
        };
        if let Some(before) = before {
            self.by_time.remove(&(before, target));
        }
        if let Some(at) = at {
            self.by_time.insert((at, target));
        }
    }
}
