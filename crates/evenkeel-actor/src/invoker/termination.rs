//! Termination of a cell: children first, then the actor, its mailbox and its slot, in this order.

use super::ActorCellInvoker;
use crate::actor::Actor;
use crate::cell::{ActorPhase, CellRef, ColdState};
use crate::dead_letters::DeadLetterReason;
use crate::invoke::InvokeResult;
use crate::mailbox::SystemMessage;
use crate::panic::catch_panic;
use crate::raw::run_permit::PermitState;
use crate::stop::{StopMode, Termination};
use crate::trace::Envelope;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Closes the mailbox and stops the children; terminates at once if there are none.
    pub(super) fn begin_stop(&mut self, termination: Termination) -> InvokeResult {
        self.close_mailbox();
        self.runner.phase = ActorPhase::Stopping;
        self.drop_future();
        self.extra().termination = Some(termination);
        self.cancel_timers();
        if self.extra().children.is_empty() {
            return self.terminate();
        }
        // The deferred messages may contain the termination of a child.
        self.requeue_deferred();
        self.extra().children.iter().for_each(|child| child.stop(StopMode::Now));
        self.finish(InvokeResult::Completed { ready_hint: false })
    }

    /// Drops the actor, then its mailbox, then the run permit.
    pub(super) fn terminate(&mut self) -> InvokeResult {
        let result = self.after_invoke(InvokeResult::Stopped);
        // The termination is reported even if one of these steps panics.
        drop(catch_panic(|| self.call_hook(A::stopped)));
        drop(catch_panic(|| self.runner.actor = None));
        #[cfg(feature = "patterns")]
        self.dead_letter_stash(DeadLetterReason::Stashed);
        self.dead_letter_queued(self.local.core().stopped_reason());
        self.unregister_mailbox();
        self.permit = PermitState::ENDED;
        result
    }

    /// Closes the system queue, marks the cell dead, and notifies the watchers and the parent.
    fn unregister_mailbox(&mut self) {
        let system = self.body.mailbox.system_stats();
        let unread = self.body.mailbox.close_system();
        self.cell.mark_dead();
        self.local.core().hub.count_end(self.body.header.kind, self.body.mailbox.stats(), system);
        let Some(extra) = self.runner.extra.take() else {
            notify_termination(self.body.header.parent.as_ref(), self.cell, &Termination::Stopped);
            return;
        };
        let ColdState { termination, mut watchers, watching, children, middleware, .. } = *extra;
        // Children created while stopping were not stopped by `begin_stop`.
        children.iter().for_each(|child| child.stop(StopMode::Now));
        // Otherwise an actor that outlives this one would keep it in its list of watchers.
        for watched in &watching {
            drop(watched.tell_system(SystemMessage::Unwatch(self.cell.clone())));
        }
        let termination = termination.unwrap_or(Termination::Stopped);
        watchers.extend(unread.into_iter().filter_map(|message| match message {
            SystemMessage::Watch(watcher) => Some(watcher),
            _ => None,
        }));
        if let Some(parent) = &self.body.header.parent {
            watchers.retain(|watcher| !watcher.is(parent));
        }
        watchers.iter().for_each(|watcher| notify_termination(Some(watcher), self.cell, &termination));
        notify_termination(self.body.header.parent.as_ref(), self.cell, &termination);
        drop(catch_panic(|| drop(middleware)));
    }

    /// Ends a wait for capacity and drops the awaited future; its drop is user code and may panic.
    pub(super) fn drop_future(&mut self) {
        let extra = self.extra();
        extra.capacity_wait = None;
        let future = extra.future.take();
        let trace = core::mem::take(&mut extra.trace);
        drop(catch_panic(|| trace.within(|| drop(future))));
    }

    /// Dead-letters all queued messages.
    pub(super) fn dead_letter_queued(&mut self, reason: DeadLetterReason) {
        let private = core::mem::take(&mut self.runner.private);
        self.body.mailbox.set_private_len(0);
        for Envelope { message, trace } in private.into_iter().chain(self.body.mailbox.drain()) {
            let core = self.local.core();
            trace.record_dead_lettered(reason);
            core.dead_letter(self.cell, message, reason);
        }
    }

    pub(super) fn cancel_timers(&mut self) {
        let Some(extra) = self.runner.extra.as_deref_mut() else { return };
        let core = self.local.core();
        extra.timers.drain(..).for_each(|timer| core.timer_driver.cancel(timer.entry));
        let receive_timeout = extra.receive_timeout.take().map(|timeout| timeout.entry);
        let others = [extra.resume_timer.take(), extra.repoll_timer.take(), receive_timeout];
        others.into_iter().flatten().for_each(|timer| core.timer_driver.cancel(timer));
    }
}

fn notify_termination(watcher: Option<&CellRef>, actor: &CellRef, termination: &Termination) {
    if let Some(watcher) = watcher {
        // A watcher that has terminated needs no notification.
        let actor = actor.clone();
        let termination = termination.clone();
        drop(watcher.tell_system(SystemMessage::Terminated { actor, termination }));
    }
}
