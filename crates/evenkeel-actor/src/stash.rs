//! The stash: messages that an actor sets aside and handles later, in the order in which they arrived.
//!
//! Limits: at most [`PropsBuilder::stash_max`](crate::PropsBuilder::stash_max) messages. Stashed messages take no
//! mailbox capacity, so that the message the actor waits for can still arrive.

use alloc::collections::VecDeque;
use alloc::collections::vec_deque;
use core::fmt;

use crate::actor::Actor;
use crate::context::Context;
use crate::dead_letters::DeadLetterReason;
use crate::raw::state::SYSTEM;
use crate::sync::Ordering;

/// The default of [`PropsBuilder::stash_max`](crate::PropsBuilder::stash_max).
pub const STASH_MAX: usize = 1024;

/// Error of [`Context::try_stash`]: the stash is full. Contains the message.
#[derive(PartialEq, Eq, thiserror::Error)]
#[error("stash is full")]
pub struct StashFull<M>(pub M);

impl<M> fmt::Debug for StashFull<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StashFull(_)")
    }
}

impl<A: Actor> Context<'_, A> {
    /// Stashes a message; dead-letters it if the stash is full.
    ///
    /// The stash survives suspensions, and failures after which the supervisor resumes the actor. On a restart it is
    /// treated like the mailbox: its messages are put back for the new value, or dead-lettered. Messages left in it
    /// when the actor stops are dead-lettered. A graceful shutdown waits until the stash is empty, as it does for a
    /// mailbox.
    pub fn stash(&mut self, message: A::Msg) {
        if let Err(StashFull(message)) = self.try_stash(message) {
            let core = self.local.core();
            core.dead_letter(self.cell, message, DeadLetterReason::StashFull);
        }
    }

    /// Stashes a message, or returns it if the stash is full.
    pub fn try_stash(&mut self, message: A::Msg) -> Result<(), StashFull<A::Msg>> {
        let stash_max = self.body.spec.settings.stash_max;
        let stash = self.extra().stash.get_or_insert_default();
        stash.push(message, stash_max)?;
        // Includes recalled messages, which stay in the stash until the invoker puts them back into the mailbox.
        let held = stash.held();
        self.body.header.stashed.store(held, Ordering::Relaxed);
        Ok(())
    }

    /// Unstashes the oldest message, to be handled next; returns `false` if the stash is empty.
    pub fn unstash(&mut self) -> bool {
        self.recall(1) == 1
    }

    /// Unstashes every message and returns their number: they are handled next, oldest first, before the mailbox.
    ///
    /// Messages stashed after this call stay in the stash, also within the same handler. If this handler awaits a
    /// future, the output of the future still comes first.
    pub fn unstash_all(&mut self) -> usize {
        self.recall(usize::MAX)
    }

    /// Returns the number of stashed messages.
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
            // The invoker puts them back when it next handles system messages, before any user message.
            self.cell.slot().state.set(SYSTEM);
        }
        recalled
    }
}

/// The stash of one actor; the first `recalled` messages are about to return to the mailbox.
pub(crate) struct Stash<M> {
    messages: VecDeque<M>,
    recalled: usize,
}

impl<M> Default for Stash<M> {
    fn default() -> Self {
        Self { messages: VecDeque::new(), recalled: 0 }
    }
}

impl<M> Stash<M> {
    fn push(&mut self, message: M, len_max: usize) -> Result<(), StashFull<M>> {
        if self.messages.len() >= len_max {
            return Err(StashFull(message));
        }
        self.messages.push_back(message);
        Ok(())
    }

    /// Marks up to `count` more of the oldest messages as recalled; returns how many.
    pub(crate) fn recall(&mut self, count: usize) -> usize {
        let count = count.min(self.len());
        self.recalled += count;
        count
    }

    /// Returns the number of messages that are not recalled.
    fn len(&self) -> usize {
        self.messages.len() - self.recalled
    }

    /// Returns the number of messages, recalled ones included.
    pub(crate) fn held(&self) -> u32 {
        u32::try_from(self.messages.len()).unwrap_or(u32::MAX)
    }

    /// Removes the recalled messages, oldest first.
    pub(crate) fn take_recalled(&mut self) -> vec_deque::Drain<'_, M> {
        let recalled = core::mem::take(&mut self.recalled);
        self.messages.drain(..recalled)
    }

    /// Removes every message, oldest first.
    pub(crate) fn take_all(&mut self) -> vec_deque::Drain<'_, M> {
        self.recalled = 0;
        self.messages.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    #[test]
    fn recalled_messages_come_out_oldest_first_and_the_rest_stays() {
        let mut stash = filled(1..=4);
        assert_eq!((stash.recall(1), stash.recall(2)), (1, 2));
        assert_eq!(stash.len(), 1);
        assert_eq!(recalled(&mut stash), [1, 2, 3]);
        assert_eq!(recalled(&mut stash), [0; 0], "recalled messages are returned only once");
        assert_eq!((stash.recall(usize::MAX), recalled(&mut stash)), (1, [4].into()));
    }

    #[test]
    fn a_message_stashed_after_a_recall_stays() {
        let mut stash = filled(1..=2);
        stash.recall(usize::MAX);
        assert_eq!(stash.push(3, 10), Ok(()));
        assert_eq!((recalled(&mut stash), stash.len()), ([1, 2].into(), 1));
    }

    #[test]
    fn a_full_stash_returns_the_message() {
        let mut stash = filled(1..=2);
        let full = stash.push(3, 2).unwrap_err();
        assert_eq!((full.to_string().as_str(), full.0), ("stash is full", 3));
        stash.recall(1);
        assert_eq!(stash.push(3, 2), Err(StashFull(3)), "the recalled message still counts");
        recalled(&mut stash);
        assert_eq!(stash.push(3, 2), Ok(()));
    }

    #[test]
    fn removing_everything_resets_the_recall() {
        let mut stash = filled(1..=3);
        stash.recall(2);
        assert_eq!(stash.take_all().collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!((stash.len(), stash.held(), recalled(&mut stash).len()), (0, 0, 0));
    }

    fn filled(numbers: core::ops::RangeInclusive<u32>) -> Stash<u32> {
        let mut stash = Stash::default();
        numbers.for_each(|number| stash.push(number, 10).unwrap());
        stash
    }

    fn recalled(stash: &mut Stash<u32>) -> Vec<u32> {
        stash.take_recalled().collect()
    }
}
