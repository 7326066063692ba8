//! Fairness keys of messages: under which key a message is filed, and whose tenant its first level may name.
//!
//! Guarantees: a key is a label that authorises nothing. In a queue of others, a tenant files messages under its own name or
//! under first levels that its `act_for` covers; there, its messages cost at least as much as plain ones, and cannot change
//! the weight of a first level.

use std::sync::Arc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::weight::Weight;
use evenkeel_queue::DeliveryOrder;
use evenkeel_queue::message::DEFAULT_KEY;
use evenkeel_queue::store::QueueDescriptor;
use evenkeel_server::tenant::{Caller, Tenant};

use crate::access::home_of;

/// Relation of a sender to the queue that it sends to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Sender<'a> {
    /// An administrator, or any client of a server without tenants.
    Unrestricted,
    /// The tenant that owns the queue.
    Owner,
    /// A tenant in a shared queue, or in a queue of another tenant.
    Guest(&'a Tenant),
}

impl<'a> Sender<'a> {
    pub(crate) fn new(caller: &'a Caller, queue: &QueueDescriptor) -> Self {
        match caller {
            Caller::Tenant(tenant) if tenant.is_open() => Self::Unrestricted,
            Caller::Tenant(_) if home_of(caller) == queue.namespace => Self::Owner,
            Caller::Tenant(tenant) => Self::Guest(tenant),
            Caller::Admin | Caller::Public => Self::Unrestricted,
        }
    }

    /// Returns the key under which a message is filed; `requested` is the key or group that the client sent.
    ///
    /// A FIFO queue keeps the group, because it is the unit of order across all senders. There it is a label.
    pub(crate) fn file(self, order: DeliveryOrder, requested: Option<&str>) -> FiledKey {
        let key = requested.unwrap_or(DEFAULT_KEY);
        let filing = match self {
            Self::Unrestricted => Filing::Trusted,
            Self::Owner => Filing::Label,
            Self::Guest(tenant) if tenant.may_act_for(first_level(key)) => Filing::Trusted,
            Self::Guest(_) if order == DeliveryOrder::Fifo => Filing::Label,
            Self::Guest(tenant) => {
                let key = format!("{}/{key}", tenant.settings.name).into();
                return FiledKey { key, filing: Filing::UnderSender };
            }
        };
        FiledKey { key: key.into(), filing }
    }

    /// Returns the cost to charge for a message: a guest cannot buy a larger share by cheap messages.
    pub(crate) fn cost(self, requested: Option<Cost>) -> Option<Cost> {
        match self {
            Self::Unrestricted | Self::Owner => requested,
            Self::Guest(_) => requested.map(|cost| cost.max(Cost::MESSAGE)),
        }
    }

    /// Returns the weight that a message requests for its key; a guest cannot change that of a first level.
    pub(crate) fn weight(self, requested: Option<Weight>, filed: &FiledKey) -> Option<Weight> {
        match self {
            Self::Unrestricted | Self::Owner => requested,
            Self::Guest(_) => requested.filter(|_| filed.key.contains('/')),
        }
    }

    /// Returns the scope of a message's deduplication id, so that a guest cannot suppress messages of others.
    ///
    /// FIFO queues deduplicate across senders, as at AWS.
    pub(crate) fn dedup_scope(self, order: DeliveryOrder) -> &'a str {
        match self {
            Self::Guest(tenant) if order == DeliveryOrder::Fair => &tenant.settings.name,
            Self::Guest(_) | Self::Unrestricted | Self::Owner => "",
        }
    }
}

/// Meaning of the first level of a message's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filing {
    /// It may name the tenant that answers for the message: the sender was allowed to act for it. Messages that earlier
    /// versions stored count as such.
    Trusted,
    /// It is only a label; the sender answers for the message.
    Label,
    /// It is the sender's name, which the API put before the key that the client sent.
    UnderSender,
}

/// A message's key, and the meaning of its first level.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FiledKey {
    pub(crate) key: Arc<str>,
    pub(crate) filing: Filing,
}

/// Returns the part of a fairness key that names a tenant.
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
    fn filed(sender: Sender<'_>, requested: Option<&str>) -> (String, Filing) {
        let FiledKey { key, filing } = sender.file(DeliveryOrder::Fair, requested);
        (key.to_string(), filing)
    }

    #[test]
    fn in_a_queue_of_others_a_tenant_uses_its_own_name_and_what_it_may_act_for() {
        let mallory = tenant("mallory", &["acme"]);
        for (requested, key, filing) in [
            (Some("victim"), "mallory/victim", Filing::UnderSender),
            (Some("victim/eu"), "mallory/victim/eu", Filing::UnderSender),
            (Some("acmeX"), "mallory/acmeX", Filing::UnderSender),
            (Some("*"), "mallory/*", Filing::UnderSender),
            (None, "mallory/default", Filing::UnderSender),
            (Some("mallory"), "mallory", Filing::Trusted),
            (Some("mallory/eu"), "mallory/eu", Filing::Trusted),
            (Some("acme/eu"), "acme/eu", Filing::Trusted),
        ] {
            assert_eq!(filed(Sender::Guest(&mallory), requested), (key.to_owned(), filing), "{requested:?}");
        }
        let producer = tenant("producer", &["*"]);
        assert_eq!(filed(Sender::Guest(&producer), Some("c-17")), ("c-17".to_owned(), Filing::Trusted));
    }

    #[test]
    fn in_its_own_queue_a_tenant_names_keys_freely_but_they_name_no_tenant() {
        assert_eq!(filed(Sender::Owner, Some("victim")), ("victim".to_owned(), Filing::Label));
        assert_eq!(filed(Sender::Unrestricted, Some("victim")), ("victim".to_owned(), Filing::Trusted));
    }

    #[test]
    fn in_a_queue_of_others_neither_cost_nor_weight_enlarges_the_senders_share() {
        let mallory = tenant("mallory", &["acme"]);
        let guest = Sender::Guest(&mallory);
        let weight = Some(Weight::new(1_000.0).unwrap());
        for (requested, allowed) in [("mallory", None), ("acme", None), ("acme/eu", weight), ("x", weight)] {
            let filed = guest.file(DeliveryOrder::Fair, Some(requested));
            assert_eq!(guest.weight(weight, &filed), allowed, "{requested}");
            assert_eq!(Sender::Owner.weight(weight, &filed), weight);
        }
        assert_eq!(guest.cost(Some(Cost(1))), Some(Cost::MESSAGE));
        assert_eq!(guest.cost(Some(Cost(5_000))), Some(Cost(5_000)));
        assert_eq!(guest.cost(None), None);
        assert_eq!(Sender::Owner.cost(Some(Cost(1))), Some(Cost(1)));
    }

    #[test]
    fn a_fifo_queue_keeps_the_group_but_it_names_no_tenant() {
        let mallory = tenant("mallory", &[]);
        let filed = Sender::Guest(&mallory).file(DeliveryOrder::Fifo, Some("victim"));
        assert_eq!(filed, FiledKey { key: "victim".into(), filing: Filing::Label });
    }
}
