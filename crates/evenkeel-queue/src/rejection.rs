//! Errors of queue operations.

use crate::store::StoreError;

/// Reason why a queue rejected a request.
///
/// A rejected request has changed nothing, with three exceptions: [`Rejection::Interrupted`], [`Rejection::NoAnswer`]
/// and [`StoreError::Unknown`].
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
    /// A key is in use while it has a rule or messages, and for a minute after the last one.
    #[error("{max} fairness keys are in use, the maximum")]
    TooManyKeys { max: u64 },
    /// The tenant is the owner of the queue, or in a shared queue the first level of the key.
    #[error("the tenant has {max} fairness keys in use, the maximum")]
    TooManyTenantKeys { max: u32 },
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
    /// The message was delivered again later, or a crash lost the record of this delivery.
    #[error("receipt handle is of an earlier delivery")]
    StaleReceipt,
    /// The lease ended, or the delivery was nacked, deferred or released.
    #[error("message is not in flight")]
    NotInFlight,
    #[error(transparent)]
    Store(#[from] StoreError),
    /// Too many requests are queued, or the message is being removed.
    #[error("queue is overloaded or the message is being deleted, retry later")]
    Busy,
    /// The queue's actor did not answer in time: it is overloaded, or the process was stopped meanwhile.
    #[error("queue did not answer in time and the outcome of this request is unknown, retry")]
    NoAnswer,
    #[error("queue was deleted")]
    QueueDeleted,
    #[error("gateway is stopping")]
    Stopping,
    /// The queue's actor stopped before it answered.
    #[error("queue is restarting and the outcome of this request is unknown, retry")]
    Interrupted,
}
