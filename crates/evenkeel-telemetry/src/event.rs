//! Pipeline events: emitted once by each step, read by metrics, the request log, `explain` and the log.
//!
//! Most come from the pipeline; an API adds those that only it can observe (accepted, admitted, delayed, first byte).
//! Events use the id, failure and outcome types of [`evenkeel_policy`], as the pipeline does. They contain no strings,
//! so that emitting one allocates nothing.

mod display;

pub(crate) use display::EventDisplay;

use std::time::Duration;

use evenkeel_policy::class::TenantFlow;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{ModelId, NodeId, PathId, PeerId, RequestId, TenantId};
use evenkeel_policy::outcome::{AttemptFailure, PickReason, RequestOutcome, TripReason};
use evenkeel_policy::path::Transition;
use evenkeel_policy::score::{RedirectReason, RequestKind};

/// An event of the pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// A request took a step.
    Request { request: RequestId, tenant: TenantId, step: Step },
    /// A node changed.
    Node { node: NodeId, change: NodeEvent },
}

/// A step of a request through the pipeline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    Accepted {
        model: ModelId,
        /// Estimated cost.
        cost: Cost,
        /// Class and session within the tenant; `None` for a background request.
        flow: Option<TenantFlow>,
    },
    /// It was admitted and counts towards the queue's capacity.
    Admitted {
        /// Waiting requests, including this one.
        waiting: usize,
    },
    /// Backpressure delays it before it enters the queue.
    Delayed {
        delay: Duration,
    },
    /// This gateway had no room, and it was handed over to a peer.
    Redirected {
        peer: PeerId,
        kind: RequestKind,
        reason: RedirectReason,
    },
    /// It was forwarded to the peer that holds the connection of its transaction.
    SentToOwner {
        peer: PeerId,
    },
    /// The peer to which it was forwarded has answered.
    PeerAnswered {
        peer: PeerId,
        after: Duration,
    },
    /// The peer to which it was forwarded did not serve it.
    PeerFailed {
        peer: PeerId,
        failure: HandoverFailure,
    },
    /// It runs on the connection that its transaction holds, so that it needs no slot.
    InTransaction {
        node: NodeId,
    },
    Rejected {
        reason: RejectReason,
    },
    /// It is submitted again for another model, because those before it cannot serve it.
    FellBack {
        to: ModelId,
        reason: FallbackReason,
    },
    /// It was removed from the queue to make room for a tenant below its share.
    Evicted {
        /// Requests still waiting.
        waiting: usize,
    },
    /// Its client disconnected while it waited.
    Cancelled,
    /// It got a slot and is sent to a node.
    Dispatched {
        node: NodeId,
        /// The path to the node, if there is a choice.
        path: Option<PathId>,
        /// Total time in the queue, before this attempt and all earlier ones.
        waited: Duration,
        reason: PickReason,
        /// Number of this attempt, from 1.
        attempt: u32,
    },
    /// The first byte of the response arrived.
    FirstByte {
        node: NodeId,
        /// Time since the request was sent to the node.
        after: Duration,
    },
    /// Its attempt failed, and it waits for a retry on another node.
    FailedOver {
        failure: AttemptFailure,
        /// Number of the failed attempt, from 1.
        attempt: u32,
    },
    /// It has ended, and its slot is free.
    Finished {
        node: NodeId,
        /// Actual cost.
        actual: Cost,
        /// Time since its arrival.
        took: Duration,
        outcome: RequestOutcome,
    },
}

/// Failure of a hand-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoverFailure {
    /// The peer did not execute the request, so that another node may serve it.
    NotExecuted,
    /// The peer may have executed the request.
    OutcomeUnknown,
}

/// Reason why a request falls back to another model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FallbackReason {
    /// No node can serve the model before.
    NoNode,
    /// All attempts on the model before failed.
    Failed,
    /// The model before rejected it for lack of capacity.
    Capacity,
}

/// Reason why a request was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The queue is full, or full for its tenant.
    QueueFull,
    /// No slot became free in time.
    WaitTimeout,
    /// It would still be waiting at its deadline.
    WouldMissDeadline,
    /// No node of its model could be reached for too long.
    Outage,
    /// Its tenant id is at or above the limit.
    UnknownTenant,
    /// Its model id is at or above the limit.
    UnknownModel,
    /// No node in rotation serves the model.
    NoNode,
    /// All its attempts failed, and no retry is left.
    Failed,
    /// Its tenant reached a rate limit.
    RateLimited,
    /// Its tenant reached a budget.
    BudgetReached,
}

/// A change of a node, or of a path to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NodeEvent {
    /// It is in rotation.
    Serving,
    /// It finishes its requests and gets no new ones.
    Draining,
    /// It finishes its requests and is then removed.
    Removing,
    /// It was removed after its last request.
    Removed,
    /// Its circuit breaker opened.
    BreakerOpened {
        reason: TripReason,
        /// Time until the first probe.
        backoff: Duration,
    },
    /// Its circuit breaker lets one probe at a time through.
    BreakerHalfOpen,
    BreakerClosed,
    /// It reported overload (429 or 503) and gets no requests for `duration`.
    CooldownStarted {
        duration: Duration,
    },
    /// It closed to one tenant, because its requests failed or were refused there; others use it.
    ClosedToTenant {
        tenant: TenantId,
        reason: TripReason,
        /// Time until the first probe.
        backoff: Duration,
    },
    /// It opened again to a tenant.
    OpenedToTenant {
        tenant: TenantId,
    },
    /// The health of a path to it changed.
    Path {
        path: PathId,
        transition: Transition,
    },
}

/// A type whose values have fixed names in logs and metric labels; the index of a name is its position in a table.
pub(crate) trait LabelValue {
    /// Every name, by index.
    const NAMES: &'static [&'static str];

    /// Returns the index of this value's name.
    fn index(&self) -> usize;

    /// Returns the name in logs and labels.
    fn as_str(&self) -> &'static str {
        Self::NAMES[self.index()]
    }
}

macro_rules! label_values {
    ($type:ty: $($variant:pat => $index:literal $name:literal,)*) => {
        const _: () = {
            let indices = [$($index),*];
            let mut index = 0;
            while index < indices.len() {
                assert!(indices[index] == index, "the indices must count up from 0");
                index += 1;
            }
        };

        impl LabelValue for $type {
            const NAMES: &'static [&'static str] = &[$($name),*];

            fn index(&self) -> usize {
                match self {
                    $($variant => $index,)*
                }
            }
        }
    };
}

label_values! { Step:
    Self::Accepted { .. } => 0 "accepted",
    Self::Admitted { .. } => 1 "admitted",
    Self::Delayed { .. } => 2 "delayed",
    Self::Rejected { .. } => 3 "rejected",
    Self::Evicted { .. } => 4 "evicted",
    Self::Cancelled => 5 "cancelled",
    Self::Dispatched { .. } => 6 "dispatched",
    Self::FirstByte { .. } => 7 "first_byte",
    Self::FailedOver { .. } => 8 "failed_over",
    Self::Finished { .. } => 9 "finished",
    Self::Redirected { .. } => 10 "redirected",
    Self::SentToOwner { .. } => 11 "sent_to_owner",
    Self::PeerAnswered { .. } => 12 "peer_answered",
    Self::PeerFailed { .. } => 13 "peer_failed",
    Self::InTransaction { .. } => 14 "in_transaction",
    Self::FellBack { .. } => 15 "fell_back",
}

label_values! { FallbackReason:
    Self::NoNode => 0 "no_node",
    Self::Failed => 1 "failed",
    Self::Capacity => 2 "capacity",
}

label_values! { RejectReason:
    Self::QueueFull => 0 "queue_full",
    Self::WaitTimeout => 1 "wait_timeout",
    Self::WouldMissDeadline => 2 "would_miss_deadline",
    Self::UnknownTenant => 3 "unknown_tenant",
    Self::UnknownModel => 4 "unknown_model",
    Self::NoNode => 5 "no_node",
    Self::Failed => 6 "failed",
    Self::RateLimited => 7 "rate_limited",
    Self::Outage => 8 "outage",
    Self::BudgetReached => 9 "budget_reached",
}

label_values! { RequestKind:
    Self::Query => 0 "query",
    Self::Execute => 1 "execute",
    Self::BeginTx => 2 "begin_tx",
    Self::Infer => 3 "infer",
}

label_values! { AttemptFailure:
    Self::Unreachable => 0 "unreachable",
    Self::TimedOut => 1 "timed_out",
    Self::BadResponse => 2 "bad_response",
    Self::Busy { .. } => 3 "busy",
}

label_values! { RequestOutcome:
    Self::Served { outcome: Outcome::Good } => 0 "served",
    Self::Served { outcome: Outcome::Bad } => 1 "served_badly",
    Self::Cancelled => 2 "cancelled",
    Self::FailedMidStream { .. } => 3 "failed_mid_stream",
}

label_values! { NodeEvent:
    Self::Serving => 0 "serving",
    Self::Draining => 1 "draining",
    Self::Removing => 2 "removing",
    Self::BreakerOpened { .. } => 3 "breaker_open",
    Self::BreakerHalfOpen => 4 "breaker_half_open",
    Self::BreakerClosed => 5 "breaker_closed",
    Self::CooldownStarted { .. } => 6 "cooldown",
    Self::Path { .. } => 7 "path",
    Self::Removed => 8 "removed",
    Self::ClosedToTenant { .. } => 9 "closed_to_tenant",
    Self::OpenedToTenant { .. } => 10 "opened_to_tenant",
}

impl Event {
    /// Returns the event's name in logs.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::Request { step, .. } => step.as_str(),
            Self::Node { change, .. } => change.as_str(),
        }
    }

    pub const fn request(&self) -> Option<RequestId> {
        match self {
            Self::Request { request, .. } => Some(*request),
            Self::Node { .. } => None,
        }
    }

    pub const fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::Request { tenant, .. }
            | Self::Node {
                change: NodeEvent::ClosedToTenant { tenant, .. } | NodeEvent::OpenedToTenant { tenant },
                ..
            } => Some(*tenant),
            Self::Node { .. } => None,
        }
    }

    pub const fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Request { step, .. } => step.peer(),
            Self::Node { .. } => None,
        }
    }

    pub const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Node { node, .. } => Some(*node),
            Self::Request { step, .. } => step.node(),
        }
    }
}

impl Step {
    const fn node(&self) -> Option<NodeId> {
        match self {
            Self::Dispatched { node, .. }
            | Self::FirstByte { node, .. }
            | Self::Finished { node, .. }
            | Self::InTransaction { node } => Some(*node),
            Self::Redirected { .. }
            | Self::SentToOwner { .. }
            | Self::PeerAnswered { .. }
            | Self::PeerFailed { .. }
            | Self::Accepted { .. }
            | Self::Admitted { .. }
            | Self::Delayed { .. }
            | Self::Rejected { .. }
            | Self::FellBack { .. }
            | Self::Evicted { .. }
            | Self::Cancelled
            | Self::FailedOver { .. } => None,
        }
    }

    const fn peer(&self) -> Option<PeerId> {
        match self {
            Self::Redirected { peer, .. }
            | Self::SentToOwner { peer }
            | Self::PeerAnswered { peer, .. }
            | Self::PeerFailed { peer, .. } => Some(*peer),
            Self::Accepted { .. }
            | Self::Admitted { .. }
            | Self::Delayed { .. }
            | Self::InTransaction { .. }
            | Self::Rejected { .. }
            | Self::FellBack { .. }
            | Self::Evicted { .. }
            | Self::Cancelled
            | Self::Dispatched { .. }
            | Self::FirstByte { .. }
            | Self::FailedOver { .. }
            | Self::Finished { .. } => None,
        }
    }
}
