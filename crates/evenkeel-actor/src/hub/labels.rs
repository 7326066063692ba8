//! Interned actor labels, and tables indexed by them.
//!
//! Limits: at most `labels_max` labels and `other`; every table has as many rows.

use alloc::boxed::Box;

use evenkeel_policy::id::Id;
use evenkeel_policy::interner::Interner;

/// The ID of a kind of actor: all actors with the same label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KindId(u16);

impl KindId {
    /// The kind of all actors whose label exceeded the limit.
    pub const OTHER: Self = Self(0);

    /// Returns the row in a table by kind.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl Id for KindId {
    fn from_number(number: u32) -> Self {
        // `labels_max` is a u16, and the interner counts from 0.
        Self(number as u16)
    }

    fn number(self) -> u32 {
        u32::from(self.0)
    }
}

/// The interned labels.
#[derive(Debug)]
pub struct Labels {
    names: Interner<KindId>,
    other_used: bool,
}

impl Labels {
    /// The default limit.
    pub const MAX_DEFAULT: u16 = 256;
    /// The label of actors beyond the limit.
    pub const OTHER: &str = "other";

    /// Returns an empty set for `labels_max` labels besides `other`.
    pub fn new(labels_max: u16) -> Self {
        // Labels are few and chosen by the program, so the hash needs no secret key.
        let mut names = Interner::new(u32::from(labels_max) + 1, (0, 0));
        // The capacity is at least one, so this fits and gets `KindId::OTHER`.
        let _ = names.intern(Self::OTHER);
        Self { names, other_used: false }
    }

    /// Returns the kind of a label, interning it if it is new and within the limit.
    pub fn intern(&mut self, label: &str) -> KindId {
        let kind = self.names.intern(label).unwrap_or(KindId::OTHER);
        self.other_used |= kind == KindId::OTHER;
        kind
    }

    /// Returns the label of a kind.
    pub fn label(&self, kind: KindId) -> &str {
        self.names.name(kind).unwrap_or(Self::OTHER)
    }

    /// Iterates over the kinds in use.
    pub fn iter(&self) -> impl Iterator<Item = (KindId, &str)> {
        let first = u32::from(!self.other_used);
        (first..self.names.len() as u32).map(|number| {
            let kind = KindId::from_number(number);
            (kind, self.label(kind))
        })
    }
}

/// A table with a row for every kind that [`Labels`] with the same `labels_max` can return.
#[derive(Clone, Debug)]
pub struct PerKind<T>(Box<[T]>);

impl<T: Default> PerKind<T> {
    /// Returns a table of default rows.
    pub fn new(labels_max: u16) -> Self {
        Self((0..=labels_max).map(|_| T::default()).collect())
    }
}

impl<T> PerKind<T> {
    /// Returns the row of a kind, or the row of [`KindId::OTHER`] if the table has no row for it.
    pub fn get(&self, kind: KindId) -> &T {
        &self.0[self.row(kind)]
    }

    /// Returns the row of a kind, mutably.
    pub fn get_mut(&mut self, kind: KindId) -> &mut T {
        let row = self.row(kind);
        &mut self.0[row]
    }

    fn row(&self, kind: KindId) -> usize {
        if kind.index() < self.0.len() { kind.index() } else { KindId::OTHER.index() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::format;
    use alloc::vec::Vec;

    #[test]
    fn a_label_keeps_its_kind() {
        let mut labels = Labels::new(10);
        let a = labels.intern("Alice");
        let b = labels.intern("Bob");
        assert_ne!(a, b);
        assert_eq!(labels.intern("Alice"), a);
        assert_eq!((labels.label(a), labels.label(b)), ("Alice", "Bob"));
        assert_eq!(listed(&labels), ["Alice", "Bob"]);
    }

    #[test]
    fn past_the_limit_every_new_label_is_other() {
        let mut labels = Labels::new(2);
        let known = [labels.intern("a"), labels.intern("b")];
        assert!(!known.contains(&KindId::OTHER));
        for late in ["c", "d", "e"] {
            assert_eq!(labels.intern(late), KindId::OTHER);
        }
        assert_eq!(known, [labels.intern("a"), labels.intern("b")], "known labels keep their kind");
        assert_eq!(listed(&labels), ["other", "a", "b"]);
    }

    #[test]
    fn an_actor_may_be_called_other() {
        let mut labels = Labels::new(2);
        assert_eq!(labels.intern("other"), KindId::OTHER);
        assert_eq!(listed(&labels), ["other"]);
    }

    #[test]
    fn the_default_limit_is_256_labels() {
        let mut labels = Labels::new(Labels::MAX_DEFAULT);
        let interned = (0..300).filter(|number| labels.intern(&format!("{number}")) != KindId::OTHER);
        assert_eq!(interned.count(), 256);
    }

    #[test]
    fn the_largest_table_has_a_row_for_the_last_label() {
        let mut table: PerKind<u8> = PerKind::new(u16::MAX);
        *table.get_mut(KindId(u16::MAX)) = 7;
        assert_eq!((*table.get(KindId(u16::MAX)), *table.get(KindId::OTHER)), (7, 0));
    }

    #[test]
    fn a_kind_without_a_row_counts_as_other() {
        let mut table: PerKind<u8> = PerKind::new(1);
        *table.get_mut(KindId(2)) = 7;
        assert_eq!((*table.get(KindId::OTHER), *table.get(KindId(1))), (7, 0));
    }

    fn listed(labels: &Labels) -> Vec<&str> {
        labels.iter().map(|(_, label)| label).collect()
    }
}
