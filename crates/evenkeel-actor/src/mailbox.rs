//! Mailbox of an actor: a bounded user queue with an overflow strategy and a high watermark, and a system
//! queue that never rejects a message.
//!
//! Limits: the user queue holds at most `capacity - reserve_for_system` messages, including the batch that a
//! worker has taken but not yet handled. The system queue allocates its reserve with the first system message and may
//! exceed it. Messages are stored by value; a send allocates nothing once the queue has
//! grown to its working size.

#[cfg(not(loom))]
mod message;
mod options;
mod preset;
mod queues;

#[cfg(not(loom))]
pub(crate) use message::{EARLY_SIGNALS_MAX, SystemMessage};
pub use options::{InvalidMailbox, MailboxOptions, OverflowStrategy};
pub use preset::{MailboxPreset, UnknownPreset};
pub(crate) use queues::{MailboxQueues, PushResult};

/// Mailbox of one actor: [`MailboxQueues`] with the actor's message type `M`.
#[cfg(not(loom))]
pub(crate) type QueueMailbox<M> = MailboxQueues<crate::trace::Envelope<M>, SystemMessage>;

/// Number of messages ever enqueued, and current depth, of one queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MailboxQueueStats {
    pub(crate) enqueued: u64,
    pub(crate) depth: usize,
}
