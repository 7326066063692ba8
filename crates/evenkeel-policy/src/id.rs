//! Identifiers: small integers, one type per kind of thing.
//!
//! Ids are dense (they index tables) and carry no text; [`interner`](crate::interner) maps them to text.

/// Number that identifies one kind of thing.
pub trait Id: Copy {
    /// Creates the id with this number.
    fn from_number(number: u32) -> Self;
    /// Returns the id's number.
    fn number(self) -> u32;
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the index of this id in a table with one entry per id.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl Id for $name {
            fn from_number(number: u32) -> Self {
                Self(number)
            }

            fn number(self) -> u32 {
                self.0
            }
        }
    };
}

id! {
    /// Tenant: sends the requests, is charged for them, and has a weight.
    TenantId
}
id! {
    /// Fairness key: one queue of a scheduler, usually a tenant or a tenant's subkey.
    Key
}
id! {
    /// Node: does the work, in a number of slots.
    NodeId
}
id! {
    /// Path: one way to reach a node.
    PathId
}
