//! The pipeline's sans-I/O state machine: `handle_*` calls in, `poll_*` calls out.
//!
//! Guarantees: every request ends exactly once, with [`Event::Reject`] or [`Event::Done`]; after every call, no slot is
//! free while a request that could use it waits; calls for ended requests have no effect and are counted.

mod registry;
mod timers;

use std::collections::VecDeque;

use evenkeel_policy::backpressure::{BackpressureController, retry_after};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{ModelId, NodeId, PathId, RequestId};
use evenkeel_policy::outcome::{AttemptFailure, RequestOutcome};
use evenkeel_policy::path::Probe;
use evenkeel_policy::time::{Duration, Instant};

pub use registry::RegistryError;
pub(crate) use timers::{TimerTarget, Timers};

use crate::accept::{
    Arrival, Attempt, ModelQueueId, Priority, RequestEnd, RequestRecord, RequestState, Requests,
    ResponseState,
};
use crate::budget::Budget;
use crate::observe::{Counts, Event};
use crate::options::{InvalidOptions, PipelineOptions};
use crate::pick_node::{EngineLoad, NodePool, NodeSelectionCache};
use crate::queue::{ModelQueue, QueueEnd, WaitQueue};
use crate::rejection::{Rejection, WaitEntry};

/// The request pipeline of one pool of nodes, under the name that the specification gives it.
///
/// After each `handle_*` call and each registry change, call [`poll_event`](Self::poll_event) until it returns `None`,
/// and call [`handle_time`](Self::handle_time) at the time that [`poll_timeout`](Self::poll_timeout) returns.
#[derive(Clone, Debug)]
pub struct OptimizedLoadManager {
    pub(crate) options: PipelineOptions,
    pub(crate) now: Instant,
    pub(crate) requests: Requests,
    pub(crate) arrivals: u64,
    pub(crate) wait_queue: WaitQueue,
    pub(crate) nodes: NodePool,
    pub(crate) node_cache: NodeSelectionCache,
    pub(crate) retries: Budget,
    pub(crate) timers: Timers,
    pub(crate) in_flight: usize,
    pub(crate) counts: Counts,
    pub(crate) events: VecDeque<Event>,
}

impl OptimizedLoadManager {
    /// Creates a pipeline without nodes.
    pub fn new(options: PipelineOptions) -> Result<Self, InvalidOptions> {
        options.check()?;
        let controller = BackpressureController::new(options.load.backpressure)?;
        Ok(Self {
            now: Instant::ORIGIN,
            requests: Requests::default(),
            arrivals: 0,
            wait_queue: WaitQueue::new(&options, controller)?,
            nodes: NodePool::new(&options)?,
            node_cache: NodeSelectionCache::new(options.load.node_cache),
            retries: Budget::new(options.retry.budget_rule()),
            timers: Timers::default(),
            in_flight: 0,
            counts: Counts::default(),
            events: VecDeque::new(),
            options,
        })
    }

    /// Accepts a request; events report its progress.
    pub fn handle_arrival(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        self.advance(now);
        let timeout = arrival.deadline.unwrap_or(self.options.load.wait_queue.default_timeout);
        let request = self.requests.insert(RequestRecord {
            arrival,
            flow: None,
            order: self.arrivals,
            deadline_at: arrival.deadline.map(|deadline| self.now + deadline),
            waiting_since: self.now,
            waited_before: Duration::ZERO,
            timeout_at: self.now + timeout,
            attempts: 0,
            unserved: 0,
            refused: 0,
            tried: Vec::new(),
            holds: Vec::new(),
            skipped: 0,
            state: RequestState::Queued,
        });
        self.arrivals += 1;
        self.admit(request);
        self.dispatch();
        // Most requests are in flight by now and need no timer.
        if let Some(record) = self.requests.get(request)
            && record.attempt().is_none()
        {
            self.timers.set_request(request, record);
        }
        request
    }

    /// Cancels a request, usually because its client disconnected; releases its queue capacity or slot at once.
    ///
    /// The cost reported so far stays charged.
    pub fn handle_cancel(&mut self, now: Instant, request: RequestId) {
        self.advance(now);
        match self.requests.get(request).map(|record| record.state) {
            Some(RequestState::Delayed { .. } | RequestState::Queued) => {
                self.reject_waiting(request, Rejection::Cancelled);
            }
            Some(RequestState::InFlight(attempt)) => {
                self.finish(request, attempt.actual, RequestOutcome::Cancelled);
            }
            None => self.counts.unknown += 1,
        }
        self.dispatch();
    }

    /// Records the first byte of a response; from here on there is no failover.
    pub fn handle_first_byte(&mut self, now: Instant, request: RequestId) {
        self.advance(now);
        let Some(attempt) = self.require_attempt(request) else { return };
        if attempt.response == ResponseState::Started {
            return;
        }
        let started = Attempt { response: ResponseState::Started, reported_at: self.now, ..attempt };
        self.set_attempt(request, started);
        self.observe_first_byte(request, &attempt);
        if attempt.response == ResponseState::Pending {
            self.observe_first_token(request, &attempt);
        }
        self.dispatch();
    }

    /// Records, before its first byte, that a response reports a client error, so that its latency counts for nothing.
    pub fn handle_client_error(&mut self, now: Instant, request: RequestId) {
        self.advance(now);
        let Some(attempt) = self.require_attempt(request) else { return };
        if attempt.response == ResponseState::Pending {
            self.set_attempt(request, Attempt { response: ResponseState::ClientError, ..attempt });
        }
    }

    /// Records the cost of a request so far; its charge never decreases before it ends.
    ///
    /// The tenant is charged somewhat ahead of the reported cost, up to the request's estimate.
    pub fn handle_progress(&mut self, now: Instant, request: RequestId, actual_so_far: Cost) {
        self.advance(now);
        let Some(attempt) = self.require_attempt(request) else { return };
        let Some(record) = self.requests.get(request) else { return };
        let actual = attempt.actual.max(actual_so_far);
        let charged = self.wait_queue.raise_charge(record, attempt.charged, actual);
        let load = attempt.load.max(actual);
        if let Some(node) = self.nodes.get_mut(attempt.node) {
            node.reprice(attempt.load, load);
        }
        self.observe_output(request, &attempt, actual);
        let reported_at = if attempt.actual < actual { self.now } else { attempt.reported_at };
        self.set_attempt(request, Attempt { charged, load, actual, reported_at, ..attempt });
        self.dispatch();
    }

    /// Records the end of a request that a node answered.
    pub fn handle_end(&mut self, now: Instant, request: RequestId, end: RequestEnd) {
        self.advance(now);
        let Some(attempt) = self.require_attempt(request) else { return };
        if attempt.response != ResponseState::Started && end.outcome == Outcome::Good {
            self.observe_first_byte(request, &attempt);
        }
        self.observe_outcome(request, &attempt, end.outcome);
        self.observe_output(request, &attempt, end.actual);
        self.finish(request, end.actual, RequestOutcome::Served { outcome: end.outcome });
        self.dispatch();
    }

    /// Records a failed attempt; the request is retried on another node unless its response has started.
    pub fn handle_failure(&mut self, now: Instant, request: RequestId, failure: AttemptFailure) {
        self.advance(now);
        let Some(attempt) = self.require_attempt(request) else { return };
        self.observe_failure(request, &attempt, failure);
        match attempt.response {
            ResponseState::Started => {
                self.finish(request, attempt.actual, RequestOutcome::FailedMidStream { failure });
            }
            ResponseState::Pending | ResponseState::ClientError => {
                self.release_slot(request, &attempt, Cost::ZERO);
                self.charge_failed(request, failure.charge(attempt.actual));
                match failure {
                    AttemptFailure::Busy { .. } | AttemptFailure::Unreachable => {
                        self.requeue_unserved(request, failure);
                    }
                    AttemptFailure::TimedOut | AttemptFailure::BadResponse => {
                        self.retry(request, failure);
                    }
                }
            }
        }
        if let AttemptFailure::Busy { .. } = failure {
            self.reject_hopeless(attempt.node);
        }
        self.dispatch();
    }

    /// Records the load that a node's engine reports; `None` when it stops reporting.
    pub fn handle_engine_load(&mut self, now: Instant, node: NodeId, load: Option<EngineLoad>) {
        self.advance(now);
        if let Some(node) = self.nodes.get_mut(node) {
            node.on_engine_load(now, load);
        }
        self.dispatch();
    }

    /// Records the result of an active health check of a node, over one of its paths if it has any.
    pub fn handle_probe(&mut self, now: Instant, node: NodeId, path: Option<PathId>, probe: Probe) {
        self.advance(now);
        self.observe_probe(node, path, probe);
        self.dispatch();
    }

    /// Advances time: ends delays, backoffs and cooldowns, and times out waiting requests.
    pub fn handle_time(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Returns the time at which to call [`handle_time`](Self::handle_time); `None` while no timer is set.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Removes and returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Returns the queue entry of a request; `None` when it is not waiting.
    pub fn wait_entry(&self, request: RequestId) -> Option<WaitEntry> {
        let record = self.requests.get(request)?;
        let entry = WaitEntry {
            started_at: record.waiting_since,
            timeout_at: record.timeout_at,
            request_id: request,
            model_id: record.arrival.model,
        };
        (!matches!(record.state, RequestState::InFlight(_))).then_some(entry)
    }

    /// Returns the number of interactive requests that wait for a model.
    pub fn waiting(&self, model: ModelId) -> usize {
        self.wait_queue.waiting(ModelQueueId { model, priority: Priority::Interactive })
    }

    /// Returns the end of a request's backpressure delay; `None` when it is not delayed.
    pub fn delayed_until(&self, request: RequestId) -> Option<Instant> {
        match self.requests.get(request)?.state {
            RequestState::Delayed { enters_at } => Some(enters_at),
            RequestState::Queued | RequestState::InFlight(_) => None,
        }
    }

    /// Advances the clock and runs expired timers; a time before the previous one is ignored.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.wait_queue.advance_time(self.now);
        self.node_cache.on_time(self.now);
        if self.timers.next().is_none_or(|due| self.now < due) {
            return;
        }
        while let Some(due) = self.timers.pop(self.now) {
            match due {
                TimerTarget::Request(request) => self.on_request_timer(request),
                TimerTarget::Node(node) => self.observe_time(node),
                TimerTarget::Recheck => {}
            }
        }
        // Before a new arrival is admitted, so that waiting requests get the freed slots first.
        self.dispatch();
    }

    fn on_request_timer(&mut self, request: RequestId) {
        let Some(record) = self.requests.get_mut(request) else { return };
        if self.now < record.timeout_at {
            let is_delayed = matches!(record.state, RequestState::Delayed { .. });
            record.state = RequestState::Queued;
            record.holds.retain(|hold| self.now < hold.until);
            self.timers.set_request(request, record);
            if is_delayed {
                self.enqueue(request);
            }
            return;
        }
        let rejection = Rejection::WaitTimeout { waited: record.waited(self.now), timeout: record.timeout() };
        self.reject_waiting(request, rejection);
    }

    /// Adds a request to its tenant queue.
    pub(crate) fn enqueue(&mut self, request: RequestId) {
        if let Some(record) = self.requests.get(request) {
            self.wait_queue.enqueue(request, record, QueueEnd::Back);
        }
    }

    /// Removes a waiting request from its queue and timers; it keeps its queue capacity.
    pub(crate) fn leave_queue(&mut self, request: RequestId) {
        if let Some(record) = self.requests.get(request) {
            self.wait_queue.leave(request, record);
            self.timers.clear_request(request);
        }
    }

    /// Rejects a waiting request and releases its queue capacity.
    fn reject_waiting(&mut self, request: RequestId, rejection: Rejection) {
        self.leave_queue(request);
        if let Some(record) = self.requests.get(request) {
            self.wait_queue.release_capacity(record.arrival.queue_id(), record.arrival.tenant);
        }
        self.reject(request, rejection);
    }

    /// Rejects the waiting requests for the models of `node` that would time out before any node's cooldown ends.
    fn reject_hopeless(&mut self, node: NodeId) {
        let models = self.nodes.get(node).map(|node| node.models().to_vec()).unwrap_or_default();
        for model in models {
            let hopeless = |request: RequestId| {
                let record = self.requests.get(request)?;
                let ends_at = self.nodes.cooldown_ends_at(self.now, &record.arrival, record.into());
                let is_hopeless = self.now < ends_at && record.timeout_at <= ends_at;
                is_hopeless.then(|| (request, retry_after(Some(ends_at.since(self.now)))))
            };
            let hopeless: Vec<_> = self.waiting_for(model).filter_map(hopeless).collect();
            for (request, retry_after) in hopeless {
                self.reject_waiting(request, Rejection::WouldMissDeadline { retry_after });
            }
        }
    }

    /// Rejects the waiting requests for the models of `node` that no node could serve for longer than `hold`.
    pub(crate) fn reject_outage(&mut self, node: NodeId) {
        let models = self.nodes.get(node).map(|node| node.models().to_vec()).unwrap_or_default();
        for model in models {
            let Some(rejection) = self.outage(model) else { continue };
            let waiting: Vec<RequestId> = self.waiting_for(model).collect();
            waiting.into_iter().for_each(|request| self.reject_waiting(request, rejection));
        }
    }

    /// Returns the rejection of a request for a model of which no node could be reached for longer than `hold`.
    pub(crate) fn outage(&self, model: ModelId) -> Option<Rejection> {
        let probed_after = self.nodes.outage(self.now, model)?;
        Some(Rejection::Outage { retry_after: probed_after + Duration::from_secs(1) })
    }

    fn waiting_for(&self, model: ModelId) -> impl Iterator<Item = RequestId> {
        let queue_ids = Priority::ALL.into_iter().map(move |priority| ModelQueueId { model, priority });
        let queues = queue_ids.filter_map(|queue_id| self.wait_queue.queue(queue_id));
        queues.flat_map(ModelQueue::tenant_queues).flat_map(|(_, tenant_queue)| tenant_queue.waiting())
    }

    /// Rejects a request that holds neither queue capacity nor a slot.
    pub(crate) fn reject(&mut self, request: RequestId, rejection: Rejection) {
        if let Some(record) = self.requests.remove(request) {
            self.wait_queue.close_flow(&record);
            self.counts.record_rejection(&rejection);
            self.emit(Event::Reject { request, tenant: record.arrival.tenant, rejection });
        }
    }

    /// Ends a request in flight and releases its slot.
    fn finish(&mut self, request: RequestId, actual: Cost, outcome: RequestOutcome) {
        let Some(attempt) = self.requests.get(request).and_then(RequestRecord::attempt) else { return };
        self.release_slot(request, &attempt, actual);
        if let Some(record) = self.requests.remove(request) {
            self.wait_queue.close_flow(&record);
            self.counts.finished += 1;
            let tenant = record.arrival.tenant;
            self.emit(Event::Done { request, tenant, node: attempt.node, actual, outcome });
        }
    }

    fn set_attempt(&mut self, request: RequestId, attempt: Attempt) {
        if let Some(record) = self.requests.get_mut(request) {
            record.state = RequestState::InFlight(attempt);
        }
    }

    /// Returns the attempt of a request that has a slot; counts calls for any other request.
    fn require_attempt(&mut self, request: RequestId) -> Option<Attempt> {
        let attempt = self.requests.get(request).and_then(RequestRecord::attempt);
        if attempt.is_none() {
            self.counts.unknown += 1;
        }
        attempt
    }
}
