//! The two lanes of a mailbox behind one lock: a user lane in two halves, and a system lane.
//!
//! Senders fill the shared half of the user lane; the owner swaps it for its empty private half, so that
//! a lock is taken once per burst and not once per message. `USER` is cleared inside the same lock,
//! which is what makes a sender's look without a write ([`CellState::raise`]) safe.
//!
//! The system lane is never refused and yet bounded: a child has at most a failure and an end under way,
//! a watch an end, a timer one firing, and of what anybody may say at any time (stop, signal, watch, a
//! command) what is pointless is thrown out as it comes ([`Lanes::push_system_by`]). Whoever gains a
//! child, a watch or a timer reserves its places then.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::mem;
use core::task::Waker;

use super::{MailboxOptions, MailboxQueueStats, OverflowStrategy};
use crate::ignore_panic::wake_all;
use crate::raw::state::{CellState, USER};
use crate::sync::{AtomicU32, Lock, Ordering};

/// An idle lane keeps room for this many messages and gives the rest back.
const KEPT_CAPACITY_MAX: usize = 1024;
/// At most this many producers wait for room; the next one is refused.
const WAITERS_MAX: usize = 65_536;

/// What became of a message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushResult<M> {
    /// It waits.
    Queued,
    /// It waits, and this older one lost its place.
    Displaced(M),
    /// There was no place.
    Full(M),
    /// The lane takes nothing any more.
    Closed(M),
}

/// The lanes of one mailbox: user messages `M`, system messages `S`.
#[derive(Debug)]
pub(crate) struct MailboxQueues<M, S> {
    shared: Lock<Shared<M, S>>,
    /// Messages in the private half, as the owner last told.
    left: AtomicU32,
}

#[derive(Debug)]
struct Shared<M, S> {
    queue: VecDeque<M>,
    /// How long the queue may get: the capacity less what the private half held when last looked at,
    /// so that a sender seldom looks at the owner's memory. Zero once closed.
    room: u32,
    capacity: u32,
    enqueued: u64,
    /// What most mailboxes never need.
    cold: Option<Box<Cold<S>>>,
    open: Intake,
    overflow: OverflowStrategy,
}

#[derive(Debug)]
struct Cold<S> {
    waiters: Vec<Waker>,
    system: VecDeque<S>,
    system_enqueued: u64,
    /// The key of the signal that the owner waits for, or waited for last.
    awaited: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Closed to users.
    Closed,
    /// Closed to the system too.
    Ended,
}

/// Whether somebody waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitRegistration {
    Waits,
    /// There will be no room.
    Closed,
    /// Too many wait.
    Refused,
}

impl<M, S> MailboxQueues<M, S> {
    pub(crate) fn new(options: &MailboxOptions) -> Self {
        let capacity = count(options.user_capacity());
        Self {
            shared: Lock::new(Shared {
                queue: VecDeque::new(),
                room: capacity,
                capacity,
                enqueued: 0,
                cold: None,
                open: Intake::Open,
                overflow: options.overflow,
            }),
            left: AtomicU32::new(0),
        }
    }

    /// Puts a user message at the end; the caller then raises `USER`.
    #[inline]
    pub(crate) fn push(&self, message: M) -> PushResult<M> {
        match self.try_push_fast(message) {
            None => PushResult::Queued,
            Some(message) => self.push_slow(message),
        }
    }

    /// Puts a user message at the end if it is plain that there is room; hands it back otherwise.
    #[inline]
    pub(crate) fn try_push_fast(&self, message: M) -> Option<M> {
        self.shared.with(|shared| {
            if shared.room as usize <= shared.queue.len() {
                return Some(message);
            }
            shared.queue.push_back(message);
            shared.enqueued += 1;
            None
        })
    }

    /// Puts as many user messages at the end as it is plain that there is room for; returns how many.
    #[cfg(feature = "patterns")]
    pub(crate) fn offer_all(&self, messages: &mut Vec<M>) -> usize {
        self.shared.with(|shared| {
            let room = (shared.room as usize).saturating_sub(shared.queue.len());
            let taken = room.min(messages.len());
            shared.queue.extend(messages.drain(..taken));
            shared.enqueued += taken as u64;
            taken
        })
    }

    /// Puts a user message at the end although it was not plain that there is room.
    #[cold]
    pub(crate) fn push_slow(&self, message: M) -> PushResult<M> {
        self.shared.with(|shared| {
            if shared.open != Intake::Open {
                return PushResult::Closed(message);
            }
            if shared.has_room(&self.left) {
                shared.queue.push_back(message);
                shared.enqueued += 1;
                return PushResult::Queued;
            }
            if shared.overflow != OverflowStrategy::DropOldest {
                return PushResult::Full(message);
            }
            let Some(oldest) = shared.queue.pop_front() else { return PushResult::Full(message) };
            shared.queue.push_back(message);
            shared.enqueued += 1;
            PushResult::Displaced(oldest)
        })
    }

    /// Puts a message at the end, or has `waker` woken when there is room; `Err` when too many wait.
    pub(crate) fn push_or_wait(
        &self,
        message: M,
        waker: &Waker,
        state: &CellState,
    ) -> Result<PushResult<M>, M> {
        match self.push(message) {
            PushResult::Full(message) if self.wait_for_room(waker, state) => Ok(PushResult::Full(message)),
            PushResult::Full(message) => Err(message),
            pushed => Ok(pushed),
        }
    }

    /// Takes the oldest message, and the others into the empty private half; for the owner of the run right.
    ///
    /// Where the oldest may have to make room, the others stay, so that the oldest is still here.
    #[inline]
    pub(crate) fn take(&self, private: &mut VecDeque<M>, state: &CellState) -> Option<M> {
        self.shared.with(|shared| {
            let oldest = shared.queue.pop_front();
            if !shared.queue.is_empty() && shared.overflow != OverflowStrategy::DropOldest {
                mem::swap(&mut shared.queue, private);
            }
            let taken = count(private.len());
            self.left.store(taken, Ordering::Relaxed);
            if shared.open == Intake::Open {
                shared.room = shared.capacity.saturating_sub(taken);
            }
            if shared.queue.is_empty() {
                state.lower(USER);
            }
            oldest
        })
    }

    /// Puts messages before all that wait, and counts them as taken in again; for the owner.
    ///
    /// Where the oldest may have to make room, they go where senders find them.
    #[cfg(feature = "patterns")]
    pub(crate) fn put_first(
        &self,
        messages: impl DoubleEndedIterator<Item = M>,
        private: &mut VecDeque<M>,
        state: &CellState,
    ) {
        let before = private.len();
        messages.rev().for_each(|message| private.push_front(message));
        let count_more = (private.len() - before) as u64;
        self.shared.with(|shared| {
            shared.enqueued += count_more;
            if shared.overflow == OverflowStrategy::DropOldest {
                private.append(&mut shared.queue);
                mem::swap(private, &mut shared.queue);
                state.set(USER);
            }
            self.tell_left(private.len());
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
    pub(crate) fn shrink(private: &mut VecDeque<M>) {
        if private.is_empty() && KEPT_CAPACITY_MAX < private.capacity() {
            *private = VecDeque::new();
        }
    }

    /// Refuses user messages from here on; what waits stays. Returns those who waited for room.
    pub(crate) fn close(&self) -> Vec<Waker> {
        self.shared.with(|shared| {
            if shared.open == Intake::Open {
                shared.open = Intake::Closed;
                shared.room = 0;
            }
            shared.cold.as_deref_mut().map(|cold| mem::take(&mut cold.waiters)).unwrap_or_default()
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
            WaitRegistration::Refused => return false,
            WaitRegistration::Closed => waker.wake_by_ref(),
            WaitRegistration::Waits => {
                // Where nobody runs the cell, nobody but us will look: an idle one has room at once.
                if !state.await_room() && self.shared.with(|shared| shared.would_answer(&self.left)) {
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
            match shared.cold.as_deref_mut() {
                None => (Vec::new(), false),
                Some(cold) if low_mark < depth => (Vec::new(), !cold.waiters.is_empty()),
                Some(cold) => (mem::take(&mut cold.waiters), false),
            }
        });
        wake_all(woken);
        waiting
    }

    pub(crate) fn stats(&self) -> MailboxQueueStats {
        self.shared.with(|shared| MailboxQueueStats {
            enqueued: shared.enqueued,
            depth: shared.queue.len() + self.left.load(Ordering::Relaxed) as usize,
        })
    }

    /// Makes `places` more in the system lane, for messages that must not fail later.
    pub(crate) fn reserve_system(&self, places: usize) {
        self.shared.with(|shared| shared.cold().system.reserve(places));
    }

    /// Puts a system message at the end; `Err` once the cell has ended.
    #[cfg(loom)]
    pub(crate) fn push_system(&self, message: S) -> Result<(), S> {
        self.push_system_by(message, |message, lane, _| lane.push_back(message))
    }

    /// Has a system message join the others, who knows which of them make which pointless; `Err` once
    /// the cell has ended.
    ///
    /// It is told which signal the owner waits for. What it returns is handed on.
    pub(crate) fn push_system_by<R>(
        &self,
        message: S,
        join: impl FnOnce(S, &mut VecDeque<S>, Option<u64>) -> R,
    ) -> Result<R, S> {
        self.shared.with(|shared| {
            if shared.open == Intake::Ended {
                return Err(message);
            }
            let cold = shared.cold();
            cold.system_enqueued += 1;
            Ok(join(message, &mut cold.system, cold.awaited))
        })
    }

    /// Notes which signal the owner waits for; no number of others pushes it out of the lane.
    pub(crate) fn await_signal(&self, key: u64) {
        self.shared.with(|shared| shared.cold().awaited = Some(key));
    }

    pub(crate) fn pop_system(&self) -> Option<S> {
        self.shared.with(|shared| shared.cold.as_deref_mut()?.system.pop_front())
    }

    /// Ends the system lane and hands over what was never read.
    pub(crate) fn end_system(&self) -> VecDeque<S> {
        self.shared.with(|shared| {
            shared.open = Intake::Ended;
            shared.room = 0;
            shared.cold.as_deref_mut().map(|cold| mem::take(&mut cold.system)).unwrap_or_default()
        })
    }

    pub(crate) fn system_stats(&self) -> MailboxQueueStats {
        self.shared.with(|shared| {
            let cold = shared.cold.as_deref();
            cold.map_or_else(MailboxQueueStats::default, |cold| MailboxQueueStats {
                enqueued: cold.system_enqueued,
                depth: cold.system.len(),
            })
        })
    }
}

impl<M, S> Shared<M, S> {
    fn list(&mut self, waker: &Waker) -> WaitRegistration {
        if self.open != Intake::Open {
            return WaitRegistration::Closed;
        }
        let waiters = &mut self.cold().waiters;
        if waiters.iter().any(|waiting| waiting.will_wake(waker)) {
            return WaitRegistration::Waits;
        }
        if WAITERS_MAX <= waiters.len() {
            return WaitRegistration::Refused;
        }
        waiters.push(waker.clone());
        WaitRegistration::Waits
    }

    /// Looks at the owner's memory for how much it has left; only while open.
    fn has_room(&mut self, left: &AtomicU32) -> bool {
        self.room = self.capacity.saturating_sub(left.load(Ordering::Relaxed));
        self.queue.len() < self.room as usize
    }

    /// Whether a push would be anything but full.
    fn would_answer(&mut self, left: &AtomicU32) -> bool {
        self.open != Intake::Open || self.has_room(left)
    }

    fn cold(&mut self) -> &mut Cold<S> {
        self.cold.get_or_insert_with(|| {
            Box::new(Cold { waiters: Vec::new(), system: VecDeque::new(), system_enqueued: 0, awaited: None })
        })
    }
}

/// Lanes are shorter than `u32::MAX`: their capacity is one.
#[inline]
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(all(test, feature = "std", not(loom)))]
#[allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]
mod tests;
