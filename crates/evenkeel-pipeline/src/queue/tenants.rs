//! What is known of the tenants: their rules, what they have in flight, and in which rings they have accounts.
//!
//! Bound: one entry per tenant id up to the highest met, below `tenants_max`.

use std::collections::BTreeSet;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::weight::Weight;

use crate::accept::ModelQueueId;

/// What a tenant may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRule {
    /// Its share beside the others.
    pub weight: Weight,
    /// How many of its requests may be on nodes at once; at 0 all of them wait.
    pub concurrency_max: u32,
}

/// Weight 1 and no cap.
impl Default for TenantRule {
    fn default() -> Self {
        Self { weight: Weight::ONE, concurrency_max: u32::MAX }
    }
}

/// One tenant's figures.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantEntry {
    pub(crate) rule: TenantRule,
    pub(crate) in_flight: u32,
    /// What its requests on nodes are charged.
    pub(crate) in_flight_cost: Cost,
    /// What its ended requests cost.
    pub(crate) served: Cost,
    /// The lines in whose rings it has ever had a turn coming.
    pub(crate) rings: BTreeSet<ModelQueueId>,
}

impl TenantEntry {
    pub(crate) fn is_capped(&self) -> bool {
        self.rule.concurrency_max <= self.in_flight
    }
}

/// Every tenant met so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenants(Vec<TenantEntry>);

impl Tenants {
    pub(crate) fn get(&self, tenant: TenantId) -> Option<&TenantEntry> {
        self.0.get(tenant.index())
    }

    /// The tenant's entry; the id is known to be below the limit.
    pub(crate) fn entry(&mut self, tenant: TenantId) -> &mut TenantEntry {
        if self.0.len() <= tenant.index() {
            self.0.resize_with(tenant.index() + 1, TenantEntry::default);
        }
        &mut self.0[tenant.index()]
    }

    pub(crate) fn rule(&self, tenant: TenantId) -> TenantRule {
        self.get(tenant).map_or_else(TenantRule::default, |tenant| tenant.rule)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TenantId, &TenantEntry)> {
        (0..).map(TenantId).zip(&self.0)
    }
}
