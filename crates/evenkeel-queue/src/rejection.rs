//! Why a queue says no.

use core::fmt;

use crate::store::StoreError;

/// Why a request to a queue was refused; what was refused has changed nothing, but for [`Rejection::Interrupted`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rejection {
    /// The queue holds as many messages, or bytes, as it may.
    QueueFull {
        /// Which limit, in words.
        limit: &'static str,
        /// How much it allows.
        max: u64,
    },
    /// As many messages are in consumers' hands as may be.
    TooManyInFlight {
        /// How many may be.
        max: u64,
    },
    /// As many keys are known as may be: they have messages, had some in the last minute, or have a weight.
    TooManyKeys {
        /// How many may be.
        max: u64,
    },
    /// A key's name is empty, too long, or not printable.
    BadKey,
    /// One message is larger than a message may be.
    TooLarge {
        /// How large it may be.
        max: u64,
    },
    /// A message of a FIFO queue has a delay of its own.
    DelayOnFifo,
    /// A message's time to live is not longer than its delay, or longer than the queue keeps any message.
    BadTtl {
        /// The least it may be, in milliseconds.
        min: u64,
        /// The most it may be, in milliseconds.
        max: u64,
    },
    /// The receipt was made by nobody here, or for another queue.
    ForgedReceipt,
    /// The receipt's message is gone: acknowledged, moved, purged or expired.
    MessageGone,
    /// The receipt is of an earlier delivery, or of one that a crash made forgotten.
    StaleReceipt,
    /// The delivery is over: its lease ended, or it was given back.
    NotInFlight,
    /// The store did not take it.
    Store(StoreError),
    /// Too much is waiting to be written down or handled; later it may work.
    Busy,
    /// The queue was deleted.
    QueueDeleted,
    /// The gateway stops.
    Stopping,
    /// Whoever kept the queue fell, and another takes its place; whether it was done is not known.
    Interrupted,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::QueueFull { limit, max } => write!(f, "queue is full: it may hold {max} {limit}"),
            Self::TooManyInFlight { max } => write!(f, "{max} messages are in flight, which is the most"),
            Self::TooManyKeys { max } => write!(f, "{max} fairness keys are known, which is the most"),
            Self::BadKey => {
                f.write_str("a fairness key has 1 to 256 bytes, none of them a control character")
            }
            Self::TooLarge { max } => write!(f, "message is larger than {max} bytes"),
            Self::DelayOnFifo => f.write_str("messages of a FIFO queue have no delay of their own"),
            Self::BadTtl { min, max } => {
                write!(f, "ttl is not between {min} ms, past its delay, and {max} ms, the queue's retention")
            }
            Self::ForgedReceipt => f.write_str("receipt handle was not made by this queue"),
            Self::MessageGone => f.write_str("message is gone"),
            Self::StaleReceipt => f.write_str("receipt handle is of an earlier delivery"),
            Self::NotInFlight => f.write_str("message is not in flight"),
            Self::Store(error) => error.fmt(f),
            Self::Busy => f.write_str("too much is waiting to be written, retry later"),
            Self::QueueDeleted => f.write_str("queue was deleted"),
            Self::Stopping => f.write_str("gateway is stopping"),
            Self::Interrupted => f.write_str("queue was interrupted and goes on in a moment, retry"),
        }
    }
}

impl core::error::Error for Rejection {}

impl From<StoreError> for Rejection {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}
