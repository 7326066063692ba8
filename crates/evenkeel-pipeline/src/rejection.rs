//! Why a request ends without having been served, and the seed's words for it.
//!
//! Bound: one variant per thing a door answers differently; every `match` over them is exhaustive.

use std::fmt;

use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::time::{Duration, Instant};

use crate::accept::{AttemptFailure, ModelId, RequestId};

/// Why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rejection {
    /// The queue is full, or full for its tenant.
    QueueFull {
        /// How many wait.
        current_size: usize,
        /// How many may.
        max_size: usize,
        /// When to come back.
        retry_after: Duration,
    },
    /// It waited and had to make room for a tenant below its share; counts as a full queue.
    Evicted {
        /// How many wait.
        current_size: usize,
        /// How many may.
        max_size: usize,
        /// When to come back.
        retry_after: Duration,
    },
    /// No slot came free in time.
    WaitTimeout {
        /// How long it waited.
        waited: Duration,
        /// How long it was to wait at most.
        timeout: Duration,
    },
    /// Its deadline would pass while it waits.
    WouldMissDeadline {
        /// When the queue ahead will have drained.
        retry_after: Duration,
    },
    /// A tenant beyond the limit.
    UnknownTenant {
        /// The tenant as given.
        tenant: TenantId,
    },
    /// A model beyond the limit.
    UnknownModel {
        /// The model as given.
        model: ModelId,
    },
    /// No node that takes work serves the model.
    NoNode {
        /// The model.
        model: ModelId,
    },
    /// Whoever asked has gone.
    Cancelled,
    /// Nodes failed it, and it is not tried again.
    Failed {
        /// How often it was tried.
        attempts: u32,
        /// How the last attempt failed.
        failure: AttemptFailure,
        /// Why there is no other.
        stopped: NoRetryReason,
    },
}

/// Why a failed request is not tried again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRetryReason {
    /// It was tried as often as a request may be.
    AttemptsUsed,
    /// Too many are being retried.
    BudgetSpent,
    /// Its time is over.
    DeadlinePassed,
    /// Every node that serves it has failed it.
    NoOtherNode,
    /// There is no place to wait in.
    QueueFull,
}

impl Rejection {
    /// The seed's error for a request that was turned away by the queue; `None` for the other reasons.
    pub fn wait_error(&self) -> Option<WaitError> {
        match *self {
            Self::QueueFull { current_size, max_size, .. } | Self::Evicted { current_size, max_size, .. } => {
                Some(WaitError::QueueFull { current_size, max_size })
            }
            Self::WaitTimeout { waited, timeout } => Some(WaitError::Timeout { waited, timeout }),
            Self::Cancelled => Some(WaitError::Cancelled),
            Self::WouldMissDeadline { .. }
            | Self::UnknownTenant { .. }
            | Self::UnknownModel { .. }
            | Self::NoNode { .. }
            | Self::Failed { .. } => None,
        }
    }

    /// The seed's result of waiting; `None` where the request never got to wait.
    pub fn wait_result(&self) -> Option<WaitResult> {
        match self.wait_error()? {
            WaitError::QueueFull { current_size, .. } => {
                Some(WaitResult::Rejected { queue_size: current_size })
            }
            WaitError::Timeout { waited, .. } => Some(WaitResult::Timeout { waited }),
            WaitError::Cancelled => None,
        }
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { current_size, max_size, retry_after } => {
                write!(f, "queue is full, {current_size} of {max_size} wait, retry after {retry_after:?}")
            }
            Self::Evicted { retry_after, .. } => {
                write!(f, "made room for a tenant below its share, retry after {retry_after:?}")
            }
            Self::WaitTimeout { waited, timeout } => {
                write!(f, "no slot came free, waited {waited:?} of {timeout:?}")
            }
            Self::WouldMissDeadline { retry_after } => {
                write!(f, "would wait past its deadline, retry after {retry_after:?}")
            }
            Self::UnknownTenant { tenant } => write!(f, "tenant {} is unknown", tenant.0),
            Self::UnknownModel { model } => write!(f, "model {} is unknown", model.0),
            Self::NoNode { model } => write!(f, "no node serves model {}", model.0),
            Self::Cancelled => f.write_str("cancelled"),
            Self::Failed { attempts, failure, stopped } => {
                write!(f, "{failure} at attempt {attempts}, {stopped}")
            }
        }
    }
}

impl std::error::Error for Rejection {}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unreachable => "node was unreachable",
            Self::TimedOut => "node did not answer in time",
            Self::BadResponse => "node broke off",
            Self::Busy { .. } => "node was busy",
        })
    }
}

impl fmt::Display for NoRetryReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AttemptsUsed => "every attempt is used",
            Self::BudgetSpent => "the retry budget is spent",
            Self::DeadlinePassed => "its time is over",
            Self::NoOtherNode => "no other node serves it",
            Self::QueueFull => "the queue is full",
        })
    }
}

/// What became of waiting, in the seed's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// A node has a slot for it.
    Ready {
        /// The node.
        runtime_id: NodeId,
    },
    /// No slot came free in time.
    Timeout {
        /// How long it waited.
        waited: Duration,
    },
    /// The queue was full.
    Rejected {
        /// How many waited.
        queue_size: usize,
    },
}

/// Why waiting ended without a slot, in the seed's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitError {
    /// The queue was full.
    QueueFull {
        /// How many waited.
        current_size: usize,
        /// How many may.
        max_size: usize,
    },
    /// No slot came free in time.
    Timeout {
        /// How long it waited.
        waited: Duration,
        /// How long it was to wait at most.
        timeout: Duration,
    },
    /// Whoever asked has gone.
    Cancelled,
}

impl fmt::Display for WaitError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { current_size, max_size } => {
                write!(f, "queue is full, {current_size} of {max_size} wait")
            }
            Self::Timeout { waited, timeout } => {
                write!(f, "no slot came free, waited {waited:?} of {timeout:?}")
            }
            Self::Cancelled => f.write_str("cancelled"),
        }
    }
}

impl std::error::Error for WaitError {}

/// A request that waits, in the seed's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitEntry {
    /// Since when it waits.
    pub started_at: Instant,
    /// Until when it does.
    pub timeout_at: Instant,
    /// The request.
    pub request_id: RequestId,
    /// What it wants served.
    pub model_id: ModelId,
}
