//! Slab of a wheel's timers, linked into intrusive lists, one per bucket.
//!
//! Limits: the slab grows to the peak number of pending timers and never shrinks. A slot is in at most one list: a
//! bucket's while its timer is pending, otherwise the free list.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use evenkeel_policy::time::Instant;

use super::TimerKey;
use super::level::Bucket;

/// One-based slot index, so that `Option<TimerSlot>` has no extra size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TimerSlot(NonZeroU32);

impl TimerSlot {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug)]
pub(super) struct TimerSlab<T> {
    slots: Vec<TimerNode<T>>,
    first_free: Option<TimerSlot>,
    len: u32,
}

#[derive(Debug)]
struct TimerNode<T> {
    due: Instant,
    prev: Option<TimerSlot>,
    /// Next in the bucket, or in the free list.
    next: Option<TimerSlot>,
    generation: u32,
    /// `None` in a free slot.
    value: Option<T>,
}

impl<T> TimerSlab<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new(), first_free: None, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Stores a timer without linking it into a bucket; the caller ensures that fewer than `u32::MAX` are pending.
    pub(super) fn insert(&mut self, due: Instant, value: T) -> TimerKey {
        self.len += 1;
        let Some(slot) = self.first_free else {
            let slot = TimerSlot(NonZeroU32::MIN.saturating_add(self.slots.len() as u32));
            self.slots.push(TimerNode { due, prev: None, next: None, generation: 0, value: Some(value) });
            return TimerKey { slot, generation: 0 };
        };
        let node = &mut self.slots[slot.index()];
        self.first_free = node.next.take();
        node.due = due;
        node.value = Some(value);
        TimerKey { slot, generation: node.generation }
    }

    /// Reports whether the key's timer has neither fired nor been cancelled.
    pub(super) fn is_pending(&self, key: TimerKey) -> bool {
        let node = self.slots.get(key.slot.index());
        node.is_some_and(|node| node.generation == key.generation && node.value.is_some())
    }

    pub(super) fn due(&self, slot: TimerSlot) -> Instant {
        self.slots[slot.index()].due
    }

    /// Returns the next timer in the bucket.
    pub(super) fn next(&self, slot: TimerSlot) -> Option<TimerSlot> {
        self.slots[slot.index()].next
    }

    pub(super) fn append(&mut self, bucket: &mut Bucket, slot: TimerSlot) {
        let prev = bucket.last.replace(slot);
        match prev {
            Some(prev) => self.slots[prev.index()].next = Some(slot),
            None => bucket.first = Some(slot),
        }
        let node = &mut self.slots[slot.index()];
        node.prev = prev;
        node.next = None;
    }

    pub(super) fn unlink(&mut self, bucket: &mut Bucket, slot: TimerSlot) {
        let node = &self.slots[slot.index()];
        let prev = node.prev;
        let next = node.next;
        match prev {
            Some(prev) => self.slots[prev.index()].next = next,
            None => bucket.first = next,
        }
        match next {
            Some(next) => self.slots[next.index()].prev = prev,
            None => bucket.last = prev,
        }
    }

    /// Frees the slot of an unlinked timer and returns its due time and value; `None` if the slot was already free.
    pub(super) fn remove(&mut self, slot: TimerSlot) -> Option<(Instant, T)> {
        let node = &mut self.slots[slot.index()];
        let value = node.value.take()?;
        node.generation = node.generation.wrapping_add(1);
        node.next = self.first_free.replace(slot);
        self.len -= 1;
        Some((node.due, value))
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.slots.len()
    }
}
