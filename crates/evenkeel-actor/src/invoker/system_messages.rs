//! Handling of system messages, between two user messages.

use core::task::Waker;

use evenkeel_policy::time::Instant;

use super::{ActorCellInvoker, NextAction, no_room_for_timer};
use crate::actor::{Actor, Flow, Signal};
use crate::cell::{ActorPhase, CellRef};
use crate::guardian::ActorError;
use crate::guardian::{
    FailureNotification, Strategy, SupervisionCommand, SupervisionDecision, SupervisionDirective,
};
use crate::ignore_panic::wake_all;
use crate::invoke::{ResumeCondition, SignalKey};
use crate::mailbox::{EARLY_SIGNALS_MAX, SystemMessage};
use crate::raw::clear_then_look;
use crate::raw::state::{CLOSED, SUSPENDED, SYSTEM, WAITERS, WOKEN};
use crate::stop::{StopMode, Termination};
use crate::timer::{Repeat, TimerEvent, TimerId, next_due};
use crate::trace::SpanHandle;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Processes everything except user messages; `None` to continue with user messages.
    #[cold]
    pub(super) fn process_system(&mut self, flags: u32) -> Option<NextAction> {
        // System messages do not belong to the span of the previous message.
        self.trace = SpanHandle::NONE;
        if flags & WAITERS != 0 {
            self.wake_waiters();
        }
        if flags & SYSTEM != 0 {
            let state = self.state();
            let mailbox = &self.body.mailbox;
            let action =
                clear_then_look::process_system(state, mailbox, |message| self.on_system_message(message));
            if action.is_some() {
                return action;
            }
        }
        if flags & WOKEN != 0 {
            let action = self.cell.process_wake(|waker| self.on_wake(waker));
            if action.is_some() {
                return action;
            }
        }
        #[cfg(feature = "patterns")]
        self.unstash_recalled();
        match self.runner.phase {
            ActorPhase::New | ActorPhase::Running => {
                if flags & SUSPENDED != 0 {
                    // The suspension ended in this run or the previous one.
                    self.state().lower(SUSPENDED);
                }
                None
            }
            ActorPhase::Waiting | ActorPhase::Failed | ActorPhase::Restarting | ActorPhase::Stopping => {
                Some(NextAction::Idle)
            }
        }
    }

    /// Handles a wake-up, keeping the waker that it transferred for the next wait.
    fn on_wake(&mut self, waker: Option<Waker>) -> Option<NextAction> {
        if let Some(waker) = waker
            && let Some(extra) = &mut self.runner.extra
        {
            extra.spare = Some(waker);
        }
        self.on_waker()
    }

    /// Handles a wake-up by a future or by a mailbox that was full.
    fn on_waker(&mut self) -> Option<NextAction> {
        if self.runner.phase != ActorPhase::Waiting {
            return None;
        }
        if let Some(future) = self.extra().future.take() {
            self.trace = core::mem::take(&mut self.extra().trace);
            // Resume before polling: if the poll panics, the actor is not left waiting forever.
            self.resume();
            return self.poll_future(future);
        }
        if let Some((_, ResumeCondition::WhenCapacityAvailable)) = self.extra().waiting {
            self.resume();
        }
        None
    }

    fn on_system_message(&mut self, message: SystemMessage) -> Option<NextAction> {
        if self.must_defer(&message) {
            self.extra().deferred.push_back(message);
            return None;
        }
        match message {
            SystemMessage::Stop(StopMode::Now) => self.on_stop(),
            SystemMessage::Stop(StopMode::Drained) => self.close_for_draining(),
            SystemMessage::Command(command) => self.on_command(command),
            SystemMessage::ChildFailed(failure) => self.on_failure(*failure),
            SystemMessage::Terminated { actor, termination } => self.on_terminated(&actor, termination),
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
            SystemMessage::Repoll { due } => self.on_repoll(due),
            SystemMessage::ReceiveTimeout { due } => self.on_receive_timeout(due),
            SystemMessage::Timer { id, due } => self.on_timer(id, due),
            // Several senders may report one failure: the mailbox that a late report finds is a new one.
            SystemMessage::MailboxOutOfMemory if !self.body.mailbox.has_failed() => None,
            SystemMessage::MailboxOutOfMemory => {
                Some(NextAction::Fail(ActorError::mailbox("no memory to enlarge it")))
            }
        }
    }

    /// Reports whether a message must wait until the actor has resumed or restarted.
    fn must_defer(&self, message: &SystemMessage) -> bool {
        match (self.runner.phase, message) {
            (ActorPhase::Failed, SystemMessage::ChildFailed(failure)) => {
                failure.decision == SupervisionDecision::Escalate
            }
            (
                ActorPhase::Failed,
                SystemMessage::Terminated { .. }
                | SystemMessage::Timer { .. }
                | SystemMessage::ReceiveTimeout { .. },
            ) => true,
            (ActorPhase::Restarting, SystemMessage::Terminated { actor, .. }) => {
                let mut children = self.runner.extra.iter().flat_map(|extra| &extra.children);
                !children.any(|child| child.is(actor))
            }
            _ => false,
        }
    }

    /// Queues the deferred messages again; the cell is running, so its system queue is open.
    pub(super) fn requeue_deferred(&mut self) {
        for message in core::mem::take(&mut self.extra().deferred) {
            drop(self.cell.tell_system(message));
        }
    }

    fn on_stop(&mut self) -> Option<NextAction> {
        match self.runner.phase {
            ActorPhase::Stopping => None,
            _ => Some(NextAction::Stop),
        }
    }

    /// Rejects new messages; the actor stops when the queue is empty.
    fn close_for_draining(&mut self) -> Option<NextAction> {
        self.close_mailbox();
        // A failed actor handles no messages, so its queue would never become empty.
        matches!(self.runner.phase, ActorPhase::Failed).then_some(NextAction::Stop)
    }

    pub(super) fn close_mailbox(&mut self) {
        wake_all(self.body.mailbox.close());
        self.state().set(CLOSED);
    }

    fn on_command(&mut self, command: SupervisionCommand) -> Option<NextAction> {
        match (command, self.runner.phase) {
            (_, ActorPhase::Stopping | ActorPhase::Restarting) => None,
            (SupervisionCommand::Stop, _) => Some(NextAction::Stop),
            (SupervisionCommand::Resume, ActorPhase::Failed) if self.can_resume() => {
                self.resume_after_failure();
                None
            }
            // There is no actor to resume.
            (SupervisionCommand::Resume, ActorPhase::Failed) => self.restart(),
            (SupervisionCommand::Resume, _) => None,
            (SupervisionCommand::Restart, _) => self.restart(),
        }
    }

    fn on_signal(&mut self, key: SignalKey) -> Option<NextAction> {
        let is_waiting = self.runner.phase == ActorPhase::Waiting;
        let extra = self.extra();
        // A signal does not end the wait for a future.
        let is_awaited = match extra.waiting {
            Some((_, ResumeCondition::ExternalSignal(awaited))) => awaited == key,
            _ => false,
        };
        if is_waiting && is_awaited {
            self.resume();
            return None;
        }
        if extra.early.len() >= EARLY_SIGNALS_MAX {
            extra.early.pop_front();
        }
        extra.early.push_back(key);
        None
    }

    /// Ends a suspension, also one for capacity that reached its limit, or a restart backoff.
    fn on_resume(&mut self, due: Instant) -> Option<NextAction> {
        // A timer that fired although its wait had already ended must not end another wait.
        self.extra().resume_timer.take_if(|timer| timer.due == due)?;
        match self.runner.phase {
            ActorPhase::Failed => self.restart(),
            ActorPhase::Waiting => {
                // Only a wait for capacity has a place; its timer is the limit of the wait.
                let capacity_wait = self.extra().capacity_wait.take();
                self.resume();
                capacity_wait?.count_timeout();
                self.deliver_signal(Signal::CapacityTimeout)
            }
            ActorPhase::New | ActorPhase::Running | ActorPhase::Restarting | ActorPhase::Stopping => None,
        }
    }

    /// Re-polls the future in which an ask may have timed out.
    fn on_repoll(&mut self, due: Instant) -> Option<NextAction> {
        self.extra().repoll_timer.take_if(|timer| timer.due == due)?;
        self.on_waker()
    }

    /// Handles the receive timeout: signals it, or re-arms it if the actor has been active since.
    fn on_receive_timeout(&mut self, due: Instant) -> Option<NextAction> {
        let core = self.local.core();
        let now = core.now();
        let awaits = self.cell.is_awaiting();
        let extra = self.runner.extra.as_deref_mut()?;
        let timeout = extra.receive_timeout.as_mut().filter(|timeout| timeout.entry.due == due)?;
        if awaits || self.handled != 0 {
            timeout.since = now;
        }
        let is_idle = now.since(timeout.since) >= timeout.timeout;
        let next = if is_idle { now + timeout.timeout } else { timeout.since + timeout.timeout };
        match core.timer_driver.insert(next, TimerEvent::ReceiveTimeout(self.cell.clone())) {
            Ok(entry) => timeout.entry = entry,
            Err(_) => return Some(no_room_for_timer()),
        }
        if is_idle { self.deliver_signal(Signal::ReceiveTimeout) } else { None }
    }

    fn on_timer(&mut self, id: TimerId, due: Instant) -> Option<NextAction> {
        let now = self.local.core().now();
        let cell = self.cell;
        let timer_driver = &self.local.core().timer_driver;
        let extra = self.runner.extra.as_deref_mut()?;
        // Ignores the firing of a timer that was cancelled or set again.
        let index = extra.timers.iter().position(|timer| timer.id == id && timer.entry.due == due)?;
        match extra.timers[index].repeat {
            Repeat::Once => {
                extra.timers.swap_remove(index);
            }
            Repeat::Every(interval) => {
                let again = timer_driver
                    .insert(next_due(due, interval, now), TimerEvent::Timer { cell: cell.clone(), id });
                match again {
                    Ok(entry) => extra.timers[index].entry = entry,
                    Err(_) => return Some(no_room_for_timer()),
                }
            }
        }
        self.deliver_signal(Signal::Timer(id))
    }

    /// Delivers a signal to the actor, unless it is failed, restarting or stopping.
    pub(super) fn deliver_signal(&mut self, signal: Signal) -> Option<NextAction> {
        match self.runner.phase {
            ActorPhase::New | ActorPhase::Running => {
                let handled = self.call_hook(|actor, ctx| actor.signal(signal, ctx))?;
                self.apply_flow(handled)
            }
            ActorPhase::Waiting => match self.call_hook(|actor, ctx| actor.signal(signal, ctx))? {
                // A second wait would discard the first.
                Ok(Flow::Await(_) | Flow::Suspend(..)) => Some(NextAction::Fail(ActorError::new(
                    "signal handler tried to start a wait while the actor is already waiting",
                ))),
                Ok(Flow::Yield) => None,
                handled => self.apply_flow(handled),
            },
            ActorPhase::Failed | ActorPhase::Restarting | ActorPhase::Stopping => None,
        }
    }

    /// Handles the termination of a child or a watched actor.
    fn on_terminated(&mut self, actor: &CellRef, termination: Termination) -> Option<NextAction> {
        let extra = self.extra();
        let children = extra.children.len();
        let watching = extra.watching.len();
        extra.children.retain(|child| !child.is(actor));
        extra.watching.retain(|watched| !watched.is(actor));
        let was_child = extra.children.len() < children;
        let is_last = was_child && extra.children.is_empty();
        if !was_child && extra.watching.len() == watching {
            return None;
        }
        match self.runner.phase {
            ActorPhase::Stopping if is_last => Some(NextAction::Terminate),
            ActorPhase::Restarting if is_last => self.restart_now(),
            _ => self.deliver_signal(Signal::Terminated { actor: actor.index(), cause: termination }),
        }
    }

    /// Handles the failure of a child; the decision is already being applied and may be overridden.
    fn on_failure(&mut self, failure: FailureNotification) -> Option<NextAction> {
        if matches!(self.runner.phase, ActorPhase::Restarting | ActorPhase::Stopping) {
            // All children are being stopped, including this one.
            return None;
        }
        let overridden = self.runner.actor.as_mut().and_then(|actor| actor.overrule(&failure));
        let child = self.extra().children.iter().find(|child| child.index() == failure.child).cloned();
        let escalates = match overridden {
            Some(SupervisionDirective::Escalate) => true,
            Some(_) => false,
            None => failure.decision == SupervisionDecision::Escalate,
        };
        if escalates {
            let error = ActorError::escalated(alloc::format!("child {}: {}", failure.child, failure.error));
            return Some(NextAction::Fail(error));
        }
        if let (Some(directive), Some(child)) = (overridden, &child) {
            command(child, directive);
        }
        if self.body.spec.settings.children.strategy() == Strategy::AllForOne {
            let directive = overridden.unwrap_or(match failure.decision {
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

/// Sends a child the command of a directive; a terminated child needs none.
fn command(child: &CellRef, directive: SupervisionDirective) {
    let command = match directive {
        SupervisionDirective::Resume | SupervisionDirective::Escalate => SupervisionCommand::Resume,
        SupervisionDirective::Restart => SupervisionCommand::Restart,
        SupervisionDirective::Stop => SupervisionCommand::Stop,
    };
    drop(child.tell_system(SystemMessage::Command(command)));
}
