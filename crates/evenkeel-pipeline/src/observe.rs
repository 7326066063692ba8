//! Observe: what happened, told once, and fed back to every step before.
//!
//! Bound: a request's latency counts once, at its first byte or its end; a busy node's answer never counts against it.

mod status;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::path::{Probe, Transition};
use evenkeel_policy::time::{Duration, Instant};

pub use status::{ModelStatus, NodeStatus, PoolStats, Status, TenantStatus};

use crate::OptimizedLoadManager;
use crate::accept::{Attempt, AttemptFailure, RequestId};
use crate::pick_node::{AdminState, BreakerState, PickReason};
use crate::rejection::{Rejection, WaitResult};

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A slot is reserved for a request: send it.
    Dispatch {
        /// The request.
        request: RequestId,
        /// Who asked.
        tenant: TenantId,
        /// The node that has the slot.
        node: NodeId,
        /// The way to it; `None` when it has no paths to choose from.
        path: Option<PathId>,
        /// How long it waited, before all its attempts together.
        waited: Duration,
        /// Why this node.
        because: PickReason,
        /// Which attempt this is, from 1.
        attempt: u32,
    },
    /// A request ends without having been served.
    Reject {
        /// The request.
        request: RequestId,
        /// Who asked.
        tenant: TenantId,
        /// Why.
        rejection: Rejection,
    },
    /// A request lost its slot to a failure and waits for another.
    Retry {
        /// The request.
        request: RequestId,
        /// Who asked.
        tenant: TenantId,
        /// How it failed.
        failure: AttemptFailure,
        /// Which attempt failed, from 1.
        attempt: u32,
    },
    /// A request that a node answered has ended, and its slot is free.
    Done {
        /// The request.
        request: RequestId,
        /// Who asked.
        tenant: TenantId,
        /// The node.
        node: NodeId,
        /// What it cost.
        actual: Cost,
        /// How it ended.
        ending: RequestOutcome,
    },
    /// A node is to take work, or no more.
    AdminState {
        /// The node.
        node: NodeId,
        /// What it is to do.
        duty: AdminState,
    },
    /// A node that was to leave has finished what it had, and is forgotten.
    NodeRemoved {
        /// The node.
        node: NodeId,
    },
    /// A node broke, is tried again, or is well.
    Breaker {
        /// The node.
        node: NodeId,
        /// What it is from now on.
        state: BreakerState,
    },
    /// A node said that it has no room.
    Cooldown {
        /// The node.
        node: NodeId,
        /// Until when it is spared.
        until: Instant,
    },
    /// A path is well, or not.
    Path {
        /// The node it leads to.
        node: NodeId,
        /// The path.
        path: PathId,
        /// What changed, and why.
        transition: Transition,
    },
}

impl Event {
    /// The seed's result of waiting, if this event is one.
    pub fn wait_result(&self) -> Option<WaitResult> {
        match self {
            Self::Dispatch { node, .. } => Some(WaitResult::Ready { runtime_id: *node }),
            Self::Reject { rejection, .. } => rejection.wait_result(),
            Self::Retry { .. }
            | Self::Done { .. }
            | Self::AdminState { .. }
            | Self::NodeRemoved { .. }
            | Self::Breaker { .. }
            | Self::Cooldown { .. }
            | Self::Path { .. } => None,
        }
    }
}

/// How a request ended that had a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was answered.
    Served {
        /// Whether the node did its part.
        outcome: Outcome,
    },
    /// Whoever asked has gone.
    Cancelled,
    /// The node failed after it had begun to answer: the client is to be told so.
    FailedMidStream {
        /// How it failed.
        failure: AttemptFailure,
    },
}

/// How often what happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Slots given, retries included.
    pub dispatched: u64,
    /// Requests that ended with a slot.
    pub finished: u64,
    /// Requests turned away by a full queue on arrival.
    pub queue_full: u64,
    /// Requests pushed out by others.
    pub pushed_out: u64,
    /// Requests that no slot came free for in time.
    pub timed_out: u64,
    /// Requests turned away for every other reason.
    pub refused: u64,
    /// Requests whose asker went while they waited.
    pub cancelled: u64,
    /// Attempts after a failure.
    pub retried: u64,
    /// Words about requests that had ended, or had no slot to speak of.
    pub unknown: u64,
}

impl Counts {
    /// What counts as turned away by backpressure.
    pub fn backpressure_rejections(&self) -> u64 {
        self.queue_full + self.pushed_out
    }

    pub(crate) fn record_rejection(&mut self, rejection: &Rejection) {
        let count = match rejection {
            Rejection::QueueFull { .. } => &mut self.queue_full,
            Rejection::Evicted { .. } => &mut self.pushed_out,
            Rejection::WaitTimeout { .. } => &mut self.timed_out,
            Rejection::Cancelled => &mut self.cancelled,
            Rejection::WouldMissDeadline { .. }
            | Rejection::UnknownTenant { .. }
            | Rejection::UnknownModel { .. }
            | Rejection::NoNode { .. }
            | Rejection::Failed { .. } => &mut self.refused,
        };
        *count += 1;
    }
}

impl OptimizedLoadManager {
    /// A node has begun to answer.
    pub(crate) fn observe_answer(&mut self, request: RequestId, flight: &Attempt) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(flight.node) else { return };
        node.on_latency(now, now.since(flight.since));
        node.rest.on_answer(request);
        let breaker = node.breaker.on_answer(now, request);
        let transition = flight.path.and_then(|path| node.paths.on_answer(now, path));
        self.tell_path(flight.node, flight.path, transition);
        self.tell_breaker(flight.node, breaker);
    }

    /// A node has begun to say an answer bit by bit.
    ///
    /// When an answer in one piece begins says how long it is, not how loaded its node.
    pub(crate) fn observe_first_token(&mut self, request: RequestId, flight: &Attempt) {
        let now = self.now;
        if !self.requests.get(request).is_some_and(|ticket| ticket.arrival.is_streamed()) {
            return;
        }
        if let Some(node) = self.nodes.get_mut(flight.node) {
            node.capacity.on_first_token(flight.epoch, now.since(flight.since));
        }
    }

    /// A request is done, well or not.
    pub(crate) fn observe_outcome(&mut self, request: RequestId, flight: &Attempt, outcome: Outcome) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(flight.node) else { return };
        let breaker = node.breaker.on_outcome(now, request, outcome);
        self.tell_breaker(flight.node, breaker);
    }

    /// A node, or the way to it, failed a request.
    pub(crate) fn observe_failure(&mut self, request: RequestId, flight: &Attempt, failure: AttemptFailure) {
        let now = self.now;
        let spare = self.options.breaker;
        let Some(node) = self.nodes.get_mut(flight.node) else { return };
        // With another way to the node, an unreachable path says nothing about the node.
        let detour = flight.path.is_some_and(|path| node.paths.has_other(path));
        let (probe, blames_node) = match failure {
            AttemptFailure::Unreachable => (Some(Probe::Failed), !detour),
            AttemptFailure::TimedOut => (Some(Probe::Lost), true),
            AttemptFailure::BadResponse => (None, true),
            AttemptFailure::Busy { retry_after } => {
                let until = node.rest.begin(now, spare.rest(retry_after));
                node.capacity.on_refusal(flight.epoch, node.busy.saturating_sub(1));
                self.events.push_back(Event::Cooldown { node: flight.node, until });
                (None, false)
            }
        };
        if failure == AttemptFailure::TimedOut {
            node.on_timeout(now);
        }
        let transition = match (flight.path, probe) {
            (Some(path), Some(probe)) => node.paths.on_probe(now, path, probe),
            (Some(path), None) => node.paths.on_answer(now, path),
            (None, _) => None,
        };
        let breaker = if blames_node { node.breaker.on_outcome(now, request, Outcome::Bad) } else { None };
        self.tell_path(flight.node, flight.path, transition);
        self.tell_breaker(flight.node, breaker);
        if let Some(ticket) = self.requests.get_mut(request).filter(|_| blames_node) {
            ticket.tried.push(flight.node);
        }
    }

    /// An active check came back, or did not.
    pub(crate) fn observe_probe(&mut self, id: NodeId, path: Option<PathId>, probe: Probe) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        let detour = path.is_some_and(|path| node.paths.has_other(path));
        let transition = path.and_then(|path| node.paths.on_probe(now, path, probe));
        let breaker = match probe {
            Probe::Answered { .. } => node.breaker.on_check(now, Outcome::Good),
            Probe::Lost | Probe::Failed if detour => None,
            Probe::Lost | Probe::Failed => node.breaker.on_check(now, Outcome::Bad),
        };
        self.tell_path(id, path, transition);
        self.tell_breaker(id, breaker);
    }

    /// Something about a node is over: its rest, its backoff, or that of a path.
    pub(crate) fn observe_time(&mut self, id: NodeId) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.rest.on_time(now);
        let breaker = node.breaker.on_time(now);
        node.refresh(now);
        for (path, transition) in node.paths.on_time(now) {
            self.events.push_back(Event::Path { node: id, path, transition });
        }
        self.tell_breaker(id, breaker);
    }

    fn tell_path(&mut self, node: NodeId, path: Option<PathId>, transition: Option<Transition>) {
        if let (Some(path), Some(transition)) = (path, transition) {
            self.emit(Event::Path { node, path, transition });
        }
    }

    /// Tells a change of a breaker, forgets what depended on the node, and sets when it changes by itself.
    fn tell_breaker(&mut self, id: NodeId, changed: Option<BreakerState>) {
        if let Some(state) = changed {
            self.emit(Event::Breaker { node: id, state });
        }
        let Some(node) = self.nodes.get(id) else { return };
        match changed {
            Some(BreakerState::Open { .. }) => self.node_cache.invalidate(id, |_| true),
            Some(BreakerState::Closed) => self.wait_queue.forget_rates(node.models()),
            Some(BreakerState::HalfOpen) | None => {}
        }
        self.timers.set_node(id, node.timeout());
    }

    pub(crate) fn emit(&mut self, event: Event) {
        self.events.push_back(event);
    }
}
