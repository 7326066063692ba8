//! What the system tells a cell, between two of its messages.

use super::{ActorCellInvoker, NextAction};
use crate::actor::{Actor, Flow, Signal};
use crate::cell::{CellRef, Phase};
use crate::guardian::ActorError;
use crate::guardian::{
    FailureNotification, Strategy, SupervisionCommand, SupervisionDecision, SupervisionDirective,
};
use crate::ignore_panic::wake_all;
use crate::invoke::{ResumeCondition, SignalKey};
use crate::mailbox::{EARLY_MAX, SystemMessage};
use crate::raw::state::{CLOSED, SIGNAL, SUSPENDED, SYSTEM, WAITERS};
use crate::stop::{StopMode, Termination};
use crate::timer::{Repeat, TimerEvent, TimerId, next_due};
use crate::trace::SpanHandle;
use evenkeel_policy::time::Instant;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Looks after everything but user messages; `None` to serve them.
    #[cold]
    pub(super) fn process_system(&mut self, flags: u32) -> Option<NextAction> {
        // What follows has nothing to do with the message before.
        self.trace = SpanHandle::NONE;
        if flags & WAITERS != 0 {
            self.wake_waiters();
        }
        if flags & SYSTEM != 0 {
            self.state().lower(SYSTEM);
            while let Some(message) = self.body.lane.pop_system() {
                if let Some(step) = self.on_system_message(message) {
                    // More may wait behind it, and its flag is down.
                    self.state().set(SYSTEM);
                    return Some(step);
                }
            }
        }
        if flags & SIGNAL != 0 {
            if let Some(waker) = self.cell.on_signal()
                && let Some(extra) = &mut self.owner.extra
            {
                extra.spare = Some(waker);
            }
            if let Some(step) = self.on_waker() {
                return Some(step);
            }
        }
        #[cfg(feature = "patterns")]
        self.unstash_recalled();
        match self.owner.phase {
            Phase::New | Phase::Running => {
                if flags & SUSPENDED != 0 {
                    // A suspension that ended in this run or the one before.
                    self.state().lower(SUSPENDED);
                }
                None
            }
            Phase::Waiting | Phase::Failed | Phase::Restarting | Phase::Stopping => Some(NextAction::Idle),
        }
    }

    /// The waker of a future, or of a mailbox that was full, has fired.
    fn on_waker(&mut self) -> Option<NextAction> {
        if self.owner.phase != Phase::Waiting {
            return None;
        }
        if let Some(future) = self.extra().future.take() {
            self.trace = core::mem::take(&mut self.extra().trace);
            // Before it is polled: if it panics, no wait is left that nothing would end.
            self.resume();
            return self.wait_for(future);
        }
        if let Some((_, ResumeCondition::WhenCapacityAvailable)) = self.extra().waiting {
            self.resume();
        }
        None
    }

    fn on_system_message(&mut self, message: SystemMessage) -> Option<NextAction> {
        if self.is_too_early(&message) {
            self.extra().deferred.push_back(message);
            return None;
        }
        match message {
            SystemMessage::Stop(StopMode::Now) => self.obey_stop(),
            SystemMessage::Stop(StopMode::Drained) => self.close_for_draining(),
            SystemMessage::Command(command) => self.obey_command(command),
            SystemMessage::ChildFailed(failure) => self.on_failure(*failure),
            SystemMessage::Ended { who, how } => self.on_terminated(&who, how),
            SystemMessage::Watch(watcher) => {
                self.extra().watchers.push(watcher);
                None
            }
            SystemMessage::Unwatch(watcher) => {
                self.extra().watchers.retain(|known| !known.is(&watcher));
                None
            }
            SystemMessage::Signal(key) => self.on_signal(key),
            SystemMessage::Resume { due } => self.on_resume(due),
            SystemMessage::Expire { due } => self.on_expiry(due),
            SystemMessage::ReceiveTimeout { due } => self.on_timeout(due),
            SystemMessage::Timer { id, due } => self.on_timer(id, due),
        }
    }

    /// Whether a message is for the value that goes on or follows, and neither is there yet.
    fn is_too_early(&self, message: &SystemMessage) -> bool {
        match (self.owner.phase, message) {
            (Phase::Failed, SystemMessage::ChildFailed(failure)) => {
                failure.decision == SupervisionDecision::Escalate
            }
            (
                Phase::Failed,
                SystemMessage::Ended { .. }
                | SystemMessage::Timer { .. }
                | SystemMessage::ReceiveTimeout { .. },
            ) => true,
            (Phase::Restarting, SystemMessage::Ended { who, .. }) => {
                let mut children = self.owner.extra.iter().flat_map(|extra| &extra.children);
                !children.any(|child| child.is(who))
            }
            _ => false,
        }
    }

    /// Comes back to what came too early; the cell is running, so its lane is open.
    pub(super) fn on_deferred(&mut self) {
        for message in core::mem::take(&mut self.extra().deferred) {
            drop(self.cell.tell_system(message));
        }
    }

    fn obey_stop(&mut self) -> Option<NextAction> {
        match self.owner.phase {
            Phase::Stopping => None,
            _ => Some(NextAction::Stop),
        }
    }

    /// Takes nothing new; the end comes when the lane is empty.
    fn close_for_draining(&mut self) -> Option<NextAction> {
        self.close_lane();
        // A failed actor serves nothing any more, so its lane would never be empty.
        matches!(self.owner.phase, Phase::Failed).then_some(NextAction::Stop)
    }

    pub(super) fn close_lane(&mut self) {
        wake_all(self.body.lane.close());
        self.state().set(CLOSED);
    }

    fn obey_command(&mut self, command: SupervisionCommand) -> Option<NextAction> {
        match (command, self.owner.phase) {
            (_, Phase::Stopping | Phase::Restarting) => None,
            (SupervisionCommand::Stop, _) => Some(NextAction::Stop),
            (SupervisionCommand::Resume, Phase::Failed) if self.owner.actor.is_some() => {
                self.resume_after_failure();
                None
            }
            // There is no value to go on with.
            (SupervisionCommand::Resume, Phase::Failed) => self.restart(),
            (SupervisionCommand::Resume, _) => None,
            (SupervisionCommand::Restart, _) => self.restart(),
        }
    }

    fn on_signal(&mut self, key: SignalKey) -> Option<NextAction> {
        let waits = self.owner.phase == Phase::Waiting;
        let extra = self.extra();
        // The wait for a future ends with the future.
        let awaited = match extra.waiting {
            Some((_, ResumeCondition::ExternalSignal(awaited))) => awaited == key,
            _ => false,
        };
        if waits && awaited {
            self.resume();
            return None;
        }
        if EARLY_MAX <= extra.early.len() {
            extra.early.pop_front();
        }
        extra.early.push_back(key);
        None
    }

    /// The time of a suspension, or of a failure's backoff, is over.
    fn on_resume(&mut self, due: Instant) -> Option<NextAction> {
        // One under way when its wait ended otherwise ends no other.
        self.extra().resume.take_if(|alarm| alarm.due == due)?;
        match self.owner.phase {
            Phase::Failed => self.restart(),
            Phase::Waiting => {
                self.resume();
                None
            }
            Phase::New | Phase::Running | Phase::Restarting | Phase::Stopping => None,
        }
    }

    /// Something in the future the actor waits for may have expired.
    fn on_expiry(&mut self, due: Instant) -> Option<NextAction> {
        self.extra().expiry.take_if(|alarm| alarm.due == due)?;
        self.on_waker()
    }

    /// The actor has been idle for as long as it asked, or is looked at again when it may have been.
    fn on_timeout(&mut self, due: Instant) -> Option<NextAction> {
        let core = self.local.core();
        let now = core.now();
        let awaits = self.cell.is_awaiting();
        let extra = self.owner.extra.as_deref_mut()?;
        let idle = extra.idle.as_mut().filter(|idle| idle.alarm.due == due)?;
        if awaits || self.handled != 0 {
            idle.since = now;
        }
        let is_idle = idle.span <= now.since(idle.since);
        let next = if is_idle { now + idle.span } else { idle.since + idle.span };
        match core.clock.insert(next, TimerEvent::ReceiveTimeout(self.cell.clone())) {
            Ok(alarm) => idle.alarm = alarm,
            Err(_) => return Some(NextAction::Fail(ActorError::new("no room for another timer"))),
        }
        if is_idle { self.deliver_signal(Signal::ReceiveTimeout) } else { None }
    }

    fn on_timer(&mut self, id: TimerId, due: Instant) -> Option<NextAction> {
        let now = self.local.core().now();
        let cell = self.cell;
        let clock = &self.local.core().clock;
        let extra = self.owner.extra.as_deref_mut()?;
        // One under way when its timer was cancelled or set anew is not told.
        let at = extra.timers.iter().position(|timer| timer.id == id && timer.alarm.due == due)?;
        match extra.timers[at].repeat {
            Repeat::Once => {
                extra.timers.swap_remove(at);
            }
            Repeat::Every(span) => {
                let again =
                    clock.insert(next_due(due, span, now), TimerEvent::Timer { cell: cell.clone(), id });
                match again {
                    Ok(alarm) => extra.timers[at].alarm = alarm,
                    Err(_) => return Some(NextAction::Fail(ActorError::new("no room for another timer"))),
                }
            }
        }
        self.deliver_signal(Signal::Timer(id))
    }

    /// Tells the actor, unless it is past hearing.
    pub(super) fn deliver_signal(&mut self, signal: Signal) -> Option<NextAction> {
        match self.owner.phase {
            Phase::New | Phase::Running => {
                let handled = self.hook(|actor, ctx| actor.signal(signal, ctx))?;
                self.apply_flow(handled)
            }
            Phase::Waiting => match self.hook(|actor, ctx| actor.signal(signal, ctx))? {
                // A second wait would throw the first away.
                Ok(Flow::Await(_) | Flow::Suspend(..)) => Some(NextAction::Fail(ActorError::new(
                    "a signal cannot begin a wait while its actor waits",
                ))),
                Ok(Flow::Yield) => None,
                handled => self.apply_flow(handled),
            },
            Phase::Failed | Phase::Restarting | Phase::Stopping => None,
        }
    }

    /// A child or a watched actor has ended.
    fn on_terminated(&mut self, who: &CellRef, how: Termination) -> Option<NextAction> {
        let extra = self.extra();
        let children = extra.children.len();
        let watching = extra.watching.len();
        extra.children.retain(|child| !child.is(who));
        extra.watching.retain(|watched| !watched.is(who));
        let was_child = extra.children.len() < children;
        let is_last = was_child && extra.children.is_empty();
        if !was_child && extra.watching.len() == watching {
            return None;
        }
        match self.owner.phase {
            Phase::Stopping if is_last => Some(NextAction::End),
            Phase::Restarting if is_last => self.restart_now(),
            _ => self.deliver_signal(Signal::Terminated { actor: who.index(), cause: how }),
        }
    }

    /// A child has failed; the verdict is already being carried out, and may be overruled.
    fn on_failure(&mut self, failure: FailureNotification) -> Option<NextAction> {
        if matches!(self.owner.phase, Phase::Restarting | Phase::Stopping) {
            // Every child is being ended, this one included.
            return None;
        }
        let overruled = self.owner.actor.as_mut().and_then(|actor| actor.overrule(&failure));
        let child = self.extra().children.iter().find(|child| child.index() == failure.child).cloned();
        let escalates = match overruled {
            Some(SupervisionDirective::Escalate) => true,
            Some(_) => false,
            None => failure.decision == SupervisionDecision::Escalate,
        };
        if escalates {
            let error = ActorError::escalated(alloc::format!("child {}: {}", failure.child, failure.error));
            return Some(NextAction::Fail(error));
        }
        if let (Some(directive), Some(child)) = (overruled, &child) {
            command(child, directive);
        }
        if self.body.spec.settings.children.strategy() == Strategy::AllForOne {
            let directive = overruled.unwrap_or(match failure.decision {
                SupervisionDecision::Restart { .. } => SupervisionDirective::Restart,
                SupervisionDecision::Stop { .. } => SupervisionDirective::Stop,
                SupervisionDecision::Resume | SupervisionDecision::Escalate => SupervisionDirective::Resume,
            });
            let siblings = self.extra().children.iter().filter(|child| child.index() != failure.child);
            siblings.for_each(|sibling| command(sibling, directive));
        }
        self.deliver_signal(Signal::ChildFailed(failure))
    }
}

/// Has a child carry out a directive; a child that has ended needs none.
fn command(child: &CellRef, directive: SupervisionDirective) {
    let command = match directive {
        SupervisionDirective::Resume | SupervisionDirective::Escalate => SupervisionCommand::Resume,
        SupervisionDirective::Restart => SupervisionCommand::Restart,
        SupervisionDirective::Stop => SupervisionCommand::Stop,
    };
    drop(child.tell_system(SystemMessage::Command(command)));
}
