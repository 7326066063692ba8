//! Errors of queue operations.

use crate::store::StoreError;

/// Reason why a queue rejected a request.
///
/// A rejected request has changed nothing, except for [`Rejection::Interrupted`] and [`StoreError::Unknown`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    #[error("queue is full: it may hold {max} {limit}")]
    QueueFull {
        /// The limited quantity: messages, bytes, or messages with a time to live.
        limit: &'static str,
        max: u64,
    },
    #[error("{max} messages are in flight, the maximum")]
    TooManyInFlight { max: u64 },
    /// Known keys have messages, had some within the last minute, or have a rule.
    #[error("{max} fairness keys are in use, the maximum")]
    TooManyKeys { max: u64 },
    #[error("a fairness key has 1 to 256 bytes, none of them a control character")]
    BadKey,
    #[error("message is larger than {max} bytes")]
    TooLarge { max: u64 },
    #[error("messages of a FIFO queue have no delay of their own")]
    DelayOnFifo,
    /// The TTL is not longer than the message's delay, or longer than the queue's retention.
    #[error("ttl is not between {min} ms, past its delay, and {max} ms, the queue's retention")]
    BadTtl { min: u64, max: u64 },
    /// The receipt's signature is wrong, or it belongs to another queue.
    #[error("receipt handle was not made by this queue")]
    ForgedReceipt,
    /// The message was acknowledged, moved, purged or expired.
    #[error("message is gone")]
    MessageGone,
    /// The message was delivered again since, or a crash lost the record of this delivery.
    #[error("receipt handle is of an earlier delivery")]
    StaleReceipt,
    /// The lease ended, or the delivery was given back.
    #[error("message is not in flight")]
    NotInFlight,
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many requests or writes are queued.
    #[error("queue is overloaded, retry later")]
    Busy,
    #[error("queue was deleted")]
    QueueDeleted,
    #[error("gateway is stopping")]
    Stopping,
    /// The queue's actor stopped before it answered.
    #[error("queue is restarting and the outcome of this request is unknown, retry")]
    Interrupted,
}
