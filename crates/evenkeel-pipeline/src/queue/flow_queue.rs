//! One flow: the requests of one session of a tenant, in one class, that wait for one model.
//!
//! Guarantees: scheduled requests are kept in one order across all kinds. Limits: a search that rules out a kind skips
//! all its requests at once, so its cost does not depend on how many of them wait.

use std::collections::{BTreeSet, VecDeque};

use evenkeel_policy::class::TenantFlow;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::RequestId;
use evenkeel_policy::score::RequestKind;

use super::QueueEnd;
use crate::accept::RequestRecord;

/// Number of kinds of request.
const KINDS: usize = RequestKind::ALL.len();

/// Waiting requests of one flow.
#[derive(Clone, Debug, Default)]
pub(crate) struct FlowQueue {
    pub(super) flow: TenantFlow,
    /// Requests that wait or are in flight.
    pub(super) live: u32,
    /// Requests that are scheduled, a list for each kind, next first.
    queued: [VecDeque<QueuedRequest>; KINDS],
    /// All waiting requests, delayed ones included, in order of arrival.
    waiting: BTreeSet<(u64, RequestId)>,
    cost: Cost,
}

/// State of a request that was removed from a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Removed {
    /// It was not registered.
    Unknown,
    /// It waited but was not scheduled.
    Delayed,
    /// It was scheduled.
    Queued,
}

#[derive(Clone, Copy, Debug)]
struct QueuedRequest {
    /// Orders the requests of all kinds; lower is next.
    position: i64,
    request: RequestId,
}

impl FlowQueue {
    pub(super) fn register(&mut self, request: RequestId, record: &RequestRecord) {
        self.waiting.insert((record.order, request));
        self.cost += record.arrival.cost;
    }

    /// Removes a registered request, and from the schedule if it is queued; returns its state before.
    pub(super) fn remove(&mut self, request: RequestId, record: &RequestRecord) -> Removed {
        if !self.waiting.remove(&(record.order, request)) {
            return Removed::Unknown;
        }
        self.cost = self.cost - record.arrival.cost;
        let same_kind = &mut self.queued[record.arrival.request as usize];
        let Some(index) = same_kind.iter().position(|queued| queued.request == request) else {
            return Removed::Delayed;
        };
        same_kind.remove(index);
        Removed::Queued
    }

    pub(super) fn push(&mut self, request: RequestId, kind: RequestKind, end: QueueEnd) {
        let positions = |queued: Option<&QueuedRequest>| queued.map(|queued| queued.position);
        match end {
            QueueEnd::Front => {
                let first = self.queued.iter().filter_map(|same_kind| positions(same_kind.front())).min();
                let position = first.map_or(0, |first| first - 1);
                self.queued[kind as usize].push_front(QueuedRequest { position, request });
            }
            QueueEnd::Back => {
                let last = self.queued.iter().filter_map(|same_kind| positions(same_kind.back())).max();
                let position = last.map_or(0, |last| last + 1);
                self.queued[kind as usize].push_back(QueuedRequest { position, request });
            }
        }
    }

    /// Returns the scheduled requests, next first.
    pub(crate) fn queued(&self) -> QueuedRequests<'_> {
        QueuedRequests { queued: &self.queued, next: [0; KINDS] }
    }

    pub(crate) fn queued_len(&self) -> usize {
        self.queued.iter().map(VecDeque::len).sum()
    }

    pub(crate) fn queued_len_of(&self, kind: RequestKind) -> usize {
        self.queued[kind as usize].len()
    }

    /// Returns the newest waiting request.
    pub(super) fn newest(&self) -> Option<(u64, RequestId)> {
        self.waiting.last().copied()
    }

    /// Returns the scheduled requests of one kind, next first.
    pub(crate) fn queued_of(&self, kind: RequestKind) -> impl Iterator<Item = RequestId> {
        self.queued[kind as usize].iter().map(|queued| queued.request)
    }

    pub(crate) fn waiting(&self) -> &BTreeSet<(u64, RequestId)> {
        &self.waiting
    }

    pub(crate) fn cost(&self) -> Cost {
        self.cost
    }
}

/// Iterator over the scheduled requests of a flow, next first.
#[derive(Clone, Debug)]
pub(crate) struct QueuedRequests<'a> {
    queued: &'a [VecDeque<QueuedRequest>; KINDS],
    next: [usize; KINDS],
}

impl QueuedRequests<'_> {
    /// Skips all further requests of one kind.
    pub(crate) fn skip_kind(&mut self, kind: RequestKind) {
        self.next[kind as usize] = self.queued[kind as usize].len();
    }
}

impl Iterator for QueuedRequests<'_> {
    type Item = RequestId;

    fn next(&mut self) -> Option<RequestId> {
        let heads = self.queued.iter().zip(&mut self.next);
        let heads = heads.filter_map(|(same_kind, next)| Some((*same_kind.get(*next)?, next)));
        let (queued, next) = heads.min_by_key(|(queued, _)| queued.position)?;
        *next += 1;
        Some(queued.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_kinds_are_in_one_order() {
        let queue = queue();
        assert_eq!(ids(queue.queued()), [5, 0, 1, 2, 3, 4]);
        assert_eq!(
            queue.queued_of(RequestKind::BeginTx).map(|request| request.0).collect::<Vec<_>>(),
            [0, 1, 3]
        );
        assert_eq!(queue.queued_len(), 6);
    }

    #[test]
    fn a_skipped_kind_is_left_out_from_there_on() {
        let queue = queue();
        let mut queued = queue.queued();
        assert_eq!(ids(queued.by_ref().take(2)), [5, 0]);
        queued.skip_kind(RequestKind::BeginTx);
        assert_eq!(ids(queued), [2, 4]);
    }

    fn queue() -> FlowQueue {
        let mut queue = FlowQueue::default();
        let kinds = [
            RequestKind::BeginTx,
            RequestKind::BeginTx,
            RequestKind::Query,
            RequestKind::BeginTx,
            RequestKind::Execute,
        ];
        for (id, kind) in (0..).zip(kinds) {
            queue.push(RequestId(id), kind, QueueEnd::Back);
        }
        queue.push(RequestId(5), RequestKind::Query, QueueEnd::Front);
        queue
    }

    fn ids(queued: impl Iterator<Item = RequestId>) -> Vec<u64> {
        queued.map(|request| request.0).collect()
    }
}
