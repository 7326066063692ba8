//! Intrusive lists of keys, linked through their accounts.
//!
//! Limits: every operation is O(1) and allocates nothing; advancing the cursor writes one word.

use super::account::{KeyAccounts, NIL};

/// Circular doubly linked list of keys; the predecessor of the head is the last key.
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

    pub(super) fn push_back(&mut self, accounts: &mut KeyAccounts, key: u32) {
        if self.head == NIL {
            accounts[key].prev = key;
            accounts[key].next = key;
            self.head = key;
        } else {
            link_before(accounts, key, self.head);
        }
    }

    /// Removes a key that is in this list; if it was the head, its successor becomes the head.
    pub(super) fn remove(&mut self, accounts: &mut KeyAccounts, key: u32) {
        let prev = accounts[key].prev;
        let next = accounts[key].next;
        if next == key {
            self.head = NIL;
            return;
        }
        accounts[prev].next = next;
        accounts[next].prev = prev;
        if self.head == key {
            self.head = next;
        }
    }

    /// Moves every key of another list to the end of this one.
    pub(super) fn append(&mut self, accounts: &mut KeyAccounts, other: &mut Self) {
        let head = self.head;
        let other_head = other.head;
        *other = Self::EMPTY;
        if head == NIL {
            self.head = other_head;
            return;
        }
        if other_head == NIL {
            return;
        }
        let tail = accounts[head].prev;
        let other_tail = accounts[other_head].prev;
        accounts[tail].next = other_head;
        accounts[other_head].prev = tail;
        accounts[other_tail].next = head;
        accounts[head].prev = other_tail;
    }
}

#[cfg(test)]
impl Ring {
    pub(super) fn keys(self, accounts: &KeyAccounts) -> alloc::vec::Vec<u32> {
        let mut keys = alloc::vec::Vec::new();
        let mut next = self.head();
        while let Some(key) = next {
            keys.push(key);
            next = Some(accounts[key].next).filter(|&after| after != self.head);
        }
        keys
    }
}

#[cfg(test)]
impl RoundOrder {
    pub(super) fn keys(self, accounts: &KeyAccounts) -> alloc::vec::Vec<u32> {
        self.order.keys(accounts)
    }
}

/// Keys of a round in the order in which they are visited; the order is the same in every round.
///
/// Keys are sorted by label: a key that joins gets a higher label than all others, and a key that returns from the debt
/// wheel keeps its label.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundOrder {
    /// Starts at the first key of a round.
    order: Ring,
    /// Key being visited; `NIL` after the last key.
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

    /// Adds a key with the highest label, to be visited in this round.
    pub(super) fn push_back(&mut self, accounts: &mut KeyAccounts, key: u32) {
        self.order.push_back(accounts, key);
        if self.cursor == NIL {
            self.cursor = key;
        }
    }

    /// Adds a key that was just visited; its label lies between those around the cursor.
    pub(super) fn insert_visited(&mut self, accounts: &mut KeyAccounts, key: u32) {
        let Some(first) = self.order.head() else {
            self.order.push_back(accounts, key);
            return;
        };
        let next = if self.cursor == NIL { first } else { self.cursor };
        link_before(accounts, key, next);
        if accounts[key].label < accounts[first].label {
            self.order.head = key;
        }
    }

    pub(super) fn remove(&mut self, accounts: &mut KeyAccounts, key: u32) {
        if self.cursor == key {
            self.advance_cursor(accounts);
        }
        self.order.remove(accounts, key);
    }

    /// Advances to the next key.
    pub(super) fn advance_cursor(&mut self, accounts: &KeyAccounts) {
        let next = accounts[self.cursor].next;
        self.cursor = if next == self.order.head { NIL } else { next };
    }

    /// Returns to the first key.
    pub(super) fn restart(&mut self) {
        self.cursor = self.order.head;
    }
}

fn link_before(accounts: &mut KeyAccounts, key: u32, next: u32) {
    let prev = accounts[next].prev;
    accounts[key].prev = prev;
    accounts[key].next = next;
    accounts[prev].next = key;
    accounts[next].prev = key;
}
