//! User queue and system queue of a mailbox, behind one lock.
//!
//! The user queue has two halves: senders fill the shared half; the permit holder swaps it for its empty
//! private half, so that the lock is taken once per burst and not once per message. `USER` is cleared inside
//! the same lock, which makes a sender's check without a write ([`CellState::raise`]) safe.
//!
//! The system queue never rejects a message and is still bounded: a child has at most a failure and a
//! termination in flight, a watch one termination, a timer one firing; and of the messages that anyone may
//! send at any time (stop, signal, watch, command) redundant ones are dropped on arrival
//! ([`MailboxQueues::push_system_by`]). Adding a child, a watch or a timer reserves its queue capacity.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::vec::Vec;
use core::mem;
use core::task::Waker;

use super::{MailboxOptions, MailboxQueueStats, OverflowStrategy};
use crate::ignore_panic::wake_all;
use crate::raw::state::{CellState, USER};
use crate::sync::{AtomicU32, Lock, Ordering};

/// A queue that is empty frees its buffer if it has room for more messages than this: the private half at the end of a
/// run, the shared half when its last message is taken, or when a custom invoker's queue is found empty.
const KEPT_CAPACITY_MAX: usize = 1024;
/// Maximum number of producers waiting for capacity; further ones are rejected.
const WAITERS_MAX: usize = 65_536;

/// Outcome of a push.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum PushResult<M> {
    /// The message is queued.
    Queued,
    /// The message is queued, and this older one was evicted.
    Displaced(M),
    /// The user queue is full.
    Full(M),
    /// The user queue is closed.
    Closed(M),
    /// There is no memory to enlarge the queue.
    OutOfMemory(M),
}

/// The queues of one mailbox: user messages `M`, system messages `S`.
#[derive(Debug)]
pub(crate) struct MailboxQueues<M, S> {
    shared: Lock<Shared<M, S>>,
    /// Length of the private half, as last published by the permit holder.
    private_len: AtomicU32,
}

#[derive(Debug)]
struct Shared<M, S> {
    queue: VecDeque<M>,
    /// Maximum length of the queue: the capacity minus the last known length of the private half, so that a
    /// sender seldom reads the permit holder's memory. Zero once closed.
    room: u32,
    capacity: u32,
    /// Length of the system queue for which memory is allocated with its first use.
    system_reserve: u32,
    enqueued: u64,
    /// State that most mailboxes never need.
    cold: Option<Box<Cold<S>>>,
    intake: Intake,
    overflow: OverflowStrategy,
    /// Set when the queue could not grow, until it is drained.
    has_failed: bool,
}

#[derive(Debug)]
struct Cold<S> {
    /// By the place of each: places are numbered in the order in which the waits begin.
    waiters: BTreeMap<u64, Waker>,
    next_place: u64,
    system: VecDeque<S>,
    system_enqueued: u64,
    /// The key of the signal that the actor waits for, or waited for last.
    awaited_signal: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Intake {
    Open,
    /// Closed to user messages.
    Closed,
    /// Closed to system messages too.
    Ended,
}

/// Outcome of registering a producer that waits for capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitRegistration {
    Waiting,
    /// The queue is closed; there will be no capacity.
    Closed,
    /// The limit of waiting producers is reached.
    TooMany,
}

impl<M, S> MailboxQueues<M, S> {
    pub(crate) fn new(options: &MailboxOptions) -> Self {
        let capacity = count(options.user_capacity());
        Self {
            shared: Lock::new(Shared {
                queue: VecDeque::new(),
                room: capacity,
                capacity,
                system_reserve: count(options.reserve_for_system),
                enqueued: 0,
                cold: None,
                intake: Intake::Open,
                overflow: options.overflow,
                has_failed: false,
            }),
            private_len: AtomicU32::new(0),
        }
    }

    /// Appends a user message; the caller then raises `USER`.
    #[inline]
    pub(crate) fn push(&self, message: M) -> PushResult<M> {
        match self.try_push_fast(message) {
            None => PushResult::Queued,
            Some(message) => self.push_slow(message),
        }
    }

    /// Appends a user message if the cached limit shows room; otherwise returns it.
    #[inline]
    pub(crate) fn try_push_fast(&self, message: M) -> Option<M> {
        self.shared.with(|shared| {
            let len = shared.queue.len();
            // A queue that must grow takes the slow path, which copes with a failed allocation.
            if len >= shared.room as usize || len == shared.queue.capacity() {
                return Some(message);
            }
            shared.queue.push_back(message);
            shared.enqueued += 1;
            None
        })
    }

    /// Appends as many user messages as the cached limit allows; returns their number.
    #[cfg(feature = "patterns")]
    pub(crate) fn push_all_fast(&self, messages: &mut Vec<M>) -> usize {
        self.shared.with(|shared| {
            let room = (shared.room as usize).min(shared.queue.capacity());
            let taken = room.saturating_sub(shared.queue.len()).min(messages.len());
            shared.queue.extend(messages.drain(..taken));
            shared.enqueued += taken as u64;
            taken
        })
    }

    /// Appends a user message when the cached limit showed no room.
    #[cold]
    pub(crate) fn push_slow(&self, message: M) -> PushResult<M> {
        self.shared.with(|shared| {
            if shared.intake != Intake::Open {
                return PushResult::Closed(message);
            }
            if shared.has_room(&self.private_len) {
                if shared.queue.try_reserve(1).is_err() {
                    shared.has_failed = true;
                    return PushResult::OutOfMemory(message);
                }
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

    /// Pops the oldest message and moves the others into the empty private half. Only the permit holder may call
    /// this.
    ///
    /// With `DropOldest` the others stay in the shared half, so that a sender can still evict the oldest.
    #[inline]
    pub(crate) fn take_batch(&self, private: &mut VecDeque<M>, state: &CellState) -> Option<M> {
        self.shared.with(|shared| {
            let oldest = shared.queue.pop_front();
            if shared.queue.is_empty() {
                Self::shrink(&mut shared.queue);
            } else if shared.overflow != OverflowStrategy::DropOldest {
                mem::swap(&mut shared.queue, private);
            }
            let private_len = count(private.len());
            self.private_len.store(private_len, Ordering::Relaxed);
            if shared.intake == Intake::Open {
                shared.room = shared.capacity.saturating_sub(private_len);
            }
            if shared.queue.is_empty() {
                state.lower(USER);
            }
            oldest
        })
    }

    /// Pops the oldest message of the shared half and leaves the others there, for a custom invoker.
    pub(crate) fn pop_oldest(&self, state: &CellState) -> Option<M> {
        self.shared.with(|shared| {
            let oldest = shared.queue.pop_front();
            if shared.queue.is_empty() {
                state.lower(USER);
            }
            oldest
        })
    }

    /// Lowers `USER` if the shared half is empty; reports whether it is.
    pub(crate) fn lower_if_empty(&self, state: &CellState) -> bool {
        self.shared.with(|shared| {
            let is_empty = shared.queue.is_empty();
            if is_empty {
                state.lower(USER);
                Self::shrink(&mut shared.queue);
            }
            is_empty
        })
    }

    /// Puts messages before all queued ones and counts them as enqueued again. Only the permit holder may call
    /// this.
    ///
    /// With `DropOldest` they go into the shared half, where senders can evict them.
    #[cfg(feature = "patterns")]
    pub(crate) fn push_front_all(
        &self,
        messages: impl DoubleEndedIterator<Item = M>,
        private: &mut VecDeque<M>,
        state: &CellState,
    ) {
        let before = private.len();
        messages.rev().for_each(|message| private.push_front(message));
        let added = (private.len() - before) as u64;
        self.shared.with(|shared| {
            shared.enqueued += added;
            if shared.overflow == OverflowStrategy::DropOldest {
                private.append(&mut shared.queue);
                mem::swap(private, &mut shared.queue);
                state.set(USER);
            }
            self.set_private_len(private.len());
        });
    }

    /// Publishes the length of the private half to senders. Only the permit holder may call this.
    #[inline]
    pub(crate) fn set_private_len(&self, private_len: usize) {
        self.private_len.store(count(private_len), Ordering::Relaxed);
    }

    /// Frees the large buffer that a burst left behind in one half, if it is empty.
    #[inline]
    pub(crate) fn shrink(half: &mut VecDeque<M>) {
        if half.is_empty() && half.capacity() > KEPT_CAPACITY_MAX {
            *half = VecDeque::new();
        }
    }

    /// Rejects user messages from now on; queued ones stay. Returns the wakers of producers waiting for
    /// capacity.
    pub(crate) fn close(&self) -> Vec<Waker> {
        let waiters = self.shared.with(|shared| {
            if shared.intake == Intake::Open {
                shared.intake = Intake::Closed;
                shared.room = 0;
            }
            shared.cold.as_deref_mut().map(|cold| mem::take(&mut cold.waiters)).unwrap_or_default()
        });
        waiters.into_values().collect()
    }

    /// Removes all messages from the shared half, which repairs a failed queue.
    pub(crate) fn drain(&self) -> VecDeque<M> {
        self.shared.with(|shared| {
            shared.has_failed = false;
            mem::take(&mut shared.queue)
        })
    }

    /// Reports whether the queue could not grow and has not been drained since.
    #[cfg(not(loom))]
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.with(|shared| shared.has_failed)
    }

    /// Registers `waker` to be woken when there is capacity, at `place` or, without one, at the end; returns `false` if
    /// too many producers wait.
    ///
    /// If the queue is closed, the waker is woken immediately: the permit holder may have checked for the
    /// last time.
    pub(crate) fn wait_for_room(&self, place: &mut Option<u64>, waker: &Waker, state: &CellState) -> bool {
        // A replaced waker is dropped after the lock is released, because its drop may run any code.
        let (registration, _replaced) = self.shared.with(|shared| shared.register_waiter(place, waker));
        match registration {
            WaitRegistration::TooMany => return false,
            WaitRegistration::Closed => waker.wake_by_ref(),
            WaitRegistration::Waiting => {
                // If the cell is not scheduled, no worker will check: an idle cell may have room already.
                if !state.register_waiter()
                    && self.shared.with(|shared| shared.is_closed_or_has_room(&self.private_len))
                {
                    waker.wake_by_ref();
                }
            }
        }
        true
    }

    /// Gives up a place among the waiting producers.
    pub(crate) fn leave_waiting(&self, place: u64) {
        // Dropped after the lock is released, as above.
        drop(self.shared.with(|shared| shared.cold.as_deref_mut()?.waiters.remove(&place)));
    }

    /// Wakes the waiting producers if the queue has drained to its low watermark. Only the permit holder may call
    /// this.
    ///
    /// Returns whether producers still wait.
    pub(crate) fn wake_waiters(&self, low_watermark: usize) -> bool {
        let (woken, waiting) = self.shared.with(|shared| {
            let depth = shared.queue.len() + self.private_len.load(Ordering::Relaxed) as usize;
            match shared.cold.as_deref_mut() {
                None => (BTreeMap::new(), false),
                Some(cold) if depth > low_watermark => (BTreeMap::new(), !cold.waiters.is_empty()),
                Some(cold) => (mem::take(&mut cold.waiters), false),
            }
        });
        wake_all(woken.into_values());
        waiting
    }

    pub(crate) fn stats(&self) -> MailboxQueueStats {
        self.shared.with(|shared| MailboxQueueStats {
            enqueued: shared.enqueued,
            depth: shared.queue.len() + self.private_len.load(Ordering::Relaxed) as usize,
        })
    }

    /// Reserves capacity in the system queue, for messages whose push must not fail later.
    pub(crate) fn reserve_system(&self, additional: usize) {
        self.shared.with(|shared| shared.cold().system.reserve(additional));
    }

    /// Appends a system message; `Err` once the cell has terminated.
    #[cfg(loom)]
    pub(crate) fn push_system(&self, message: S) -> Result<(), S> {
        self.push_system_by(message, |message, queue, _| queue.push_back(message))
    }

    /// Passes a system message to `enqueue`, which appends it and drops redundant ones; `Err` once the cell
    /// has terminated.
    ///
    /// `enqueue` also gets the key of the signal that the actor waits for; its return value is passed on.
    pub(crate) fn push_system_by<R>(
        &self,
        message: S,
        enqueue: impl FnOnce(S, &mut VecDeque<S>, Option<u64>) -> R,
    ) -> Result<R, S> {
        self.shared.with(|shared| {
            if shared.intake == Intake::Ended {
                return Err(message);
            }
            let cold = shared.cold();
            cold.system_enqueued += 1;
            Ok(enqueue(message, &mut cold.system, cold.awaited_signal))
        })
    }

    /// Records the signal that the actor waits for, so that other signals do not evict it.
    pub(crate) fn set_awaited_signal(&self, key: u64) {
        self.shared.with(|shared| shared.cold().awaited_signal = Some(key));
    }

    pub(crate) fn pop_system(&self) -> Option<S> {
        self.shared.with(|shared| shared.cold.as_deref_mut()?.system.pop_front())
    }

    /// Closes the system queue and returns its unread messages.
    pub(crate) fn close_system(&self) -> VecDeque<S> {
        self.shared.with(|shared| {
            shared.intake = Intake::Ended;
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
    /// Registers a waker; also returns the one that it replaces.
    fn register_waiter(
        &mut self,
        place: &mut Option<u64>,
        waker: &Waker,
    ) -> (WaitRegistration, Option<Waker>) {
        if self.intake != Intake::Open {
            return (WaitRegistration::Closed, None);
        }
        let cold = self.cold();
        if let Some(waiting) = place.and_then(|place| cold.waiters.get_mut(&place)) {
            let replaced = (!waiting.will_wake(waker)).then(|| mem::replace(waiting, waker.clone()));
            return (WaitRegistration::Waiting, replaced);
        }
        if cold.waiters.len() >= WAITERS_MAX {
            return (WaitRegistration::TooMany, None);
        }
        cold.waiters.insert(cold.next_place, waker.clone());
        *place = Some(cold.next_place);
        cold.next_place += 1;
        (WaitRegistration::Waiting, None)
    }

    /// Reads the current length of the private half; only while open.
    fn has_room(&mut self, private_len: &AtomicU32) -> bool {
        self.room = self.capacity.saturating_sub(private_len.load(Ordering::Relaxed));
        self.queue.len() < self.room as usize
    }

    /// Reports whether a push would not return `Full`.
    fn is_closed_or_has_room(&mut self, private_len: &AtomicU32) -> bool {
        self.intake != Intake::Open || self.has_room(private_len)
    }

    fn cold(&mut self) -> &mut Cold<S> {
        let system_reserve = self.system_reserve as usize;
        self.cold.get_or_insert_with(|| {
            Box::new(Cold {
                waiters: BTreeMap::new(),
                next_place: 0,
                system: VecDeque::with_capacity(system_reserve),
                system_enqueued: 0,
                awaited_signal: None,
            })
        })
    }
}

/// Converts a queue length; the capacity fits into 32 bits, so no queue is longer than `u32::MAX`.
#[inline]
fn count(len: usize) -> u32 {
    u32::try_from(len).unwrap_or(u32::MAX)
}

#[cfg(all(test, feature = "std", not(loom)))]
#[allow(clippy::unwrap_used, reason = "test helpers may panic")]
mod tests;
