//! The actor trait: a value that handles messages of one type, run by one worker at a time.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

use crate::context::Context;
use crate::guardian::{ActorError, FailureNotification, SupervisionDirective};
use crate::index::MailboxIndex;
use crate::invoke::{MessageInvoker, ResumeCondition, SuspendReason};
use crate::stop::Termination;
use crate::timer::TimerId;

/// A value that handles messages one at a time.
///
/// Handlers are synchronous and should be short, as on any shared executor. For longer work a handler returns a
/// future ([`Flow::Await`]), whose output arrives as the next message.
pub trait Actor: Sized + Send + 'static {
    /// The messages of the actor.
    type Msg: Send + 'static;

    /// Handles one message.
    fn receive(&mut self, message: Self::Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg>;

    /// Runs on a worker before the first message, and again on the new value after a restart.
    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }

    /// Handles a signal from the system.
    fn signal(&mut self, _signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }

    /// Runs on the old value before a restart drops it.
    fn restarting(&mut self, _error: &ActorError, _ctx: &mut Context<'_, Self>) {}

    /// Runs once before the actor is dropped for good, after its last child has stopped.
    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {}

    /// Returns the invoker that handles the messages in place of [`Actor::receive`]; see
    /// [`Props::with_invoker`](crate::Props::with_invoker).
    #[doc(hidden)]
    #[inline]
    fn invoker(&mut self) -> Option<&mut dyn MessageInvoker> {
        None
    }

    /// Reports whether a failure left an actor that can handle messages.
    #[doc(hidden)]
    #[inline]
    fn can_resume(&self) -> bool {
        true
    }

    /// Returns a directive to overrule the decision about a failed child, or `None` to accept it.
    fn overrule(&mut self, _failure: &FailureNotification) -> Option<SupervisionDirective> {
        None
    }
}

/// Result of a handler: how the actor continues, or the failure.
pub type HandlerResult<M> = Result<Flow<M>, ActorError>;

/// A future whose output is the next message of the actor that awaits it.
pub type MessageFuture<M> = Pin<Box<dyn Future<Output = M> + Send>>;

/// Instruction from a handler for what the actor does next.
pub enum Flow<M> {
    /// Handle the next message.
    Continue,
    /// Let other actors run first.
    Yield,
    /// Await the future; its output is the next message. System messages are handled meanwhile.
    Await(MessageFuture<M>),
    /// Handle no user message until the condition holds.
    Suspend(SuspendReason, ResumeCondition),
    /// Stop the actor.
    Stop,
}

impl<M> Flow<M> {
    /// Awaits `future`; its output is the actor's next message.
    pub fn wait(future: impl Future<Output = M> + Send + 'static) -> Self {
        Self::Await(Box::pin(future))
    }
}

/// Notification from the system to an actor.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// A watched actor or a child has stopped; sent once.
    Terminated {
        /// The stopped actor.
        actor: MailboxIndex,
        /// The cause of its termination.
        cause: Termination,
    },
    /// A child failed; contains the decision about it.
    ChildFailed(FailureNotification),
    /// No message arrived for the receive timeout.
    ReceiveTimeout,
    /// A timer of the actor fired.
    Timer(TimerId),
    /// The mailbox for whose capacity the actor was suspended did not drain within
    /// [`capacity_wait_max`](crate::ActorSystemConfig::capacity_wait_max); the actor has resumed.
    CapacityTimeout,
}
