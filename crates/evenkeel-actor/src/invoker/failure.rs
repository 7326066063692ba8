//! Supervision of a failed actor, decided immediately on the worker on which it failed.
//!
//! The actor is suspended in the same transition that ends its run, so it is never scheduled between its
//! failure and the decision. The parent is notified and may override the decision.

use alloc::boxed::Box;
use core::time::Duration;

use super::{ActionResult, ActorCellInvoker, NextAction};
use crate::actor::Actor;
use crate::cell::Phase;
use crate::dead_letters::DeadLetterReason;
use crate::guardian::{
    ActorError, ErrorKind, FailureNotification, MailboxOnRestart, StopReason, Supervision,
    SupervisionCommand, SupervisionDecision, decide,
};
use crate::invoke::InvokeResult;
use crate::mailbox::SystemMessage;
use crate::panic::catch;
use crate::stop::{StopMode, Termination};
use crate::timer::TimerEvent;

impl<A: Actor> ActorCellInvoker<'_, A> {
    pub(super) fn fail(&mut self, error: ActorError) -> ActionResult {
        if self.owner.phase == Phase::Stopping {
            // An actor that is stopping cannot fail any further.
            return ActionResult::Break(self.finish(InvokeResult::Completed { ready_hint: false }));
        }
        self.trace.record_failed(&error);
        let verdict = self.decide_failure(&error);
        if verdict != SupervisionDecision::Resume {
            self.resume();
        }
        self.local.core().hub.count_failure(self.body.head.kind);
        self.notify_parent(&error, verdict);
        ActionResult::Break(match verdict {
            SupervisionDecision::Resume => self.resume_now(error),
            SupervisionDecision::Restart { after } if after.is_zero() => return self.restart_at_once(error),
            SupervisionDecision::Restart { after } => self.restart_later(error, after),
            SupervisionDecision::Stop { reason } => self.begin_stop(Termination::Failed { error, reason }),
            SupervisionDecision::Escalate => self.suspend_failed(error, None),
        })
    }

    fn decide_failure(&mut self, error: &ActorError) -> SupervisionDecision {
        let now = self.local.core().now();
        let random = self.local.random();
        let parent = self.body.head.parent.as_ref();
        let root = &self.local.core().root;
        let supervision: &Supervision =
            parent.map_or(root, |parent| &parent.occupant().body.settings().children);
        let history = &mut self.owner.extra.get_or_insert_default().history;
        let decided = catch(|| decide(supervision, history, error, now, random));
        // A decider that panics has not decided to continue.
        match decided.unwrap_or(SupervisionDecision::Stop { reason: StopReason::Directed }) {
            SupervisionDecision::Restart { .. } if self.body.spec.factory.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            // A factory that panicked left no actor to resume.
            SupervisionDecision::Resume if self.owner.actor.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            // There is no parent to escalate to.
            SupervisionDecision::Escalate if parent.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            verdict => verdict,
        }
    }

    fn notify_parent(&mut self, error: &ActorError, verdict: SupervisionDecision) {
        let Some(parent) = &self.body.head.parent else { return };
        let restarts = self.owner.extra.as_ref().map_or(0, |extra| extra.history.restarts());
        let child = self.cell.index();
        let failure = FailureNotification { child, error: error.clone(), verdict, restarts };
        // A parent that has terminated stops its children, this one included.
        drop(parent.tell_system(SystemMessage::ChildFailed(Box::new(failure))));
    }

    fn resume_now(&mut self, error: ActorError) -> InvokeResult {
        self.forgive_children(&error);
        let result = InvokeResult::Failed { error, retry_after: Some(Duration::ZERO) };
        if self.owner.phase == Phase::Waiting {
            // The actor still waits for whatever it waited for.
            return self.finish(result);
        }
        self.finish_with_permit(result)
    }

    /// Resumes the children whose failure escalated to this actor.
    fn forgive_children(&mut self, error: &ActorError) {
        if error.kind() != ErrorKind::Escalated {
            return;
        }
        let children = self.owner.extra.iter().flat_map(|extra| &extra.children);
        for child in children {
            drop(child.tell_system(SystemMessage::Command(SupervisionCommand::Resume)));
        }
    }

    fn restart_at_once(&mut self, error: ActorError) -> ActionResult {
        self.extra().failure = Some(error.clone());
        if let Some(step) = self.restart() {
            return ActionResult::Continue(step);
        }
        let result = InvokeResult::Failed { error, retry_after: Some(Duration::ZERO) };
        ActionResult::Break(self.hold_for_children(result))
    }

    fn restart_later(&mut self, error: ActorError, after: Duration) -> InvokeResult {
        let due = self.local.core().now() + after;
        match self.local.core().clock.insert(due, TimerEvent::Resume(self.cell.clone())) {
            Ok(alarm) => {
                // An escalated failure during the backoff starts the backoff again.
                if let Some(before) = self.extra().resume.replace(alarm) {
                    self.local.core().clock.cancel(before);
                }
            }
            Err(_) => return self.begin_stop(Termination::Failed { error, reason: StopReason::Directed }),
        }
        self.suspend_failed(error, Some(after))
    }

    /// Leaves a failed actor suspended until its supervisor decides or the backoff ends.
    fn suspend_failed(&mut self, error: ActorError, retry_after: Option<Duration>) -> InvokeResult {
        self.owner.phase = Phase::Failed;
        self.drop_future();
        self.extra().failure = Some(error.clone());
        self.finish(InvokeResult::Failed { error, retry_after })
    }

    fn hold_for_children(&mut self, result: InvokeResult) -> InvokeResult {
        if self.owner.phase == Phase::Restarting {
            return self.finish(result);
        }
        self.finish_with_permit(result)
    }

    /// Resumes a failed actor with its state unchanged.
    pub(super) fn resume_after_failure(&mut self) {
        if let Some(error) = self.extra().failure.take() {
            self.forgive_children(&error);
        }
        self.wake();
    }

    fn wake(&mut self) {
        self.owner.phase = Phase::Waiting;
        self.resume();
        self.on_deferred();
    }

    /// Starts a restart: the children are stopped first.
    pub(super) fn restart(&mut self) -> Option<NextAction> {
        self.drop_future();
        if let Some(alarm) = self.extra().resume.take() {
            self.local.core().clock.cancel(alarm);
        }
        if self.extra().children.is_empty() {
            return self.restart_now();
        }
        self.owner.phase = Phase::Restarting;
        // The deferred messages may contain the termination of a child.
        self.on_deferred();
        self.extra().children.iter().for_each(|child| child.stop(StopMode::Now));
        None
    }

    /// Creates the new actor and starts it.
    pub(super) fn restart_now(&mut self) -> Option<NextAction> {
        let error = self.extra().failure.take().unwrap_or_else(|| ActorError::new("restarted by its supervisor"));
        // A panic in the failed actor's `restarting` or drop does not count as another failure.
        drop(catch(|| self.hook(|actor, ctx| actor.restarting(&error, ctx))));
        drop(catch(|| self.owner.actor = None));
        self.cancel_timers();
        let parent = self.body.head.parent.as_ref();
        let policy =
            parent.map_or(&self.local.core().root, |parent| &parent.occupant().body.settings().children);
        match policy.on_restart() {
            MailboxOnRestart::Keep => self.take_all_back(),
            MailboxOnRestart::Clear => {
                self.dead_letter_stash(DeadLetterReason::Cleared);
                self.dead_letter_waiting(DeadLetterReason::Cleared);
            }
        }
        let made = self.body.spec.factory.as_ref().map(|factory| catch(factory));
        match made {
            Some(Ok(actor)) => self.owner.actor = Some(actor),
            Some(Err(panic)) => return Some(NextAction::Fail(panic)),
            None => return Some(NextAction::GiveUp(error)),
        }
        self.local.core().hub.count_restart(self.body.head.kind);
        self.wake();
        match catch(|| self.start()) {
            Ok(step) => step,
            Err(panic) => Some(NextAction::Fail(panic)),
        }
    }
}
