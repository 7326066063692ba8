//! Request log: the recent steps of each request and the recent node changes, as `explain` shows them.
//!
//! Limits: the last `requests_max` requests with `steps_max` steps each, and the last `changes_max` node changes.
//! Memory is allocated as requests arrive and reused for later ones.

use std::collections::{HashMap, VecDeque};

use evenkeel_policy::id::{NodeId, RequestId, TenantId};
use evenkeel_policy::time::Instant;
use parking_lot::Mutex;

use crate::event::{Event, NodeEvent, Step};

/// Limits of a request log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLogLimits {
    /// Maximum number of requests; 0 disables their log.
    pub requests_max: usize,
    /// Maximum number of steps per request; the first and the latest are kept.
    pub steps_max: usize,
    /// Maximum number of node changes; 0 disables their log.
    pub changes_max: usize,
}

impl Default for RequestLogLimits {
    fn default() -> Self {
        Self { requests_max: 1024, steps_max: 16, changes_max: 256 }
    }
}

/// Recent steps of requests and changes of nodes.
#[derive(Debug)]
pub struct RequestLog {
    limits: RequestLogLimits,
    requests: Mutex<RequestRing>,
    changes: Mutex<VecDeque<(Instant, NodeId, NodeEvent)>>,
}

#[derive(Debug, Default)]
struct RequestRing {
    /// Ring buffer; `next` is the oldest entry once it is full.
    entries: Vec<RequestHistory>,
    next: usize,
    /// The entry last written to, which is checked first because a request's steps often follow each other.
    latest: usize,
    by_id: HashMap<RequestId, usize>,
}

/// Steps of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestHistory {
    pub request: RequestId,
    pub tenant: TenantId,
    /// Steps with their times, in order. If the log had dropped the request, only the steps recorded since then.
    pub steps: Vec<(Instant, Step)>,
    /// Number of omitted steps, all after the first.
    pub omitted: u64,
}

impl RequestLog {
    pub fn new(limits: RequestLogLimits) -> Self {
        Self { limits, requests: Mutex::default(), changes: Mutex::default() }
    }

    /// Records an event.
    pub fn record(&self, now: Instant, event: &Event) {
        match *event {
            Event::Request { request, tenant, step } if self.limits.requests_max > 0 => {
                let mut requests = self.requests.lock();
                let index = requests.entry_index(request, tenant, self.limits.requests_max);
                requests.entries[index].push(now, step, self.limits.steps_max);
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

    /// Returns the steps of a request, unless it is too old to be in the log.
    pub fn history(&self, request: RequestId) -> Option<RequestHistory> {
        let requests = self.requests.lock();
        requests.by_id.get(&request).map(|index| requests.entries[*index].clone())
    }

    /// Returns the last node changes, oldest first.
    pub fn changes(&self) -> Vec<(Instant, NodeId, NodeEvent)> {
        self.changes.lock().iter().copied().collect()
    }
}

impl RequestRing {
    /// Returns the index of a request's entry; a new request takes the oldest entry.
    fn entry_index(&mut self, request: RequestId, tenant: TenantId, requests_max: usize) -> usize {
        if self.entries.get(self.latest).is_some_and(|entry| entry.request == request) {
            return self.latest;
        }
        if let Some(index) = self.by_id.get(&request) {
            self.latest = *index;
            return *index;
        }
        let index = self.next;
        self.latest = index;
        if index == self.entries.len() {
            self.entries.push(RequestHistory { request, tenant, steps: Vec::new(), omitted: 0 });
        } else {
            let entry = &mut self.entries[index];
            self.by_id.remove(&entry.request);
            entry.steps.clear();
            entry.request = request;
            entry.tenant = tenant;
            entry.omitted = 0;
        }
        self.by_id.insert(request, index);
        self.next = (index + 1) % requests_max;
        index
    }
}

impl RequestHistory {
    fn push(&mut self, now: Instant, step: Step, steps_max: usize) {
        if self.steps.len() >= steps_max {
            self.omitted += 1;
            // The first step names the model; the one after it is the least useful.
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
    use crate::event::LabelValue;

    #[test]
    fn a_history_holds_all_steps_of_a_request_in_order() {
        let log = log_of(2, 8);
        record(&log, 1, Step::Admitted { waiting: 1 });
        record(&log, 2, Step::Admitted { waiting: 2 });
        record(&log, 1, Step::Cancelled);
        let history = log.history(RequestId(1)).unwrap();
        let steps: Vec<_> = history.steps.iter().map(|(_, step)| step.as_str()).collect();
        assert_eq!((steps, history.omitted), (vec!["admitted", "cancelled"], 0));
    }

    #[test]
    fn the_oldest_request_is_dropped_first() {
        let log = log_of(3, 8);
        for request in 0..7 {
            record(&log, request, Step::Cancelled);
        }
        let known: Vec<_> = (0..7).filter(|request| log.history(RequestId(*request)).is_some()).collect();
        assert_eq!(known, [4, 5, 6]);
        assert_eq!(log.requests.lock().by_id.len(), 3);
    }

    #[test]
    fn a_long_history_keeps_the_first_step_and_the_latest() {
        let log = log_of(1, 3);
        for waiting in 0..6 {
            record(&log, 1, Step::Admitted { waiting });
        }
        let history = log.history(RequestId(1)).unwrap();
        let kept: Vec<_> = history.steps.iter().map(|(_, step)| *step).collect();
        assert_eq!(kept, [0, 4, 5].map(|waiting| Step::Admitted { waiting }));
        assert_eq!(history.omitted, 3);
    }

    #[test]
    fn a_log_with_limits_of_zero_stays_empty() {
        let log = RequestLog::new(RequestLogLimits { requests_max: 0, steps_max: 0, changes_max: 0 });
        record(&log, 1, Step::Cancelled);
        log.record(Instant::ORIGIN, &Event::Node { node: NodeId(0), change: NodeEvent::BreakerClosed });
        assert_eq!((log.history(RequestId(1)), log.changes()), (None, vec![]));
    }

    #[test]
    fn the_oldest_node_change_is_dropped_first() {
        let log = log_of(1, 1);
        for node in 0..4 {
            log.record(
                Instant::ORIGIN,
                &Event::Node { node: NodeId(node), change: NodeEvent::BreakerClosed },
            );
        }
        let kept: Vec<_> = log.changes().iter().map(|(_, node, _)| node.0).collect();
        assert_eq!(kept, [2, 3]);
    }

    fn log_of(requests_max: usize, steps_max: usize) -> RequestLog {
        RequestLog::new(RequestLogLimits { requests_max, steps_max, changes_max: 2 })
    }

    fn record(log: &RequestLog, request: u64, step: Step) {
        let event = Event::Request { request: RequestId(request), tenant: TenantId(0), step };
        log.record(Instant::ORIGIN, &event);
    }
}
