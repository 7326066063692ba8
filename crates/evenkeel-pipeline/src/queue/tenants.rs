//! Tenants: rules, requests in flight, and the model queues in which each has a DRR account.
//!
//! Limits: one entry per tenant id up to the highest seen, below `tenants_max`.

use std::collections::BTreeSet;

use evenkeel_policy::class::Class;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::weight::Weight;

use crate::accept::{Arrival, ModelQueueId, Priority};
use crate::budget::{Budget, BudgetRule};

/// Weight and concurrency limit of a tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantRule {
    /// Share relative to the other tenants.
    pub weight: Weight,
    /// Maximum number of requests in flight; at 0 all requests wait.
    pub concurrency_max: u32,
}

/// Weight 1 and no concurrency limit.
impl Default for TenantRule {
    fn default() -> Self {
        Self { weight: Weight::ONE, concurrency_max: u32::MAX }
    }
}

/// State of one tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantEntry {
    pub(crate) rule: TenantRule,
    pub(crate) in_flight: u32,
    /// Charges of its requests in flight.
    pub(crate) in_flight_cost: Cost,
    /// Total cost of its finished interactive requests and of their failed attempts, by class number.
    pub(crate) served: [Cost; Class::COUNT],
    /// The same for its background requests.
    pub(crate) served_background: Cost,
    /// Model queues in which it has ever been active.
    pub(crate) queues: BTreeSet<ModelQueueId>,
    /// Its part of the retry budget; `None` before its first request is sent.
    retries: Option<Box<Budget>>,
}

impl TenantEntry {
    /// Returns its part of the retry budget.
    pub(crate) fn retries(&mut self, rule: BudgetRule) -> &mut Budget {
        self.retries.get_or_insert_with(|| Box::new(Budget::new(rule)))
    }

    pub(crate) fn is_capped(&self) -> bool {
        self.in_flight >= self.rule.concurrency_max
    }

    /// Adds to the total cost of the requests of the same class.
    pub(crate) fn add_served(&mut self, arrival: &Arrival, cost: Cost) {
        match arrival.priority {
            Priority::Interactive => self.served[arrival.flow.class.index()] += cost,
            Priority::Background => self.served_background += cost,
        }
    }
}

/// All tenants seen so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tenants(Vec<TenantEntry>);

impl Tenants {
    pub(crate) fn get(&self, tenant: TenantId) -> Option<&TenantEntry> {
        self.0.get(tenant.index())
    }

    /// Returns the tenant's entry, creating it if needed; the id must be below the limit.
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
