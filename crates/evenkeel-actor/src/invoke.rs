//! Result of a run, reasons for a suspension, and the conditions that end it.

use core::fmt;
use core::time::Duration;

use crate::guardian::ActorError;

/// Result of running a cell once.
#[derive(Clone, Debug, PartialEq)]
pub enum InvokeResult {
    /// There is nothing left to do, or (`ready_hint`) the run permit was kept because there is.
    ///
    /// The hint is exact: it was decided in the transition that would have released the permit. Dropping the
    /// cell despite the hint would lose whatever arrived meanwhile.
    Completed {
        /// Set if the cell goes back into the ready queue.
        ready_hint: bool,
    },
    /// The message budget is used up; the cell goes to the end of the ready queue.
    Yielded,
    /// User messages are not processed until the condition holds.
    Suspended {
        /// Reason for the suspension.
        reason: SuspendReason,
        /// Condition that ends it.
        resume_on: ResumeCondition,
    },
    /// The actor failed and its supervisor has decided.
    Failed {
        /// The failure.
        error: ActorError,
        /// Time until the actor is tried again; `None` if that needs a command.
        retry_after: Option<Duration>,
    },
    /// The actor has terminated.
    Stopped,
}

/// Result of a run, without its details.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InvokeKind {
    Completed { ready_hint: bool },
    Yielded,
    Suspended,
    Failed,
    Stopped,
}

impl InvokeResult {
    /// Returns the kind, which is all that the ready queue needs; the full result is twice as large as what
    /// fits into registers.
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

/// Reason why an actor is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SuspendReason {
    /// A mailbox that it sends to is full.
    Backpressure,
    /// It awaits a future or an external signal.
    AwaitExternal,
    /// It is rate-limited.
    RateLimit,
    /// A reason of its own.
    UserDefined,
}

/// Condition that ends a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResumeCondition {
    /// The key is signalled.
    ///
    /// Of signals that arrive before their wait, the latest 16 are remembered.
    ExternalSignal(SignalKey),
    /// The delay has elapsed.
    After(Duration),
    /// The mailbox that was last found full is down to its low watermark.
    WhenCapacityAvailable,
}

/// Key of one wait of one actor.
///
/// The upper half is the actor's slot, the lower half counts its waits, so that a late signal for an earlier
/// wait does not end a later one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SignalKey(pub u64);

impl fmt::Display for SignalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// State of an actor as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ActorState {
    /// Processes its mailbox.
    Running,
    /// Processes system messages only.
    Suspended,
    /// Rejects new messages and is about to terminate.
    Stopping,
    /// Terminated.
    Stopped,
}

/// Runs the queued messages of one actor.
pub trait MessageInvoker {
    /// Handles at most `messages_max` user messages; the system queue is checked before each.
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult;

    /// Returns the actor's current state.
    #[allow(dead_code, reason = "part of the trait by its specification; callers ask the actor's address")]
    fn actor_state(&self) -> ActorState;
}
