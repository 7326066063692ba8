//! `Display` of events: one phrase each, for logs and `explain`.

use std::fmt;

use evenkeel_policy::class::TenantFlow;
use evenkeel_policy::id::{NodeId, PeerId, TenantId};

use super::{Event, FallbackReason, HandoverFailure, LabelValue, NodeEvent, RejectReason, Step};

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        EventDisplay { event: self, name: None, path: None, tenant: None }.fmt(f)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write(f, None, None)
    }
}

/// Displays an event with the names of what it mentions; without a name, the id is displayed.
pub(crate) struct EventDisplay<'a> {
    pub(crate) event: &'a Event,
    /// Name of its node, peer or model.
    pub(crate) name: Option<&'a str>,
    /// Name of the path to its node.
    pub(crate) path: Option<&'a str>,
    /// Name of the tenant that a node closed or opened to.
    pub(crate) tenant: Option<&'a str>,
}

impl fmt::Display for EventDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.event {
            Event::Request { step, .. } => step.write(f, self.name, self.path),
            Event::Node { node, change } => {
                write!(f, "{}: ", NodeDisplay(*node, self.name))?;
                change.write(f, self.tenant)
            }
        }
    }
}

struct NodeDisplay<'a>(NodeId, Option<&'a str>);

impl fmt::Display for NodeDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(name) => write!(f, "node {name:?}"),
            None => write!(f, "node {}", self.0.0),
        }
    }
}

struct TenantDisplay<'a>(TenantId, Option<&'a str>);

impl fmt::Display for TenantDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(name) => write!(f, "tenant {name:?}"),
            None => write!(f, "tenant {}", self.0.0),
        }
    }
}

struct PeerDisplay<'a>(PeerId, Option<&'a str>);

impl fmt::Display for PeerDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.1 {
            Some(name) => write!(f, "peer {name:?}"),
            None => write!(f, "peer {}", self.0.0),
        }
    }
}

impl Step {
    fn write(&self, f: &mut fmt::Formatter<'_>, name: Option<&str>, path_name: Option<&str>) -> fmt::Result {
        match self {
            Self::Accepted { model, cost, flow } => {
                match name {
                    Some(name) => write!(f, "accepted for {name:?}")?,
                    None => write!(f, "accepted for model {}", model.0)?,
                }
                write!(f, ", estimated cost {cost}")?;
                let Some(TenantFlow { session, class }) = flow else { return f.write_str(", background") };
                write!(f, ", class {class}")?;
                session.map_or(Ok(()), |session| write!(f, ", session {session}"))
            }
            Self::Admitted { waiting } => write!(f, "admitted, {waiting} waiting"),
            Self::Delayed { delay } => write!(f, "delayed by {delay:?}"),
            Self::Rejected { reason } => write!(f, "rejected: {reason}"),
            Self::FellBack { to, reason } => {
                match name {
                    Some(name) => write!(f, "falls back to {name:?}")?,
                    None => write!(f, "falls back to model {}", to.0)?,
                }
                write!(f, ": {reason}")
            }
            Self::Redirected { peer, kind, reason } => {
                write!(f, "{} redirected to {}: {reason}", kind.as_str(), PeerDisplay(*peer, name))
            }
            Self::SentToOwner { peer } => {
                write!(f, "forwarded to {}, which holds its transaction", PeerDisplay(*peer, name))
            }
            Self::PeerAnswered { peer, after } => {
                write!(f, "{} answered after {after:?}", PeerDisplay(*peer, name))
            }
            Self::PeerFailed { peer, failure } => write!(f, "{}: {failure}", PeerDisplay(*peer, name)),
            Self::InTransaction { node } => {
                write!(f, "runs on the connection of its transaction, on {}", NodeDisplay(*node, name))
            }
            Self::Evicted { waiting } => {
                write!(f, "evicted for a tenant below its share, {waiting} waiting")
            }
            Self::Cancelled => f.write_str("cancelled while waiting"),
            Self::Dispatched { node, path, waited, reason, attempt } => {
                write!(f, "dispatched to {}", NodeDisplay(*node, name))?;
                match (path, path_name) {
                    (Some(_), Some(name)) => write!(f, " over path {name}")?,
                    (Some(path), None) => write!(f, " over path {}", path.0)?,
                    (None, _) => {}
                }
                write!(f, " after {waited:?}, attempt {attempt}: {reason}")
            }
            Self::FirstByte { node, after } => {
                write!(f, "first byte from {} after {after:?}", NodeDisplay(*node, name))
            }
            Self::FailedOver { failure, attempt } => {
                write!(f, "failed over after attempt {attempt}: {failure}")
            }
            Self::Finished { node, actual, took, outcome } => {
                let node = NodeDisplay(*node, name);
                write!(f, "finished on {node} after {took:?}, cost {actual}: {outcome}")
            }
        }
    }
}

impl fmt::Display for HandoverFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotExecuted => "could not be reached or rejected it, and did not execute it",
            Self::OutcomeUnknown => "did not answer, and it is unknown whether it executed the request",
        })
    }
}

impl fmt::Display for FallbackReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoNode => "no node can serve the model before it",
            Self::Failed => "all attempts on the model before it failed",
            Self::Capacity => "the model before it has no capacity",
        })
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::QueueFull => "the queue is full",
            Self::WaitTimeout => "no slot became free in time",
            Self::WouldMissDeadline => "it would wait past its deadline",
            Self::Outage => "no node of its model can be reached",
            Self::UnknownTenant => "its tenant is unknown",
            Self::UnknownModel => "its model is unknown",
            Self::NoNode => "no node serves its model",
            Self::Failed => "all its attempts failed",
            Self::RateLimited => "its tenant reached a rate limit",
            Self::BudgetReached => "its tenant reached a budget",
        })
    }
}

impl NodeEvent {
    fn write(&self, f: &mut fmt::Formatter<'_>, tenant_name: Option<&str>) -> fmt::Result {
        match self {
            Self::Serving => f.write_str("in rotation"),
            Self::Draining => f.write_str("draining, gets no new requests"),
            Self::Removing => f.write_str("draining, removed after its last request"),
            Self::Removed => f.write_str("removed"),
            Self::BreakerOpened { reason, backoff } => {
                write!(f, "circuit breaker opened {reason}, next probe in {} s", backoff.as_secs_f64())
            }
            Self::BreakerHalfOpen => f.write_str("circuit breaker half-open, probing"),
            Self::BreakerClosed => f.write_str("circuit breaker closed, back in rotation"),
            Self::CooldownStarted { duration } => {
                write!(f, "overloaded, cooling down for {} s", duration.as_secs_f64())
            }
            Self::ClosedToTenant { tenant, reason, backoff } => {
                let tenant = TenantDisplay(*tenant, tenant_name);
                write!(f, "closed to {tenant} {reason}, next probe in {} s", backoff.as_secs_f64())
            }
            Self::OpenedToTenant { tenant } => {
                write!(f, "open again to {}", TenantDisplay(*tenant, tenant_name))
            }
            Self::Path { path, transition } => write!(f, "path {}: {transition}", path.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    use evenkeel_policy::outcome::{AttemptFailure, TripReason};

    #[test]
    fn a_node_line_names_the_cause_and_the_time_until_the_next_probe() {
        let line = |change| {
            let event = Event::Node { node: NodeId(3), change };
            EventDisplay { event: &event, name: Some("dead"), path: None, tenant: Some("acme") }.to_string()
        };
        let reason = TripReason::Failures { count: 5, last: Some(AttemptFailure::Unreachable) };
        assert_eq!(
            line(NodeEvent::BreakerOpened { reason, backoff: Duration::from_secs(2) }),
            "node \"dead\": circuit breaker opened after 5 failures (node was unreachable), next probe in 2 s"
        );
        assert_eq!(
            line(NodeEvent::CooldownStarted { duration: Duration::from_millis(1_500) }),
            "node \"dead\": overloaded, cooling down for 1.5 s"
        );
        let tenant = TenantId(2);
        let backoff = Duration::from_secs(1);
        assert_eq!(
            line(NodeEvent::ClosedToTenant { tenant, reason: TripReason::Refusals, backoff }),
            "node \"dead\": closed to tenant \"acme\" after refusals (429 or 503), next probe in 1 s"
        );
        assert_eq!(
            line(NodeEvent::OpenedToTenant { tenant }),
            "node \"dead\": open again to tenant \"acme\""
        );
    }
}
