//! Namespaces of queue names.

use core::fmt;

use evenkeel_policy::account::AccountNumber;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Namespace in which the name of a queue is unique: that of its owner, or the one of queues without an owner.
///
/// Stored as the owner's account number. The descriptors of shared queues, which include all queues of versions without
/// owners, have no such field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Namespace {
    /// The queue has no owner.
    #[default]
    Shared,
    Account(AccountNumber),
}

impl Namespace {
    pub(crate) fn is_shared(&self) -> bool {
        *self == Self::Shared
    }
}

/// Formats the account number, for logs.
impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shared => f.write_str("shared"),
            Self::Account(account) => account.fmt(f),
        }
    }
}

impl Serialize for Namespace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Shared => serializer.serialize_none(),
            Self::Account(account) => serializer.collect_str(account),
        }
    }
}

impl<'de> Deserialize<'de> for Namespace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Option::<String>::deserialize(deserializer)? {
            None => Ok(Self::Shared),
            Some(text) => text.parse().map(Self::Account).map_err(serde::de::Error::custom),
        }
    }
}
