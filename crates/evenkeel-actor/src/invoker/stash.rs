//! The invoker's part of the stash: puts unstashed messages back into the mailbox, and dead-letters the rest when the
//! actor stops or clears its mailbox.

use super::ActorCellInvoker;
use crate::actor::Actor;
use crate::dead_letters::DeadLetterReason;
use crate::sync::Ordering;
use crate::trace::Envelope;

impl<A: Actor> ActorCellInvoker<'_, A> {
    /// Moves the messages that the actor unstashed to the front of its mailbox.
    pub(super) fn unstash_recalled(&mut self) {
        let Some(stash) = self.runner.extra.as_deref_mut().and_then(|extra| extra.stash.as_deref_mut())
        else {
            return;
        };
        let recalled = stash.take_recalled();
        if recalled.len() == 0 {
            return;
        }
        // An unstashed message is traced as a new one.
        let recalled = recalled.map(|message| Envelope::seal(message, self.cell));
        self.body.mailbox.push_front_all(recalled, &mut self.runner.private, &self.cell.slot().state);
        self.body.header.stashed.store(stash.held(), Ordering::Relaxed);
    }

    /// Unstashes everything, for the new value of a restarted actor.
    pub(super) fn unstash_for_restart(&mut self) {
        if let Some(stash) = self.runner.extra.as_deref_mut().and_then(|extra| extra.stash.as_deref_mut()) {
            stash.recall(usize::MAX);
        }
        self.unstash_recalled();
    }

    /// Dead-letters every stashed message.
    pub(super) fn dead_letter_stash(&mut self, reason: DeadLetterReason) {
        let Some(mut stash) = self.runner.extra.as_deref_mut().and_then(|extra| extra.stash.take()) else {
            return;
        };
        for message in stash.take_all() {
            let core = self.local.core();
            core.dead_letter(self.cell, message, reason);
        }
        self.body.header.stashed.store(0, Ordering::Relaxed);
    }
}
