//! What a caller can get wrong.

use core::fmt;

use crate::id::PathId;

/// Why a call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SwrrError {
    /// Nobody added this path.
    UnknownPath {
        /// The path as given.
        path: PathId,
    },
    /// This path is there already.
    DuplicatePath {
        /// The path as given.
        path: PathId,
    },
    /// The set is full.
    TooManyPaths {
        /// How many it takes.
        paths_max: usize,
    },
    /// An RTT that no path can have.
    BadRtt {
        /// The milliseconds as given.
        rtt_ms: f64,
    },
    /// A loss rate that no path can have.
    BadLoss {
        /// The rate as given.
        loss_rate: f64,
    },
    /// A weight outside its range.
    BadWeight {
        /// The weight as given.
        weight: u32,
        /// The largest that would do.
        weight_cap: u32,
    },
}

impl fmt::Display for SwrrError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownPath { path } => write!(f, "path {} is unknown", path.0),
            Self::DuplicatePath { path } => write!(f, "path {} exists already", path.0),
            Self::TooManyPaths { paths_max } => write!(f, "more than {paths_max} paths"),
            Self::BadRtt { rtt_ms } => write!(f, "rtt of {rtt_ms} ms is not a finite number of at least 0"),
            Self::BadLoss { loss_rate } => write!(f, "loss rate {loss_rate} is not between 0 and 1"),
            Self::BadWeight { weight, weight_cap } => {
                write!(f, "weight {weight} is not between 1 and {weight_cap}")
            }
        }
    }
}

impl core::error::Error for SwrrError {}
