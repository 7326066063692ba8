//! A change of a path's state, and the words for why.

use core::fmt;

use super::{Loss, PathState};
use crate::time::Duration;

/// A change of state, and why.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Transition {
    /// The state left.
    pub from: PathState,
    /// The state entered.
    pub to: PathState,
    /// What brought it about.
    pub cause: Cause,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}: {}", self.from, self.to, self.cause)
    }
}

/// What brought a change of state about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Cause {
    /// An inactive path has been left alone long enough.
    BackoffIsOver,
    /// Enough of the last probes were answered.
    ProbesWereAnswered,
    /// The p95 round trip exceeded the SLO, at last by this much.
    IsSlow {
        /// The path's p95.
        p95: Duration,
        /// The p95 it may have.
        slo: Duration,
    },
    /// The loss exceeded its limit, at last by this much.
    IsLossy {
        /// The path's loss.
        loss: Loss,
    },
    /// Round trip and loss are well below their limits again.
    IsBetter,
    /// They stayed there.
    StayedWell,
    /// Hard failures followed each other without an answer in between.
    KeptFailing,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BackoffIsOver => f.write_str("backoff is over"),
            Self::ProbesWereAnswered => f.write_str("enough probes were answered"),
            Self::IsSlow { p95, slo } => write!(f, "p95 of {p95:?} is above {slo:?}"),
            Self::IsLossy { loss } => write!(f, "loss of {loss} is too high"),
            Self::IsBetter => f.write_str("round trip and loss are better"),
            Self::StayedWell => f.write_str("round trip and loss stayed well"),
            Self::KeptFailing => f.write_str("it kept failing"),
        }
    }
}
