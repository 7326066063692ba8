//! What happened lately, request by request: what `explain` narrates.
//!
//! Bounds: the last `requests_max` requests with `steps_max` steps each, and the last `changes_max` changes of nodes.
//! Memory is taken as requests come and kept for those that follow.

use std::collections::{HashMap, VecDeque};

use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::time::Instant;
use parking_lot::Mutex;

use crate::event::{Event, NodeEvent, RequestId, Step};

/// How much a journal keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLogLimits {
    /// How many requests; 0 keeps none.
    pub requests_max: usize,
    /// How many steps of each; the first and the latest are kept.
    pub steps_max: usize,
    /// How many changes of nodes.
    pub changes_max: usize,
}

impl Default for RequestLogLimits {
    fn default() -> Self {
        Self { requests_max: 1024, steps_max: 16, changes_max: 256 }
    }
}

/// What happened lately.
#[derive(Debug)]
pub struct RequestLog {
    limits: RequestLogLimits,
    requests: Mutex<RequestRing>,
    changes: Mutex<VecDeque<(Instant, NodeId, NodeEvent)>>,
}

#[derive(Debug, Default)]
struct RequestRing {
    /// In a circle; `next` is the oldest once all places are taken.
    places: Vec<RequestHistory>,
    next: usize,
    /// The place that was written to last: a request's steps come in twos and threes.
    latest: usize,
    /// Only ever looked up.
    by_id: HashMap<RequestId, usize>,
}

/// What happened to one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestHistory {
    /// The request.
    pub request: RequestId,
    /// Who asked.
    pub tenant: TenantId,
    /// Its steps in order, and when each was; of a request that outlived its story, those since.
    pub steps: Vec<(Instant, Step)>,
    /// How many steps after the first are left out.
    pub left_out: u64,
}

impl RequestLog {
    /// Makes an empty journal.
    pub fn new(limits: RequestLogLimits) -> Self {
        Self { limits, requests: Mutex::default(), changes: Mutex::default() }
    }

    /// Writes an event down.
    pub fn record(&self, now: Instant, event: &Event) {
        match *event {
            Event::Request { request, tenant, step } if self.limits.requests_max > 0 => {
                let mut requests = self.requests.lock();
                let at = requests.place(request, tenant, self.limits.requests_max);
                requests.places[at].add(now, step, self.limits.steps_max);
            }
            Event::Node { node, change } if self.limits.changes_max > 0 => {
                let mut changes = self.changes.lock();
                if changes.len() == self.limits.changes_max {
                    changes.pop_front();
                }
                changes.push_back((now, node, change));
            }
            Event::Request { .. } | Event::Node { .. } => {}
        }
    }

    /// Tells what happened to a request, unless so many came since that it is forgotten.
    pub fn history(&self, request: RequestId) -> Option<RequestHistory> {
        let requests = self.requests.lock();
        requests.by_id.get(&request).map(|at| requests.places[*at].clone())
    }

    /// Lists the last changes of nodes, oldest first.
    pub fn changes(&self) -> Vec<(Instant, NodeId, NodeEvent)> {
        self.changes.lock().iter().copied().collect()
    }
}

impl RequestRing {
    /// Finds the place of a request; a new one takes the place of the oldest.
    fn place(&mut self, request: RequestId, tenant: TenantId, requests_max: usize) -> usize {
        if self.places.get(self.latest).is_some_and(|place| place.request == request) {
            return self.latest;
        }
        if let Some(at) = self.by_id.get(&request) {
            self.latest = *at;
            return *at;
        }
        let at = self.next;
        self.latest = at;
        if at == self.places.len() {
            self.places.push(RequestHistory { request, tenant, steps: Vec::new(), left_out: 0 });
        } else {
            let place = &mut self.places[at];
            self.by_id.remove(&place.request);
            place.steps.clear();
            (place.request, place.tenant, place.left_out) = (request, tenant, 0);
        }
        self.by_id.insert(request, at);
        self.next = (at + 1) % requests_max;
        at
    }
}

impl RequestHistory {
    fn add(&mut self, now: Instant, step: Step, steps_max: usize) {
        if steps_max <= self.steps.len() {
            self.left_out += 1;
            // The first says what was asked for; what comes after it is the least telling.
            if self.steps.len() < 2 {
                return;
            }
            self.steps.remove(1);
        }
        self.steps.push((now, step));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_told_from_its_first_step_to_its_last() {
        let journal = journal(2, 8);
        record(&journal, 1, Step::Admitted { waiting: 1 });
        record(&journal, 2, Step::Admitted { waiting: 2 });
        record(&journal, 1, Step::Cancelled);
        let story = journal.history(RequestId(1)).unwrap();
        let steps: Vec<_> = story.steps.iter().map(|(_, step)| step.as_str()).collect();
        assert_eq!((steps, story.left_out), (vec!["admitted", "cancelled"], 0));
    }

    #[test]
    fn the_oldest_request_is_forgotten_first() {
        let journal = journal(3, 8);
        for request in 0..7 {
            record(&journal, request, Step::Cancelled);
        }
        let known: Vec<_> = (0..7).filter(|request| journal.history(RequestId(*request)).is_some()).collect();
        assert_eq!(known, [4, 5, 6]);
        assert_eq!(journal.requests.lock().by_id.len(), 3);
    }

    #[test]
    fn of_a_long_story_the_first_step_and_the_latest_are_kept() {
        let journal = journal(1, 3);
        for waiting in 0..6 {
            record(&journal, 1, Step::Admitted { waiting });
        }
        let story = journal.history(RequestId(1)).unwrap();
        let kept: Vec<_> = story.steps.iter().map(|(_, step)| *step).collect();
        assert_eq!(kept, [0, 4, 5].map(|waiting| Step::Admitted { waiting }));
        assert_eq!(story.left_out, 3);
    }

    #[test]
    fn a_journal_of_nothing_keeps_nothing() {
        let journal = RequestLog::new(RequestLogLimits { requests_max: 0, steps_max: 0, changes_max: 0 });
        record(&journal, 1, Step::Cancelled);
        journal.record(Instant::ORIGIN, &Event::Node { node: NodeId(0), change: NodeEvent::BreakerClosed });
        assert_eq!((journal.history(RequestId(1)), journal.changes()), (None, vec![]));
    }

    #[test]
    fn the_oldest_change_of_a_node_is_forgotten_first() {
        let journal = journal(1, 1);
        for node in 0..4 {
            journal.record(
                Instant::ORIGIN,
                &Event::Node { node: NodeId(node), change: NodeEvent::BreakerClosed },
            );
        }
        let kept: Vec<_> = journal.changes().iter().map(|(_, node, _)| node.0).collect();
        assert_eq!(kept, [2, 3]);
    }

    fn journal(requests_max: usize, steps_max: usize) -> RequestLog {
        RequestLog::new(RequestLogLimits { requests_max, steps_max, changes_max: 2 })
    }

    fn record(journal: &RequestLog, request: u64, step: Step) {
        let event = Event::Request { request: RequestId(request), tenant: TenantId(0), step };
        journal.record(Instant::ORIGIN, &event);
    }
}
