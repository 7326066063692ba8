//! Request log: the recent steps of each request and the recent node changes, as `explain` shows them.
//!
//! Limits: the last `requests_max` requests with `steps_max` steps each, and the last `changes_max` node changes.
//! Memory is allocated as requests arrive and reused for later ones. A search by a client's id compares it with all
//! requests, 1024 at a time under the lock, so that finding a request costs nothing until someone asks for it.

use std::collections::{BTreeMap, HashMap, VecDeque};

use evenkeel_policy::id::{ModelId, NodeId, RequestId, TenantId};
use evenkeel_policy::time::Instant;
use parking_lot::Mutex;

use crate::event::{Event, NodeEvent, Step};

/// Number of requests that a search compares before it releases the lock.
const SEARCH_BATCH: usize = 1024;

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

/// Ids of a request other than the one that the pipeline assigns.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestName<'a> {
    /// Id that the client sees in the header `x-request-id`; empty if there is none.
    pub client_id: &'a [u8],
    /// Id of the steps that were recorded before the request entered the pipeline.
    pub earlier: Option<RequestId>,
}

/// Steps of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct RequestHistory {
    pub request: RequestId,
    pub tenant: TenantId,
    /// Id that the client sees; empty if there is none.
    client_id: Vec<u8>,
    /// Steps with their times, in order. If the log had dropped the request, only the steps recorded since then.
    pub steps: Vec<(Instant, Step)>,
    /// Number of omitted steps, all after the first.
    pub omitted: u64,
}

/// Time that a request spent in the queue before its first attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) from: Instant,
    pub(crate) until: Instant,
}

/// Requests that were dispatched while another one waited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Overtakers {
    pub(crate) by_tenant: BTreeMap<TenantId, u64>,
    /// False if the log may have dropped some of them.
    pub(crate) is_complete: bool,
}

impl RequestLog {
    pub fn new(limits: RequestLogLimits) -> Self {
        Self { limits, requests: Mutex::default(), changes: Mutex::default() }
    }

    pub fn limits(&self) -> RequestLogLimits {
        self.limits
    }

    /// Sets the client's id of a request. Steps recorded under `name.earlier` become its first.
    pub fn set_name(&self, request: RequestId, tenant: TenantId, name: RequestName<'_>) {
        if self.limits.requests_max == 0 || name.client_id.is_empty() {
            return;
        }
        let mut requests = self.requests.lock();
        if let Some(earlier) = name.earlier {
            requests.replace_id(earlier, request);
        }
        let index = requests.entry_index(request, tenant, self.limits.requests_max);
        let client_id = &mut requests.entries[index].client_id;
        client_id.clear();
        client_id.extend_from_slice(name.client_id);
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

    /// Returns the id that the client of a request sees.
    pub(crate) fn client_id(&self, request: RequestId) -> Option<String> {
        let requests = self.requests.lock();
        let entry = &requests.entries[*requests.by_id.get(&request)?];
        String::from_utf8(entry.client_id.clone()).ok().filter(|id| !id.is_empty())
    }

    /// Returns the steps of a request, unless it is too old to be in the log.
    pub fn history(&self, request: RequestId) -> Option<RequestHistory> {
        let requests = self.requests.lock();
        requests.by_id.get(&request).map(|index| requests.entries[*index].clone())
    }

    /// Returns the requests with this client's id, at most `found_max`, latest first.
    pub fn find(&self, client_id: &[u8], found_max: usize) -> Vec<RequestHistory> {
        let mut found = Vec::new();
        let mut searched = 0;
        let start = self.requests.lock().next;
        loop {
            let requests = self.requests.lock();
            let len = requests.entries.len();
            for _ in 0..SEARCH_BATCH {
                if len <= searched || found_max <= found.len() {
                    return found;
                }
                searched += 1;
                let entry = &requests.entries[(start + len - searched) % len];
                if entry.client_id == client_id && !entry.steps.is_empty() {
                    found.push(entry.clone());
                }
            }
        }
    }

    /// Counts, by tenant, the other requests for the same model that were dispatched while `history` waited.
    pub(crate) fn dispatched_during(&self, history: &RequestHistory, wait: Wait) -> Overtakers {
        let mut overtakers = Overtakers::default();
        let Some(model) = history.model() else { return overtakers };
        let requests = self.requests.lock();
        // The oldest entry that is left began after the wait, so an older one may be missing.
        let is_full = requests.entries.len() == self.limits.requests_max;
        let oldest = requests.entries.get(requests.next).filter(|_| is_full);
        overtakers.is_complete =
            oldest.and_then(|entry| entry.steps.first()).is_none_or(|(at, _)| *at < wait.from);
        let others = requests.entries.iter().filter(|entry| entry.request != history.request);
        for entry in others.filter(|entry| entry.model() == Some(model)) {
            let is_during = |at: Instant| wait.from <= at && at <= wait.until;
            let dispatched =
                |&(at, step): &(Instant, Step)| is_during(at) && matches!(step, Step::Dispatched { .. });
            if entry.steps.iter().any(dispatched) {
                *overtakers.by_tenant.entry(entry.tenant).or_default() += 1;
            }
        }
        overtakers
    }

    /// Returns the last node changes, oldest first.
    pub fn changes(&self) -> Vec<(Instant, NodeId, NodeEvent)> {
        self.changes.lock().iter().copied().collect()
    }
}

impl RequestRing {
    /// Gives the entry of `earlier`, if there is one, to `request`.
    fn replace_id(&mut self, earlier: RequestId, request: RequestId) {
        let Some(index) = self.by_id.remove(&earlier) else { return };
        // A step that was recorded at the same time may have taken an entry for the request.
        if !self.by_id.contains_key(&request) {
            self.entries[index].request = request;
            self.by_id.insert(request, index);
        }
    }

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
            let client_id = Vec::new();
            self.entries.push(RequestHistory { request, tenant, client_id, steps: Vec::new(), omitted: 0 });
        } else {
            let entry = &mut self.entries[index];
            self.by_id.remove(&entry.request);
            entry.steps.clear();
            entry.client_id.clear();
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
    fn model(&self) -> Option<ModelId> {
        // A request that falls back to another model has another step before.
        self.steps.iter().find_map(|(_, step)| match step {
            Step::Accepted { model, .. } => Some(*model),
            _ => None,
        })
    }

    /// Returns the time that the request waited for its first attempt, or until `now` if it still waits; `None` if it
    /// was rejected or is not in the queue.
    pub(crate) fn wait(&self, now: Instant) -> Option<Wait> {
        let from =
            self.steps.iter().find_map(|(at, step)| matches!(step, Step::Admitted { .. }).then_some(*at))?;
        let dispatched =
            self.steps.iter().find_map(|(at, step)| matches!(step, Step::Dispatched { .. }).then_some(*at));
        let is_waiting = matches!(self.steps.last(), Some((_, Step::Admitted { .. } | Step::Delayed { .. })));
        dispatched.or(is_waiting.then_some(now)).map(|until| Wait { from, until })
    }

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
    use crate::event::{LabelValue, RejectReason};

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
    fn a_request_is_found_by_its_clients_id_until_it_is_dropped() {
        let log = log_of(3, 8);
        for (request, client_id) in [(1, "a"), (2, "b"), (3, "a"), (4, "c")] {
            name(&log, request, client_id, None);
            record(&log, request, Step::Cancelled);
        }
        assert_eq!(found(&log, "a"), [3]);
        assert_eq!((found(&log, "b"), found(&log, "c"), found(&log, "d")), (vec![2], vec![4], vec![]));
        // The entry of `b` is reused for a request without a client's id.
        record(&log, 5, Step::Cancelled);
        assert!(found(&log, "b").is_empty());
    }

    #[test]
    fn requests_with_the_same_id_are_found_latest_first_and_up_to_the_limit() {
        let log = log_of(2 * SEARCH_BATCH, 1);
        for request in 0..3 * SEARCH_BATCH as u64 {
            name(&log, request, if request % 700 == 0 { "retried" } else { "other" }, None);
            record(&log, request, Step::Cancelled);
        }
        assert_eq!(found(&log, "retried"), [2_800, 2_100, 1_400]);
        let two: Vec<_> = log.find(b"retried", 2).iter().map(|history| history.request.0).collect();
        assert_eq!(two, [2_800, 2_100]);
    }

    #[test]
    fn steps_before_the_pipeline_belong_to_the_request_that_enters_it() {
        let log = log_of(3, 8);
        record(&log, 90, Step::Rejected { reason: RejectReason::RateLimited });
        name(&log, 90, "a", None);
        name(&log, 1, "a", Some(RequestId(90)));
        record(&log, 1, Step::Cancelled);
        let histories = log.find(b"a", 9);
        assert_eq!((histories.len(), histories[0].request, histories[0].steps.len()), (1, RequestId(1), 2));
        assert_eq!(log.history(RequestId(90)), None);
        // No step was recorded under the earlier id.
        name(&log, 2, "b", Some(RequestId(91)));
        record(&log, 2, Step::Cancelled);
        assert_eq!(found(&log, "b"), [2]);
    }

    #[test]
    fn a_request_without_a_step_is_not_found() {
        let log = log_of(2, 8);
        name(&log, 1, "a", None);
        assert!(found(&log, "a").is_empty());
    }

    #[test]
    fn a_log_with_limits_of_zero_stays_empty() {
        let log = RequestLog::new(RequestLogLimits { requests_max: 0, steps_max: 0, changes_max: 0 });
        record(&log, 1, Step::Cancelled);
        name(&log, 1, "a", None);
        assert!(found(&log, "a").is_empty());
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

    fn name(log: &RequestLog, request: u64, client_id: &str, earlier: Option<RequestId>) {
        let name = RequestName { client_id: client_id.as_bytes(), earlier };
        log.set_name(RequestId(request), TenantId(0), name);
    }

    fn found(log: &RequestLog, client_id: &str) -> Vec<u64> {
        log.find(client_id.as_bytes(), usize::MAX).iter().map(|history| history.request.0).collect()
    }

    fn record(log: &RequestLog, request: u64, step: Step) {
        let event = Event::Request { request: RequestId(request), tenant: TenantId(0), step };
        log.record(Instant::ORIGIN, &event);
    }
}
