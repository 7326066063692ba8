//! What is due when: one entry per waiting request, per node with something pending, and for the walk itself.
//!
//! Bound: at most one entry for each of them; setting and taking are O(log n).

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_policy::id::NodeId;
use evenkeel_policy::time::Instant;

use crate::accept::{RequestId, RequestRecord, RequestState};

/// Whose time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum TimerTarget {
    /// A request takes its place in the queue, or gives up.
    Request(RequestId),
    /// A node may be asked again.
    Node(NodeId),
    /// Somebody waits beside a free slot.
    Recheck,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Timers {
    due: BTreeSet<(Instant, TimerTarget)>,
    at: BTreeMap<TimerTarget, Instant>,
}

impl Timers {
    /// Sets what is next for a waiting request.
    pub(crate) fn set_request(&mut self, request: RequestId, ticket: &RequestRecord) {
        let at = match ticket.stage {
            RequestState::Delayed { enters_at } => Some(enters_at.min(ticket.timeout_at)),
            RequestState::Queued => Some(ticket.timeout_at),
            RequestState::InFlight(_) => None,
        };
        self.set(TimerTarget::Request(request), at);
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

    /// Takes out the first that is due.
    pub(crate) fn pop(&mut self, now: Instant) -> Option<TimerTarget> {
        let (_, due) = self.due.first().copied().filter(|(at, _)| *at <= now)?;
        self.set(due, None);
        Some(due)
    }

    /// When the next is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(at, _)| *at)
    }

    pub(crate) fn of(&self, due: TimerTarget) -> Option<Instant> {
        self.at.get(&due).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.due.len()
    }

    fn set(&mut self, due: TimerTarget, at: Option<Instant>) {
        let before = match at {
            Some(at) => self.at.insert(due, at),
            None => self.at.remove(&due),
        };
        if let Some(before) = before {
            self.due.remove(&(before, due));
        }
        if let Some(at) = at {
            self.due.insert((at, due));
        }
    }
}
