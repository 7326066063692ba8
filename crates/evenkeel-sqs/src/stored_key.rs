//! The fairness key under which a message is stored, and the weight of that key's first level.
//!
//! Guarantees: in a queue that a tenant does not own, the first level of a stored key is the tenant's name or covered by its
//! `act_for`; its messages cost at least as much as plain ones, cannot change the weight of a first level, and do not
//! suppress messages of others by their deduplication ids. The exception are FIFO queues that were shared before queues had
//! owners: their groups and deduplication ids span all senders.

use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::message::DEFAULT_KEY;
use evenkeel_queue::store::QueueDescriptor;
use evenkeel_queue::{DeliveryOrder, Namespace};
use evenkeel_server::tenant::{Caller, Tenant};

use crate::access::own_namespace;
use crate::queue_metadata::QueueMetadata;

/// Relation of a sender to the queue that it sends to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender<'a> {
    /// An administrator, or any client of a server without tenants.
    Unrestricted,
    /// The tenant that owns the queue.
    Owner,
    /// A tenant in a queue that it does not own.
    Guest(&'a Tenant),
    /// A tenant in a FIFO queue that was shared before queues had owners. Producers may rely on the order of a group across
    /// senders, and a prefix would let new messages overtake those that already wait in their group.
    LegacyFifoGuest(&'a Tenant),
}

impl<'a> Sender<'a> {
    pub(crate) fn new(caller: &'a Caller, queue: &QueueDescriptor) -> Self {
        match caller {
            Caller::Tenant(tenant) if tenant.is_open() => Self::Unrestricted,
            Caller::Tenant(_) if own_namespace(caller) == queue.namespace => Self::Owner,
            Caller::Tenant(tenant) if is_legacy_fifo(queue) => Self::LegacyFifoGuest(tenant),
            Caller::Tenant(tenant) => Self::Guest(tenant),
            Caller::Admin(_) | Caller::Public => Self::Unrestricted,
        }
    }

    /// Returns the key under which a message is stored; `requested` is the key or group that the client sent.
    pub(crate) fn stored_key(self, requested: Option<&str>) -> StoredKey {
        let key = requested.unwrap_or(DEFAULT_KEY);
        let first_level = match self {
            // The default key names nobody.
            Self::Unrestricted if requested.is_none() => FirstLevel::Label,
            Self::Unrestricted => FirstLevel::MayNameTenant,
            Self::Owner => FirstLevel::Label,
            Self::Guest(tenant) | Self::LegacyFifoGuest(tenant) if tenant.may_act_for(first_level(key)) => {
                FirstLevel::MayNameTenant
            }
            Self::LegacyFifoGuest(_) => FirstLevel::Label,
            Self::Guest(tenant) => {
                let key = format!("{}/{key}", tenant.settings.name).into();
                return StoredKey { key, first_level: FirstLevel::SenderName };
            }
        };
        StoredKey { key: key.into(), first_level }
    }

    /// Returns the cost to charge for a message; for a guest at least the default, so that low costs do not enlarge its share.
    pub(crate) fn cost(self, requested: Option<Cost>) -> Option<Cost> {
        match self {
            Self::Unrestricted | Self::Owner => requested,
            Self::Guest(_) | Self::LegacyFifoGuest(_) => requested.map(|cost| cost.max(Cost::MESSAGE)),
        }
    }

    /// Returns the weight that a message requests for its key; `None` if a guest requests one for a first level, or for a
    /// key of others.
    pub(crate) fn weight(self, requested: Option<Weight>, stored: &StoredKey) -> Option<Weight> {
        match self {
            Self::Unrestricted | Self::Owner => requested,
            Self::Guest(_) | Self::LegacyFifoGuest(_) => {
                let is_own = stored.first_level != FirstLevel::Label && stored.key.contains('/');
                requested.filter(|_| is_own)
            }
        }
    }

    /// Returns the scope of a message's deduplication id, so that a guest cannot suppress messages of others.
    pub(crate) fn dedup_scope(self) -> &'a str {
        match self {
            Self::Guest(tenant) => &tenant.settings.name,
            Self::LegacyFifoGuest(_) | Self::Unrestricted | Self::Owner => "",
        }
    }
}

/// Reports whether a queue is a FIFO queue that is shared although no administrator decided so.
fn is_legacy_fifo(queue: &QueueDescriptor) -> bool {
    queue.settings.order == DeliveryOrder::Fifo
        && queue.namespace == Namespace::Shared
        && !QueueMetadata::read(&queue.metadata).shared_on_purpose
}

/// Meaning of the first level of a stored key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FirstLevel {
    /// It may name the tenant that is charged: the sender may act for it. Messages of earlier versions are treated as such.
    MayNameTenant,
    /// It names no tenant; the sender is charged.
    Label,
    /// It is the sender's name, which was put before the key that the client sent.
    SenderName,
}

/// Key of a stored message, and the meaning of its first level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredKey {
    pub(crate) key: Arc<str>,
    pub(crate) first_level: FirstLevel,
}

/// Returns the part of a fairness key before the first `/`.
pub(crate) fn first_level(key: &str) -> &str {
    key.split('/').next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_server::tenant::{TenantSettings, Tenants};

    fn tenant(name: &str, act_for: &[&str]) -> Arc<Tenant> {
        let act_for = act_for.iter().map(|entry| (*entry).to_owned()).collect();
        let settings = TenantSettings { name: name.to_owned(), act_for, ..TenantSettings::default() };
        Tenants::new(vec![settings], Vec::new()).unwrap().get(name).unwrap().clone()
    }

    /// Returns the key and the meaning of its first level.
    fn stored(sender: Sender<'_>, requested: Option<&str>) -> (String, FirstLevel) {
        let StoredKey { key, first_level } = sender.stored_key(requested);
        (key.to_string(), first_level)
    }

    #[test]
    fn in_a_queue_of_others_a_tenant_uses_its_own_name_and_what_it_may_act_for() {
        let mallory = tenant("mallory", &["acme"]);
        for (requested, key, first_level) in [
            (Some("victim"), "mallory/victim", FirstLevel::SenderName),
            (Some("victim/eu"), "mallory/victim/eu", FirstLevel::SenderName),
            (Some("acmeX"), "mallory/acmeX", FirstLevel::SenderName),
            (Some("*"), "mallory/*", FirstLevel::SenderName),
            (None, "mallory/default", FirstLevel::SenderName),
            (Some("mallory"), "mallory", FirstLevel::MayNameTenant),
            (Some("mallory/eu"), "mallory/eu", FirstLevel::MayNameTenant),
            (Some("acme/eu"), "acme/eu", FirstLevel::MayNameTenant),
        ] {
            assert_eq!(
                stored(Sender::Guest(&mallory), requested),
                (key.to_owned(), first_level),
                "{requested:?}"
            );
        }
        let producer = tenant("producer", &["*"]);
        assert_eq!(
            stored(Sender::Guest(&producer), Some("c-17")),
            ("c-17".to_owned(), FirstLevel::MayNameTenant)
        );
    }

    #[test]
    fn in_its_own_queue_a_tenant_names_keys_freely_but_they_name_no_tenant() {
        assert_eq!(stored(Sender::Owner, Some("victim")), ("victim".to_owned(), FirstLevel::Label));
        assert_eq!(
            stored(Sender::Unrestricted, Some("victim")),
            ("victim".to_owned(), FirstLevel::MayNameTenant)
        );
    }

    #[test]
    fn in_a_queue_of_others_neither_cost_nor_weight_enlarges_the_senders_share() {
        let mallory = tenant("mallory", &["acme"]);
        let guest = Sender::Guest(&mallory);
        let weight = Some(Weight::new(1_000.0).unwrap());
        for (requested, allowed) in [("mallory", None), ("acme", None), ("acme/eu", weight), ("x", weight)] {
            let key = guest.stored_key(Some(requested));
            assert_eq!(guest.weight(weight, &key), allowed, "{requested}");
            assert_eq!(Sender::Owner.weight(weight, &key), weight);
        }
        assert_eq!(guest.cost(Some(Cost(1))), Some(Cost::MESSAGE));
        assert_eq!(guest.cost(Some(Cost(5_000))), Some(Cost(5_000)));
        assert_eq!(guest.cost(None), None);
        assert_eq!(Sender::Owner.cost(Some(Cost(1))), Some(Cost(1)));
    }

    #[test]
    fn a_fifo_queue_shared_before_queues_had_owners_keeps_its_groups_but_they_name_no_tenant() {
        let mallory = tenant("mallory", &[]);
        let guest = Sender::LegacyFifoGuest(&mallory);
        let key = guest.stored_key(Some("victim/eu"));
        assert_eq!(key, StoredKey { key: "victim/eu".into(), first_level: FirstLevel::Label });
        assert_eq!(guest.weight(Some(Weight::ONE), &key), None);
        assert_eq!(guest.dedup_scope(), "");
        assert_eq!(Sender::Guest(&mallory).dedup_scope(), "mallory");
    }

    #[test]
    fn a_message_of_the_administrator_without_a_key_names_no_tenant() {
        assert_eq!(stored(Sender::Unrestricted, None), ("default".to_owned(), FirstLevel::Label));
    }
}
