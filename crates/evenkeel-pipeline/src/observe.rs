//! Observe: emits events, and feeds results back to the earlier steps.
//!
//! Guarantees: a request's latency counts once, at its first byte or its end; an overloaded answer (429, 503) never
//! counts as a failure of the node.

mod status;

use evenkeel_policy::concurrency_limit::{Output, ResponseDelivery};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, PeerId, RequestId, TenantId};
use evenkeel_policy::outcome::{AttemptFailure, PickReason, RequestOutcome, TripReason};
use evenkeel_policy::path::{Probe, Transition};
use evenkeel_policy::score::{RedirectReason, RequestKind};
use evenkeel_policy::time::{Duration, Instant};

pub use status::{ClassStatus, ModelStatus, NodeStatus, PoolStats, Status, TenantStatus};

use crate::OptimizedLoadManager;
use crate::accept::{Attempt, NodeHold, ResponseState};
use crate::options::BreakerOptions;
use crate::pick_node::{
    AdminState, BreakerState, Corroboration, HadRoom, RefusalCause, Room, SlotRequest, TenantChange, Verdict,
};
use crate::rejection::{Rejection, WaitResult};

/// An event for the driver; [`Dispatch`](Self::Dispatch) is also an instruction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A slot is reserved for a request: send it now.
    Dispatch {
        /// The request.
        request: RequestId,
        /// Its tenant.
        tenant: TenantId,
        /// The node with the reserved slot.
        node: NodeId,
        /// The path to the node; `None` when it has no paths to choose from.
        path: Option<PathId>,
        /// Total time spent waiting, before this attempt and earlier ones.
        waited: Duration,
        /// Reason for the choice.
        reason: PickReason,
        /// Number of this attempt, from 1.
        attempt: u32,
    },
    /// A request ends without being served.
    Reject {
        /// The request.
        request: RequestId,
        /// Its tenant.
        tenant: TenantId,
        /// Reason.
        rejection: Rejection,
    },
    /// An attempt failed and the request is queued again.
    Retry {
        /// The request.
        request: RequestId,
        /// Its tenant.
        tenant: TenantId,
        /// The failure.
        failure: AttemptFailure,
        /// Number of the failed attempt, from 1.
        attempt: u32,
    },
    /// A request that had a slot has ended, and its slot is free.
    Done {
        /// The request.
        request: RequestId,
        /// Its tenant.
        tenant: TenantId,
        /// Its node.
        node: NodeId,
        /// Actual cost.
        actual: Cost,
        /// Result.
        outcome: RequestOutcome,
    },
    /// A request that this gateway has no room for was handed over to a peer.
    Redirected {
        /// Its id, as the caller gave it.
        request: RequestId,
        /// Its tenant.
        tenant: TenantId,
        /// The peer.
        peer: PeerId,
        /// Kind of the request.
        kind: RequestKind,
        /// Reason for the choice.
        reason: RedirectReason,
    },
    /// The administrator changed a node's state.
    AdminState {
        /// The node.
        node: NodeId,
        /// The new state.
        state: AdminState,
    },
    /// A node's last request has finished and the node was removed.
    NodeRemoved {
        /// The node.
        node: NodeId,
    },
    /// A node's circuit breaker opened, became half-open or closed.
    Breaker {
        /// The node.
        node: NodeId,
        /// The new state.
        state: BreakerState,
    },
    /// A node is overloaded and starts to cool down.
    Cooldown {
        /// The node.
        node: NodeId,
        /// End of the cooldown.
        until: Instant,
    },
    /// A node closed to one tenant, because its requests failed or were refused there.
    ClosedToTenant {
        /// The node.
        node: NodeId,
        /// The tenant.
        tenant: TenantId,
        /// Time at which one of its requests may probe the node.
        until: Instant,
        /// Reason.
        reason: TripReason,
    },
    /// A node opened again to a tenant.
    OpenedToTenant {
        /// The node.
        node: NodeId,
        /// The tenant.
        tenant: TenantId,
    },
    /// A path's health changed.
    Path {
        /// The node that the path leads to.
        node: NodeId,
        /// The path.
        path: PathId,
        /// The change and its cause.
        transition: Transition,
    },
}

impl Event {
    /// Returns the result of waiting, as the router specification names it; `None` if this event does not end a wait.
    pub fn wait_result(&self) -> Option<WaitResult> {
        match self {
            Self::Dispatch { node, .. } => Some(WaitResult::Ready { runtime_id: *node }),
            Self::Reject { rejection, .. } => rejection.wait_result(),
            Self::Retry { .. }
            | Self::Done { .. }
            | Self::Redirected { .. }
            | Self::AdminState { .. }
            | Self::NodeRemoved { .. }
            | Self::Breaker { .. }
            | Self::Cooldown { .. }
            | Self::ClosedToTenant { .. }
            | Self::OpenedToTenant { .. }
            | Self::Path { .. } => None,
        }
    }
}

/// Totals since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests dispatched, including retries.
    pub dispatched: u64,
    /// Requests that ended while in flight.
    pub finished: u64,
    /// Requests rejected on arrival because the queue was full.
    pub queue_full: u64,
    /// Queued requests evicted for another tenant.
    pub evicted: u64,
    /// Requests whose wait timed out.
    pub timed_out: u64,
    /// Requests rejected because their deadline would have passed while they waited.
    pub would_miss_deadline: u64,
    /// Requests rejected for any other reason.
    pub rejected: u64,
    /// Requests cancelled while waiting.
    pub cancelled: u64,
    /// Retries, including requests requeued because a node was overloaded.
    pub retried: u64,
    /// Calls for requests that had ended or had no slot.
    pub unknown: u64,
    /// Requests that found no room when they asked for a redirect.
    pub no_room: u64,
    /// Peers whose figures were assessed for such requests.
    pub peers_scored: u64,
    /// Requests handed over to a peer.
    pub redirected: u64,
    /// Requests that wait because only peers with stale figures or full by estimate were better, and the budget for
    /// those was spent.
    pub redirect_budget_spent: u64,
}

impl Counts {
    /// Returns the number of requests rejected or evicted by backpressure.
    pub fn backpressure_rejections(&self) -> u64 {
        self.queue_full + self.evicted + self.would_miss_deadline
    }

    pub(crate) fn record_rejection(&mut self, rejection: &Rejection) {
        let count = match rejection {
            Rejection::QueueFull { .. } => &mut self.queue_full,
            Rejection::Evicted { .. } => &mut self.evicted,
            Rejection::WaitTimeout { .. } => &mut self.timed_out,
            Rejection::Cancelled => &mut self.cancelled,
            Rejection::WouldMissDeadline { .. } => &mut self.would_miss_deadline,
            Rejection::Outage { .. }
            | Rejection::UnknownTenant { .. }
            | Rejection::UnknownModel { .. }
            | Rejection::NoNode { .. }
            | Rejection::Failed { .. } => &mut self.rejected,
        };
        *count += 1;
    }
}

impl OptimizedLoadManager {
    /// Records the first byte of a response for its node, path and circuit breaker.
    pub(crate) fn observe_first_byte(&mut self, request: RequestId, attempt: &Attempt) {
        let now = self.now;
        let Some(arrival) = self.requests.get(request).map(|record| record.arrival) else { return };
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        if attempt.response != ResponseState::ClientError {
            let work = SlotRequest::new(&arrival, attempt.prompt_cache, attempt.load);
            node.on_latency(now, now.since(attempt.since), &work);
        }
        node.cooldown.on_response(request);
        let had_room = node.acceptance.record(now, attempt.since, attempt.level);
        let room = if had_room { HadRoom::Yes } else { HadRoom::Unknown };
        node.tenants.on_served(now, arrival.tenant, request, room);
        node.unreachable = None;
        let breaker = node.breaker.on_response(now, request);
        let transition = attempt.path.and_then(|path| node.paths.on_probe(now, path, Probe::Reached));
        self.emit_path(attempt.node, attempt.path, transition);
        self.apply_breaker_change(attempt.node, breaker);
    }

    /// Records the first token of a streamed response for the adaptive concurrency limit.
    ///
    /// A non-streamed response is ignored: its first byte comes after all of it was generated, so its latency depends
    /// on its length rather than on the node's load.
    pub(crate) fn observe_first_token(&mut self, request: RequestId, attempt: &Attempt) {
        let now = self.now;
        if !self.requests.get(request).is_some_and(|record| record.arrival.is_streamed()) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(attempt.node) {
            node.capacity.on_first_token(now, attempt.departure);
        }
    }

    /// Records what a node generated since the last report of the request, for its adaptive concurrency limit.
    pub(crate) fn observe_output(&mut self, request: RequestId, attempt: &Attempt, actual: Cost) {
        let Some(arrival) = self.requests.get(request).map(|record| record.arrival) else { return };
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        let (generated, delivery) = if arrival.is_streamed() {
            // The prompt is no output.
            let output = |cost: Cost| cost.0.saturating_sub(arrival.upfront.0);
            (output(actual).saturating_sub(output(attempt.actual)), ResponseDelivery::Stream)
        } else {
            (actual.0, ResponseDelivery::Whole)
        };
        if generated > 0 {
            let output = Output { amount: generated, since: attempt.reported_at, delivery };
            node.capacity.on_output(self.now, &output);
        }
    }

    /// Records the outcome of a request that its node answered.
    pub(crate) fn observe_outcome(&mut self, request: RequestId, attempt: &Attempt, outcome: Outcome) {
        let now = self.now;
        let Some(arrival) = self.requests.get(request).map(|record| record.arrival) else { return };
        if outcome == Outcome::Bad && arrival.request == RequestKind::Infer {
            self.observe_failed_response(request, attempt, AttemptFailure::BadResponse);
            return;
        }
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        if outcome == Outcome::Good {
            node.tenants.on_success(now, arrival.tenant, request);
            node.acceptance.on_end(now);
            node.cooldown.on_room();
            node.tenants.on_room();
        }
        let breaker = node.breaker.on_outcome(now, request, outcome);
        self.apply_breaker_change(attempt.node, breaker);
    }

    /// Records a failed attempt against its node or path.
    pub(crate) fn observe_failure(&mut self, request: RequestId, attempt: &Attempt, failure: AttemptFailure) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        let probe = match failure {
            AttemptFailure::Unreachable => Probe::Failed,
            AttemptFailure::TimedOut => Probe::Lost,
            AttemptFailure::BadResponse | AttemptFailure::Busy { .. } => Probe::Reached,
        };
        // With another path to the node, an unreachable path says nothing about the node.
        let has_other_path = attempt.path.is_some_and(|path| node.paths.has_other(path));
        if failure == AttemptFailure::TimedOut {
            node.on_timeout(now);
        }
        let transition = attempt.path.and_then(|path| node.paths.on_probe(now, path, probe));
        self.emit_path(attempt.node, attempt.path, transition);
        match failure {
            AttemptFailure::Unreachable if has_other_path => {}
            AttemptFailure::Unreachable => self.observe_unreachable(request, attempt),
            AttemptFailure::TimedOut | AttemptFailure::BadResponse => {
                self.observe_failed_response(request, attempt, failure);
            }
            AttemptFailure::Busy { retry_after } => self.observe_refusal(request, attempt, retry_after),
        }
        // A path may have got a timer.
        self.apply_breaker_change(attempt.node, None);
    }

    /// Records a request that could not be sent: evidence against its node for all tenants.
    fn observe_unreachable(&mut self, request: RequestId, attempt: &Attempt) {
        let now = self.now;
        let BreakerOptions { hold, backoff_min, .. } = self.options.breaker;
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        node.on_unreachable(now, hold);
        let breaker = node.breaker.on_failure(now, request, AttemptFailure::Unreachable);
        self.apply_breaker_change(attempt.node, breaker);
        if let Some(record) = self.requests.get_mut(request) {
            record.hold(NodeHold { node: attempt.node, since: now, until: now + backoff_min });
        }
    }

    /// Records a failed response: evidence against its node for the request's tenant, unless the request failed on another
    /// node, too.
    fn observe_failed_response(&mut self, request: RequestId, attempt: &Attempt, failure: AttemptFailure) {
        let now = self.now;
        let Some(record) = self.requests.get_mut(request) else { return };
        let arrival = record.arrival;
        let tried = record.tried.clone();
        record.tried.push(attempt.node);
        let has_other = self.nodes.has_other(attempt.node, &arrival);
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        let is_probe = node.breaker.probe() == Some(request);
        if arrival.request != RequestKind::Infer || is_probe {
            let breaker = node.breaker.on_failure(now, request, failure);
            self.apply_breaker_change(attempt.node, breaker);
            return;
        }
        node.breaker.record_error(now);
        if !tried.is_empty() {
            for id in tried {
                if let Some(node) = self.nodes.get_mut(id) {
                    node.tenants.forget_failures(arrival.tenant);
                }
                self.apply_breaker_change(id, None);
            }
            return;
        }
        let has_comparison = has_other || node.tenants.serves_others(now, arrival.tenant);
        let basis = if has_comparison { Corroboration::Others } else { Corroboration::Nothing };
        let breaker = match node.tenants.on_failure(now, arrival.tenant, (request, failure), basis) {
            Verdict::Undecided | Verdict::BlockTenant => None,
            Verdict::TripBreaker(reason) => Some(node.breaker.trip(now, reason)),
        };
        self.apply_breaker_change(attempt.node, breaker);
    }

    /// Records a refusal (429, 503): evidence against its node for the request's tenant, unless the node serves other
    /// requests at that load.
    fn observe_refusal(&mut self, request: RequestId, attempt: &Attempt, retry_after: Option<Duration>) {
        let now = self.now;
        let wait_max = self.options.load.wait_queue.default_timeout;
        let cooldown = self.options.breaker.cooldown_for(retry_after, wait_max);
        let Some(record) = self.requests.get_mut(request) else { return };
        let tenant = record.arrival.tenant;
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        node.unreachable = None;
        match node.acceptance.record_refusal(now, attempt.since, attempt.level) {
            RefusalCause::Request => {
                let known = record.holds.iter().find(|hold| hold.node == attempt.node);
                if known.is_none_or(|hold| node.acceptance.has_served_since(hold.since)) {
                    record.refused += 1;
                }
            }
            RefusalCause::Load => {
                node.capacity.on_refusal(attempt.departure);
                let is_cooling = node.cooldown.is_cooling() || node.tenants.is_cooling(tenant);
                if node.tenants.on_refusal(now, tenant) || is_cooling {
                    let is_for_all = node.cooldown.is_cooling() || node.tenants.begin_cooldown(now, tenant);
                    if is_for_all {
                        node.tenants.clear_cooldowns();
                        let room = if retry_after.is_some() { Room::ChangesNothing } else { Room::EndsIt };
                        let until = node.cooldown.begin(now, cooldown, room);
                        self.events.push_back(Event::Cooldown { node: attempt.node, until });
                    }
                }
            }
            RefusalCause::Unclear => {}
        }
        record.hold(NodeHold { node: attempt.node, since: now, until: now + cooldown });
    }

    /// Records the result of an active health check.
    pub(crate) fn observe_probe(&mut self, id: NodeId, path: Option<PathId>, probe: Probe) {
        let now = self.now;
        let hold = self.options.breaker.hold;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let has_other_path = path.is_some_and(|path| node.paths.has_other(path));
        let transition = path.and_then(|path| node.paths.on_probe(now, path, probe));
        let breaker = match probe.outcome() {
            Outcome::Bad if has_other_path => None,
            outcome => {
                match outcome {
                    Outcome::Good => node.unreachable = None,
                    Outcome::Bad => node.on_unreachable(now, hold),
                }
                node.breaker.on_check(now, outcome)
            }
        };
        self.emit_path(id, path, transition);
        self.apply_breaker_change(id, breaker);
    }

    /// Ends the cooldown and the backoffs of a node and its paths that are due.
    pub(crate) fn observe_time(&mut self, id: NodeId) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.cooldown.on_time(now);
        node.tenants.on_time(now);
        let has_hold_ended = node.end_hold(now);
        let breaker = node.breaker.on_time(now);
        node.refresh(now);
        for (path, transition) in node.paths.on_time(now) {
            self.events.push_back(Event::Path { node: id, path, transition });
        }
        self.apply_breaker_change(id, breaker);
        if has_hold_ended {
            self.reject_outage(id);
        }
    }

    fn emit_path(&mut self, node: NodeId, path: Option<PathId>, transition: Option<Transition>) {
        if let (Some(path), Some(transition)) = (path, transition) {
            self.emit(Event::Path { node, path, transition });
        }
    }

    /// Emits changes of a node's breaker and of its state for tenants, invalidates cache entries or throughput that depend on
    /// the breaker, and sets the node's timer.
    fn apply_breaker_change(&mut self, id: NodeId, changed: Option<BreakerState>) {
        if let Some(state) = changed {
            self.emit(Event::Breaker { node: id, state });
        }
        let Some(node) = self.nodes.get_mut(id) else { return };
        for (tenant, change) in node.tenants.take_changes() {
            self.events.push_back(match change {
                TenantChange::Closed { until, reason } => {
                    Event::ClosedToTenant { node: id, tenant, until, reason }
                }
                TenantChange::Opened => Event::OpenedToTenant { node: id, tenant },
            });
        }
        match changed {
            Some(BreakerState::Open { .. }) => self.node_cache.invalidate(id, |_| true),
            Some(BreakerState::Closed) => self.wait_queue.reset_throughput(node.models()),
            Some(BreakerState::HalfOpen) | None => {}
        }
        self.timers.set_node(id, node.timeout());
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }
}
