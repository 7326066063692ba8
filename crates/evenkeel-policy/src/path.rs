//! Path health: which ways to a node are fit for use, through how many relays, and which to swap.
//!
//! Bounds, each held by `tests/it/path.rs`:
//! - A path moves along these arrows only, at most one per sample, and each only after the run of
//!   samples its rule asks for:
//!
//! ```text
//! INACTIVE → PROBING → ACTIVE → DEGRADED → RECOVERY → ACTIVE
//!                               DEGRADED ← RECOVERY
//! INACTIVE ← PROBING, ACTIVE, DEGRADED, RECOVERY
//! ```
//! - Once a path of a set is usable, one always is: the last one is never switched off.
//! - An inactive path is left alone for `backoff_min..=backoff_max`, 1..=30 s.
//! - A hop count stays within its range and moves by one at most.
//! - A path is pruned only for an alternative that was better by the margin for the whole run.

mod hops;
mod prune;
mod rule;
mod stats;
mod transition;

pub use hops::{HopConfig, HopCount, HopRule, Relays};
pub use prune::{ActivePath, Alternative, PruneConfig, PruneRule, Streak, Swap};
pub use rule::{PathConfig, PathRule};
pub use stats::{PathStats, Probe, Role};
pub use transition::{Cause, Transition};

use core::fmt;

use crate::swrr::Health;

/// How well a path is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PathState {
    /// Switched off, and left alone until its backoff is over.
    Inactive,
    /// Being tried out; carries probes and nothing else.
    Probing,
    /// Well.
    Active,
    /// Too slow or too lossy; carries less.
    Degraded,
    /// Well again, on probation.
    Recovery,
}

impl PathState {
    /// Tells whether a path in this state may carry traffic.
    pub const fn is_usable(self) -> bool {
        self.health().is_some()
    }

    /// What a [`SwrrScheduler`](crate::swrr::SwrrScheduler) is to make of a path in this state; `None`
    /// where the path is not to be active in it.
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

/// The part of what was sent that got lost, 0..=1.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Loss(f64);

impl Loss {
    /// Nothing was lost.
    pub const NONE: Self = Self(0.0);

    /// Takes a fraction from 0 to 1.
    pub fn new(loss: f64) -> Result<Self, LossOutOfRange> {
        if !(0.0..=1.0).contains(&loss) {
            return Err(LossOutOfRange { loss });
        }
        Ok(Self(loss))
    }

    /// The loss as a fraction.
    pub const fn as_f64(self) -> f64 {
        self.0
    }
}

/// Writes a percentage.
impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} %", self.0 * 100.0)
    }
}

/// A number that is no loss.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LossOutOfRange {
    /// The number as given.
    pub loss: f64,
}

impl fmt::Display for LossOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "loss {} is not between 0 and 1", self.loss)
    }
}

impl core::error::Error for LossOutOfRange {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn a_state_is_named_as_operators_know_it() {
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
    fn a_usable_path_is_healthy_to_the_scheduler_once_it_is_well() {
        assert_eq!(PathState::Inactive.health(), None);
        assert_eq!(PathState::Probing.health(), None);
        assert_eq!(PathState::Active.health(), Some(Health::Healthy));
        assert_eq!(PathState::Degraded.health(), Some(Health::Degraded));
        assert_eq!(PathState::Recovery.health(), Some(Health::Recovery));
    }

    #[test]
    fn a_loss_is_a_fraction() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Loss::new(bad).is_err(), "{bad} was taken for a loss");
        }
        assert_eq!(Loss::new(2.0).unwrap_err().to_string(), "loss 2 is not between 0 and 1");
        assert_eq!(Loss::new(0.085).unwrap().to_string(), "8.5 %");
        assert_eq!(Loss::new(0.0), Ok(Loss::NONE));
    }
}
