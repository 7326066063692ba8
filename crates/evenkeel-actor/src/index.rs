//! Generational index of a mailbox.
//!
//! Guarantees: an index identifies one mailbox until its slot has been reused 2³² times.

use core::fmt;

/// Generational index of a mailbox: its slot in the registry, and how often the slot was reused.
///
/// An index that outlives its mailbox finds nothing, even if the slot has a new occupant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MailboxIndex {
    /// The slot in the registry.
    pub slot: u32,
    /// The number of earlier occupants of the slot.
    pub generation: u32,
}

impl fmt::Display for MailboxIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.slot, self.generation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_index_reads_as_slot_and_generation() {
        assert_eq!(MailboxIndex { slot: 7, generation: 2 }.to_string(), "7.2");
    }
}
