//! What a step of the walk tells, once: metrics, logs and `explain` all read the same event.
//!
//! The pipeline's events map to these one to one; what only a door sees (accepted, admitted, delayed, first byte) is
//! here, too. An event is a value without text, so that telling it allocates nothing.

mod display;

pub(crate) use display::EventDisplay;

use std::time::Duration;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::path::Transition;
use evenkeel_policy::score;
use evenkeel_policy::time::Instant;

/// A request, as its walk numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A model, a database, or whatever else decides which nodes can do a request, as its walk numbers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u32);

/// Something that happened.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Something happened to a request.
    Request {
        /// The request.
        request: RequestId,
        /// Who asked.
        tenant: TenantId,
        /// What happened.
        step: Step,
    },
    /// Something happened to a node.
    Node {
        /// The node.
        node: NodeId,
        /// What happened.
        change: NodeEvent,
    },
}

/// Something that happened to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Step {
    /// It came in.
    Accepted {
        /// What it asks for.
        model: ModelId,
        /// What it is thought to cost.
        cost: Cost,
    },
    /// It has a place to wait.
    Admitted {
        /// How many wait, it included.
        waiting: usize,
    },
    /// It is slowed down before it gets its place.
    Delayed {
        /// For how long.
        delay: Duration,
    },
    /// It is turned away.
    Rejected {
        /// Why.
        reason: RejectReason,
    },
    /// It waited and had to make room for a tenant below its share.
    Evicted {
        /// How many wait.
        waiting: usize,
    },
    /// Whoever asked went while it waited.
    Cancelled,
    /// It has a slot and is sent.
    Dispatched {
        /// The node that has the slot.
        node: NodeId,
        /// The way to it, where there is a choice.
        path: Option<PathId>,
        /// How long it waited, before all its attempts together.
        waited: Duration,
        /// Why this node.
        because: PickReason,
        /// Which attempt this is, from 1.
        attempt: u32,
    },
    /// The node has begun to answer.
    FirstByte {
        /// The node.
        node: NodeId,
        /// How long after it was sent.
        after: Duration,
    },
    /// Its node failed it, and it waits for another.
    FailedOver {
        /// How the node failed.
        failure: AttemptFailure,
        /// Which attempt failed, from 1.
        attempt: u32,
    },
    /// It has ended, and its slot is free.
    Finished {
        /// The node that had it.
        node: NodeId,
        /// What it cost.
        actual: Cost,
        /// How long after it came in.
        took: Duration,
        /// How it ended.
        ending: RequestOutcome,
    },
}

/// Why a request was turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// The queue is full, or full for its tenant.
    QueueFull,
    /// No slot came free in time.
    WaitTimeout,
    /// Its deadline would pass while it waits.
    TooLate,
    /// A tenant beyond the limit.
    UnknownTenant,
    /// A model beyond the limit.
    UnknownModel,
    /// No node that takes work serves the model.
    NoNode,
    /// Nodes failed it, and it is not tried again.
    Failed,
    /// Its tenant has used what it may use for the time being.
    RateLimited,
}

/// Why a node was picked.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PickReason {
    /// Its like was served there lately.
    Cached,
    /// Its affinity prefers the node.
    Preferred,
    /// The chooser took it.
    Chosen(score::ChoiceReason),
}

/// How a node or the way to it failed a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The path refused or dropped it.
    Unreachable,
    /// The node did not answer in time.
    TimedOut,
    /// The node answered with an error of its own, with nonsense, or stopped midway.
    BadResponse,
    /// The node is well and has no room.
    Busy,
}

/// How a request ended that had a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// It was answered; the outcome says whether the node did its part.
    Served(Outcome),
    /// Whoever asked has gone.
    Cancelled,
    /// The node failed after it had begun to answer.
    FailedMidStream(AttemptFailure),
}

/// Something that happened to a node, or to a path to it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum NodeEvent {
    /// It takes new work.
    Serving,
    /// It finishes what it has.
    Draining,
    /// It finishes what it has and is forgotten then.
    Removing,
    /// It has finished what it had, and is forgotten.
    Removed,
    /// It broke and is left alone.
    BreakerOpened {
        /// Until when.
        until: Instant,
    },
    /// It is tried again with one request at a time.
    BreakerHalfOpen,
    /// It is well.
    BreakerClosed,
    /// It said that it has no room, and is spared.
    CooldownStarted {
        /// Until when.
        until: Instant,
    },
    /// A path to it is well, or not.
    Path {
        /// The path.
        path: PathId,
        /// What changed, and why.
        transition: Transition,
    },
}

/// The words for an enum in logs and labels, numbered for tables with one entry per word.
macro_rules! words {
    ($name:ty: $($variant:pat => $index:literal $word:literal,)*) => {
        const _: () = {
            let indices = [$($index),*];
            let mut at = 0;
            while at < indices.len() {
                assert!(indices[at] == at, "words are numbered from 0 in their order");
                at += 1;
            }
        };

        impl $name {
            /// Every word, by its number.
            pub(crate) const WORDS: &[&str] = &[$($word),*];

            /// The word for it in logs and labels.
            pub const fn as_str(&self) -> &'static str {
                Self::WORDS[self.index()]
            }

            /// Its place in a table that has one entry per word.
            pub(crate) const fn index(&self) -> usize {
                match self {
                    $($variant => $index,)*
                }
            }
        }
    };
}

words! { Step:
    Self::Accepted { .. } => 0 "accepted",
    Self::Admitted { .. } => 1 "admitted",
    Self::Delayed { .. } => 2 "delayed",
    Self::Rejected { .. } => 3 "rejected",
    Self::Evicted { .. } => 4 "pushed_out",
    Self::Cancelled => 5 "cancelled",
    Self::Dispatched { .. } => 6 "dispatched",
    Self::FirstByte { .. } => 7 "first_byte",
    Self::FailedOver { .. } => 8 "failed_over",
    Self::Finished { .. } => 9 "finished",
}

words! { RejectReason:
    Self::QueueFull => 0 "queue_full",
    Self::WaitTimeout => 1 "wait_timeout",
    Self::TooLate => 2 "too_late",
    Self::UnknownTenant => 3 "unknown_tenant",
    Self::UnknownModel => 4 "unknown_model",
    Self::NoNode => 5 "no_node",
    Self::Failed => 6 "failed",
    Self::RateLimited => 7 "rate_limited",
}

words! { AttemptFailure:
    Self::Unreachable => 0 "unreachable",
    Self::TimedOut => 1 "timed_out",
    Self::BadResponse => 2 "broken",
    Self::Busy => 3 "busy",
}

words! { RequestOutcome:
    Self::Served(Outcome::Good) => 0 "served",
    Self::Served(Outcome::Bad) => 1 "served_badly",
    Self::Cancelled => 2 "cancelled",
    Self::FailedMidStream(_) => 3 "broken",
}

words! { NodeEvent:
    Self::Serving => 0 "serving",
    Self::Draining => 1 "draining",
    Self::Removing => 2 "leaving",
    Self::BreakerOpened { .. } => 3 "opened",
    Self::BreakerHalfOpen => 4 "half_opened",
    Self::BreakerClosed => 5 "closed",
    Self::CooldownStarted { .. } => 6 "spared",
    Self::Path { .. } => 7 "path",
    Self::Removed => 8 "left",
}

impl Event {
    /// The word for what happened in logs.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Request { step, .. } => step.as_str(),
            Self::Node { change, .. } => change.as_str(),
        }
    }

    /// The request it is about.
    pub const fn request(&self) -> Option<RequestId> {
        match self {
            Self::Request { request, .. } => Some(*request),
            Self::Node { .. } => None,
        }
    }

    /// Who asked.
    pub const fn tenant(&self) -> Option<TenantId> {
        match self {
            Self::Request { tenant, .. } => Some(*tenant),
            Self::Node { .. } => None,
        }
    }

    /// The node it is about.
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
            Self::Dispatched { node, .. } | Self::FirstByte { node, .. } | Self::Finished { node, .. } => {
                Some(*node)
            }
            Self::Accepted { .. }
            | Self::Admitted { .. }
            | Self::Delayed { .. }
            | Self::Rejected { .. }
            | Self::Evicted { .. }
            | Self::Cancelled
            | Self::FailedOver { .. } => None,
        }
    }
}
