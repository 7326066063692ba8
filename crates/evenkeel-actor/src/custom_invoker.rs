//! Custom invokers: a [`MessageInvoker`] of the application handles an actor's user messages in batches.
//!
//! Guarantees: the runtime still handles system messages, so stops, supervision, signals and timers work as usual, and only
//! the holder of the run permit calls the invoker. Messages that it does not take stay queued. Limits: the invoker is
//! called with the runtime's `messages_per_run` and is expected to respect it, so that other actors get their turn. A batch
//! runs to its end: system messages are handled before and after it, and it does not make way for an actor that is asked
//! from outside the workers.

use alloc::boxed::Box;
use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;

use crate::actor::{Actor, Flow, HandlerResult};
use crate::actor_ref::ActorRef;
use crate::context::Context;
use crate::guardian::ActorError;
use crate::invoke::{ActorState, MessageInvoker};
use crate::props::{Props, PropsBuilder, short_type_name};
use crate::sync::Arc;

/// The receiving end of an actor's mailbox, for a custom invoker.
///
/// For use in [`MessageInvoker::invoke_batch`] only: the runtime wakes senders that wait for capacity at the end of a
/// batch, so they would not learn of messages that are taken at another time. It cannot be shared between threads:
///
/// ```compile_fail
/// fn share<T: Sync>() {}
/// share::<evenkeel_actor::MailboxReceiver<u32>>();
/// ```
pub struct MailboxReceiver<M> {
    actor: ActorRef<M>,
    /// Makes the type `!Sync`.
    _unshared: PhantomData<Cell<()>>,
}

impl<M: Send + 'static> MailboxReceiver<M> {
    /// Takes the oldest message.
    pub fn dequeue(&self) -> Option<M> {
        let message = self.actor.mailbox().pop_oldest(&self.actor.cell().slot().state)?;
        message.trace.record_dequeued();
        Some(message.message)
    }

    /// Returns the actor whose mailbox this is.
    pub fn actor(&self) -> &ActorRef<M> {
        &self.actor
    }

    /// Returns the actor's state; for implementing [`MessageInvoker::actor_state`].
    pub fn actor_state(&self) -> ActorState {
        self.actor.state()
    }
}

impl<M: Send + 'static> fmt::Debug for MailboxReceiver<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MailboxReceiver").field(&self.actor).finish()
    }
}

type InvokerFactory<M, I> = Box<dyn Fn(MailboxReceiver<M>) -> I + Send + Sync>;

/// An actor whose messages are handled by the invoker `I`; see [`Props::with_invoker`].
pub struct CustomInvokerActor<M, I> {
    factory: Arc<InvokerFactory<M, I>>,
    /// Created when the actor starts.
    invoker: Option<I>,
}

impl<M: Send + 'static, I: MessageInvoker + Send + 'static> Props<CustomInvokerActor<M, I>> {
    /// Returns a builder of props for actors whose messages are handled by an invoker that `factory` creates, at the start and
    /// at each restart.
    ///
    /// Effects of the results of [`MessageInvoker::invoke_batch`]:
    ///
    /// - `Completed`, `Yielded`: the actor runs again if messages are left.
    /// - `Suspended`: no batch is invoked until the condition holds. [`WhenCapacityAvailable`] holds at once, because an
    ///   invoker has no [`Context::try_tell`].
    /// - `Failed`: the supervision decides; a restart waits for `retry_after` or the backoff, whichever is longer, a resume for
    ///   `retry_after`. A directive of the parent ([`Actor::overrule`]) ends the wait before a restart.
    /// - `Stopped`: the actor stops.
    ///
    /// A panic is a failure. After a panic of `factory` there is no invoker to resume: the actor stops instead, or restarts if
    /// its parent overruled the decision. Futures ([`Flow::Await`]) are not available: send their output as a message.
    ///
    /// [`WhenCapacityAvailable`]: crate::ResumeCondition::WhenCapacityAvailable
    pub fn with_invoker(
        factory: impl Fn(MailboxReceiver<M>) -> I + Send + Sync + 'static,
    ) -> PropsBuilder<CustomInvokerActor<M, I>> {
        let factory: Arc<InvokerFactory<M, I>> = Arc::new(Box::new(factory));
        Props::new(move || CustomInvokerActor { factory: factory.clone(), invoker: None })
            .label(short_type_name::<I>())
    }
}

impl<M: Send + 'static, I: MessageInvoker + Send + 'static> Actor for CustomInvokerActor<M, I> {
    type Msg = M;

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<M> {
        let mailbox = MailboxReceiver { actor: ctx.me(), _unshared: PhantomData };
        self.invoker = Some((self.factory)(mailbox));
        Ok(Flow::Continue)
    }

    /// Never called: [`Actor::invoker`] takes its place, and without an invoker the actor does not resume.
    fn receive(&mut self, _message: M, _ctx: &mut Context<'_, Self>) -> HandlerResult<M> {
        Err(ActorError::new("the actor has no invoker"))
    }

    fn can_resume(&self) -> bool {
        self.invoker.is_some()
    }

    fn invoker(&mut self) -> Option<&mut dyn MessageInvoker> {
        self.invoker.as_mut().map(|invoker| invoker as &mut dyn MessageInvoker)
    }
}

impl<M, I> fmt::Debug for CustomInvokerActor<M, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CustomInvokerActor").finish_non_exhaustive()
    }
}
