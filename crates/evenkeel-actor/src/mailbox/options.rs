//! Mailbox options: capacity, high and low watermark, and the overflow strategy.

#[cfg(not(loom))]
use alloc::boxed::Box;
use core::num::NonZeroUsize;

#[cfg(not(loom))]
use crate::middleware::{MiddlewareChain, MiddlewareHook};

/// Overflow strategy: what `tell` and `try_tell` do with a message when the user queue is full.
///
/// [`ActorRef::send`](crate::ActorRef::send) waits for capacity instead, except with [`Self::DropOldest`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OverflowStrategy {
    /// The oldest queued message is dead-lettered to make room.
    DropOldest,
    /// The new message is dead-lettered with the reason `DroppedNewest`.
    DropNewest,
    /// Producers are expected to wait in [`ActorRef::send`](crate::ActorRef::send); `try_tell` returns the message,
    /// and `tell` dead-letters it with the reason `Full`.
    ///
    /// A handler cannot wait: it gets its message back.
    BlockProducer,
    /// `try_tell` returns the message; `tell` dead-letters it with the reason `Full`.
    #[default]
    Reject,
    /// The new message is dead-lettered with the reason `Overflow`.
    ///
    /// Only this reason, and the label of the overflow metric, differ from [`Self::DropNewest`].
    /// [`PropsBuilder::dead_letters`](crate::PropsBuilder::dead_letters) decides what is kept of dead letters.
    DeadLetter,
}

/// Capacity and overflow behaviour of a mailbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MailboxOptions {
    /// Capacity in messages; the user queue holds at most `capacity - reserve_for_system`.
    pub capacity: NonZeroUsize,
    /// Overflow strategy of the user queue.
    pub overflow: OverflowStrategy,
    /// Part of the capacity that user messages may not use. Memory for so many system messages is allocated with the
    /// first one; they are never rejected, so they may exceed it.
    pub reserve_for_system: usize,
    /// High watermark: depth at which [`ActorRef::is_above_high_watermark`](crate::ActorRef::is_above_high_watermark)
    /// turns true.
    pub high_watermark: usize,
    /// Low watermark: depth at which producers waiting for capacity are woken.
    pub low_watermark: usize,
    /// Middleware around every run of an actor with this mailbox, outside the middleware of its props.
    #[cfg(not(loom))]
    pub middleware: Option<MiddlewareHook>,
}

impl MailboxOptions {
    /// User capacity of a mailbox without explicit options.
    pub const DEFAULT_CAPACITY: NonZeroUsize = NonZeroUsize::new(1024).expect("1024 is not zero");

    /// Creates options for `user_capacity` user messages, and reserves a quarter of it for the system, at most 16, on top.
    pub const fn bounded(user_capacity: NonZeroUsize) -> Self {
        let quarter = user_capacity.get() / 4;
        let reserved = if quarter < 16 { quarter } else { 16 };
        let capacity = user_capacity.saturating_add(reserved);
        let user_capacity = user_capacity.get();
        Self {
            capacity,
            overflow: OverflowStrategy::Reject,
            reserve_for_system: reserved,
            high_watermark: user_capacity - user_capacity / 8,
            low_watermark: user_capacity / 2,
            #[cfg(not(loom))]
            middleware: None,
        }
    }

    /// Sets the overflow strategy.
    #[must_use]
    pub const fn overflow(self, overflow: OverflowStrategy) -> Self {
        Self { overflow, ..self }
    }

    /// Sets the reserve for system messages; the user capacity stays the same.
    #[must_use]
    pub const fn reserve_for_system(self, messages: usize) -> Self {
        let user_capacity = NonZeroUsize::MIN.saturating_add(self.user_capacity().saturating_sub(1));
        Self { capacity: user_capacity.saturating_add(messages), reserve_for_system: messages, ..self }
    }

    /// Adds a middleware around every run of every actor with this mailbox; each actor gets its own instance.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn middleware(self, make: fn() -> Box<dyn MiddlewareChain>) -> Self {
        Self { middleware: Some(MiddlewareHook::new(make)), ..self }
    }

    /// Returns the capacity available to user messages.
    pub const fn user_capacity(&self) -> usize {
        self.capacity.get().saturating_sub(self.reserve_for_system)
    }

    /// Checks the capacity and the order of the watermarks.
    pub const fn validate(&self) -> Result<(), InvalidMailbox> {
        if self.capacity.get() <= self.reserve_for_system {
            return Err(InvalidMailbox::NoUserCapacity);
        }
        if self.capacity.get() > u32::MAX as usize {
            return Err(InvalidMailbox::TooLarge);
        }
        if self.low_watermark >= self.user_capacity() || self.low_watermark >= self.high_watermark {
            return Err(InvalidMailbox::WatermarksCross);
        }
        Ok(())
    }
}

impl Default for MailboxOptions {
    fn default() -> Self {
        Self::bounded(Self::DEFAULT_CAPACITY)
    }
}

/// Error for invalid mailbox options.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMailbox {
    /// The whole capacity is reserved for the system.
    #[error("reserve_for_system leaves no capacity for user messages")]
    NoUserCapacity,
    /// The capacity does not fit into 32 bits.
    #[error("capacity is above 4294967295")]
    TooLarge,
    /// The low watermark is not below the high watermark and the user capacity.
    #[error("low_watermark is not below high_watermark and the user capacity")]
    WatermarksCross,
}
