//! Termination of a cell: children first, then the actor, its mailbox and its slot, in this order.

use super::ActorCellInvoker;
use crate::actor::Actor;
use crate::cell::{CellRef, ColdState, Phase};
use crate::dead_letters::DeadLetterReason;
use crate::invoke::InvokeResult;
use crate::mailbox::SystemMessage;
use crate::panic::catch;
use crate::raw::run_permit::PermitState;
use crate::stop::{StopMode, Termination};
use crate::sync::Ordering;
use crate::trace::Envelope;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Closes the mailbox, stops the children, and terminates once they have.
    pub(super) fn begin_stop(&mut self, how: Termination) -> InvokeResult {
        self.close_lane();
        self.owner.phase = Phase::Stopping;
        self.drop_future();
        self.extra().ending = Some(how);
        self.cancel_timers();
        if self.extra().children.is_empty() {
            return self.terminate();
        }
        // The deferred messages may contain the termination of a child.
        self.on_deferred();
        self.extra().children.iter().for_each(|child| child.stop(StopMode::Now));
        self.finish(InvokeResult::Completed { ready_hint: false })
    }

    /// Drops the actor, then its mailbox, then the run permit.
    pub(super) fn terminate(&mut self) -> InvokeResult {
        let result = self.after_invoke(InvokeResult::Stopped);
        // Whatever panics on the way, the termination is reported.
        drop(catch(|| self.hook(A::stopped)));
        drop(catch(|| self.owner.actor = None));
        self.dead_letter_stash(DeadLetterReason::Stashed);
        self.dead_letter_waiting(DeadLetterReason::Stopped);
        self.unregister_mailbox();
        self.right = PermitState::ENDED;
        result
    }

    /// Closes the system queue, marks the cell dead, and notifies the watchers and the parent.
    fn unregister_mailbox(&mut self) {
        let system = self.body.lane.system_stats();
        let unread = self.body.lane.end_system();
        self.cell.mark_dead();
        self.local.core().hub.count_end(self.body.head.kind, self.body.lane.stats(), system);
        let Some(extra) = self.owner.extra.take() else {
            tell_end(self.body.head.parent.as_ref(), self.cell, &Termination::Stopped);
            return;
        };
        let ColdState { ending, watchers: mut told, watching, children, middleware, .. } = *extra;
        // Children created while stopping have no one else to stop them.
        children.iter().for_each(|child| child.stop(StopMode::Now));
        // Otherwise an actor that outlives this one would keep it in its list of watchers.
        for watched in &watching {
            drop(watched.tell_system(SystemMessage::Unwatch(self.cell.clone())));
        }
        let how = ending.unwrap_or(Termination::Stopped);
        told.extend(unread.into_iter().filter_map(|message| match message {
            SystemMessage::Watch(watcher) => Some(watcher),
            _ => None,
        }));
        if let Some(parent) = &self.body.head.parent {
            told.retain(|watcher| !watcher.is(parent));
        }
        told.iter().for_each(|watcher| tell_end(Some(watcher), self.cell, &how));
        tell_end(self.body.head.parent.as_ref(), self.cell, &how);
        drop(catch(|| drop(middleware)));
    }

    /// Drops the awaited future; its drop is user code and may panic.
    pub(super) fn drop_future(&mut self) {
        let extra = self.extra();
        let future = extra.future.take();
        let trace = core::mem::take(&mut extra.trace);
        drop(catch(|| trace.within(|| drop(future))));
    }

    /// Dead-letters all stashed messages.
    pub(super) fn dead_letter_stash(&mut self, reason: DeadLetterReason) {
        let Some(mut stash) = self.owner.extra.as_deref_mut().and_then(|extra| extra.stash.take()) else {
            return;
        };
        for message in stash.take_all() {
            let core = self.local.core();
            core.dead_letter(self.cell, message, reason);
        }
        self.body.head.stashed.store(0, Ordering::Relaxed);
    }

    /// Dead-letters all queued messages.
    pub(super) fn dead_letter_waiting(&mut self, reason: DeadLetterReason) {
        let private = core::mem::take(&mut self.owner.private);
        self.body.lane.tell_left(0);
        for Envelope { message, trace } in private.into_iter().chain(self.body.lane.drain()) {
            let core = self.local.core();
            trace.record_dead_lettered(reason);
            core.dead_letter(self.cell, message, reason);
        }
    }

    pub(super) fn cancel_timers(&mut self) {
        let Some(extra) = self.owner.extra.as_deref_mut() else { return };
        let core = self.local.core();
        extra.timers.drain(..).for_each(|timer| core.clock.cancel(timer.alarm));
        let idle = extra.idle.take().map(|idle| idle.alarm);
        let others = [extra.resume.take(), extra.expiry.take(), idle];
        others.into_iter().flatten().for_each(|alarm| core.clock.cancel(alarm));
    }
}

fn tell_end(whom: Option<&CellRef>, who: &CellRef, how: &Termination) {
    if let Some(whom) = whom {
        // A watcher that has terminated needs no notification.
        drop(whom.tell_system(SystemMessage::Ended { who: who.clone(), how: how.clone() }));
    }
}
