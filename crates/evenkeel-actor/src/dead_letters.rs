//! Messages that no actor will handle: the latest of them, and how many there were of each kind.
//!
//! Bound: at most `kept_max` letters are kept, and the oldest goes first; every letter is counted by
//! its reason, also after it is gone.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use core::any::{Any, type_name};

use evenkeel_policy::time::Instant;

use crate::index::MailboxIndex;

/// Why a message reached no handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadLetterReason {
    /// The mailbox was full, and the sender was not there to take it back.
    Full,
    /// The mailbox was full and drops what has waited longest.
    DroppedOldest,
    /// The mailbox was full and drops what comes last.
    DroppedNewest,
    /// The mailbox was full and sends what does not fit here.
    Overflow,
    /// The actor had stopped taking messages when it was sent.
    Closed,
    /// It still waited when the actor stopped.
    Stopped,
    /// It still waited when the actor restarted, and the supervision clears the mailbox then.
    Cleared,
    /// The mailbox broke down while it waited.
    MailboxFailed,
    /// Nobody has the address it was sent to.
    NoSuchActor,
    /// The system was stopping when it was sent.
    Refused,
    /// The actor wanted to put it aside, and had put aside as many as it may.
    StashFull,
    /// The actor had put it aside, and stopped before it took it back.
    Stashed,
}

impl DeadLetterReason {
    /// Every reason, in the order in which they are reported.
    pub const ALL: [Self; 12] = [
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
        Self::StashFull,
        Self::Stashed,
    ];

    /// The reason as a metric's label.
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
            Self::StashFull => "stash_full",
            Self::Stashed => "stashed",
        }
    }
}

/// What a dead letter keeps of its message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeepMessage {
    /// The message, if nobody can notice that it was dropped; otherwise its type only.
    ///
    /// A question in a message is over when the message is dropped, and whoever asked learns of it at
    /// once: [`AskError::Discarded`](crate::AskError::Discarded). Kept, it would stay open until its
    /// deadline. That a message has nothing to drop is known by its type.
    #[default]
    Plain,
    /// The message, whatever it holds, until the letter is taken or gives way to later ones.
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
    /// The mailbox it was meant for.
    pub to: MailboxIndex,
    /// The actor's label.
    pub actor: Cow<'static, str>,
    /// Why it reached nobody.
    pub reason: DeadLetterReason,
    /// The type of the message.
    pub message_type: &'static str,
    /// The message, for whoever knows its type; `None` where it was not kept.
    pub message: Option<Box<dyn Any + Send>>,
    /// When it became a dead letter.
    pub at: Instant,
}

impl DeadLetter {
    /// Makes a dead letter of a message, and keeps that.
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

/// The latest dead letters, and how many there were.
#[derive(Debug)]
pub struct DeadLetters {
    kept: VecDeque<DeadLetter>,
    kept_max: usize,
    counts: DeadLetterCounts,
    evicted: u64,
}

impl DeadLetters {
    /// Makes room for `kept_max` letters; with 0, they are counted only.
    pub const fn new(kept_max: usize) -> Self {
        Self { kept: VecDeque::new(), kept_max, counts: DeadLetterCounts::NONE, evicted: 0 }
    }

    /// Counts a letter and keeps it; gives back the one it displaces, itself where none is kept.
    ///
    /// To drop a message is to run its owner's code, which may send: do so after your lock is released.
    #[must_use = "drop the letter only after the lock is released"]
    pub fn push(&mut self, letter: DeadLetter) -> Option<DeadLetter> {
        self.counts.add(letter.reason);
        if self.kept_max == 0 {
            self.evicted += 1;
            return Some(letter);
        }
        let evicted = if self.kept_max <= self.kept.len() { self.kept.pop_front() } else { None };
        self.evicted += u64::from(evicted.is_some());
        self.kept.push_back(letter);
        evicted
    }

    /// Gives away the letters that are kept, oldest first; the counts stay.
    pub fn drain(&mut self) -> VecDeque<DeadLetter> {
        core::mem::take(&mut self.kept)
    }

    /// Gives away the letters that are kept, and keeps none from here on; they are counted only.
    pub fn close(&mut self) -> VecDeque<DeadLetter> {
        self.kept_max = 0;
        self.drain()
    }

    /// Shows the letters that are kept, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &DeadLetter> {
        self.kept.iter()
    }

    /// Counts the letters that are kept.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Tells whether no letter is kept.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Counts the letters there ever were, by reason.
    pub fn counts(&self) -> DeadLetterCounts {
        self.counts
    }

    /// Counts the letters there ever were for this reason.
    pub fn count(&self, reason: DeadLetterReason) -> u64 {
        self.counts.count(reason)
    }

    /// Counts the letters there ever were.
    pub fn total(&self) -> u64 {
        self.counts.total()
    }

    /// Counts the letters that gave way to later ones before anybody drained them.
    pub fn evicted(&self) -> u64 {
        self.evicted
    }
}

/// How many dead letters there were, by reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterCounts([u64; DeadLetterReason::ALL.len()]);

impl DeadLetterCounts {
    /// No dead letter at all.
    pub const NONE: Self = Self([0; DeadLetterReason::ALL.len()]);

    /// Counts the letters for this reason.
    pub const fn count(&self, reason: DeadLetterReason) -> u64 {
        self.0[reason as usize]
    }

    /// Counts all letters.
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
    fn a_letter_says_what_it_is_and_for_whom() {
        let mut letters = DeadLetters::new(10);
        push(&mut letters, Closed, 42);
        let letter = letters.iter().next().unwrap();
        assert_eq!((letter.to, letter.actor.as_ref(), letter.reason), (TO, "worker", Closed));
        assert_eq!((letter.message_type, letter.at), ("u32", Instant::from_secs(1)));
        assert_eq!(letter.message.as_ref().unwrap().downcast_ref::<u32>(), Some(&42));
        assert!(letter.message.as_ref().unwrap().downcast_ref::<String>().is_none());
    }

    #[test]
    fn the_oldest_letter_gives_way_and_stays_counted() {
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
    fn draining_empties_the_box_and_not_the_counts() {
        let mut letters = DeadLetters::new(2);
        push(&mut letters, Closed, 1);
        push(&mut letters, Closed, 2);
        assert!(!letters.is_empty());
        assert_eq!(numbers(letters.drain().iter()), [1, 2]);
        assert!(letters.is_empty());
        assert_eq!((letters.total(), letters.evicted()), (2, 0));
        assert_eq!(push(&mut letters, Closed, 3), None, "there is room again");
    }

    #[test]
    fn without_room_letters_are_only_counted() {
        let mut letters = DeadLetters::new(0);
        assert_eq!(push(&mut letters, Closed, 7), Some(7));
        assert!(letters.is_empty());
        assert_eq!((letters.total(), letters.evicted()), (1, 1));
    }

    #[test]
    fn a_closed_box_gives_its_letters_away_and_keeps_no_other() {
        let mut letters = DeadLetters::new(2);
        push(&mut letters, Closed, 1);
        assert_eq!(numbers(letters.close().iter()), [1]);
        assert_eq!(push(&mut letters, Closed, 2), Some(2));
        assert_eq!((letters.len(), letters.total(), letters.evicted()), (0, 2, 1));
    }

    #[test]
    fn a_plain_letter_keeps_what_can_be_dropped_unnoticed() {
        assert!(KeepMessage::Plain.keeps::<(u32, &str)>());
        assert!(!KeepMessage::Plain.keeps::<String>());
        assert!(!KeepMessage::Plain.keeps::<Option<crate::Reply<u32>>>());
        assert!(KeepMessage::Whole.keeps::<String>());
    }

    #[test]
    fn no_message_is_dropped_inside_the_box() {
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

    /// Sends a number here; gives back the number it displaces.
    fn push(letters: &mut DeadLetters, reason: DeadLetterReason, number: u32) -> Option<u32> {
        let letter = DeadLetter::new(TO, "worker", reason, number, Instant::from_secs(1));
        letters.push(letter).map(|evicted| numbers([&evicted].into_iter())[0])
    }

    fn numbers<'a>(letters: impl Iterator<Item = &'a DeadLetter>) -> Vec<u32> {
        letters.filter_map(|letter| letter.message.as_ref()?.downcast_ref().copied()).collect()
    }
}
