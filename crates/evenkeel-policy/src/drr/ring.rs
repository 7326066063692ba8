//! A ring of keys, linked through the slots themselves.
//!
//! Bound: every operation is O(1) and allocates nothing; turning the ring writes one word.

use super::slot::{NIL, Slots};

/// A circular list of slots; `head` is the next in turn, the one before it the last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    head: u32,
}

impl Ring {
    pub(super) const EMPTY: Self = Self { head: NIL };

    pub(super) fn head(self) -> Option<u32> {
        if self.head == NIL { None } else { Some(self.head) }
    }

    pub(super) fn is_empty(self) -> bool {
        self.head == NIL
    }

    pub(super) fn push_back(&mut self, slots: &mut Slots, key: u32) {
        if self.head == NIL {
            slots[key].prev = key;
            slots[key].next = key;
            self.head = key;
            return;
        }
        let head = self.head;
        let tail = slots[head].prev;
        slots[key].prev = tail;
        slots[key].next = head;
        slots[tail].next = key;
        slots[head].prev = key;
    }

    /// Takes out a key that is in this ring; if it was the head, the one after it is now.
    pub(super) fn remove(&mut self, slots: &mut Slots, key: u32) {
        let (prev, next) = (slots[key].prev, slots[key].next);
        if next == key {
            self.head = NIL;
            return;
        }
        slots[prev].next = next;
        slots[next].prev = prev;
        if self.head == key {
            self.head = next;
        }
    }

    /// Makes the head the last.
    pub(super) fn turn(&mut self, slots: &Slots) {
        if self.head != NIL {
            self.head = slots[self.head].next;
        }
    }
}
