//! Messages an actor has put aside, to be taken back in the order in which they came.
//!
//! Bound: at most as many as [`PropsBuilder::stash_max`](crate::PropsBuilder::stash_max) allows. They
//! take no place in the mailbox while they are aside, so that the message the actor waits for finds one.

use alloc::collections::VecDeque;
use alloc::collections::vec_deque;
use core::fmt;

use crate::actor::Actor;
use crate::context::Context;
use crate::dead_letters::DeadLetterReason;
use crate::raw::state::SYSTEM;
use crate::sync::Ordering;

/// How many messages an actor may put aside unless its props say otherwise.
pub const STASH_MAX: usize = 1024;

/// As many messages are put aside as may be; here is the one that found no place.
#[derive(PartialEq, Eq)]
pub struct StashFull<M>(pub M);

impl<M> fmt::Debug for StashFull<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StashFull(_)")
    }
}

impl<M> fmt::Display for StashFull<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("stash is full")
    }
}

impl<M> core::error::Error for StashFull<M> {}

impl<A: Actor> Context<'_, A> {
    /// Puts a message aside; one that finds no place becomes a dead letter.
    ///
    /// What is aside outlives a suspension and a failure that is resumed from. On a restart it goes the
    /// way of the mailbox: back into it for the new value, or to the dead letters. What is left when the
    /// actor ends becomes dead letters too, and a graceful shutdown waits for it as for a mailbox.
    pub fn stash(&mut self, message: A::Msg) {
        if let Err(StashFull(message)) = self.try_stash(message) {
            let core = self.local.core();
            core.dead_letter(self.cell, message, DeadLetterReason::StashFull);
        }
    }

    /// Puts a message aside, and hands back one that finds no place.
    pub fn try_stash(&mut self, message: A::Msg) -> Result<(), StashFull<A::Msg>> {
        let stash_max = self.body.spec.settings.stash_max;
        let stash = self.extra().stash.get_or_insert_default();
        stash.put(message, stash_max)?;
        let held = stash.held();
        self.body.header.stashed.store(held, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the oldest message back, to be handled next; `false` when none is aside.
    pub fn unstash(&mut self) -> bool {
        self.recall(1) == 1
    }

    /// Takes every message back: they are handled next, oldest first, before what waits in the mailbox.
    ///
    /// Tells how many. Those put aside from here on stay aside, also within this handler. The output of a
    /// future that this handler goes on to await still comes first.
    pub fn unstash_all(&mut self) -> usize {
        self.recall(usize::MAX)
    }

    /// Counts the messages that are aside.
    pub fn stashed(&self) -> usize {
        let stash = self.extra.as_deref().and_then(|extra| extra.stash.as_deref());
        stash.map_or(0, Stash::len)
    }

    fn recall(&mut self, count: usize) -> usize {
        let Some(stash) = self.extra.as_deref_mut().and_then(|extra| extra.stash.as_deref_mut()) else {
            return 0;
        };
        let recalled = stash.recall(count);
        if recalled != 0 {
            // The invoker takes them back when it next looks after the system, before any user message.
            self.cell.slot().state.set(SYSTEM);
        }
        recalled
    }
}

/// What one actor has put aside; the first `recalled` are on their way back.
pub(crate) struct Stash<M> {
    aside: VecDeque<M>,
    recalled: usize,
}

impl<M> Default for Stash<M> {
    fn default() -> Self {
        Self { aside: VecDeque::new(), recalled: 0 }
    }
}

impl<M> Stash<M> {
    fn put(&mut self, message: M, len_max: usize) -> Result<(), StashFull<M>> {
        if len_max <= self.aside.len() {
            return Err(StashFull(message));
        }
        self.aside.push_back(message);
        Ok(())
    }

    /// Marks the oldest `count` of those not yet recalled; tells how many there were.
    pub(crate) fn recall(&mut self, count: usize) -> usize {
        let count = count.min(self.len());
        self.recalled += count;
        count
    }

    /// Counts the messages that are aside and not recalled.
    fn len(&self) -> usize {
        self.aside.len() - self.recalled
    }

    /// Counts the messages that are here, recalled or not.
    pub(crate) fn held(&self) -> u32 {
        u32::try_from(self.aside.len()).unwrap_or(u32::MAX)
    }

    /// Takes out what was recalled, oldest first.
    pub(crate) fn take_recalled(&mut self) -> vec_deque::Drain<'_, M> {
        let recalled = core::mem::take(&mut self.recalled);
        self.aside.drain(..recalled)
    }

    /// Takes out everything, oldest first.
    pub(crate) fn take_all(&mut self) -> vec_deque::Drain<'_, M> {
        self.recalled = 0;
        self.aside.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn what_is_recalled_comes_out_oldest_first_and_the_rest_stays() {
        let mut stash = filled(1..=4);
        assert_eq!((stash.recall(1), stash.recall(2)), (1, 2));
        assert_eq!(stash.len(), 1);
        assert_eq!(taken(&mut stash), [1, 2, 3]);
        assert_eq!(taken(&mut stash), [0; 0], "each once");
        assert_eq!((stash.recall(usize::MAX), taken(&mut stash)), (1, [4].into()));
    }

    #[test]
    fn what_is_put_aside_after_a_recall_stays() {
        let mut stash = filled(1..=2);
        stash.recall(usize::MAX);
        assert_eq!(stash.put(3, 10), Ok(()));
        assert_eq!((taken(&mut stash), stash.len()), ([1, 2].into(), 1));
    }

    #[test]
    fn a_full_stash_hands_the_message_back() {
        let mut stash = filled(1..=2);
        let refused = stash.put(3, 2).unwrap_err();
        assert_eq!((refused.to_string().as_str(), refused.0), ("stash is full", 3));
        stash.recall(1);
        assert_eq!(stash.put(3, 2), Err(StashFull(3)), "the recalled one still has its place");
        taken(&mut stash);
        assert_eq!(stash.put(3, 2), Ok(()));
    }

    #[test]
    fn taking_everything_forgets_what_was_recalled() {
        let mut stash = filled(1..=3);
        stash.recall(2);
        assert_eq!(stash.take_all().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((stash.len(), stash.held(), taken(&mut stash).len()), (0, 0, 0));
    }

    fn filled(numbers: core::ops::RangeInclusive<u32>) -> Stash<u32> {
        let mut stash = Stash::default();
        numbers.for_each(|number| stash.put(number, 10).unwrap());
        stash
    }

    fn taken(stash: &mut Stash<u32>) -> Vec<u32> {
        stash.take_recalled().collect()
    }
}
