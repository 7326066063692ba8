//! Identifiers: small integers, one type per kind of object.
//!
//! Ids are dense (they index tables) and carry no text; [`interner`](crate::interner) maps them to text.

/// Identifier of one kind of object, such as tenants or nodes.
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
    /// Id of a tenant, the account that requests are charged to.
    TenantId
}
id! {
    /// Id of a fairness key: one flow of a scheduler, usually a tenant or a group of messages within a tenant.
    Key
}
id! {
    /// Id of a node, which serves requests.
    NodeId
}
id! {
    /// Id of a peer: another gateway that serves the same database.
    PeerId
}
id! {
    /// Id of a path, one of the network routes to a node.
    PathId
}
id! {
    /// Id of a model, a database, or anything else that determines which nodes can serve a request.
    ModelId
}

/// Id of a request; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);
