//! The words of one run: how it ended, why a cell waits, what ends the wait.

use core::fmt;
use core::time::Duration;

use crate::guardian::ActorError;

/// How a run of a cell ended.
#[derive(Clone, Debug, PartialEq)]
pub enum InvokeResult {
    /// Nothing is left to do, or (`ready_hint`) the run right was kept because something is.
    ///
    /// The hint is a fact: it was decided in the transition that would have given the run right back.
    /// Taking it for a hint and forgetting the cell would lose whoever registered meanwhile.
    Completed {
        /// Whether the cell goes back into the ready queue.
        ready_hint: bool,
    },
    /// The budget is used up; the cell goes to the end of the queue.
    Yielded,
    /// The user lane is not served until the condition holds.
    Suspended {
        /// Why.
        reason: SuspendReason,
        /// Until when.
        resume_on: ResumeCondition,
    },
    /// The actor failed; its supervisor has decided, and this is when it is tried again.
    Failed {
        /// What happened.
        error: ActorError,
        /// How long the actor stays suspended; `None` when it is not tried again by itself.
        retry_after: Option<Duration>,
    },
    /// The actor has ended.
    Stopped,
}

/// How a run ended, without the particulars.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvokeKind {
    Completed { ready_hint: bool },
    Yielded,
    Suspended,
    Failed,
    Stopped,
}

impl InvokeResult {
    /// All that the ready queue needs to know; a result is twice as big as what fits into registers.
    #[inline(always)]
    pub(crate) fn kind(&self) -> InvokeKind {
        match *self {
            Self::Completed { ready_hint } => InvokeKind::Completed { ready_hint },
            Self::Yielded => InvokeKind::Yielded,
            Self::Suspended { .. } => InvokeKind::Suspended,
            Self::Failed { .. } => InvokeKind::Failed,
            Self::Stopped => InvokeKind::Stopped,
        }
    }
}

/// Why an actor is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SuspendReason {
    /// A mailbox it sends to is full.
    Backpressure,
    /// It waits for a future or for somebody's signal.
    AwaitExternal,
    /// It may go on later.
    RateLimit,
    /// Its own reason.
    UserDefined,
}

/// What ends a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResumeCondition {
    /// Somebody signals the key.
    ///
    /// Of signals that come before the wait they end, the latest 16 are remembered.
    ExternalSignal(SignalKey),
    /// Time has passed.
    After(Duration),
    /// The mailbox that was last found full is down to its low mark.
    WhenCapacityAvailable,
}

/// Names one wait of one actor.
///
/// The upper half is the actor's slot, the lower counts its waits, so that a late signal of an earlier
/// wait ends no later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignalKey(pub u64);

impl fmt::Display for SignalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// What an actor is doing, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActorState {
    /// Serves its mailbox.
    Running,
    /// Serves only the system.
    Suspended,
    /// Takes nothing new, and ends.
    Stopping,
    /// Has ended.
    Stopped,
}

/// Executes what waits for one actor.
pub trait MessageInvoker {
    /// Handles at most `messages_max` user messages; the system lane is looked at before each.
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult;

    /// Tells what the actor is doing.
    #[allow(dead_code, reason = "part of the trait by its specification; others ask by address")]
    fn actor_state(&self) -> ActorState;
}
