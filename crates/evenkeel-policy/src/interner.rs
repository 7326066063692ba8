//! String interner: maps names to small integers and back, so that inner code compares and indexes by number.
//!
//! Limits: at most `names_max` names are held, each once; the caller bounds their length. A lookup takes O(length) on
//! average, whatever names an adversary sends, because the hash is keyed with a secret that the caller draws.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::Hasher;
#[allow(deprecated, reason = "the only keyed hash that core has; std's is a wrapper around it")]
use core::hash::SipHasher;
use core::marker::PhantomData;

use crate::id::{Id, Key};

/// Marks an empty table entry.
const EMPTY: u32 = u32::MAX;

/// Interner of names, with ids of one kind.
///
/// Ids are dense: a released id is reused before a larger one is created, so tables indexed by id stay as small as the
/// number of names in use. Before releasing an id, the caller must drop everything it stored under that id.
#[derive(Clone, Debug)]
pub struct Interner<I = Key> {
    names: Vec<Option<Box<str>>>,
    free: Vec<u32>,
    /// Hash table with linear probing over a power of two; at most half full.
    table: Vec<Entry>,
    secret: (u64, u64),
    names_max: u32,
    kind: PhantomData<I>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u32,
    key: u32,
}

impl<I: Id> Interner<I> {
    /// Creates an empty interner for at most `names_max` names; `secret` is a random key for the hash.
    pub fn new(names_max: u32, secret: (u64, u64)) -> Self {
        // The largest u32 marks an empty entry and is never a key.
        let names_max = names_max.min(EMPTY - 1);
        Self { names: Vec::new(), free: Vec::new(), table: Vec::new(), secret, names_max, kind: PhantomData }
    }

    /// Returns the id of `name`, creating one if it is new.
    pub fn intern(&mut self, name: &str) -> Result<I, InternerFull> {
        if let Some(key) = self.get(name) {
            return Ok(key);
        }
        if self.len() >= self.names_max as usize {
            return Err(InternerFull { names_max: self.names_max });
        }
        if self.table.len() < 2 * (self.len() + 1) {
            self.grow();
        }
        let key = match self.free.pop() {
            Some(key) => key,
            None => {
                self.names.push(None);
                // `names_max` is a u32 and has not been reached.
                (self.names.len() - 1) as u32
            }
        };
        self.names[key as usize] = Some(name.into());
        let entry = Entry { hash: self.hash(name), key };
        self.insert(entry);
        Ok(I::from_number(key))
    }

    /// Returns the id of a name that was interned.
    pub fn get(&self, name: &str) -> Option<I> {
        self.find(name).map(|index| I::from_number(self.table[index].key))
    }

    /// Returns the name of an id; `None` if the id was released or never created.
    pub fn name(&self, id: I) -> Option<&str> {
        self.names.get(id.number() as usize)?.as_deref()
    }

    /// Releases an id, so that another name can get it; returns `false` if the id has no name.
    pub fn release(&mut self, id: I) -> bool {
        let Some(index) = self.name(id).and_then(|name| self.find(name)) else {
            return false;
        };
        self.names[id.number() as usize] = None;
        self.free.push(id.number());
        self.close_gap(index);
        true
    }

    /// Returns the number of names held.
    pub fn len(&self) -> usize {
        self.names.len() - self.free.len()
    }

    /// Reports whether no name is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn find(&self, name: &str) -> Option<usize> {
        if self.table.is_empty() {
            return None;
        }
        let hash = self.hash(name);
        let mut index = self.home(hash);
        loop {
            let entry = self.table[index];
            if entry.key == EMPTY {
                return None;
            }
            if entry.hash == hash && self.names[entry.key as usize].as_deref() == Some(name) {
                return Some(index);
            }
            index = self.next_index(index);
        }
    }

    fn hash(&self, name: &str) -> u32 {
        #[allow(deprecated, reason = "the only keyed hash that core has")]
        let mut hasher = SipHasher::new_with_keys(self.secret.0, self.secret.1);
        hasher.write(name.as_bytes());
        hasher.finish() as u32
    }

    /// Returns the index at which the search for a hash starts.
    fn home(&self, hash: u32) -> usize {
        hash as usize & (self.table.len() - 1)
    }

    fn next_index(&self, index: usize) -> usize {
        (index + 1) & (self.table.len() - 1)
    }

    fn insert(&mut self, entry: Entry) {
        let mut index = self.home(entry.hash);
        while self.table[index].key != EMPTY {
            index = self.next_index(index);
        }
        self.table[index] = entry;
    }

    fn grow(&mut self) {
        let doubled = vec![Entry { hash: 0, key: EMPTY }; (2 * self.table.len()).max(16)];
        let old = core::mem::replace(&mut self.table, doubled);
        for entry in old {
            if entry.key != EMPTY {
                self.insert(entry);
            }
        }
    }

    /// Removes the entry at `gap` and shifts later entries of the same run back, so that no lookup stops early at a
    /// gap.
    fn close_gap(&mut self, mut gap: usize) {
        let mask = self.table.len() - 1;
        let mut index = self.next_index(gap);
        while self.table[index].key != EMPTY {
            let home = self.home(self.table[index].hash);
            if index.wrapping_sub(gap) & mask <= index.wrapping_sub(home) & mask {
                self.table[gap] = self.table[index];
                gap = index;
            }
            index = self.next_index(index);
        }
        self.table[gap].key = EMPTY;
    }
}

/// Error for a new name when the interner is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all {names_max} names are in use")]
pub struct InternerFull {
    /// Maximum number of names.
    pub names_max: u32,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::TenantId;
    use alloc::string::ToString;

    fn interner(names_max: u32) -> Interner {
        Interner::new(names_max, (1, 2))
    }

    #[test]
    fn a_name_keeps_its_id() {
        let mut names = interner(10);
        assert!(names.is_empty());
        let alice = names.intern("alice").unwrap();
        let bob = names.intern("bob").unwrap();
        assert_ne!(alice, bob);
        assert_eq!(names.intern("alice"), Ok(alice));
        assert_eq!(names.get("bob"), Some(bob));
        assert_eq!(names.name(bob), Some("bob"));
        assert_eq!(names.get("carol"), None);
        assert_eq!(names.len(), 2);
        assert!(!names.is_empty());
    }

    #[test]
    fn a_full_interner_rejects_new_names_and_keeps_the_old_ones() {
        let mut names = interner(1);
        let alice = names.intern("alice").unwrap();
        let error = names.intern("bob").unwrap_err();
        assert_eq!(error.to_string(), "all 1 names are in use");
        assert_eq!(names.intern("alice"), Ok(alice));
    }

    #[test]
    fn a_released_id_is_reused_for_the_next_name() {
        let mut names = interner(2);
        let alice = names.intern("alice").unwrap();
        names.intern("bob").unwrap();
        assert!(names.release(alice));
        assert!(!names.release(alice));
        assert_eq!(names.name(alice), None);
        assert_eq!(names.get("alice"), None);
        assert_eq!(names.intern("carol"), Ok(alice));
    }

    #[test]
    fn the_table_is_at_most_half_full() {
        let mut names = interner(1_000);
        for (count, entries) in [(8, 16), (9, 32), (100, 256)] {
            while names.len() < count {
                names.intern(&names.len().to_string()).unwrap();
            }
            assert_eq!(names.table.len(), entries, "{count} names");
        }
    }

    #[test]
    fn names_with_equal_hashes_are_distinguished() {
        let mut names = interner(10);
        names.intern("alice").unwrap();
        let hash = names.hash("bob");
        let home = names.home(hash);
        names.table[home] = Entry { hash, key: 0 };
        assert_eq!(names.get("bob"), None);
    }

    #[test]
    fn names_spread_over_the_table_depending_on_the_secret() {
        let homes = |secret| {
            let mut names: Interner = Interner::new(100, secret);
            for name in 0..100 {
                names.intern(&name.to_string()).unwrap();
            }
            (0..100).map(|name| names.home(names.hash(&name.to_string()))).collect::<Vec<_>>()
        };
        let mut distinct = homes((1, 2));
        assert_ne!(distinct, homes((3, 4)));
        distinct.sort_unstable();
        distinct.dedup();
        assert!(distinct.len() > 70, "100 names occupy {} of 256 entries", distinct.len());
    }

    #[test]
    fn an_interner_returns_ids_of_its_own_kind() {
        let mut tenants: Interner<TenantId> = Interner::new(10, (1, 2));
        assert_eq!(tenants.intern("acme"), Ok(TenantId(0)));
        assert_eq!(tenants.name(TenantId(0)), Some("acme"));
    }

    #[test]
    fn an_id_that_was_never_created_has_no_name() {
        let mut names = interner(2);
        assert_eq!(names.name(Key(7)), None);
        assert!(!names.release(Key(7)));
    }
}
