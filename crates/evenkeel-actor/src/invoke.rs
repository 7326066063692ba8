//! Result of running a cell, reasons for a suspension, and the conditions that end it.

use core::fmt;
use core::time::Duration;

use crate::guardian::ActorError;

/// Result of running a cell once.
///
/// For the runtime it is an outcome; from a [custom invoker](crate::Props::with_invoker) it is a request, which
/// the runtime carries out.
#[derive(Clone, Debug, PartialEq)]
pub enum InvokeResult {
    /// The run ended normally.
    ///
    /// Without `ready_hint` no work is left and the run permit was released; with it, more work is pending and
    /// the permit was kept. The hint (the specification's name) is exact: it is decided in the transition that
    /// would have released the permit. A caller that does not requeue the cell would lose a wake-up.
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
    /// The actor failed, and its supervision strategy was applied: resumed, restarted or escalated.
    Failed {
        /// The failure.
        error: ActorError,
        /// Delay until the actor resumes or restarts; `None` if the failure was escalated and an ancestor decides.
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
    /// Returns the kind, which is all that the ready queue needs; the full result is too large to be returned in
    /// registers.
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
    /// A reason defined by the actor.
    UserDefined,
}

/// Condition that ends a suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ResumeCondition {
    /// A signal with this key arrives.
    ///
    /// The latest 16 signals that arrive before the actor waits for them are kept.
    ExternalSignal(SignalKey),
    /// The delay has elapsed.
    After(Duration),
    /// The mailbox that last rejected this actor's message has drained to its low watermark.
    ///
    /// The wait ends with [`Signal::CapacityTimeout`](crate::Signal::CapacityTimeout) after
    /// [`capacity_wait_max`](crate::ActorSystemConfig::capacity_wait_max), so actors that wait for each other go on.
    WhenCapacityAvailable,
}

/// Key that identifies one wait of one actor.
///
/// The runtime's keys, for waits for a future, have the actor's slot in the upper half and a count of its waits in the lower
/// half, so that a late signal for an earlier wait does not end a later one. Others may choose any key.
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

/// Handles the queued messages of one actor.
///
/// The runtime's own invoker calls [`Actor::receive`](crate::Actor::receive);
/// [`Props::with_invoker`](crate::Props::with_invoker) spawns actors with another.
pub trait MessageInvoker {
    /// Handles at most `messages_max` user messages.
    ///
    /// A stop, a failure of a child or a signal that arrives meanwhile takes effect after the batch.
    fn invoke_batch(&mut self, messages_max: usize) -> InvokeResult;

    /// Returns the actor's current state.
    fn actor_state(&self) -> ActorState;
}
