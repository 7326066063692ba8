//! A mailbox: a user lane that is bounded and a system lane that is never refused.
//!
//! Bound: the user lane holds at most `capacity − reserve_for_system` messages, those already handed to
//! the actor's worker included. Messages lie in the lane by value; sending one allocates nothing once
//! the lane has grown to its working size.

#[cfg(not(loom))]
mod message;
mod options;
mod preset;
mod queues;

#[cfg(not(loom))]
pub(crate) use message::{EARLY_MAX, SystemMessage};
pub use options::{InvalidMailbox, MailboxOptions, OverflowStrategy};
pub use preset::{MailboxPreset, UnknownPreset};
pub(crate) use queues::{MailboxQueues, PushResult};

/// The two lanes of an actor's mailbox.
#[cfg(not(loom))]
pub(crate) type QueueMailbox<M> = MailboxQueues<crate::trace::Envelope<M>, SystemMessage>;

/// What a lane has seen and holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MailboxQueueStats {
    pub(crate) enqueued: u64,
    pub(crate) depth: usize,
}
