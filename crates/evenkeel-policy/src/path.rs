//! Path health: classifies the paths to a node by their samples, chooses hop counts, replaces slow paths, and decides
//! which paths share the data of one flow.
//!
//! A probing path is judged by single probes, a usable one by samples of an interval each, which an
//! [`IntervalCollector`] makes of the outcomes of its packets.
//!
//! Guarantees, each checked by `tests/it/path.rs`:
//! - A path makes only these transitions, at most one per call, and each only after the number of consecutive samples
//!   that its rule requires, except that a silent path is degraded at once:
//!
//! ```text
//! INACTIVE → PROBING → ACTIVE → DEGRADED → RECOVERY → ACTIVE
//!                               DEGRADED ← RECOVERY
//! INACTIVE ← PROBING, ACTIVE, DEGRADED, RECOVERY
//! ```
//! - A path is slow only against itself (p95 above 4 × its baseline, the lowest median of the last 10 minutes), or above
//!   the ceiling (8 × the smoothed round trip of the best path, at least 1 s). So a steady path is never slow for being
//!   longer than another, up to that ceiling.
//! - Losses in intervals in which the queue grew never degrade a path.
//! - Once a set has a usable path, it always has one: the last usable path is never deactivated.
//! - A deactivated path is not probed for `backoff_min` to `backoff_max`, by default 1 to 30 s.
//! - A hop count stays within its range and changes by at most one.
//! - A route is replaced only by one that was better by the margin in the required number of rounds running.
//! - A path leaves the bonded lane only if it adds little and delays the others for too long; the last one never does.
//! - A path is pruned only for an alternative that was better by the margin in the required number of consecutive
//!   samples.

mod bond;
mod hops;
mod interval;
mod prune;
mod route;
mod rule;
mod stats;
mod transition;

pub use bond::{
    BondChange, BondChangeKind, BondConfig, BondDemand, BondEstimate, BondPath, BondRule, BondedLane,
};
pub use hops::{HopConfig, HopCount, HopRule, Relays};
pub use interval::{IntervalCollector, IntervalSample, QueueTrend};
pub use prune::{ActivePath, Alternative, PruneConfig, PruneRule, Streak, Swap};
pub use route::{RouteFigures, RouteRule, RouteVerdict};
pub use rule::{PathConfig, PathRule};
pub use stats::{PathStats, Probe, Role};
pub use transition::{Cause, Transition};

use core::fmt;

use crate::swrr::Health;

/// Health state of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathState {
    /// Deactivated, and not probed until its backoff has elapsed.
    Inactive,
    /// Being probed; carries no traffic.
    Probing,
    /// Healthy.
    Active,
    /// Too slow or too lossy; carries less traffic.
    Degraded,
    /// Healthy again, but not yet long enough to be active.
    Recovery,
}

impl PathState {
    /// Reports whether a path in this state may carry traffic.
    pub const fn is_usable(self) -> bool {
        self.health().is_some()
    }

    /// Returns the corresponding health in a [`SwrrScheduler`](crate::swrr::SwrrScheduler); `None` if the path must be
    /// inactive there.
    pub const fn health(self) -> Option<Health> {
        match self {
            Self::Inactive | Self::Probing => None,
            Self::Active => Some(Health::Healthy),
            Self::Degraded => Some(Health::Degraded),
            Self::Recovery => Some(Health::Recovery),
        }
    }
}

impl fmt::Display for PathState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Inactive => "INACTIVE",
            Self::Probing => "PROBING",
            Self::Active => "ACTIVE",
            Self::Degraded => "DEGRADED",
            Self::Recovery => "RECOVERY",
        })
    }
}

/// Fraction of packets lost, 0..=1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Loss(f64);

impl Loss {
    /// No loss.
    pub const NONE: Self = Self(0.0);

    /// Creates a loss from a fraction, 0 to 1.
    pub fn new(loss: f64) -> Result<Self, LossOutOfRange> {
        if !(0.0..=1.0).contains(&loss) {
            return Err(LossOutOfRange { loss });
        }
        Ok(Self(loss))
    }

    /// Returns the loss as a fraction.
    pub const fn as_f64(self) -> f64 {
        self.0
    }
}

/// Formats the loss as a percentage.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", self.0 * 100.0)
    }
}

/// Error for a number that is not in 0..=1.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("loss {loss} is not between 0 and 1")]
pub struct LossOutOfRange {
    /// The rejected number.
    pub loss: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn states_are_displayed_in_capitals() {
        let states = [
            PathState::Inactive,
            PathState::Probing,
            PathState::Active,
            PathState::Degraded,
            PathState::Recovery,
        ];
        let names = states.map(|state| state.to_string());
        assert_eq!(names, ["INACTIVE", "PROBING", "ACTIVE", "DEGRADED", "RECOVERY"]);
        assert_eq!(states.map(PathState::is_usable), [false, false, true, true, true]);
    }

    #[test]
    fn each_usable_state_has_a_health_in_the_scheduler() {
        assert_eq!(PathState::Inactive.health(), None);
        assert_eq!(PathState::Probing.health(), None);
        assert_eq!(PathState::Active.health(), Some(Health::Healthy));
        assert_eq!(PathState::Degraded.health(), Some(Health::Degraded));
        assert_eq!(PathState::Recovery.health(), Some(Health::Recovery));
    }

    #[test]
    fn a_loss_must_be_between_0_and_1() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Loss::new(bad).is_err(), "{bad} was accepted");
        }
        assert_eq!(Loss::new(2.0).unwrap_err().to_string(), "loss 2 is not between 0 and 1");
        assert_eq!(Loss::new(0.085).unwrap().to_string(), "8.5 %");
        assert_eq!(Loss::new(0.0), Ok(Loss::NONE));
    }
}
