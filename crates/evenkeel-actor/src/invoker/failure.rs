//! What becomes of an actor that failed, decided at once on the worker it failed on.
//!
//! The actor is suspended in the same transition that ends its run, so it is never scheduled between
//! its failure and the decision. The parent is told, and may overrule.

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
            // Whoever ends cannot fail any further.
            return ActionResult::Break(self.finish(InvokeResult::Completed { ready_hint: false }));
        }
        self.trace.record_failed(&error);
        let decision = self.decide_failure(&error);
        if decision != SupervisionDecision::Resume {
            self.resume();
        }
        self.local.core().hub.count_failure(self.body.head.kind);
        self.notify_parent(&error, decision);
        ActionResult::Break(match decision {
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
        // A decider that panics has not said to go on.
        match decided.unwrap_or(SupervisionDecision::Stop { reason: StopReason::Directed }) {
            SupervisionDecision::Restart { .. } if self.body.spec.factory.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            // A factory that panicked left no value to go on with.
            SupervisionDecision::Resume if self.owner.actor.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            // Nobody is above.
            SupervisionDecision::Escalate if parent.is_none() => {
                SupervisionDecision::Stop { reason: StopReason::Directed }
            }
            decision => decision,
        }
    }

    fn notify_parent(&mut self, error: &ActorError, decision: SupervisionDecision) {
        let Some(parent) = &self.body.head.parent else { return };
        let restarts = self.owner.extra.as_ref().map_or(0, |extra| extra.history.restarts());
        let child = self.cell.index();
        let failure = FailureNotification { child, error: error.clone(), decision, restarts };
        // A parent that has ended ends its children, this one included.
        drop(parent.tell_system(SystemMessage::ChildFailed(Box::new(failure))));
    }

    fn resume_now(&mut self, error: ActorError) -> InvokeResult {
        self.forgive_children(&error);
        let result = InvokeResult::Failed { error, retry_after: Some(Duration::ZERO) };
        if self.owner.phase == Phase::Waiting {
            // State as it is: what it waits for, it waits for still.
            return self.finish(result);
        }
        self.finish_with_permit(result)
    }

    /// Lets the child go on in whose place the actor failed.
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
                // One who fails again while it waits, in a child's place, waits anew.
                if let Some(before) = self.extra().resume.replace(alarm) {
                    self.local.core().clock.cancel(before);
                }
            }
            Err(_) => return self.begin_stop(Termination::Failed { error, reason: StopReason::Directed }),
        }
        self.suspend_failed(error, Some(after))
    }

    /// Leaves a failed actor suspended until somebody decides, or time has passed.
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

    /// Lets a failed actor go on as it is.
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

    /// Begins anew: the children end first.
    pub(super) fn restart(&mut self) -> Option<NextAction> {
        self.drop_future();
        if let Some(alarm) = self.extra().resume.take() {
            self.local.core().clock.cancel(alarm);
        }
        if self.extra().children.is_empty() {
            return self.restart_now();
        }
        self.owner.phase = Phase::Restarting;
        // A child's end among it is waited for.
        self.on_deferred();
        self.extra().children.iter().for_each(|child| child.stop(StopMode::Now));
        None
    }

    /// Makes the new value and starts it.
    pub(super) fn restart_now(&mut self) -> Option<NextAction> {
        let error = self.extra().failure.take().unwrap_or_else(|| ActorError::new("told to restart"));
        // A value that fails once more on its way out has failed already.
        drop(catch(|| self.hook(|actor, ctx| actor.restarting(&error, ctx))));
        drop(catch(|| self.owner.actor = None));
        self.cancel_timers();
        let parent = self.body.head.parent.as_ref();
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
