//! Transaction places of a node: the limit on the slots that `BeginTx` requests hold, and the places each tenant holds.
//!
//! Guarantees: the counts are exact. Lowering the limit ends no transaction.

use std::collections::BTreeMap;

use evenkeel_policy::id::TenantId;

#[derive(Clone, Debug)]
pub(crate) struct TransactionPlaces {
    /// `None`: as many as there are slots.
    pub(crate) max: Option<u32>,
    /// Tenants that hold at least one place.
    held: BTreeMap<TenantId, u32>,
    in_use: u32,
}

impl TransactionPlaces {
    pub(super) fn new(max: Option<u32>) -> Self {
        Self { max, held: BTreeMap::new(), in_use: 0 }
    }

    pub(crate) fn has_free(&self) -> bool {
        self.free() > 0
    }

    /// Returns the number of free places; the largest number if only the slots limit them.
    pub(crate) fn free(&self) -> u32 {
        self.max.map_or(u32::MAX, |max| max.saturating_sub(self.in_use))
    }

    pub(super) fn reserve(&mut self, tenant: TenantId) {
        *self.held.entry(tenant).or_default() += 1;
        self.in_use += 1;
    }

    pub(super) fn release(&mut self, tenant: TenantId) {
        let Some(held) = self.held.get_mut(&tenant) else { return };
        *held -= 1;
        self.in_use -= 1;
        if *held == 0 {
            self.held.remove(&tenant);
        }
    }

    pub(crate) fn in_use(&self) -> u32 {
        self.in_use
    }

    pub(crate) fn held_by(&self, tenant: TenantId) -> u32 {
        self.held.get(&tenant).copied().unwrap_or_default()
    }

    /// Returns each tenant that holds a place, and the number of places it holds.
    pub(crate) fn holders(&self) -> impl Iterator<Item = (TenantId, u32)> {
        self.held.iter().map(|(tenant, held)| (*tenant, *held))
    }
}
