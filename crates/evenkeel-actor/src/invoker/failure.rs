//! Supervision of a failed actor, decided immediately on the worker on which it failed.
//!
//! The decision is made before the run ends, so the actor is never scheduled between its failure and the decision. If it
//! must wait, the transition that ends the run also suspends it. The parent is notified and may override the decision.

use alloc::boxed::Box;
use core::time::Duration;

use super::{ActionResult, ActorCellInvoker, NextAction, no_room_for_timer};
use crate::actor::Actor;
use crate::cell::ActorPhase;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::{
    ActorError, ErrorKind, FailureNotification, MailboxOnRestart, StopReason, Supervision,
    SupervisionCommand, SupervisionDecision, decide,
};
use crate::invoke::{InvokeResult, ResumeCondition, SuspendReason};
use crate::mailbox::SystemMessage;
use crate::panic::catch_panic;
use crate::stop::{StopMode, Termination};
use crate::timer::TimerEvent;

impl<A: Actor> ActorCellInvoker<'_, A> {
    pub(super) fn fail(&mut self, error: ActorError) -> ActionResult {
        if self.runner.phase == ActorPhase::Stopping {
            // An actor that is stopping cannot fail any further.
            return ActionResult::Break(self.finish(InvokeResult::Completed { ready_hint: false }));
        }
        self.trace.record_failed(&error);
        if error.kind() == ErrorKind::Mailbox {
            self.empty_failed_mailbox();
        }
        let retry_after = self.extra().retry_after.take().unwrap_or_default();
        let decision = self.decide_failure(&error, retry_after);
        if decision != SupervisionDecision::Resume {
            self.resume();
        }
        self.local.core().hub.count_failure(self.body.header.kind);
        self.notify_parent(&error, decision);
        ActionResult::Break(match decision {
            SupervisionDecision::Resume if retry_after.is_zero() => self.resume_now(error),
            SupervisionDecision::Resume => return self.resume_later(error, retry_after),
            SupervisionDecision::Restart { after } if after.is_zero() => {
                return self.restart_immediately(error);
            }
            SupervisionDecision::Restart { after } => self.restart_later(error, after),
            SupervisionDecision::Stop { reason } => self.begin_stop(Termination::Failed { error, reason }),
            SupervisionDecision::Escalate => self.suspend_failed(error, None),
        })
    }

    /// Reports the failure of the mailbox to the registry, and dead-letters the queued messages: whatever the supervision
    /// decides, the mailbox is empty and has freed its memory.
    fn empty_failed_mailbox(&mut self) {
        self.local.core().slab.record_mailbox_failure(self.cell);
        self.dead_letter_queued(DeadLetterReason::MailboxFailed);
    }

    fn decide_failure(&mut self, error: &ActorError, retry_after: Duration) -> SupervisionDecision {
        let now = self.local.core().now();
        let random = self.local.random();
        let parent = self.body.header.parent.as_ref();
        let root = &self.local.core().root;
        let supervision: &Supervision =
            parent.map_or(root, |parent| &parent.occupant().body.settings().children);
        let history = &mut self.runner.extra.get_or_insert_default().history;
        let decided = catch_panic(|| decide(supervision, history, error, now, random));
        // If the decider panics, the actor is stopped.
        match decided.unwrap_or(SupervisionDecision::Stop { reason: StopReason::Directed }) {
            SupervisionDecision::Restart { .. } if self.body.spec.factory.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            SupervisionDecision::Resume if !self.can_resume() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            // There is no parent to escalate to.
            SupervisionDecision::Escalate if parent.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            SupervisionDecision::Restart { after } => {
                SupervisionDecision::Restart { after: after.max(retry_after) }
            }
            decision => decision,
        }
    }

    /// Reports whether there is an actor to resume: a factory that panicked left none, nor does the constructor of an
    /// invoker that panicked.
    pub(super) fn can_resume(&self) -> bool {
        self.runner.actor.as_ref().is_some_and(A::can_resume)
    }

    fn notify_parent(&mut self, error: &ActorError, decision: SupervisionDecision) {
        let Some(parent) = &self.body.header.parent else { return };
        let restarts = self.runner.extra.as_ref().map_or(0, |extra| extra.history.restarts());
        let child = self.cell.index();
        let failure = FailureNotification { child, error: error.clone(), decision, restarts };
        // A parent that has terminated stops its children, this one included.
        drop(parent.tell_system(SystemMessage::ChildFailed(Box::new(failure))));
    }

    fn resume_now(&mut self, error: ActorError) -> InvokeResult {
        self.resume_children(&error);
        let result = InvokeResult::Failed { error, retry_after: Some(Duration::ZERO) };
        if self.runner.phase == ActorPhase::Waiting {
            // The wait that the actor was in continues.
            return self.finish(result);
        }
        self.finish_with_permit(result)
    }

    /// Suspends the actor, whose custom invoker asked for a delay, until the delay has elapsed.
    fn resume_later(&mut self, error: ActorError, after: Duration) -> ActionResult {
        if !self.set_resume_timer(after) {
            return ActionResult::Continue(no_room_for_timer());
        }
        self.begin_wait(SuspendReason::UserDefined, ResumeCondition::After(after));
        ActionResult::Break(self.finish(InvokeResult::Failed { error, retry_after: Some(after) }))
    }

    /// Resumes the children whose failure escalated to this actor.
    fn resume_children(&mut self, error: &ActorError) {
        if error.kind() != ErrorKind::Escalated {
            return;
        }
        let children = self.runner.extra.iter().flat_map(|extra| &extra.children);
        for child in children {
            drop(child.tell_system(SystemMessage::Command(SupervisionCommand::Resume)));
        }
    }

    fn restart_immediately(&mut self, error: ActorError) -> ActionResult {
        self.extra().failure = Some(error.clone());
        if let Some(action) = self.restart() {
            return ActionResult::Continue(action);
        }
        let result = InvokeResult::Failed { error, retry_after: Some(Duration::ZERO) };
        ActionResult::Break(self.finish_restart(result))
    }

    fn restart_later(&mut self, error: ActorError, after: Duration) -> InvokeResult {
        let due = self.local.core().now() + after;
        match self.local.core().timer_driver.insert(due, TimerEvent::Resume(self.cell.clone())) {
            Ok(timer) => {
                // An escalated failure during the backoff starts the backoff again.
                if let Some(previous) = self.extra().resume_timer.replace(timer) {
                    self.local.core().timer_driver.cancel(previous);
                }
            }
            Err(_) => return self.begin_stop(Termination::Failed { error, reason: StopReason::Directed }),
        }
        self.suspend_failed(error, Some(after))
    }

    /// Leaves a failed actor suspended until its supervisor decides or the backoff ends.
    fn suspend_failed(&mut self, error: ActorError, retry_after: Option<Duration>) -> InvokeResult {
        self.runner.phase = ActorPhase::Failed;
        self.drop_future();
        self.extra().failure = Some(error.clone());
        self.finish(InvokeResult::Failed { error, retry_after })
    }

    fn finish_restart(&mut self, result: InvokeResult) -> InvokeResult {
        if self.runner.phase == ActorPhase::Restarting {
            return self.finish(result);
        }
        self.finish_with_permit(result)
    }

    /// Resumes a failed actor with its state unchanged.
    pub(super) fn resume_after_failure(&mut self) {
        if let Some(error) = self.extra().failure.take() {
            self.resume_children(&error);
        }
        self.resume_failed();
    }

    fn resume_failed(&mut self) {
        self.runner.phase = ActorPhase::Waiting;
        self.resume();
        self.requeue_deferred();
    }

    /// Starts a restart: the children are stopped first.
    pub(super) fn restart(&mut self) -> Option<NextAction> {
        self.drop_future();
        if let Some(timer) = self.extra().resume_timer.take() {
            self.local.core().timer_driver.cancel(timer);
        }
        if self.extra().children.is_empty() {
            return self.restart_now();
        }
        self.runner.phase = ActorPhase::Restarting;
        // The deferred messages may contain the termination of a child.
        self.requeue_deferred();
        self.extra().children.iter().for_each(|child| child.stop(StopMode::Now));
        None
    }

    /// Creates the new actor and starts it.
    pub(super) fn restart_now(&mut self) -> Option<NextAction> {
        let error =
            self.extra().failure.take().unwrap_or_else(|| ActorError::new("restarted by its supervisor"));
        // A panic in the failed actor's `restarting` or drop does not count as another failure.
        drop(catch_panic(|| self.call_hook(|actor, ctx| actor.restarting(&error, ctx))));
        drop(catch_panic(|| self.runner.actor = None));
        self.cancel_timers();
        let parent = self.body.header.parent.as_ref();
        let policy =
            parent.map_or(&self.local.core().root, |parent| &parent.occupant().body.settings().children);
        match policy.on_restart() {
            MailboxOnRestart::Keep => {
                #[cfg(feature = "patterns")]
                self.unstash_for_restart();
            }
            MailboxOnRestart::Clear => {
                #[cfg(feature = "patterns")]
                self.dead_letter_stash(DeadLetterReason::Cleared);
                self.dead_letter_queued(DeadLetterReason::Cleared);
            }
        }
        let created = self.body.spec.factory.as_ref().map(|factory| catch_panic(factory));
        match created {
            Some(Ok(actor)) => self.runner.actor = Some(actor),
            Some(Err(panic)) => return Some(NextAction::Fail(panic)),
            None => return Some(NextAction::StopFailed(error)),
        }
        self.local.core().hub.count_restart(self.body.header.kind);
        self.resume_failed();
        match catch_panic(|| self.start()) {
            Ok(action) => action,
            Err(panic) => Some(NextAction::Fail(panic)),
        }
    }
}
