//! The user lane: a shared half that senders fill and a private half that the owner empties.
//!
//! The owner swaps the halves, so that a lock is taken once per burst and not once per message. The
//! `USER` flag is cleared inside the same lock, which is what makes a sender's look without a write
//! (`CellState::raise`) safe.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::task::Waker;

use super::{LaneStats, MailboxOptions, OverflowStrategy};
use crate::raw::state::{CellState, USER};
use crate::sync::{AtomicU32, Lock, Ordering};

/// An idle lane keeps room for this many messages and gives the rest back.
const KEPT_CAPACITY_MAX: usize = 1024;
/// At most this many producers wait for room; the next one is refused.
const WAITERS_MAX: usize = 65_536;

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Pushed<M> {
    /// It waits.
    Queued,
    /// It waits, and this older one lost its place.
    Displaced(M),
    /// There was no place.
    Full(M),
    /// The lane takes nothing any more.
    Closed(M),
}

/// The user lane of one mailbox.
#[derive(Debug)]
pub(crate) struct UserLane<M> {
    shared: Lock<Shared<M>>,
    /// Messages in the private half, as the owner last told.
    left: AtomicU32,
}

#[derive(Debug)]
struct Shared<M> {
    queue: VecDeque<M>,
    /// An upper bound of `left` that costs senders no look at the owner's memory.
    taken: u32,
    capacity: u32,
    enqueued: u64,
    waiters: Option<Box<Vec<Waker>>>,
    open: Open,
    overflow: OverflowStrategy,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Open,
    Closed,
}

/// Whether somebody waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listed {
    Waits,
    /// There will be no room.
    Closed,
    /// Too many wait.
    Refused,
}

impl<M> UserLane<M> {
    pub(crate) fn new(options: &MailboxOptions) -> Self {
        Self {
            shared: Lock::new(Shared {
                queue: VecDeque::new(),
                taken: 0,
                capacity: u32::try_from(options.user_capacity()).unwrap_or(u32::MAX),
                enqueued: 0,
                waiters: None,
                open: Open::Open,
                overflow: options.overflow,
            }),
            left: AtomicU32::new(0),
        }
    }

    /// Puts a message at the end; the caller then raises `USER`.
    #[inline]
    pub(crate) fn push(&self, message: M) -> Pushed<M> {
        self.shared.with(|shared| {
            if shared.open == Open::Closed {
                return Pushed::Closed(message);
            }
            if shared.has_room(&self.left) {
                shared.queue.push_back(message);
                shared.enqueued += 1;
                return Pushed::Queued;
            }
            match (shared.overflow, shared.queue.pop_front()) {
                (OverflowStrategy::DropOldest, Some(oldest)) => {
                    shared.queue.push_back(message);
                    shared.enqueued += 1;
                    Pushed::Displaced(oldest)
                }
                (_, Some(oldest)) => {
                    shared.queue.push_front(oldest);
                    Pushed::Full(message)
                }
                (_, None) => Pushed::Full(message),
            }
        })
    }

    /// Puts a message at the end, or has `waker` woken when there is room; `Err` when too many wait.
    pub(crate) fn push_or_wait(&self, message: M, waker: &Waker, state: &CellState) -> Result<Pushed<M>, M> {
        match self.push(message) {
            Pushed::Full(message) if self.wait_for_room(waker, state) => Ok(Pushed::Full(message)),
            Pushed::Full(message) => Err(message),
            pushed => Ok(pushed),
        }
    }

    /// Fills the empty private half; for the owner of the run right.
    ///
    /// Where the oldest may have to make room, messages are taken one by one, so that the oldest is
    /// still here.
    #[inline]
    pub(crate) fn take(&self, private: &mut VecDeque<M>, state: &CellState) {
        self.shared.with(|shared| {
            if shared.overflow == OverflowStrategy::DropOldest {
                private.extend(shared.queue.pop_front());
            } else {
                mem::swap(&mut shared.queue, private);
            }
            shared.taken = count(private.len());
            self.left.store(shared.taken, Ordering::Relaxed);
            if shared.queue.is_empty() {
                state.lower(USER);
            }
        });
    }

    /// Tells senders how many messages the private half still holds; for the owner.
    #[inline]
    pub(crate) fn tell_left(&self, left: usize) {
        self.left.store(count(left), Ordering::Relaxed);
    }

    /// Gives back the room that a burst took; for the owner of a cell with nothing to do.
    ///
    /// A suspended cell has nothing to do either, and may hold messages back.
    #[inline]
    pub(crate) fn rest(private: &mut VecDeque<M>) {
        if private.is_empty() && KEPT_CAPACITY_MAX < private.capacity() {
            *private = VecDeque::new();
        }
    }

    /// Refuses user messages from here on; what waits stays.
    pub(crate) fn close(&self) -> Vec<Waker> {
        self.shared.with(|shared| {
            shared.open = Open::Closed;
            shared.waiters.take().map(|waiters| *waiters).unwrap_or_default()
        })
    }

    /// Takes everything out of the shared half.
    pub(crate) fn drain(&self) -> VecDeque<M> {
        self.shared.with(|shared| mem::take(&mut shared.queue))
    }

    /// Remembers to wake `waker` when there is room; `false` when too many wait already.
    ///
    /// Where nothing is taken any more it is woken at once: the owner may have looked for the last time.
    pub(crate) fn wait_for_room(&self, waker: &Waker, state: &CellState) -> bool {
        match self.shared.with(|shared| shared.list(waker)) {
            Listed::Refused => return false,
            Listed::Closed => waker.wake_by_ref(),
            Listed::Waits => {
                // Where nobody runs the cell, nobody but us will look: an empty lane has room at once.
                if !state.await_room() && self.shared.with(|shared| shared.has_room(&self.left)) {
                    waker.wake_by_ref();
                }
            }
        }
        true
    }

    /// Lets those who wait go on once the lane is down to its low mark; for the owner.
    ///
    /// Returns whether somebody still waits.
    pub(crate) fn wake_waiters(&self, low_mark: usize) -> bool {
        let (woken, waiting) = self.shared.with(|shared| {
            let depth = shared.queue.len() + self.left.load(Ordering::Relaxed) as usize;
            if low_mark < depth { (None, shared.waiters.is_some()) } else { (shared.waiters.take(), false) }
        });
        for waker in woken.into_iter().flat_map(|waiters| *waiters) {
            waker.wake();
        }
        waiting
    }

    pub(crate) fn stats(&self) -> LaneStats {
        self.shared.with(|shared| LaneStats {
            enqueued: shared.enqueued,
            depth: shared.queue.len() + self.left.load(Ordering::Relaxed) as usize,
        })
    }
}

impl<M> Shared<M> {
    fn list(&mut self, waker: &Waker) -> Listed {
        if self.open == Open::Closed {
            return Listed::Closed;
        }
        let waiters = self.waiters.get_or_insert_default();
        if waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            return Listed::Waits;
        }
        if WAITERS_MAX <= waiters.len() {
            return Listed::Refused;
        }
        waiters.push(waker.clone());
        Listed::Waits
    }

    #[inline]
    fn has_room(&mut self, left: &AtomicU32) -> bool {
        let waiting = count(self.queue.len());
        if waiting.saturating_add(self.taken) < self.capacity {
            return true;
        }
        self.taken = left.load(Ordering::Relaxed);
        waiting.saturating_add(self.taken) < self.capacity
    }
}

/// Lanes are shorter than `u32::MAX`: their capacity is one.
#[inline]
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}
