//! How an actor ends.

use crate::guardian::{ActorError, StopReason};

/// When an actor that is told to stop does so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Before the next user message; what waits becomes dead letters.
    Now,
    /// After everything that was accepted before.
    Drained,
}

/// Why an actor has ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Termination {
    /// It was told to, or said so itself.
    Stopped,
    /// It failed, and its supervisor stopped it.
    Failed {
        /// What happened.
        error: ActorError,
        /// Why it was not tried again.
        reason: StopReason,
    },
    /// It had ended before anybody asked.
    Unknown,
}
