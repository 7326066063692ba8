//! Dead letters: messages that no actor will handle. The latest are stored, all are counted by reason.
//!
//! Limits: at most `kept_max` stored letters; a new one evicts the oldest. Guarantees: an evicted letter stays counted.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::any::{Any, type_name};

use evenkeel_policy::time::Instant;

use crate::index::MailboxIndex;

/// Reason a message reached no handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadLetterReason {
    /// The mailbox was full, and `tell` cannot return the message.
    Full,
    /// The message was the oldest in a full mailbox whose strategy drops the oldest.
    DroppedOldest,
    /// The mailbox was full, and its strategy drops the newest message.
    DroppedNewest,
    /// The mailbox was full, and its strategy dead-letters messages that do not fit.
    Overflow,
    /// The mailbox was closed when the message was sent.
    Closed,
    /// The message was still queued when the actor stopped.
    Stopped,
    /// The message was still queued when the actor restarted with [`MailboxOnRestart::Clear`](crate::guardian::MailboxOnRestart::Clear).
    Cleared,
    /// The mailbox failed while the message was queued, or could not grow for it.
    ///
    /// Such letters are only counted, because there is no memory to keep them.
    MailboxFailed,
    /// No actor has the address.
    NoSuchActor,
    /// The system was shutting down when the message was sent.
    Refused,
    /// The host runtime was dropped before the actor system.
    HostGone,
    /// The stash of the actor was full.
    StashFull,
    /// The message was still stashed when the actor stopped.
    Stashed,
}

impl DeadLetterReason {
    /// Every reason, in reporting order.
    pub const ALL: [Self; 13] = [
        Self::Full,
        Self::DroppedOldest,
        Self::DroppedNewest,
        Self::Overflow,
        Self::Closed,
        Self::Stopped,
        Self::Cleared,
        Self::MailboxFailed,
        Self::NoSuchActor,
        Self::Refused,
        Self::HostGone,
        Self::StashFull,
        Self::Stashed,
    ];

    /// Returns the metric label.
    pub const fn as_label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::DroppedOldest => "dropped_oldest",
            Self::DroppedNewest => "dropped_newest",
            Self::Overflow => "overflow",
            Self::Closed => "closed",
            Self::Stopped => "stopped",
            Self::Cleared => "cleared",
            Self::MailboxFailed => "mailbox_failed",
            Self::NoSuchActor => "no_such_actor",
            Self::Refused => "refused",
            Self::HostGone => "host_gone",
            Self::StashFull => "stash_full",
            Self::Stashed => "stashed",
        }
    }
}

/// Condition under which a dead letter keeps its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepMessage {
    /// Keeps messages whose type has no drop glue; of others, only the type.
    ///
    /// Dropping a message ends the ask in it, and the asker gets [`AskError::Discarded`](crate::AskError::Discarded) at
    /// once. A kept message would leave the ask open until its deadline.
    #[default]
    Plain,
    /// Keeps every message until the letter is taken or evicted.
    Whole,
}

impl KeepMessage {
    pub(crate) fn keeps<M>(self) -> bool {
        self == Self::Whole || !core::mem::needs_drop::<M>()
    }
}

/// A message that reached no handler.
#[derive(Debug)]
pub struct DeadLetter {
    /// The mailbox the message was sent to.
    pub to: MailboxIndex,
    /// The label of the actor in spans and dead letters.
    pub actor: Cow<'static, str>,
    /// The reason.
    pub reason: DeadLetterReason,
    /// The type of the message.
    pub message_type: &'static str,
    /// The message, to be downcast to its type; `None` if it was not kept.
    pub message: Option<Box<dyn Any + Send>>,
    /// The time at which it was dead-lettered.
    pub at: Instant,
}

impl DeadLetter {
    /// Returns a dead letter that keeps its message.
    pub fn new<M: Any + Send>(
        to: MailboxIndex,
        actor: impl Into<Cow<'static, str>>,
        reason: DeadLetterReason,
        message: M,
        at: Instant,
    ) -> Self {
        let message_type = type_name::<M>();
        Self { to, actor: actor.into(), reason, message_type, message: Some(Box::new(message)), at }
    }
}

/// The latest dead letters, and counts of all.
#[derive(Debug)]
pub struct DeadLetters {
    kept: VecDeque<DeadLetter>,
    kept_max: usize,
    counts: DeadLetterCounts,
    evicted: u64,
}

impl DeadLetters {
    /// Returns an empty store for `kept_max` letters; with 0, letters are only counted.
    pub const fn new(kept_max: usize) -> Self {
        Self { kept: VecDeque::new(), kept_max, counts: DeadLetterCounts::NONE, evicted: 0 }
    }

    /// Counts and stores a letter; returns the evicted one, or the letter itself if the capacity is 0.
    ///
    /// The message's `Drop` may send messages, so drop the returned letter after releasing your lock.
    #[must_use = "drop the letter only after the lock is released"]
    pub fn push(&mut self, letter: DeadLetter) -> Option<DeadLetter> {
        if self.kept_max == 0 {
            self.count_unkept(letter.reason);
            return Some(letter);
        }
        self.counts.add(letter.reason);
        let evicted = if self.kept.len() >= self.kept_max { self.kept.pop_front() } else { None };
        self.evicted += u64::from(evicted.is_some());
        self.kept.push_back(letter);
        evicted
    }

    /// Counts a letter that is not stored.
    pub fn count_unkept(&mut self, reason: DeadLetterReason) {
        self.counts.add(reason);
        self.evicted += 1;
    }

    /// Removes and returns the stored letters, oldest first; the counts stay.
    pub fn drain(&mut self) -> VecDeque<DeadLetter> {
        core::mem::take(&mut self.kept)
    }

    /// Removes and returns the stored letters, and only counts letters from now on.
    pub fn close(&mut self) -> VecDeque<DeadLetter> {
        self.kept_max = 0;
        self.drain()
    }

    /// Iterates over the stored letters, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &DeadLetter> {
        self.kept.iter()
    }

    /// Returns the number of stored letters.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Reports whether no letter is stored.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Returns the number of letters since the start, by reason.
    pub fn counts(&self) -> DeadLetterCounts {
        self.counts
    }

    /// Returns the number of letters since the start with this reason.
    pub fn count(&self, reason: DeadLetterReason) -> u64 {
        self.counts.count(reason)
    }

    /// Returns the number of letters since the start.
    pub fn total(&self) -> u64 {
        self.counts.total()
    }

    /// Returns the number of letters that were not stored or were evicted before they were drained.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

/// Counts of dead letters by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterCounts([u64; DeadLetterReason::ALL.len()]);

impl DeadLetterCounts {
    /// All counts zero.
    pub const NONE: Self = Self([0; DeadLetterReason::ALL.len()]);

    /// Returns the count for this reason.
    pub const fn count(&self, reason: DeadLetterReason) -> u64 {
        self.0[reason as usize]
    }

    /// Returns the sum of all counts.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    fn add(&mut self, reason: DeadLetterReason) {
        self.0[reason as usize] += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::String;
    use alloc::sync::Arc;
    use alloc::vec::Vec;

    use DeadLetterReason::{Closed, DroppedOldest, Overflow};

    const TO: MailboxIndex = MailboxIndex { slot: 3, generation: 1 };

    #[test]
    fn a_letter_has_its_message_receiver_and_reason() {
        let mut letters = DeadLetters::new(10);
        push(&mut letters, Closed, 42);
        let letter = letters.iter().next().unwrap();
        assert_eq!((letter.to, letter.actor.as_ref(), letter.reason), (TO, "worker", Closed));
        assert_eq!((letter.message_type, letter.at), ("u32", Instant::from_secs(1)));
        assert_eq!(letter.message.as_ref().unwrap().downcast_ref::<u32>(), Some(&42));
        assert!(letter.message.as_ref().unwrap().downcast_ref::<String>().is_none());
    }

    #[test]
    fn the_oldest_letter_is_evicted_and_stays_counted() {
        let mut letters = DeadLetters::new(2);
        assert_eq!(push(&mut letters, DroppedOldest, 1), None);
        assert_eq!(push(&mut letters, Overflow, 2), None);
        assert_eq!(push(&mut letters, Overflow, 3), Some(1));
        assert_eq!(push(&mut letters, Overflow, 4), Some(2));
        assert_eq!(numbers(letters.iter()), [3, 4]);
        assert_eq!((letters.len(), letters.evicted(), letters.total()), (2, 2, 4));
        assert_eq!((letters.count(DroppedOldest), letters.count(Overflow), letters.count(Closed)), (1, 3, 0));
        assert_eq!(letters.counts().total(), 4);
    }

    #[test]
    fn draining_empties_the_store_but_keeps_the_counts() {
        let mut letters = DeadLetters::new(2);
        push(&mut letters, Closed, 1);
        push(&mut letters, Closed, 2);
        assert!(!letters.is_empty());
        assert_eq!(numbers(letters.drain().iter()), [1, 2]);
        assert!(letters.is_empty());
        assert_eq!((letters.total(), letters.evicted()), (2, 0));
        assert_eq!(push(&mut letters, Closed, 3), None, "there is capacity again");
    }

    #[test]
    fn without_capacity_letters_are_only_counted() {
        let mut letters = DeadLetters::new(0);
        assert_eq!(push(&mut letters, Closed, 7), Some(7));
        assert!(letters.is_empty());
        assert_eq!((letters.total(), letters.evicted()), (1, 1));
    }

    #[test]
    fn closing_returns_the_letters_and_stores_no_more() {
        let mut letters = DeadLetters::new(2);
        push(&mut letters, Closed, 1);
        assert_eq!(numbers(letters.close().iter()), [1]);
        assert_eq!(push(&mut letters, Closed, 2), Some(2));
        assert_eq!((letters.len(), letters.total(), letters.evicted()), (0, 2, 1));
    }

    #[test]
    fn plain_keeps_only_messages_without_drop_glue() {
        assert!(KeepMessage::Plain.keeps::<(u32, &str)>());
        assert!(!KeepMessage::Plain.keeps::<String>());
        assert!(!KeepMessage::Plain.keeps::<Option<crate::Reply<u32>>>());
        assert!(KeepMessage::Whole.keeps::<String>());
    }

    #[test]
    fn the_store_drops_no_message() {
        let alive = Arc::new(());
        let letter = || DeadLetter::new(TO, "worker", Closed, alive.clone(), Instant::ORIGIN);
        let mut letters = DeadLetters::new(1);
        let first = letters.push(letter());
        let second = letters.push(letter());
        let drained = letters.drain();
        assert_eq!(Arc::strong_count(&alive), 3);
        drop((first, second, drained));
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn each_reason_has_its_own_count_and_its_own_label() {
        let mut letters = DeadLetters::new(1);
        for reason in DeadLetterReason::ALL {
            push(&mut letters, reason, 0);
            assert_eq!(letters.count(reason), 1, "{reason:?}");
        }
        let mut labels = DeadLetterReason::ALL.map(DeadLetterReason::as_label).to_vec();
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), DeadLetterReason::ALL.len());
    }

    /// Pushes a number; returns the evicted one.
    fn push(letters: &mut DeadLetters, reason: DeadLetterReason, number: u32) -> Option<u32> {
        let letter = DeadLetter::new(TO, "worker", reason, number, Instant::from_secs(1));
        letters.push(letter).map(|evicted| numbers([&evicted].into_iter())[0])
    }

    fn numbers<'a>(letters: impl Iterator<Item = &'a DeadLetter>) -> Vec<u32> {
        letters.filter_map(|letter| letter.message.as_ref()?.downcast_ref().copied()).collect()
    }
}
