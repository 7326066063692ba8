//! The walk that joins the steps: `handle_*` in, `poll_*` out, and nothing in between but decisions.
//!
//! Bounds: every request ends exactly once, as [`Event::Reject`] or [`Event::Done`]; after every call nobody waits who
//! could have a free slot; words about requests that have ended change nothing and are counted.

mod registry;
mod timers;

use std::collections::VecDeque;

use evenkeel_policy::backpressure::{BackpressureController, retry_after};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::time::{Duration, Instant};

pub use registry::RegistryError;
pub(crate) use timers::{TimerTarget, Timers};

use crate::accept::{
    Arrival, Attempt, AttemptFailure, ModelId, ModelQueueId, Priority, RequestEnd, RequestId, RequestRecord,
    RequestState, Requests, ResponseState,
};
use crate::observe::{Counts, Event, RequestOutcome};
use crate::options::{InvalidOptions, PipelineOptions};
use crate::pick_node::{EngineLoad, NodePool, NodeSelectionCache};
use crate::queue::{ModelQueue, QueueEnd, WaitQueue};
use crate::rejection::{Rejection, WaitEntry};
use crate::send::RetryBudget;

/// One pool's walk: every request from its arrival to its end.
///
/// After each `handle_*` call and each change of the registry, take events with [`poll_event`](Self::poll_event) until
/// there is none, and call [`handle_time`](Self::handle_time) when [`poll_timeout`](Self::poll_timeout) says.
#[derive(Clone, Debug)]
pub struct OptimizedLoadManager {
    pub(crate) options: PipelineOptions,
    pub(crate) now: Instant,
    pub(crate) requests: Requests,
    pub(crate) arrivals: u64,
    pub(crate) wait_queue: WaitQueue,
    pub(crate) nodes: NodePool,
    pub(crate) node_cache: NodeSelectionCache,
    pub(crate) retries: RetryBudget,
    pub(crate) timers: Timers,
    pub(crate) in_flight: usize,
    pub(crate) counts: Counts,
    pub(crate) events: VecDeque<Event>,
}

impl OptimizedLoadManager {
    /// Makes a walk without nodes.
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
            retries: RetryBudget::new(options.retry),
            timers: Timers::default(),
            in_flight: 0,
            counts: Counts::default(),
            events: VecDeque::new(),
            options,
        })
    }

    /// Takes in a request; what becomes of it is told by events.
    pub fn handle_arrival(&mut self, now: Instant, arrival: Arrival) -> RequestId {
        self.advance(now);
        let timeout = arrival.deadline.unwrap_or(self.options.load.wait_queue.default_timeout);
        let request = self.requests.insert(RequestRecord {
            arrival,
            order: self.arrivals,
            deadline_at: arrival.deadline.map(|deadline| self.now + deadline),
            waiting_since: self.now,
            waited_before: Duration::ZERO,
            timeout_at: self.now + timeout,
            attempts: 0,
            refused: 0,
            tried: Vec::new(),
            skipped: 0,
            stage: RequestState::Queued,
        });
        self.arrivals += 1;
        self.admit(request);
        self.dispatch();
        // Most are on their way by now, and wait for nothing.
        if let Some(ticket) = self.requests.get(request)
            && ticket.flight().is_none()
        {
            self.timers.set_request(request, ticket);
        }
        request
    }

    /// Takes in that whoever asked has gone: place and slot are given back at once.
    ///
    /// What the request is known to have used stays charged.
    pub fn handle_cancel(&mut self, now: Instant, request: RequestId) {
        self.advance(now);
        match self.requests.get(request).map(|ticket| ticket.stage) {
            Some(RequestState::Delayed { .. } | RequestState::Queued) => {
                self.reject_waiting(request, Rejection::Cancelled)
            }
            Some(RequestState::InFlight(flight)) => {
                self.finish(request, flight.actual, RequestOutcome::Cancelled)
            }
            None => self.counts.unknown += 1,
        }
        self.dispatch();
    }

    /// Takes in that the node has begun to answer: from here on there is no second attempt.
    pub fn handle_first_byte(&mut self, now: Instant, request: RequestId) {
        self.advance(now);
        let Some(flight) = self.known_flight(request) else { return };
        if flight.answer == ResponseState::Started {
            return;
        }
        self.set_flight(request, Attempt { answer: ResponseState::Started, ..flight });
        self.observe_answer(request, &flight);
        self.observe_first_token(request, &flight);
        self.dispatch();
    }

    /// Takes in what a request has cost so far; a charge only rises before the end.
    ///
    /// Its tenant is charged a little more than that, up to what the request was thought to cost.
    pub fn handle_progress(&mut self, now: Instant, request: RequestId, actual_so_far: Cost) {
        self.advance(now);
        let Some(flight) = self.known_flight(request) else { return };
        let Some(arrival) = self.requests.get(request).map(|ticket| ticket.arrival) else { return };
        let actual = flight.actual.max(actual_so_far);
        let charged = self.wait_queue.raise(&arrival, flight.charged, actual);
        let load = flight.load.max(actual);
        if let Some(node) = self.nodes.get_mut(flight.node) {
            node.reprice(flight.load, load);
        }
        self.set_flight(request, Attempt { charged, load, actual, ..flight });
        self.dispatch();
    }

    /// Takes in that a request is done.
    pub fn handle_end(&mut self, now: Instant, request: RequestId, end: RequestEnd) {
        self.advance(now);
        let Some(flight) = self.known_flight(request) else { return };
        if flight.answer == ResponseState::Pending && end.outcome == Outcome::Good {
            self.observe_answer(request, &flight);
        }
        self.observe_outcome(request, &flight, end.outcome);
        self.finish(request, end.actual, RequestOutcome::Served { outcome: end.outcome });
        self.dispatch();
    }

    /// Takes in that a node failed a request: it is tried elsewhere if nothing of an answer was seen.
    pub fn handle_failure(&mut self, now: Instant, request: RequestId, failure: AttemptFailure) {
        self.advance(now);
        let Some(flight) = self.known_flight(request) else { return };
        self.observe_failure(request, &flight, failure);
        match flight.answer {
            ResponseState::Started => {
                self.finish(request, flight.actual, RequestOutcome::FailedMidStream { failure })
            }
            ResponseState::Pending => {
                self.give_slot_back(request, &flight, Cost::ZERO);
                match failure {
                    AttemptFailure::Busy { .. } => self.requeue_refused(request, failure),
                    AttemptFailure::Unreachable | AttemptFailure::TimedOut | AttemptFailure::BadResponse => {
                        self.retry(request, failure);
                    }
                }
            }
        }
        if let AttemptFailure::Busy { .. } = failure {
            self.reject_hopeless(flight.node);
        }
        self.dispatch();
    }

    /// Takes in what a node says of its own load; `None` when it does not say any more.
    pub fn handle_engine_load(&mut self, now: Instant, node: NodeId, load: Option<EngineLoad>) {
        self.advance(now);
        if let Some(node) = self.nodes.get_mut(node) {
            node.on_engine_load(load);
        }
        self.dispatch();
    }

    /// Takes in an active check of a node, over one of its paths if it has any.
    pub fn handle_probe(&mut self, now: Instant, node: NodeId, path: Option<PathId>, probe: Probe) {
        self.advance(now);
        self.observe_probe(node, path, probe);
        self.dispatch();
    }

    /// Lets time pass: delays and backoffs end, waits time out.
    pub fn handle_time(&mut self, now: Instant) {
        self.advance(now);
    }

    /// When [`handle_time`](Self::handle_time) is to be called; `None` while nothing is due.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.timers.next()
    }

    /// Takes out what happened, in order.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Tells since when and until when a request waits; `None` when it does not.
    pub fn wait_entry(&self, request: RequestId) -> Option<WaitEntry> {
        let ticket = self.requests.get(request)?;
        let entry = WaitEntry {
            started_at: ticket.waiting_since,
            timeout_at: ticket.timeout_at,
            request_id: request,
            model_id: ticket.arrival.model,
        };
        (!matches!(ticket.stage, RequestState::InFlight(_))).then_some(entry)
    }

    /// Counts the requests that wait for a model, those in the background excepted.
    pub fn waiting(&self, model: ModelId) -> usize {
        self.wait_queue.waiting(ModelQueueId { model, urgency: Priority::Interactive })
    }

    /// Tells until when a request is slowed before it takes turns; `None` when it is not.
    pub fn delayed_until(&self, request: RequestId) -> Option<Instant> {
        match self.requests.get(request)?.stage {
            RequestState::Delayed { enters_at } => Some(enters_at),
            RequestState::Queued | RequestState::InFlight(_) => None,
        }
    }

    /// Moves the clock and does what is due; a clock that steps back stands still.
    pub(crate) fn advance(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.wait_queue.advance_time(self.now);
        self.node_cache.on_time(self.now);
        if self.timers.next().is_none_or(|due| self.now < due) {
            return;
        }
        while let Some(due) = self.timers.pop(self.now) {
            match due {
                TimerTarget::Request(request) => self.request_due(request),
                TimerTarget::Node(node) => self.observe_time(node),
                TimerTarget::Recheck => {}
            }
        }
        // Slots may have come free for those who wait, before anybody else is decided on.
        self.dispatch();
    }

    fn request_due(&mut self, request: RequestId) {
        let Some(ticket) = self.requests.get_mut(request) else { return };
        if self.now < ticket.timeout_at {
            ticket.stage = RequestState::Queued;
            self.timers.set_request(request, ticket);
            self.enter(request);
            return;
        }
        let rejection = Rejection::WaitTimeout { waited: ticket.waited(self.now), timeout: ticket.timeout() };
        self.reject_waiting(request, rejection);
    }

    /// Lets a request take turns.
    pub(crate) fn enter(&mut self, request: RequestId) {
        if let Some(ticket) = self.requests.get(request) {
            self.wait_queue.enqueue(request, ticket, QueueEnd::Back);
        }
    }

    /// Takes a waiting request out of everything but its place.
    pub(crate) fn leave_queue(&mut self, request: RequestId) {
        if let Some(ticket) = self.requests.get(request) {
            self.wait_queue.leave(request, ticket);
            self.timers.clear_request(request);
        }
    }

    /// Ends a waiting request.
    fn reject_waiting(&mut self, request: RequestId, rejection: Rejection) {
        self.leave_queue(request);
        if let Some(ticket) = self.requests.get(request) {
            self.wait_queue.release_place(ticket.arrival.line(), ticket.arrival.tenant);
        }
        self.reject(request, rejection);
    }

    /// Ends at once the waits that no node will have rested in time for, now that `node` rests.
    fn reject_hopeless(&mut self, node: NodeId) {
        let models = self.nodes.get(node).map(|node| node.models().to_vec()).unwrap_or_default();
        for model in models {
            let rested_at = self.nodes.cooldown_ends_at(self.now, model, &[]);
            if rested_at <= self.now {
                continue;
            }
            let lines = Priority::ALL.into_iter().map(|urgency| ModelQueueId { model, urgency });
            let lanes = lines.filter_map(|line| self.wait_queue.ring(line)).flat_map(ModelQueue::lanes);
            let waiting = lanes.flat_map(|(_, lane)| lane.waiting()).map(|(_, request)| *request);
            let hopeless = |request: &RequestId| {
                self.requests.get(*request).is_some_and(|ticket| ticket.timeout_at <= rested_at)
            };
            let hopeless: Vec<RequestId> = waiting.filter(hopeless).collect();
            let retry_after = retry_after(Some(rested_at.since(self.now)));
            for request in hopeless {
                self.reject_waiting(request, Rejection::WouldMissDeadline { retry_after });
            }
        }
    }

    /// Ends a request that has neither place nor slot.
    pub(crate) fn reject(&mut self, request: RequestId, rejection: Rejection) {
        if let Some(ticket) = self.requests.remove(request) {
            self.counts.record_rejection(&rejection);
            self.emit(Event::Reject { request, tenant: ticket.arrival.tenant, rejection });
        }
    }

    /// Ends a request that has a slot.
    fn finish(&mut self, request: RequestId, actual: Cost, ending: RequestOutcome) {
        let Some(flight) = self.requests.get(request).and_then(RequestRecord::flight) else { return };
        self.give_slot_back(request, &flight, actual);
        if let Some(ticket) = self.requests.remove(request) {
            self.counts.finished += 1;
            let tenant = ticket.arrival.tenant;
            self.emit(Event::Done { request, tenant, node: flight.node, actual, ending });
        }
    }

    fn give_slot_back(&mut self, request: RequestId, flight: &Attempt, actual: Cost) {
        if let Some(arrival) = self.requests.get(request).map(|ticket| ticket.arrival) {
            self.release(request, &arrival, flight, actual);
        }
    }

    fn set_flight(&mut self, request: RequestId, flight: Attempt) {
        if let Some(ticket) = self.requests.get_mut(request) {
            ticket.stage = RequestState::InFlight(flight);
        }
    }

    /// Finds a request that has a slot; a word about any other is counted.
    fn known_flight(&mut self, request: RequestId) -> Option<Attempt> {
        let flight = self.requests.get(request).and_then(RequestRecord::flight);
        if flight.is_none() {
            self.counts.unknown += 1;
        }
        flight
    }
}
