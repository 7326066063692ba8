//! The requests that wait, and whose turn it is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{Lane, Settlement, TenantDrr};
use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::weight::Weight;

use crate::scenario::Order;
use crate::world::SimError;

/// More tenants and keys than any scenario has.
const KEYS_MAX: u32 = 1 << 20;

/// A request on its way through the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Waiting {
    pub(crate) ticket: u32,
    pub(crate) tenant: TenantId,
    pub(crate) key: Key,
}

/// One lane per key, and the scheduler that chooses among them.
pub(crate) struct Lanes {
    order: Order,
    drr: TenantDrr,
    lanes: BTreeMap<Key, VecDeque<Waiting>>,
    /// Every waiting request, oldest first.
    all: BTreeSet<Waiting>,
    parked: BTreeSet<Key>,
}

impl Lanes {
    pub(crate) fn new(order: Order, quantum: Cost) -> Result<Self, SimError> {
        let drr = TenantDrr::new(quantum, KEYS_MAX)?;
        Ok(Self { order, drr, lanes: BTreeMap::new(), all: BTreeSet::new(), parked: BTreeSet::new() })
    }

    pub(crate) fn len(&self) -> usize {
        self.all.len()
    }

    pub(crate) fn push(&mut self, request: Waiting, tenant_weight: Weight) -> Result<(), SimError> {
        self.lanes.entry(request.key).or_default().push_back(request);
        self.all.insert(request);
        let Waiting { tenant, key, .. } = request;
        let lane = Lane { tenant, tenant_weight, key, weight: Weight::ONE };
        if self.parked.contains(&key) {
            self.drr.add_parked(lane)?;
        } else {
            self.drr.add_key(lane)?;
        }
        Ok(())
    }

    /// Takes the request whose turn it is and charges its key.
    pub(crate) fn pop(&mut self, estimate: impl Fn(TenantId) -> Cost) -> Option<Waiting> {
        let key = match self.order {
            Order::Drr => self.drr.next_key()?.key,
            Order::Fifo => self.all.iter().find(|request| !self.parked.contains(&request.key))?.key,
        };
        let request = self.lanes.get_mut(&key)?.pop_front()?;
        self.drr.consume_deficit(key, estimate(request.tenant));
        self.forget(request);
        Some(request)
    }

    /// Names the newest request of a tenant.
    pub(crate) fn newest(&self, tenant: TenantId) -> Option<Waiting> {
        self.all.iter().rev().find(|request| request.tenant == tenant).copied()
    }

    /// Takes out a tenant's newest request, which is the last of its lane.
    pub(crate) fn remove_newest(&mut self, request: Waiting) {
        if let Some(lane) = self.lanes.get_mut(&request.key) {
            lane.pop_back();
        }
        self.forget(request);
    }

    pub(crate) fn settle(&mut self, key: Key, estimate: Cost, actual: Cost) {
        self.drr.settle(key, estimate, actual, Settlement::Final);
    }

    pub(crate) fn update_weight(&mut self, tenant: TenantId, weight: Weight) {
        self.drr.update_tenant_weight(tenant, weight);
    }

    pub(crate) fn park(&mut self, key: Key) {
        self.parked.insert(key);
        self.drr.park(key);
    }

    /// Wakes a key; `false` when it was not parked.
    pub(crate) fn wake(&mut self, key: Key) -> bool {
        self.drr.wake(key);
        self.parked.remove(&key)
    }

    /// Tells whether anybody waits who may be served, by counting rather than by asking the scheduler.
    pub(crate) fn somebody_could_be_served(&self) -> bool {
        self.all.iter().any(|request| !self.parked.contains(&request.key))
    }

    /// Notes that a request has left its lane.
    fn forget(&mut self, request: Waiting) {
        self.all.remove(&request);
        if self.lanes.get(&request.key).is_none_or(VecDeque::is_empty) {
            self.drr.remove_key(request.key);
        }
    }
}
