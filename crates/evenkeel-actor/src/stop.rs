//! Stop modes, and causes of an actor's end.

use crate::guardian::{ActorError, StopReason};

/// Order of a stop relative to the messages in the mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Before the next user message; queued messages are dead-lettered.
    Now,
    /// After all messages accepted before.
    Drained,
}

/// Cause of an actor's end.
#[derive(Clone, Debug, PartialEq)]
pub enum Termination {
    /// It was stopped, or returned [`Flow::Stop`](crate::Flow::Stop).
    Stopped,
    /// It failed, and its supervisor stopped it.
    Failed {
        /// The failure.
        error: ActorError,
        /// The reason it was not restarted.
        reason: StopReason,
    },
    /// It had stopped before it was watched.
    Unknown,
}
