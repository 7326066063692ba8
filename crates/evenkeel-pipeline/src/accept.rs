//! Accept: what a door hands in, and what the walk remembers of it.
//!
//! Bound: a request is remembered from its arrival to its one end; an id that is not, or is no longer, a request's is
//! told apart from every living one.

mod requests;

use evenkeel_policy::concurrency_limit::Epoch;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};

pub(crate) use requests::Requests;

/// A model, a database, or whatever else decides which nodes can do a request; the caller numbers them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// Whether somebody waits for the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Somebody does.
    #[default]
    Interactive,
    /// Nobody does: it gets slots that nobody who waits could have, and takes no places from them.
    Background,
}

impl Priority {
    /// Both, in the order in which they are served.
    pub(crate) const ALL: [Self; 2] = [Self::Interactive, Self::Background];
}

/// Requests that take turns with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ModelQueueId {
    pub(crate) model: ModelId,
    pub(crate) urgency: Priority,
}

/// One request, from its arrival to its end; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub(crate) u64);

impl RequestId {
    /// The id as a number, for logs and headers.
    pub const fn number(self) -> u64 {
        self.0
    }
}

/// Who asks, for what, at what cost, until when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Arrival {
    /// Who asks and is charged.
    pub tenant: TenantId,
    /// What must be served by the node.
    pub model: ModelId,
    /// What it is thought to cost, in the pool's currency.
    pub cost: Cost,
    /// What of it is charged in any case when it gets a slot: a prompt, or everything if nothing is told of it before
    /// its end. The rest is charged as [`handle_progress`](crate::OptimizedLoadManager::handle_progress) tells of it.
    pub upfront: Cost,
    /// What requests have in common that should meet the same node: a conversation, a prompt's beginning.
    pub affinity: Option<u64>,
    /// How long its answer is wanted; without it, it waits for `default_timeout` at most.
    pub deadline: Option<Duration>,
    /// What the node is chosen for.
    pub request: RequestKind,
    /// Whether somebody waits for it.
    pub urgency: Priority,
}

impl Arrival {
    /// With whom it takes turns.
    pub(crate) fn line(&self) -> ModelQueueId {
        ModelQueueId { model: self.model, urgency: self.urgency }
    }

    /// Tells whether its answer is told of before its end.
    pub(crate) fn is_streamed(&self) -> bool {
        self.upfront < self.cost
    }
}

/// How a request ended that a node has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestEnd {
    /// What it cost in the end.
    pub actual: Cost,
    /// Whether the node did its part; a client's mistake is not the node's.
    pub outcome: Outcome,
}

/// How a node or the way to it failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The path refused or dropped it before the node saw it.
    Unreachable,
    /// The node did not answer in time.
    TimedOut,
    /// The node answered with an error of its own, with nonsense, or stopped midway.
    BadResponse,
    /// The node is well and has no room.
    Busy {
        /// When it wants to be asked again.
        retry_after: Option<Duration>,
    },
}

/// What the walk remembers of one request.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    pub(crate) arrival: Arrival,
    /// Its place in the order of arrivals.
    pub(crate) order: u64,
    pub(crate) deadline_at: Option<Instant>,
    pub(crate) waiting_since: Instant,
    /// What it waited before earlier attempts.
    pub(crate) waited_before: Duration,
    pub(crate) timeout_at: Instant,
    pub(crate) attempts: u32,
    /// Of which nodes without room refused so many.
    pub(crate) refused: u32,
    /// Nodes that failed it.
    pub(crate) tried: Vec<NodeId>,
    /// How often another of its lane went before it for a warm node.
    pub(crate) skipped: u32,
    pub(crate) stage: RequestState,
}

impl RequestRecord {
    /// How long it has waited for slots so far.
    pub(crate) fn waited(&self, now: Instant) -> Duration {
        self.waited_before + now.since(self.waiting_since)
    }

    /// The slot it has.
    pub(crate) fn flight(&self) -> Option<Attempt> {
        match self.stage {
            RequestState::Delayed { .. } | RequestState::Queued => None,
            RequestState::InFlight(flight) => Some(flight),
        }
    }

    /// How long it may wait in all.
    pub(crate) fn timeout(&self) -> Duration {
        self.waited_before + self.timeout_at.since(self.waiting_since)
    }
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RequestState {
    /// It counts as waiting and takes its place in the queue later.
    Delayed { enters_at: Instant },
    /// It waits for a slot.
    Queued,
    /// It has a slot.
    InFlight(Attempt),
}

/// A slot in use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) node: NodeId,
    pub(crate) path: Option<PathId>,
    pub(crate) since: Instant,
    /// Which of the node's limits it was sent under.
    pub(crate) epoch: Epoch,
    pub(crate) answer: ResponseState,
    /// What its tenant is charged so far.
    pub(crate) charged: Cost,
    /// What its node counts it for: all that it is thought to cost.
    pub(crate) load: Cost,
    /// What it is known to have cost so far.
    pub(crate) actual: Cost,
}

/// Whether the client has seen anything of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponseState {
    Pending,
    Started,
}
