//! Accept: requests as the driver submits them, and the pipeline's record of each.
//!
//! Guarantees: a record exists from the request's arrival until it ends; ids are never reused.

mod requests;

use evenkeel_policy::class::TenantFlow;
use evenkeel_policy::concurrency_limit::Departure;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{Key, ModelId, NodeId, PathId, TenantId};
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};

pub(crate) use requests::Requests;

use crate::pick_node::PromptCache;

/// Priority of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// A client waits for the response.
    #[default]
    Interactive,
    /// No client waits: it only gets slots that no interactive request can use, and uses none of their queue capacity.
    Background,
}

impl Priority {
    /// Both priorities, in the order in which they are served.
    pub(crate) const ALL: [Self; 2] = [Self::Interactive, Self::Background];
}

/// Identifies one model queue: the requests that are scheduled against each other by DRR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelQueueId {
    pub(crate) model: ModelId,
    pub(crate) priority: Priority,
}

/// A request as it arrives.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// The tenant that is charged.
    pub tenant: TenantId,
    /// The model that the node must serve.
    pub model: ModelId,
    /// Estimated cost, in the pool's unit.
    pub cost: Cost,
    /// Part of `cost` that is charged when the request gets a slot: its prompt, or everything if no progress is
    /// reported before its end. The rest is charged as
    /// [`handle_progress`](crate::OptimizedLoadManager::handle_progress) reports it.
    pub upfront: Cost,
    /// Key shared by requests that should go to the same node: a conversation, a prompt prefix.
    pub affinity: Option<u64>,
    /// Time within which the response is needed; without one, the request waits for at most `default_timeout`.
    pub deadline: Option<Duration>,
    /// Kind of work, for node selection.
    pub request: RequestKind,
    /// Interactive, or background if no client waits for the response.
    pub priority: Priority,
    /// Class and session within the tenant.
    pub flow: TenantFlow,
    /// Treatment while no node of the model can be reached.
    pub outage: OutageRule,
}

/// Treatment of a request while no node of its model can be reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OutageRule {
    /// It waits for up to `hold` after the first failure.
    #[default]
    Hold,
    /// It is rejected once it could not be sent, because its driver has another model for it.
    Reject,
}

impl Arrival {
    /// Returns the model queue that the request waits in.
    pub(crate) fn queue_id(&self) -> ModelQueueId {
        ModelQueueId { model: self.model, priority: self.priority }
    }

    /// Reports whether the response is streamed, that is, whether progress is reported before its end.
    pub(crate) fn is_streamed(&self) -> bool {
        self.upfront < self.cost
    }
}

/// End of a request that a node answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// Actual cost.
    pub actual: Cost,
    /// `Bad` if the node failed; a client error is not the node's fault.
    pub outcome: Outcome,
}

/// The pipeline's state of one request.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    pub(crate) arrival: Arrival,
    /// Account of its flow in the tenant queue; `None` until it is admitted.
    pub(crate) flow: Option<Key>,
    /// Position in the order of arrivals.
    pub(crate) order: u64,
    pub(crate) deadline_at: Option<Instant>,
    pub(crate) waiting_since: Instant,
    /// Time spent waiting before earlier attempts.
    pub(crate) waited_before: Duration,
    pub(crate) timeout_at: Instant,
    pub(crate) attempts: u32,
    /// Attempts that a node refused or that could not be sent.
    pub(crate) unserved: u32,
    /// Refusals by nodes that serve other requests.
    pub(crate) refused: u32,
    /// Nodes that failed the request.
    pub(crate) tried: Vec<NodeId>,
    /// Nodes that the request avoids for a while.
    pub(crate) holds: Vec<NodeHold>,
    /// Number of times a request behind it in the tenant queue was preferred for its warm cache.
    pub(crate) skipped: u32,
    pub(crate) state: RequestState,
}

impl RequestRecord {
    /// Returns the total time spent waiting for slots.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        self.waited_before + now.since(self.waiting_since)
    }

    /// Returns the current attempt, if the request has a slot.
    pub(crate) fn attempt(&self) -> Option<Attempt> {
        match self.state {
            RequestState::Delayed { .. } | RequestState::Queued => None,
            RequestState::InFlight(attempt) => Some(attempt),
        }
    }

    /// Returns the time at which the state of the request next changes by itself.
    pub(crate) fn due_at(&self) -> Option<Instant> {
        match self.state {
            RequestState::Delayed { enters_at } => Some(enters_at.min(self.timeout_at)),
            RequestState::Queued => {
                let hold = self.holds.iter().map(|hold| hold.until).min();
                Some(hold.map_or(self.timeout_at, |hold| hold.min(self.timeout_at)))
            }
            RequestState::InFlight(_) => None,
        }
    }

    /// Avoids a node for a while; the request keeps at most one hold per node.
    pub(crate) fn hold(&mut self, hold: NodeHold) {
        self.holds.retain(|other| other.node != hold.node && hold.since < other.until);
        self.holds.push(hold);
    }

    /// Returns the total time the request may wait.
    pub(crate) fn timeout(&self) -> Duration {
        self.waited_before + self.timeout_at.since(self.waiting_since)
    }
}

/// A node that refused a request or could not be reached, and the time for which the request avoids it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NodeHold {
    pub(crate) node: NodeId,
    pub(crate) since: Instant,
    pub(crate) until: Instant,
}

/// Progress of a request through the pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RequestState {
    /// Delayed by backpressure: holds queue capacity and is queued at `enters_at`.
    Delayed { enters_at: Instant },
    /// Waiting for a slot.
    Queued,
    /// Sent to a node.
    InFlight(Attempt),
}

/// One attempt: a slot in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) node: NodeId,
    pub(crate) path: Option<PathId>,
    pub(crate) since: Instant,
    /// The node's requests in flight when it was sent, itself included.
    pub(crate) level: u32,
    /// Circumstances under which it was sent, for the node's concurrency limit.
    pub(crate) departure: Departure,
    /// Time of the last report of output, or of the first byte; until then, the time at which it was sent.
    pub(crate) reported_at: Instant,
    /// Expected state of the node's prompt cache.
    pub(crate) prompt_cache: PromptCache,
    pub(crate) response: ResponseState,
    /// Amount charged to the tenant so far.
    pub(crate) charged: Cost,
    /// Amount counted as the node's load: the full estimate, or more once it is exceeded.
    pub(crate) load: Cost,
    /// Cost known so far.
    pub(crate) actual: Cost,
}

/// Response progress, as far as failover is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseState {
    Pending,
    /// The response is a client error, which says nothing about the node's latency.
    ClientError,
    Started,
}
