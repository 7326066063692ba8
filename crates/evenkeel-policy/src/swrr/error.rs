//! Errors of the path scheduler.

use crate::id::PathId;

/// Error of a scheduler call; the call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SwrrError {
    /// The path was never added.
    #[error("path {} is unknown", path.0)]
    UnknownPath {
        /// The given path.
        path: PathId,
    },
    /// The path was added already.
    #[error("path {} exists already", path.0)]
    DuplicatePath {
        /// The given path.
        path: PathId,
    },
    /// The scheduler has the maximum number of paths.
    #[error("more than {paths_max} paths")]
    TooManyPaths {
        /// Maximum number of paths.
        paths_max: usize,
    },
    /// The RTT is NaN, infinite or negative.
    #[error("rtt of {rtt_ms} ms is not a finite number of at least 0")]
    BadRtt {
        /// The given RTT, in milliseconds.
        rtt_ms: f64,
    },
    /// The loss rate is not in 0..=1.
    #[error("loss rate {loss_rate} is not between 0 and 1")]
    BadLoss {
        /// The given rate.
        loss_rate: f64,
    },
    /// The weight is outside its range.
    #[error("weight {weight} is not between 1 and {weight_cap}")]
    BadWeight {
        /// The given weight.
        weight: u32,
        /// Largest allowed weight.
        weight_cap: u32,
    },
}
