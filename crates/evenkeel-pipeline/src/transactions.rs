//! Shares of transaction places: while tenants compete for the places of a node, each gets its share by weight.
//!
//! A `BeginTx` request holds a transaction place of its node, besides its slot, until it ends. A tenant's share of the
//! places is [`transaction_share`] among the tenants that hold or wait for one.
//!
//! Guarantees: a tenant that holds its share gets no further place while a tenant below its share waits for one that
//! it can use. A place is never left free for a tenant that cannot use it: one at its concurrency limit, or whose
//! requests have all failed on the node, does not count as waiting. Only requests of the same priority compete.
//!
//! Limits: computing the shares of a node is O(tenants that wait for its models + tenants that hold its places).

use std::cmp::Reverse;
use std::collections::BTreeSet;

use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::{RequestKind, transaction_share};
use evenkeel_policy::weight::Weight;

use crate::OptimizedLoadManager;
use crate::accept::{ModelQueueId, Priority};
use crate::pick_node::Node;
use crate::queue::{ModelQueue, TenantEntry, TenantQueue};

/// Tenants that may not begin a transaction on a node, because they hold their share and a tenant below its share waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct AtShare(BTreeSet<(NodeId, TenantId)>);

impl AtShare {
    pub(crate) fn contains(&self, node: NodeId, tenant: TenantId) -> bool {
        self.0.contains(&(node, tenant))
    }
}

/// Division of a node's places among the tenants that hold or wait for one.
#[derive(Clone, Copy, Debug)]
struct PlaceShares {
    places: u32,
    weight_sum_millis: u64,
}

impl PlaceShares {
    fn of(&self, weight: Weight) -> u32 {
        transaction_share(self.places, weight, self.weight_sum_millis)
    }
}

impl OptimizedLoadManager {
    /// Returns the number of transaction places of a node that a tenant holds.
    pub fn transactions_held(&self, node: NodeId, tenant: TenantId) -> u32 {
        self.nodes.get(node).map_or(0, |node| node.transactions.held_by(tenant))
    }

    /// Returns the tenants that hold more transaction places of a node than their share, and the number of places above
    /// it, largest first; empty unless an interactive `BeginTx` request of a tenant below its share waits for the node.
    ///
    /// Meant for an API that ends idle transactions when others need their places.
    pub fn over_share(&self, node: NodeId) -> Vec<(TenantId, u32)> {
        let Some(known) = self.nodes.get(node).filter(|node| node.is_available()) else { return vec![] };
        let Some(shares) = self.contended_shares(node, known, Priority::Interactive) else { return vec![] };
        let excess = |(tenant, held): (TenantId, u32)| {
            let excess = held.saturating_sub(shares.of(self.weight(tenant)));
            (excess > 0).then_some((tenant, excess))
        };
        let mut over: Vec<_> = known.transactions.holders().filter_map(excess).collect();
        over.sort_by_key(|(_, excess)| Reverse(*excess));
        over
    }

    /// Returns the tenants that may not begin a transaction now, for each node with a free place.
    pub(crate) fn tenants_at_share(&self, priority: Priority) -> AtShare {
        let mut at_share = BTreeSet::new();
        for (id, node) in self.nodes.iter() {
            if !node.has_free_slot() || !node.transactions.has_free() {
                continue;
            }
            let Some(shares) = self.contended_shares(id, node, priority) else { continue };
            // A share is at least one place, so a tenant that holds none is never at its share.
            let holders = node.transactions.holders();
            let full = holders.filter(|(tenant, held)| shares.of(self.weight(*tenant)) <= *held);
            at_share.extend(full.map(|(tenant, _)| (id, tenant)));
        }
        AtShare(at_share)
    }

    /// Returns the shares of a node's places; `None` unless a tenant below its share waits while another holds a place.
    fn contended_shares(&self, id: NodeId, node: &Node, priority: Priority) -> Option<PlaceShares> {
        let places = node.transactions.max?;
        let mut tenants: Vec<TenantId> = node.transactions.holders().map(|(tenant, _)| tenant).collect();
        if tenants.is_empty() {
            return None;
        }
        let waiting = self.tenants_waiting_to_begin(id, node, priority);
        tenants.extend(&waiting);
        tenants.sort_unstable();
        tenants.dedup();
        let weight_sum_millis = tenants.iter().map(|tenant| u64::from(self.weight(*tenant).millis())).sum();
        let shares = PlaceShares { places, weight_sum_millis };
        let is_below =
            |tenant: &TenantId| node.transactions.held_by(*tenant) < shares.of(self.weight(*tenant));
        waiting.iter().any(is_below).then_some(shares)
    }

    /// Returns the tenants with a queued `BeginTx` request that the node may serve; one for several models repeats.
    fn tenants_waiting_to_begin(&self, id: NodeId, node: &Node, priority: Priority) -> Vec<TenantId> {
        let tenants = self.wait_queue.tenants();
        let is_untried = |tenant_queue: &TenantQueue| {
            let mut begins = tenant_queue.flows().flat_map(|flow| flow.queued_of(RequestKind::BeginTx));
            begins.any(|request| self.requests.get(request).is_some_and(|record| !record.tried.contains(&id)))
        };
        let queue_ids = node.models().iter().map(|model| ModelQueueId { model: *model, priority });
        queue_ids
            .filter_map(|queue_id| self.wait_queue.queue(queue_id))
            .flat_map(ModelQueue::tenant_queues)
            .filter(|(tenant, _)| !tenants.get(*tenant).is_some_and(TenantEntry::is_capped))
            .filter(|(_, tenant_queue)| is_untried(tenant_queue))
            .map(|(tenant, _)| tenant)
            .collect()
    }

    fn weight(&self, tenant: TenantId) -> Weight {
        self.wait_queue.tenants().rule(tenant).weight
    }
}
