//! The name of a mailbox.
//!
//! Bound: an index names one mailbox for as long as its slot has not been reused 2³² times.

use core::fmt;

/// Names a mailbox by its place in the registry and how often that place was reused.
///
/// An index that outlives its mailbox names nothing, whatever is in the slot by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MailboxIndex {
    /// The place in the registry.
    pub slot: u32,
    /// How often the place was given to another mailbox before.
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
