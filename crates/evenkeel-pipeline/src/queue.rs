//! Queue: whose turn it is, for each model by a ring of its own.
//!
//! Bounds: within a ring the bounds of [`drr`](evenkeel_policy::drr) hold between tenants; a ring is touched only for
//! its own model's nodes, so one that nobody serves delays no other. A tenant's debt follows it: what it left in a ring
//! where it has nothing waiting counts in the ring where it has.

mod busy_throughput;
mod charge_ahead;
mod model_queue;
mod tenants;

use std::collections::BTreeMap;

use evenkeel_policy::backpressure::{Admission, BackpressureController, TooManyTenants};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{DrrConfig, DrrScheduler, KeyStatus, NewKey, Settlement};
use evenkeel_policy::id::{Key, TenantId};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::{Duration, Instant};

pub(crate) use model_queue::ModelQueue;
pub use tenants::TenantRule;
pub(crate) use tenants::{TenantEntry, Tenants};

use crate::accept::{Arrival, ModelId, ModelQueueId, Priority, RequestId, RequestRecord};
use crate::admit::AdmissionControl;
use crate::options::PipelineOptions;
use busy_throughput::BusyThroughput;

/// A round gives this part of a usual request's cost: what is charged when a request is sent may be much less than it
/// will cost, and a turn must not last for several of those.
const ROUNDS_PER_QUANTUM: u64 = 20;

/// Everything that waits, by model and tenant.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue {
    rings: BTreeMap<ModelQueueId, ModelQueue>,
    tenants: Tenants,
    /// What a new ring starts as.
    fresh: (DrrScheduler, AdmissionControl),
}

/// The end of a lane at which a request is put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    /// Before the others: it has been in turn once.
    Front,
    /// Behind the others.
    Back,
}

impl WaitQueue {
    pub(crate) fn new(
        options: &PipelineOptions,
        controller: BackpressureController,
    ) -> Result<Self, SettingOutOfRange> {
        let tenants_max = options.limits.tenants_max;
        let quantum = Cost(options.quantum.0.div_ceil(ROUNDS_PER_QUANTUM));
        let config = DrrConfig { quantum, new_key: NewKey::First, keys_max: tenants_max };
        let fresh =
            (DrrScheduler::new(config)?, AdmissionControl::new(options.admit, controller, tenants_max));
        Ok(Self { rings: BTreeMap::new(), tenants: Tenants::default(), fresh })
    }

    /// Lets time pass for every ring's rate.
    pub(crate) fn advance_time(&mut self, now: Instant) {
        self.rings.values_mut().for_each(|ring| ring.pass(now));
    }

    /// How long the tenant's next request waits behind what it has queued for the model.
    pub(crate) fn expected_wait(&self, line: ModelQueueId, tenant: TenantId) -> Option<Duration> {
        self.rings.get(&line)?.expected_wait(tenant, self.tenants.rule(tenant).weight)
    }

    /// Decides on an arrival by the places of its model, which has a ring from then on.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        line: ModelQueueId,
        tenant: TenantId,
    ) -> Result<Admission, TooManyTenants> {
        let (drr, places) = &self.fresh;
        let fresh = || ModelQueue::new(drr.clone(), places.clone(), BusyThroughput::new(now));
        // A model is told of by the ring of those who wait for it.
        self.rings.entry(ModelQueueId { urgency: Priority::Interactive, ..line }).or_insert_with(fresh);
        let ring = self.rings.entry(line).or_insert_with(fresh);
        let weight = self.tenants.rule(tenant).weight;
        match line.urgency {
            Priority::Interactive => ring.places.admit(tenant, weight),
            Priority::Background => ring.places.admit_background(tenant, weight),
        }
    }

    /// Takes a place for a request that comes back from a node; `false` when there is none.
    pub(crate) fn rejoin(&mut self, line: ModelQueueId, tenant: TenantId) -> bool {
        let weight = self.tenants.rule(tenant).weight;
        self.rings.get_mut(&line).is_some_and(|ring| match line.urgency {
            Priority::Interactive => ring.places.readmit(tenant, weight),
            Priority::Background => ring.places.admit_background(tenant, weight).is_ok(),
        })
    }

    /// Gives back the place of a request that waits no more.
    pub(crate) fn release_place(&mut self, line: ModelQueueId, tenant: TenantId) {
        if let Some(ring) = self.rings.get_mut(&line) {
            ring.places.leave(tenant);
        }
    }

    /// Notes a request that has its place and does not take turns yet.
    pub(crate) fn add_waiting(&mut self, request: RequestId, ticket: &RequestRecord) {
        if let Some(ring) = self.rings.get_mut(&ticket.arrival.line()) {
            ring.join(request, ticket);
        }
    }

    /// Puts a request that has joined into its lane; its tenant takes turns from then on.
    pub(crate) fn enqueue(&mut self, request: RequestId, ticket: &RequestRecord, end: QueueEnd) {
        let line = ticket.arrival.line();
        let tenant = ticket.arrival.tenant;
        let Some(ring) = self.rings.get_mut(&line) else { return };
        let begins = ring.enter(request, tenant, end);
        if begins {
            self.activate_tenant(line, tenant);
        }
    }

    /// Takes a request out of everything but its place.
    pub(crate) fn leave(&mut self, request: RequestId, ticket: &RequestRecord) {
        if let Some(ring) = self.rings.get_mut(&ticket.arrival.line()) {
            ring.leave(request, ticket);
        }
    }

    /// Charges a tenant whose turn it is for a request that gets a slot, and returns how much.
    pub(crate) fn charge(&mut self, arrival: &Arrival) -> Cost {
        let Arrival { tenant, cost, upfront, .. } = *arrival;
        let mut charged = cost;
        if let Some(ring) = self.rings.get_mut(&arrival.line()) {
            let upfront = upfront.min(cost);
            ring.horizon.note(cost - upfront);
            charged = ring.horizon.charge(upfront, cost);
            ring.drr.consume_deficit(key(tenant), charged);
        }
        let entry = self.tenants.entry(tenant);
        entry.in_flight += 1;
        entry.in_flight_cost += charged;
        if entry.is_capped() {
            self.apply_cap(tenant);
        }
        charged
    }

    /// Raises the charge of a request that goes on and has cost `actual` so far, and returns it.
    pub(crate) fn raise(&mut self, arrival: &Arrival, charged: Cost, actual: Cost) -> Cost {
        let Arrival { tenant, cost, .. } = *arrival;
        let line = arrival.line();
        let due = self.rings.get(&line).map_or(actual, |ring| ring.horizon.charge(actual, cost));
        let raised = self.correct(line, tenant, (charged, due), Settlement::Running);
        let entry = self.tenants.entry(tenant);
        entry.in_flight_cost = entry.in_flight_cost - charged + raised;
        raised
    }

    /// Settles a request that gives its slot back.
    pub(crate) fn settle(&mut self, line: ModelQueueId, tenant: TenantId, charged: Cost, actual: Cost) {
        self.correct(line, tenant, (charged, actual), Settlement::Final);
        let entry = self.tenants.entry(tenant);
        let was_capped = entry.is_capped();
        entry.in_flight -= 1;
        entry.in_flight_cost = entry.in_flight_cost - charged;
        entry.served += actual;
        if was_capped {
            self.apply_cap(tenant);
        }
        if let Some(ring) = self.rings.get_mut(&line) {
            ring.complete(actual);
        }
    }

    fn correct(
        &mut self,
        line: ModelQueueId,
        tenant: TenantId,
        (charged, actual): (Cost, Cost),
        how: Settlement,
    ) -> Cost {
        let Some(ring) = self.rings.get_mut(&line) else { return charged };
        let settled = ring.drr.settle(key(tenant), charged, actual, how);
        if ring.drr.key_status(key(tenant)) == KeyStatus::Idle {
            self.move_debt(line.urgency, tenant);
        }
        settled
    }

    pub(crate) fn set_rule(&mut self, tenant: TenantId, rule: TenantRule) {
        let entry = self.tenants.entry(tenant);
        entry.rule = rule;
        for line in &entry.rings {
            if let Some(ring) = self.rings.get_mut(line) {
                ring.drr.update_weight(key(tenant), rule.weight);
            }
        }
        // A tenant whose every request is still delayed has places and no account.
        self.rings.values_mut().for_each(|ring| ring.places.update_weight(tenant, rule.weight));
        self.apply_cap(tenant);
    }

    /// Forgets the rate of models that have more capacity than they had.
    pub(crate) fn forget_rates(&mut self, models: &[ModelId]) {
        let served = self.rings.iter_mut().filter(|(line, _)| models.contains(&line.model));
        served.for_each(|(_, ring)| ring.forget_rate());
    }

    /// Sets a tenant aside in every ring while it is at its cap, and wakes it in every ring once it is not.
    fn apply_cap(&mut self, tenant: TenantId) {
        let entry = self.tenants.entry(tenant);
        for line in &entry.rings {
            let Some(ring) = self.rings.get_mut(line) else { continue };
            if entry.is_capped() {
                ring.drr.park(key(tenant));
            } else {
                ring.drr.wake(key(tenant));
            }
        }
    }

    /// Makes a tenant take turns in a ring, with the debt it left in rings where it takes none.
    fn activate_tenant(&mut self, line: ModelQueueId, tenant: TenantId) {
        let debt = self.collect_debt(line.urgency, tenant);
        let entry = self.tenants.entry(tenant);
        entry.rings.insert(line);
        let Some(ring) = self.rings.get_mut(&line) else { return };
        // Its id is below the scheduler's limit, so that it is never refused.
        if !entry.is_capped() && debt == Cost::ZERO {
            let added = ring.drr.add_key(key(tenant), entry.rule.weight);
            debug_assert!(added.is_ok());
            return;
        }
        // It enters with its debt on it: charged once it takes turns, it might be in turn and end it.
        let added = ring.drr.add_parked(key(tenant), entry.rule.weight);
        debug_assert!(added.is_ok());
        ring.drr.settle(key(tenant), Cost::ZERO, debt, Settlement::Running);
        if !entry.is_capped() {
            ring.drr.wake(key(tenant));
        }
    }

    /// Moves debt from rings where a tenant takes no turns to one where it does, if there is one.
    ///
    /// What was done in the background used what nobody wanted: it is no debt to those who wait.
    fn move_debt(&mut self, urgency: Priority, tenant: TenantId) {
        let takes_turns = |(line, ring): (&ModelQueueId, &ModelQueue)| {
            (ring.drr.key_status(key(tenant)) != KeyStatus::Idle).then_some(*line)
        };
        let entry = self.tenants.entry(tenant);
        let alike = entry.rings.iter().filter(|line| line.urgency == urgency);
        let known = alike.filter_map(|line| self.rings.get_key_value(line));
        let Some(line) = known.into_iter().find_map(takes_turns) else { return };
        let debt = self.collect_debt(urgency, tenant);
        if let Some(ring) = self.rings.get_mut(&line).filter(|_| Cost::ZERO < debt) {
            ring.drr.settle(key(tenant), Cost::ZERO, debt, Settlement::Running);
        }
    }

    /// Takes a tenant's debt out of every ring where it takes no turns.
    fn collect_debt(&mut self, urgency: Priority, tenant: TenantId) -> Cost {
        let mut collected = Cost::ZERO;
        for line in self.tenants.entry(tenant).rings.iter().filter(|line| line.urgency == urgency) {
            let Some(ring) = self.rings.get_mut(line) else { continue };
            let debt = ring.drr.debt(key(tenant));
            if debt == Cost::ZERO || ring.drr.key_status(key(tenant)) != KeyStatus::Idle {
                continue;
            }
            ring.drr.settle(key(tenant), debt, Cost::ZERO, Settlement::Final);
            collected += debt;
        }
        collected
    }

    pub(crate) fn ring(&self, line: ModelQueueId) -> Option<&ModelQueue> {
        self.rings.get(&line)
    }

    pub(crate) fn ring_mut(&mut self, line: ModelQueueId) -> Option<&mut ModelQueue> {
        self.rings.get_mut(&line)
    }

    pub(crate) fn rings(&self) -> impl Iterator<Item = (ModelQueueId, &ModelQueue)> {
        self.rings.iter().map(|(line, ring)| (*line, ring))
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Tells whether anybody's turn could come in a line.
    pub(crate) fn has_turn(&self, line: ModelQueueId) -> bool {
        self.rings.get(&line).is_some_and(|ring| ring.drr.has_active_keys())
    }

    /// Tells whether anybody's turn could come for a model.
    pub(crate) fn has_turn_for(&self, model: ModelId) -> bool {
        Priority::ALL.into_iter().any(|urgency| self.has_turn(ModelQueueId { model, urgency }))
    }

    /// Tells whether anybody's turn could come at all.
    pub(crate) fn has_any_turn(&self) -> bool {
        self.rings.values().any(|ring| ring.drr.has_active_keys())
    }

    pub(crate) fn newest(&self, line: ModelQueueId, tenant: TenantId) -> Option<RequestId> {
        self.rings.get(&line)?.newest(tenant)
    }

    pub(crate) fn waiting(&self, line: ModelQueueId) -> usize {
        self.rings.get(&line).map_or(0, |ring| ring.places.waiting())
    }
}

/// The key of a tenant in every ring.
pub(crate) fn key(tenant: TenantId) -> Key {
    Key(tenant.0)
}
