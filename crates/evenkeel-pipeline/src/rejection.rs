//! Rejections: reasons why a request ends without being served, and their counterparts in the router
//! specification
//! (docs/specs.md, router load optimization).
//!
//! Guarantees: one variant per case that an API answers differently; every `match` over them is exhaustive.

use evenkeel_policy::id::{ModelId, NodeId, RequestId, TenantId};
use evenkeel_policy::outcome::AttemptFailure;
use evenkeel_policy::time::{Duration, Instant};

/// Reason why a request was not served.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Rejection {
    /// The queue is full, or full for its tenant.
    #[error("queue is full: {current_size} of {max_size} requests waiting, retry after {retry_after:?}")]
    QueueFull {
        /// Waiting requests.
        current_size: usize,
        /// Their maximum.
        max_size: usize,
        /// Time after which to retry.
        retry_after: Duration,
    },
    /// It was removed from the queue to make room for a tenant below its share; reported as a full queue.
    #[error("evicted for a tenant below its share, retry after {retry_after:?}")]
    Evicted {
        /// Waiting requests.
        current_size: usize,
        /// Their maximum.
        max_size: usize,
        /// Time after which to retry.
        retry_after: Duration,
    },
    /// No slot became free in time.
    #[error("no slot became free within {timeout:?}, waited {waited:?}")]
    WaitTimeout {
        /// Time it waited.
        waited: Duration,
        /// Time it was allowed to wait.
        timeout: Duration,
    },
    /// Its deadline would pass while it waits.
    #[error("would wait past its deadline, retry after {retry_after:?}")]
    WouldMissDeadline {
        /// Time until the requests ahead are served, or until a node's cooldown ends.
        retry_after: Duration,
    },
    /// No node of its model could be reached for longer than `hold`.
    #[error("no node of its model can be reached, retry after {retry_after:?}")]
    Outage {
        /// Time until a node is probed again, and one second.
        retry_after: Duration,
    },
    /// A tenant id at or above the limit.
    #[error("tenant {} is unknown", tenant.0)]
    UnknownTenant {
        /// The tenant as given.
        tenant: TenantId,
    },
    /// A model id at or above the limit.
    #[error("model {} is unknown", model.0)]
    UnknownModel {
        /// The model as given.
        model: ModelId,
    },
    /// No node in rotation serves the model.
    #[error("no node serves model {}", model.0)]
    NoNode {
        /// The model.
        model: ModelId,
    },
    /// The client disconnected.
    #[error("cancelled")]
    Cancelled,
    /// The last attempt failed and is not retried.
    #[error("{failure} at attempt {attempts}, {no_retry}")]
    Failed {
        /// Number of attempts.
        attempts: u32,
        /// Failure of the last attempt.
        failure: AttemptFailure,
        /// Reason why it is not retried.
        no_retry: NoRetryReason,
    },
}

/// Reason why a failed request is not retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRetryReason {
    /// It had `attempts_max` attempts.
    #[error("no attempts left")]
    AttemptsUsed,
    /// The retry budget is spent.
    #[error("the retry budget is spent")]
    BudgetSpent,
    /// Its deadline has passed.
    #[error("its deadline has passed")]
    DeadlinePassed,
    /// Every node that serves its model has failed it.
    #[error("no other node serves it")]
    NoOtherNode,
    /// The queue is full.
    #[error("the queue is full")]
    QueueFull,
    /// Nodes that serve other requests refused it twice: the refusal is about the request.
    #[error("nodes that serve other requests refused it twice")]
    RefusedTwice,
}

impl Rejection {
    /// Returns the specification's error for a wait that ended without a slot; `None` for other rejections.
    pub fn wait_error(&self) -> Option<WaitError> {
        match *self {
            Self::QueueFull { current_size, max_size, .. } | Self::Evicted { current_size, max_size, .. } => {
                Some(WaitError::QueueFull { current_size, max_size })
            }
            Self::WaitTimeout { waited, timeout } => Some(WaitError::Timeout { waited, timeout }),
            Self::Cancelled => Some(WaitError::Cancelled),
            Self::WouldMissDeadline { .. }
            | Self::Outage { .. }
            | Self::UnknownTenant { .. }
            | Self::UnknownModel { .. }
            | Self::NoNode { .. }
            | Self::Failed { .. } => None,
        }
    }

    /// Returns the specification's result of waiting; `None` if the request never waited.
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

/// Result of waiting, as the router specification names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitResult {
    /// A node has a slot for it.
    Ready {
        /// The node.
        runtime_id: NodeId,
    },
    /// No slot became free in time.
    Timeout {
        /// Time it waited.
        waited: Duration,
    },
    /// The queue was full.
    Rejected {
        /// Waiting requests.
        queue_size: usize,
    },
}

/// Reason why a wait ended without a slot, as the router specification names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// The queue was full.
    #[error("queue is full: {current_size} of {max_size} requests waiting")]
    QueueFull {
        /// Waiting requests.
        current_size: usize,
        /// Their maximum.
        max_size: usize,
    },
    /// No slot became free in time.
    #[error("no slot became free within {timeout:?}, waited {waited:?}")]
    Timeout {
        /// Time it waited.
        waited: Duration,
        /// Time it was allowed to wait.
        timeout: Duration,
    },
    /// The client disconnected.
    #[error("cancelled")]
    Cancelled,
}

/// A waiting request, as the router specification names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitEntry {
    /// Start of the wait.
    pub started_at: Instant,
    /// Latest end of the wait.
    pub timeout_at: Instant,
    /// The request.
    pub request_id: RequestId,
    /// Its model.
    pub model_id: ModelId,
}
