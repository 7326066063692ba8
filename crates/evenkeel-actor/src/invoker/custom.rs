//! Runs an actor whose messages are handled by an invoker of the application.

use super::{ActorCellInvoker, NextAction, TakenMessages};
use crate::actor::Actor;
use crate::invoke::InvokeResult;
use crate::panic::catch_panic;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Passes the queued messages to the actor's custom invoker; `None` if it has none.
    #[inline(always)]
    pub(super) fn try_custom_invoker(&mut self, messages_max: usize) -> Option<NextAction> {
        self.runner.actor.as_mut()?.invoker()?;
        Some(self.run_custom_invoker(messages_max))
    }

    fn run_custom_invoker(&mut self, messages_max: usize) -> NextAction {
        if self.body.mailbox.lower_if_empty(self.state()) {
            return self.queue_is_empty();
        }
        if let Some(action) = self.before_invoke(TakenMessages::None) {
            return action;
        }
        let before = self.dequeued();
        let Some(invoker) = self.runner.actor.as_mut().and_then(A::invoker) else { return NextAction::Idle };
        // Caught here, so that the messages that the batch took are counted.
        let result = catch_panic(|| invoker.invoke_batch(messages_max));
        self.handled += (self.dequeued() - before) as usize;
        match result.unwrap_or_else(|error| InvokeResult::Failed { error, retry_after: None }) {
            InvokeResult::Completed { ready_hint: false }
                if self.body.mailbox.lower_if_empty(self.state()) =>
            {
                self.queue_is_empty()
            }
            InvokeResult::Completed { .. } | InvokeResult::Yielded => NextAction::Yield,
            InvokeResult::Suspended { reason, resume_on } => NextAction::suspend(reason, resume_on),
            InvokeResult::Failed { error, retry_after } => {
                self.extra().retry_after = retry_after;
                NextAction::Fail(error)
            }
            InvokeResult::Stopped => NextAction::Stop,
        }
    }

    /// Returns the number of messages that have left the queue so far, including those that senders evicted.
    fn dequeued(&self) -> u64 {
        let stats = self.body.mailbox.stats();
        stats.enqueued - stats.depth as u64
    }
}
