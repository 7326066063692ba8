//! Change of a path's state, with its cause.

use core::fmt;

use super::{Loss, PathState};
use crate::time::Duration;

/// Change of state with its cause.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition {
    /// Previous state.
    pub from: PathState,
    /// New state.
    pub to: PathState,
    /// Cause of the change.
    pub cause: Cause,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {}", self.from, self.to, self.cause)
    }
}

/// Cause of a change of state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// The backoff of an inactive path has elapsed.
    BackoffElapsed,
    /// A new connection was established on an inactive path.
    Connected,
    /// Enough of the last probes were answered.
    ProbesAnswered,
    /// The p95 round trip exceeded its limit; the values are those of the last sample.
    Slow {
        /// The path's p95.
        p95: Duration,
        /// The path's baseline: the lowest median of the last minutes.
        baseline: Duration,
    },
    /// The smoothed round trip exceeded the ceiling that the best path sets; the values are those of the last sample.
    AboveCeiling {
        /// The path's smoothed round trip.
        rtt: Duration,
        /// The longest smoothed round trip allowed.
        ceiling: Duration,
    },
    /// The loss exceeded its limit; the value is that of the last sample.
    Lossy {
        /// The path's loss.
        loss: Loss,
    },
    /// Packets were sent, but none was acknowledged for too long.
    Silent,
    /// Round trip and loss are within their limits again.
    Improved,
    /// Round trip and loss stayed within their limits.
    StayedHealthy,
    /// Hard failures occurred without an answer in between.
    RepeatedFailures,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BackoffElapsed => f.write_str("backoff has elapsed"),
            Self::Connected => f.write_str("a new connection was established"),
            Self::ProbesAnswered => f.write_str("enough probes were answered"),
            Self::Slow { p95, baseline } => {
                write!(f, "p95 of {p95:.1?} is too far above the usual round trip of {baseline:.1?}")
            }
            Self::AboveCeiling { rtt, ceiling } => {
                write!(f, "round trip of {rtt:.1?} is above the limit of {ceiling:.1?}")
            }
            Self::Lossy { loss } => write!(f, "loss of {loss} is too high"),
            Self::Silent => f.write_str("no acknowledgement for too long"),
            Self::Improved => f.write_str("round trip and loss have improved"),
            Self::StayedHealthy => f.write_str("round trip and loss stayed healthy"),
            Self::RepeatedFailures => f.write_str("repeated failures"),
        }
    }
}
