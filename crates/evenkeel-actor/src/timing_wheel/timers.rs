//! The timers of a wheel in one allocation, linked into the lists of its buckets.
//!
//! Limits: as many slots as timers were ever pending at once. A slot is in at most one list: a bucket's while
//! its timer is pending, otherwise the free list.

use alloc::vec::Vec;
use core::num::NonZeroU32;

use evenkeel_policy::time::Instant;

use super::TimerKey;
use super::level::Bucket;

/// Number of a slot, counted from 1, so that an `Option` takes no extra space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct TimerSlot(NonZeroU32);

impl TimerSlot {
    fn index(self) -> usize {
        self.0.get() as usize - 1
    }
}

#[derive(Debug)]
pub(super) struct Timers<T> {
    nodes: Vec<TimerNode<T>>,
    first_free: Option<TimerSlot>,
    len: u32,
}

#[derive(Debug)]
struct TimerNode<T> {
    due: Instant,
    before: Option<TimerSlot>,
    after: Option<TimerSlot>,
    generation: u32,
    /// `None` in a free slot.
    value: Option<T>,
}

impl<T> Timers<T> {
    pub(super) const fn new() -> Self {
        Self { nodes: Vec::new(), first_free: None, len: 0 }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Stores a timer that is in no list yet; the caller ensures that fewer than `u32::MAX` are pending.
    pub(super) fn insert(&mut self, due: Instant, value: T) -> TimerKey {
        self.len += 1;
        let Some(slot) = self.first_free else {
            let slot = TimerSlot(NonZeroU32::MIN.saturating_add(self.nodes.len() as u32));
            self.nodes.push(TimerNode { due, before: None, after: None, generation: 0, value: Some(value) });
            return TimerKey { slot, generation: 0 };
        };
        let node = &mut self.nodes[slot.index()];
        self.first_free = node.after.take();
        node.due = due;
        node.value = Some(value);
        TimerKey { slot, generation: node.generation }
    }

    /// Reports whether the timer of this key is pending.
    pub(super) fn is_pending(&self, key: TimerKey) -> bool {
        let node = self.nodes.get(key.slot.index());
        node.is_some_and(|node| node.generation == key.generation && node.value.is_some())
    }

    pub(super) fn due(&self, slot: TimerSlot) -> Instant {
        self.nodes[slot.index()].due
    }

    /// Returns the next timer of the list.
    pub(super) fn after(&self, slot: TimerSlot) -> Option<TimerSlot> {
        self.nodes[slot.index()].after
    }

    pub(super) fn append(&mut self, bucket: &mut Bucket, slot: TimerSlot) {
        let before = bucket.last.replace(slot);
        match before {
            Some(before) => self.nodes[before.index()].after = Some(slot),
            None => bucket.first = Some(slot),
        }
        let node = &mut self.nodes[slot.index()];
        node.before = before;
        node.after = None;
    }

    pub(super) fn unlink(&mut self, bucket: &mut Bucket, slot: TimerSlot) {
        let node = &self.nodes[slot.index()];
        let before = node.before;
        let after = node.after;
        match before {
            Some(before) => self.nodes[before.index()].after = after,
            None => bucket.first = after,
        }
        match after {
            Some(after) => self.nodes[after.index()].before = before,
            None => bucket.last = before,
        }
    }

    /// Frees the slot of a timer that has been unlinked from its bucket.
    pub(super) fn remove(&mut self, slot: TimerSlot) -> Option<(Instant, T)> {
        let node = &mut self.nodes[slot.index()];
        let value = node.value.take()?;
        node.generation = node.generation.wrapping_add(1);
        node.after = self.first_free.replace(slot);
        self.len -= 1;
        Some((node.due, value))
    }

    #[cfg(test)]
    pub(super) fn slots(&self) -> usize {
        self.nodes.len()
    }
}
