//! How a cell ends: its children, its actor, its mailbox, its place; in this order.

use super::ActorCellInvoker;
use crate::actor::Actor;
use crate::cell::{CellRef, ColdState, Phase};
use crate::dead_letters::DeadLetterReason;
use crate::invoke::InvokeResult;
use crate::mailbox::SystemMessage;
use crate::panic::catch;
use crate::raw::run_permit::PermitState;
use crate::stop::{StopMode, Termination};
use crate::trace::Envelope;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Takes nothing new, has the children end, and ends when they have.
    pub(super) fn begin_stop(&mut self, how: Termination) -> InvokeResult {
        self.close_lane();
        self.owner.phase = Phase::Stopping;
        self.drop_future();
        self.extra().ending = Some(how);
        self.cancel_timers();
        if self.extra().children.is_empty() {
            return self.terminate();
        }
        // A child's end may be among what came too early.
        self.on_deferred();
        self.extra().children.iter().for_each(|child| child.stop(StopMode::Now));
        self.finish(InvokeResult::Completed { ready_hint: false })
    }

    /// Ends the actor, then gives up its mailbox, then its place in the ready queue.
    pub(super) fn terminate(&mut self) -> InvokeResult {
        let result = self.after_invoke(InvokeResult::Stopped);
        // Whatever goes wrong on the way out, the end is told.
        drop(catch(|| self.hook(A::stopped)));
        drop(catch(|| self.owner.actor = None));
        #[cfg(feature = "patterns")]
        self.dead_letter_stash(DeadLetterReason::Stashed);
        self.dead_letter_waiting(DeadLetterReason::Stopped);
        self.unregister_mailbox();
        self.right = PermitState::ENDED;
        result
    }

    /// Closes the system lane, ends the cell's state, and tells everybody who asked.
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
        // Those made on the way out have nobody else to end them.
        children.iter().for_each(|child| child.stop(StopMode::Now));
        // Those who watch an actor that outlives them would stay in its memory.
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

    /// Gives up what the actor waits for; its way out is its author's code too.
    pub(super) fn drop_future(&mut self) {
        let extra = self.extra();
        let future = extra.future.take();
        let trace = core::mem::take(&mut extra.trace);
        drop(catch(|| trace.within(|| drop(future))));
    }

    /// Makes dead letters of everything that waits.
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
        // Somebody who has ended wants to know nothing.
        drop(whom.tell_system(SystemMessage::Ended { who: who.clone(), how: how.clone() }));
    }
}
