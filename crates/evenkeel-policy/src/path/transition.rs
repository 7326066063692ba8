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
    /// Enough of the last probes were answered.
    ProbesAnswered,
    /// The p95 round trip exceeded the SLO; the values are those of the last sample.
    Slow {
        /// The path's p95.
        p95: Duration,
        /// The largest p95 allowed.
        slo: Duration,
    },
    /// The loss exceeded its limit; the value is that of the last sample.
    Lossy {
        /// The path's loss.
        loss: Loss,
    },
    /// Round trip and loss are below their recovery limits again.
    Improved,
    /// Round trip and loss stayed below their recovery limits.
    StayedHealthy,
    /// Hard failures occurred without an answer in between.
    RepeatedFailures,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BackoffElapsed => f.write_str("backoff has elapsed"),
            Self::ProbesAnswered => f.write_str("enough probes were answered"),
            Self::Slow { p95, slo } => write!(f, "p95 of {p95:?} is above {slo:?}"),
            Self::Lossy { loss } => write!(f, "loss of {loss} is too high"),
            Self::Improved => f.write_str("round trip and loss have improved"),
            Self::StayedHealthy => f.write_str("round trip and loss stayed healthy"),
            Self::RepeatedFailures => f.write_str("repeated failures"),
        }
    }
}
