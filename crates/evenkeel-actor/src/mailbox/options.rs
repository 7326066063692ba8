//! What a mailbox holds and what happens when it is full.

#[cfg(not(loom))]
use alloc::boxed::Box;
use core::fmt;
use core::num::NonZeroUsize;

#[cfg(not(loom))]
use crate::middleware::{MiddlewareChain, MiddlewareHook};

/// What happens to a message that finds the user lane full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OverflowStrategy {
    /// The oldest waiting message makes room and becomes a dead letter.
    DropOldest,
    /// The new message becomes a dead letter.
    DropNewest,
    /// The sender waits in [`ActorRef::send`](crate::ActorRef::send); `try_tell` gets the message back.
    ///
    /// Only producers outside actors can wait. Inside an actor a full mailbox is a value, because two
    /// actors that wait for each other wait forever.
    BlockProducer,
    /// The sender gets the message back.
    #[default]
    Reject,
    /// The new message becomes a dead letter, as one that nobody had room for; see
    /// [`PropsBuilder::dead_letters`](crate::PropsBuilder::dead_letters) for what is kept of it.
    DeadLetter,
}

/// How much a mailbox holds, and what happens beyond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxOptions {
    /// Places in all.
    pub capacity: NonZeroUsize,
    /// What happens to a user message without a place.
    pub overflow: OverflowStrategy,
    /// Places that user messages never take.
    pub reserve_for_system: usize,
    /// Depth from which the mailbox counts as under pressure.
    pub high_mark: usize,
    /// Depth at which those who wait for room are let go on.
    pub low_mark: usize,
    /// What surrounds every run of an actor with this mailbox, outside of what its props put there.
    #[cfg(not(loom))]
    pub middleware: Option<MiddlewareHook>,
}

impl MailboxOptions {
    /// Places of a mailbox whose owner said nothing.
    pub const DEFAULT_CAPACITY: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not zero");

    /// Holds `capacity` messages, 16 of the places (a quarter of a small mailbox) kept for the system.
    pub const fn bounded(capacity: NonZeroUsize) -> Self {
        let quarter = capacity.get() / 4;
        let reserve = if quarter < 16 { quarter } else { 16 };
        let places = capacity.get() - reserve;
        Self {
            capacity,
            overflow: OverflowStrategy::Reject,
            reserve_for_system: reserve,
            high_mark: places - places / 8,
            low_mark: places / 2,
            #[cfg(not(loom))]
            middleware: None,
        }
    }

    /// Chooses what happens to a message without a place.
    #[must_use]
    pub const fn overflow(self, overflow: OverflowStrategy) -> Self {
        Self { overflow, ..self }
    }

    /// Puts a middleware around every run of every actor with this mailbox; each actor gets its own.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn middleware(self, make: fn() -> Box<dyn MiddlewareChain>) -> Self {
        Self { middleware: Some(MiddlewareHook::new(make)), ..self }
    }

    /// Counts the places for user messages.
    pub const fn user_capacity(&self) -> usize {
        self.capacity.get().saturating_sub(self.reserve_for_system)
    }

    /// Refuses options under which nothing could ever be delivered or resumed.
    pub const fn validate(&self) -> Result<(), InvalidMailbox> {
        if self.capacity.get() <= self.reserve_for_system {
            return Err(InvalidMailbox::NoUserPlaces);
        }
        if (u32::MAX as usize) < self.capacity.get() {
            return Err(InvalidMailbox::TooLarge);
        }
        if self.user_capacity() <= self.low_mark || self.high_mark <= self.low_mark {
            return Err(InvalidMailbox::MarksCross);
        }
        Ok(())
    }
}

impl Default for MailboxOptions {
    fn default() -> Self {
        Self::bounded(Self::DEFAULT_CAPACITY)
    }
}

/// Why mailbox options are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidMailbox {
    /// Every place is kept for the system.
    NoUserPlaces,
    /// More places than can be counted.
    TooLarge,
    /// The low mark is not below the high mark and the user capacity.
    MarksCross,
}

impl fmt::Display for InvalidMailbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoUserPlaces => "reserve_for_system leaves no place for user messages",
            Self::TooLarge => "capacity is above 4294967295",
            Self::MarksCross => "low_mark is not below high_mark and the user capacity",
        })
    }
}

impl core::error::Error for InvalidMailbox {}
