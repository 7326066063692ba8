//! What an actor is: a value with an inbox of one type, run by one worker at a time.

use alloc::boxed::Box;
use core::future::Future;
use core::pin::Pin;

use crate::context::Context;
use crate::guardian::{ActorError, FailureNotification, SupervisionDirective};
use crate::index::MailboxIndex;
use crate::invoke::{ResumeCondition, SuspendReason};
use crate::stop::Termination;
use crate::timer::TimerId;

/// A value that handles messages one at a time.
///
/// Handlers are synchronous and should be short, as on any shared executor. What takes long is
/// returned as a future ([`Flow::Await`]), and its output comes back as a message.
pub trait Actor: Sized + Send + 'static {
    /// What it is told.
    type Msg: Send + 'static;

    /// Handles one message.
    fn receive(&mut self, message: Self::Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg>;

    /// Runs before the first message, on a worker; again on the new value after a restart.
    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }

    /// Hears what the system has to say.
    fn signal(&mut self, _signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }

    /// Runs on the old value before a restart throws it away.
    fn restarting(&mut self, _error: &ActorError, _ctx: &mut Context<'_, Self>) {}

    /// Runs once at the end, after the last child has ended.
    fn stopped(&mut self, _ctx: &mut Context<'_, Self>) {}

    /// May overrule what was decided about a failed child.
    fn overrule(&mut self, _failure: &FailureNotification) -> Option<SupervisionDirective> {
        None
    }
}

/// What a handler wants to happen next, or why it failed.
pub type HandlerResult<M> = Result<Flow<M>, ActorError>;

/// A future whose output is told to the actor that waits for it.
pub type MessageFuture<M> = Pin<Box<dyn Future<Output = M> + Send>>;

/// What a handler wants to happen next.
pub enum Flow<M> {
    /// The next message, please.
    Continue,
    /// Others first.
    Yield,
    /// Wait for this; its output is the next message. The system lane is served meanwhile.
    Await(MessageFuture<M>),
    /// Do not serve the mailbox until the condition holds.
    Suspend(SuspendReason, ResumeCondition),
    /// End.
    Stop,
}

impl<M> Flow<M> {
    /// Waits for `future`; its output is the actor's next message.
    pub fn wait(future: impl Future<Output = M> + Send + 'static) -> Self {
        Self::Await(Box::pin(future))
    }
}

/// What the system tells an actor.
#[derive(Clone, Debug, PartialEq)]
pub enum Signal {
    /// An actor it watches, or a child, has ended; told once.
    Terminated {
        /// The stopped actor.
        actor: MailboxIndex,
        /// The cause of its end.
        cause: Termination,
    },
    /// A child failed, and this was decided about it.
    ChildFailed(FailureNotification),
    /// No message came for as long as the actor asked for.
    ReceiveTimeout,
    /// A timer of its own fired.
    Timer(TimerId),
}
