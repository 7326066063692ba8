//! Stop modes, and causes of an actor's termination.

use crate::guardian::{ActorError, StopReason};

/// Treatment of queued user messages when an actor is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Stops before the next user message; queued messages are dead-lettered.
    Now,
    /// Stops after handling all messages accepted before the stop (graceful).
    Drained,
}

/// Cause of an actor's termination.
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
    /// Unknown, because the actor had stopped before it was watched.
    Unknown,
}
