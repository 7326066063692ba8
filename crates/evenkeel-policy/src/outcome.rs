//! Results of requests and attempts, and reasons for picks and open circuit breakers, shared by pipeline and telemetry.
//!
//! Guarantees: every value is `Copy` and holds no text, so reporting one allocates nothing.

use core::fmt;
use core::time::Duration;

use crate::cost::Cost;
use crate::estimate::Outcome;
use crate::score::ChoiceReason;

/// Reason why a request was sent to a node.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum PickReason {
    /// The affinity cache has the node, because it served an earlier request with the same affinity key.
    Cached,
    /// The selection policy chose it.
    Chosen(ChoiceReason),
}

impl fmt::Display for PickReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cached => f.write_str("affinity cache hit"),
            Self::Chosen(reason) => reason.fmt(f),
        }
    }
}

/// Failure of one attempt: of a request sent to one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptFailure {
    /// The connection was refused or lost before the node received the request.
    Unreachable,
    /// The node did not answer in time.
    TimedOut,
    /// The node returned a server error or an invalid response, or closed the connection mid-response.
    BadResponse,
    /// The node is healthy but overloaded (429, 503).
    Busy {
        /// The node's `Retry-After`.
        retry_after: Option<Duration>,
    },
}

impl AttemptFailure {
    /// Returns the charge for an attempt without a response: the cost reported so far, if the node accepted the request.
    pub fn charge(self, reported: Cost) -> Cost {
        match self {
            Self::Unreachable | Self::Busy { .. } => Cost::ZERO,
            Self::TimedOut | Self::BadResponse => reported,
        }
    }
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "node was unreachable",
            Self::TimedOut => "node did not answer in time",
            Self::BadResponse => "node returned an error or an incomplete response",
            Self::Busy { .. } => "node was overloaded",
        })
    }
}

/// Result of a request that was sent to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestOutcome {
    /// The node answered.
    Served {
        /// `Bad` if the node answered with an error of its own.
        outcome: Outcome,
    },
    /// The client disconnected.
    Cancelled,
    /// The node failed after the first byte, so there was no failover.
    FailedMidStream {
        /// The failure.
        failure: AttemptFailure,
    },
}

impl fmt::Display for RequestOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Served { outcome: Outcome::Good } => f.write_str("served"),
            Self::Served { outcome: Outcome::Bad } => f.write_str("served with an error of the node"),
            Self::Cancelled => f.write_str("client disconnected"),
            Self::FailedMidStream { failure } => write!(f, "failed mid-stream, {failure}"),
        }
    }
}

/// Reason why a circuit breaker opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TripReason {
    /// Requests failed without a success in between.
    Failures {
        /// Number of consecutive failures.
        count: u32,
        /// The last failure; `None` when the node answered with an error of its own.
        last: Option<AttemptFailure>,
    },
    /// Health checks failed without a success in between.
    HealthChecks {
        /// Number of consecutive failures.
        count: u32,
    },
    /// Too many of the last minute's requests failed.
    ErrorRate {
        /// Percentage of failed requests, rounded down.
        percent: u32,
    },
    /// The half-open breaker's probe, a request or a health check, failed.
    ProbeFailed,
    /// Too many of a tenant's last responses were refusals (429, 503).
    Refusals,
}

impl fmt::Display for TripReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failures { count, last } => {
                write!(f, "after {count} failure{}", plural(*count))?;
                match last {
                    Some(failure) => write!(f, " ({failure})"),
                    None => Ok(()),
                }
            }
            Self::HealthChecks { count } => write!(f, "after {count} failed health check{}", plural(*count)),
            Self::ErrorRate { percent } => write!(f, "at an error rate of {percent} %"),
            Self::ProbeFailed => f.write_str("again: its probe failed"),
            Self::Refusals => f.write_str("after refusals (429 or 503)"),
        }
    }
}

fn plural(count: u32) -> &'static str {
    if count == 1 { "" } else { "s" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_trip_reason_names_the_count_and_the_cause() {
        let reason = |count, last| TripReason::Failures { count, last }.to_string();
        assert_eq!(reason(5, Some(AttemptFailure::Unreachable)), "after 5 failures (node was unreachable)");
        assert_eq!(reason(1, None), "after 1 failure");
        assert_eq!(TripReason::HealthChecks { count: 3 }.to_string(), "after 3 failed health checks");
        assert_eq!(TripReason::ErrorRate { percent: 52 }.to_string(), "at an error rate of 52 %");
    }
}
