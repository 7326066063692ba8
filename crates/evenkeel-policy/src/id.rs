//! Names for what is counted, queued and chosen: small integers, one type per kind of thing.
//!
//! Ids are dense (they index tables) and carry no text; [`interner`](crate::interner) keeps the text.

/// A number that names one kind of thing.
pub trait Id: Copy {
    /// Names the thing with this number.
    fn from_number(number: u32) -> Self;
    /// The number of the thing.
    fn number(self) -> u32;
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The place of this id in a table that has one entry per id.
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
    /// A tenant: who asks, who is charged, whose weight counts.
    TenantId
}
id! {
    /// A fairness key: one lane of a scheduler, usually a tenant or a tenant's subkey.
    Key
}
id! {
    /// A node: something with slots that does the work.
    NodeId
}
id! {
    /// A path: one way to a node.
    PathId
}
id! {
    /// A model, a database, or anything else that decides which nodes can serve a request; the caller numbers them.
    ModelId
}

/// One request, from its arrival to its end; an id is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);
