//! Lists of keys, linked through the slots themselves.
//!
//! Bound: every operation is O(1) and allocates nothing; turning a ring writes one word.

use super::account::{KeyAccounts, NIL};

/// A circular list of slots; the one before the head is the last.
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

    pub(super) fn push_back(&mut self, slots: &mut KeyAccounts, key: u32) {
        if self.head == NIL {
            slots[key].prev = key;
            slots[key].next = key;
            self.head = key;
        } else {
            link_before(slots, key, self.head);
        }
    }

    /// Takes out a key that is in this ring; if it was the head, the one after it is now.
    pub(super) fn remove(&mut self, slots: &mut KeyAccounts, key: u32) {
        let prev = slots[key].prev;
        let next = slots[key].next;
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

    /// Moves every key of another list behind those of this one.
    pub(super) fn append(&mut self, slots: &mut KeyAccounts, other: &mut Self) {
        let (head, other_head) = (self.head, other.head);
        *other = Self::EMPTY;
        if head == NIL {
            self.head = other_head;
            return;
        }
        if other_head == NIL {
            return;
        }
        let tail = slots[head].prev;
        let other_tail = slots[other_head].prev;
        slots[tail].next = other_head;
        slots[other_head].prev = tail;
        slots[other_tail].next = head;
        slots[head].prev = other_tail;
    }
}

#[cfg(test)]
impl Ring {
    pub(super) fn keys(self, slots: &KeyAccounts) -> alloc::vec::Vec<u32> {
        let mut keys = alloc::vec::Vec::new();
        let mut next = self.head();
        while let Some(key) = next {
            keys.push(key);
            next = Some(slots[key].next).filter(|&after| after != self.head);
        }
        keys
    }
}

#[cfg(test)]
impl RoundOrder {
    pub(super) fn keys(self, slots: &KeyAccounts) -> alloc::vec::Vec<u32> {
        self.order.keys(slots)
    }
}

/// The keys of a round in the order they are visited, which stays the same from round to round.
///
/// Keys are sorted by their label: whoever joins gets a higher one, and who comes back from the calendar keeps the
/// place it had.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundOrder {
    /// Its head is the first key of a round.
    order: Ring,
    /// The key being visited; none past the last.
    cursor: u32,
}

impl RoundOrder {
    pub(super) const EMPTY: Self = Self { order: Ring::EMPTY, cursor: NIL };

    pub(super) fn cursor(self) -> Option<u32> {
        if self.cursor == NIL { None } else { Some(self.cursor) }
    }

    pub(super) fn is_empty(self) -> bool {
        self.order.is_empty()
    }

    /// Adds a key that this round still visits, with a label above all others.
    pub(super) fn push_back(&mut self, slots: &mut KeyAccounts, key: u32) {
        self.order.push_back(slots, key);
        if self.cursor == NIL {
            self.cursor = key;
        }
    }

    /// Adds a key that was just visited, with a label between the keys around the cursor.
    pub(super) fn insert_visited(&mut self, slots: &mut KeyAccounts, key: u32) {
        let Some(first) = self.order.head() else {
            self.order.push_back(slots, key);
            return;
        };
        let next = if self.cursor == NIL { first } else { self.cursor };
        link_before(slots, key, next);
        if slots[key].label < slots[first].label {
            self.order.head = key;
        }
    }

    pub(super) fn remove(&mut self, slots: &mut KeyAccounts, key: u32) {
        if self.cursor == key {
            self.turn(slots);
        }
        self.order.remove(slots, key);
    }

    /// Goes on to the next key.
    pub(super) fn turn(&mut self, slots: &KeyAccounts) {
        let next = slots[self.cursor].next;
        self.cursor = if next == self.order.head { NIL } else { next };
    }

    /// Goes back to the first key.
    pub(super) fn restart(&mut self) {
        self.cursor = self.order.head;
    }
}

fn link_before(slots: &mut KeyAccounts, key: u32, next: u32) {
    let prev = slots[next].prev;
    slots[key].prev = prev;
    slots[key].next = next;
    slots[prev].next = key;
    slots[next].prev = key;
}
