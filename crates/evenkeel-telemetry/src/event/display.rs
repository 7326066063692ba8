//! Events as half a sentence each, for logs and for `explain`.

use std::fmt;

use super::{AttemptFailure, Event, NodeEvent, PickReason, RejectReason, RequestOutcome, Step};
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::NodeId;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EventDisplay { event: self, node_name: None }.fmt(f)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None)
    }
}

/// An event that calls its node by name.
pub(crate) struct EventDisplay<'a> {
    pub(crate) event: &'a Event,
    /// Without one, the node's number.
    pub(crate) node_name: Option<&'a str>,
}

impl fmt::Display for EventDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            Event::Request { step, .. } => step.write(f, self.node_name),
            Event::Node { node, change } => write!(f, "{} {change}", NodeDisplay(*node, self.node_name)),
        }
    }
}

struct NodeDisplay<'a>(NodeId, Option<&'a str>);

impl fmt::Display for NodeDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(name) => write!(f, "node {name}"),
            None => write!(f, "node {}", self.0.0),
        }
    }
}

impl Step {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: Option<&str>) -> fmt::Result {
        match self {
            Self::Accepted { model, cost } => {
                write!(f, "accepted for model {}, thought to cost {cost}", model.0)
            }
            Self::Admitted { waiting } => write!(f, "admitted as number {waiting} of those who wait"),
            Self::Delayed { delay } => write!(f, "delayed by {delay:?}"),
            Self::Rejected { reason } => write!(f, "rejected: {reason}"),
            Self::Evicted { waiting } => {
                write!(f, "pushed out for a tenant below its share, {waiting} wait")
            }
            Self::Cancelled => f.write_str("cancelled while it waited"),
            Self::Dispatched { node, path, waited, because, attempt } => {
                write!(f, "dispatched to {}", NodeDisplay(*node, name))?;
                if let Some(path) = path {
                    write!(f, " by path {}", path.0)?;
                }
                write!(f, " after {waited:?}, attempt {attempt}: {because}")
            }
            Self::FirstByte { node, after } => {
                write!(f, "first byte from {} after {after:?}", NodeDisplay(*node, name))
            }
            Self::FailedOver { failure, attempt } => {
                write!(f, "failed over after attempt {attempt}: {failure}")
            }
            Self::Finished { node, actual, took, ending } => {
                let node = NodeDisplay(*node, name);
                write!(f, "finished on {node} after {took:?} at a cost of {actual}: {ending}")
            }
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the queue is full",
            Self::WaitTimeout => "no slot came free in time",
            Self::TooLate => "it would wait past its deadline",
            Self::UnknownTenant => "its tenant is unknown",
            Self::UnknownModel => "its model is unknown",
            Self::NoNode => "no node serves its model",
            Self::Failed => "nodes failed it",
            Self::RateLimited => "its tenant used up its limit",
        })
    }
}

impl fmt::Display for PickReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cached => f.write_str("served its like lately"),
            Self::Preferred => f.write_str("preferred by its affinity"),
            Self::Chosen(because) => because.fmt(f),
        }
    }
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "node was unreachable",
            Self::TimedOut => "node did not answer in time",
            Self::BadResponse => "node broke off",
            Self::Busy => "node was busy",
        })
    }
}

impl fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served(Outcome::Good) => f.write_str("served"),
            Self::Served(Outcome::Bad) => f.write_str("answered, but not as it should"),
            Self::Cancelled => f.write_str("whoever asked has gone"),
            Self::FailedMidStream(failure) => write!(f, "broken off, {failure}"),
        }
    }
}

impl fmt::Display for NodeEvent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Serving => f.write_str("takes work"),
            Self::Draining => f.write_str("takes no new work"),
            Self::Removing => f.write_str("takes no new work and leaves"),
            Self::Removed => f.write_str("is gone"),
            Self::BreakerOpened { .. } => f.write_str("broke and is left alone"),
            Self::BreakerHalfOpen => f.write_str("is tried again"),
            Self::BreakerClosed => f.write_str("is well"),
            Self::CooldownStarted { .. } => f.write_str("has no room and is spared"),
            Self::Path { path, transition } => write!(f, "path {}: {transition}", path.0),
        }
    }
}
