//! Queue: one deficit round robin (DRR) queue per model and priority.
//!
//! Guarantees: within a model queue the bounds of [`drr`](evenkeel_policy::drr) hold between tenants; a model queue is
//! only touched for its own model's nodes, so a model without nodes delays no other. A tenant's debt follows it:
//! debt in a queue where the tenant is idle moves to one where it is active.

mod busy_throughput;
mod charge_ahead;
mod flow_queue;
mod model_queue;
mod tenant_queue;
mod tenants;

use std::collections::BTreeMap;

use evenkeel_policy::backpressure::{Admission, BackpressureController, TooManyTenants};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::{DrrConfig, DrrScheduler, KeyStatus, NewKey, Settlement};
use evenkeel_policy::id::{Key, ModelId, RequestId, TenantId};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::{Duration, Instant};

pub(crate) use flow_queue::FlowQueue;
pub(crate) use model_queue::ModelQueue;
pub(crate) use tenant_queue::TenantQueue;
pub use tenants::TenantRule;
pub(crate) use tenants::{TenantEntry, Tenants};

use crate::accept::{Arrival, ModelQueueId, Priority, RequestRecord};
use crate::admit::AdmissionControl;
use crate::options::PipelineOptions;

/// A DRR round grants a typical request's cost divided by this. The charge at send time may be much less than the final
/// cost, and one turn should not send several such requests.
const ROUNDS_PER_QUANTUM: u64 = 20;

/// All waiting requests, by model and tenant.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue {
    queues: BTreeMap<ModelQueueId, ModelQueue>,
    tenants: Tenants,
    /// Cloned to create a model queue.
    template: ModelQueue,
}

/// End of a tenant queue at which a request is added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueEnd {
    /// For a request that has been sent before.
    Front,
    /// For a new request.
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
        let template = ModelQueue::new(
            DrrScheduler::new(config)?,
            AdmissionControl::new(options.admit, controller, tenants_max),
            TenantQueue::new(quantum, options.class_shares, options.limits.sessions_max)?,
        );
        Ok(Self { queues: BTreeMap::new(), tenants: Tenants::default(), template })
    }

    /// Advances the clock of every model queue's throughput.
    pub(crate) fn advance_time(&mut self, now: Instant) {
        self.queues.values_mut().for_each(|queue| queue.advance_time(now));
    }

    /// Estimates the wait of an arrival behind the queued requests of its flow and its tenant.
    pub(crate) fn expected_wait(&self, arrival: &Arrival) -> Option<Duration> {
        let queue = self.queues.get(&arrival.queue_id())?;
        queue.expected_wait(arrival.tenant, self.tenants.rule(arrival.tenant).weight, arrival.flow)
    }

    /// Decides on an arrival by its model's queue capacity; creates the model queue if there is none.
    pub(crate) fn admit(
        &mut self,
        now: Instant,
        queue_id: ModelQueueId,
        tenant: TenantId,
    ) -> Result<Admission, TooManyTenants> {
        let create = || self.template.clone().starting_at(now);
        // The interactive queue represents the model in `Status`, so it exists even if only background requests arrive.
        self.queues
            .entry(ModelQueueId { priority: Priority::Interactive, ..queue_id })
            .or_insert_with(create);
        let queue = self.queues.entry(queue_id).or_insert_with(create);
        let weight = self.tenants.rule(tenant).weight;
        match queue_id.priority {
            Priority::Interactive => queue.admission.admit(tenant, weight),
            Priority::Background => queue.admission.admit_background(tenant, weight),
        }
    }

    /// Reserves capacity for a request whose attempt failed; returns `false` if the queue is full.
    pub(crate) fn readmit(&mut self, queue_id: ModelQueueId, tenant: TenantId) -> bool {
        let weight = self.tenants.rule(tenant).weight;
        self.queues.get_mut(&queue_id).is_some_and(|queue| match queue_id.priority {
            Priority::Interactive => queue.admission.readmit(tenant, weight),
            Priority::Background => queue.admission.admit_background(tenant, weight).is_ok(),
        })
    }

    /// Releases the queue capacity of a request that stops waiting.
    pub(crate) fn release_capacity(&mut self, queue_id: ModelQueueId, tenant: TenantId) {
        if let Some(queue) = self.queues.get_mut(&queue_id) {
            queue.admission.leave(tenant);
        }
    }

    /// Returns the account of an admitted request's flow, which the request holds until it ends.
    pub(crate) fn open_flow(&mut self, arrival: &Arrival) -> Option<Key> {
        Some(self.queues.get_mut(&arrival.queue_id())?.open_flow(arrival))
    }

    /// Releases the account of an ended request's flow.
    pub(crate) fn close_flow(&mut self, record: &RequestRecord) {
        if let (Some(queue), Some(flow)) = (self.queues.get_mut(&record.arrival.queue_id()), record.flow) {
            queue.close_flow(record.arrival.tenant, flow);
        }
    }

    /// Registers a request that holds queue capacity and is not queued yet.
    pub(crate) fn add_waiting(&mut self, request: RequestId, record: &RequestRecord) {
        if let Some(queue) = self.queues.get_mut(&record.arrival.queue_id()) {
            queue.register(request, record);
        }
    }

    /// Adds a registered request to its tenant queue and activates its tenant.
    pub(crate) fn enqueue(&mut self, request: RequestId, record: &RequestRecord, end: QueueEnd) {
        let queue_id = record.arrival.queue_id();
        let tenant = record.arrival.tenant;
        let Some(queue) = self.queues.get_mut(&queue_id) else { return };
        let is_first = queue.push(request, record, end);
        if is_first {
            self.activate_tenant(queue_id, tenant);
        }
    }

    /// Removes a request from its tenant queue; it keeps its queue capacity.
    pub(crate) fn leave(&mut self, request: RequestId, record: &RequestRecord) {
        if let Some(queue) = self.queues.get_mut(&record.arrival.queue_id()) {
            queue.leave(request, record);
        }
    }

    /// Charges the tenant and the flow of a request that gets a slot; returns the charge.
    pub(crate) fn charge(&mut self, record: &RequestRecord) -> Cost {
        let Arrival { tenant, cost, upfront, .. } = record.arrival;
        let mut charged = cost;
        if let Some(queue) = self.queues.get_mut(&record.arrival.queue_id()) {
            let upfront = upfront.min(cost);
            queue.charge_ahead.record(cost - upfront);
            charged = queue.charge_ahead.charge(upfront, cost);
            queue.drr.consume_deficit(key(tenant), charged);
            if let (Some(tenant_queue), Some(flow)) = (queue.tenant_queue_mut(tenant), record.flow) {
                tenant_queue.charge(flow, charged);
            }
        }
        let entry = self.tenants.entry(tenant);
        entry.in_flight += 1;
        entry.in_flight_cost += charged;
        if entry.is_capped() {
            self.apply_cap(tenant);
        }
        charged
    }

    /// Raises the charge of a running request that has cost `actual` so far; returns the new charge.
    pub(crate) fn raise_charge(&mut self, record: &RequestRecord, charged: Cost, actual: Cost) -> Cost {
        let Arrival { tenant, cost, .. } = record.arrival;
        let queue_id = record.arrival.queue_id();
        let due = self.queues.get(&queue_id).map_or(actual, |queue| queue.charge_ahead.charge(actual, cost));
        let raised = self.adjust_charge(record, charged, due, Settlement::Running);
        let entry = self.tenants.entry(tenant);
        entry.in_flight_cost = entry.in_flight_cost - charged + raised;
        raised
    }

    /// Replaces the charge of a request that frees its slot with its actual cost.
    pub(crate) fn settle(&mut self, record: &RequestRecord, charged: Cost, actual: Cost) {
        let tenant = record.arrival.tenant;
        let queue_id = record.arrival.queue_id();
        self.adjust_charge(record, charged, actual, Settlement::Final);
        let entry = self.tenants.entry(tenant);
        let was_capped = entry.is_capped();
        entry.in_flight -= 1;
        entry.in_flight_cost = entry.in_flight_cost - charged;
        entry.add_served(&record.arrival, actual);
        if was_capped {
            self.apply_cap(tenant);
        }
        if let Some(queue) = self.queues.get_mut(&queue_id) {
            queue.complete(actual);
        }
    }

    /// Charges a tenant for an attempt that failed; the work does not count as throughput.
    pub(crate) fn charge_failed(&mut self, record: &RequestRecord, cost: Cost) {
        self.adjust_charge(record, Cost::ZERO, cost, Settlement::Final);
        self.tenants.entry(record.arrival.tenant).add_served(&record.arrival, cost);
    }

    fn adjust_charge(
        &mut self,
        record: &RequestRecord,
        charged: Cost,
        actual: Cost,
        settlement: Settlement,
    ) -> Cost {
        let tenant = record.arrival.tenant;
        let queue_id = record.arrival.queue_id();
        let Some(queue) = self.queues.get_mut(&queue_id) else { return charged };
        if let (Some(tenant_queue), Some(flow)) = (queue.tenant_queue_mut(tenant), record.flow) {
            tenant_queue.settle(flow, charged, actual, settlement);
        }
        let settled = queue.drr.settle(key(tenant), charged, actual, settlement);
        if queue.drr.key_status(key(tenant)) == KeyStatus::Idle {
            self.move_debt(queue_id.priority, tenant);
        }
        settled
    }

    pub(crate) fn set_rule(&mut self, tenant: TenantId, rule: TenantRule) {
        let entry = self.tenants.entry(tenant);
        entry.rule = rule;
        for queue_id in &entry.queues {
            if let Some(queue) = self.queues.get_mut(queue_id) {
                queue.drr.update_weight(key(tenant), rule.weight);
            }
        }
        // A tenant with only delayed requests holds queue capacity but has no DRR account.
        self.queues.values_mut().for_each(|queue| queue.admission.update_weight(tenant, rule.weight));
        self.apply_cap(tenant);
    }

    /// Discards the measured throughput of models whose capacity has grown.
    pub(crate) fn reset_throughput(&mut self, models: &[ModelId]) {
        let served = self.queues.iter_mut().filter(|(queue_id, _)| models.contains(&queue_id.model));
        served.for_each(|(_, queue)| queue.reset_throughput());
    }

    /// Parks a tenant in every model queue while it is at its concurrency limit, and wakes it afterwards.
    fn apply_cap(&mut self, tenant: TenantId) {
        let entry = self.tenants.entry(tenant);
        for queue_id in &entry.queues {
            let Some(queue) = self.queues.get_mut(queue_id) else { continue };
            if entry.is_capped() {
                queue.drr.park(key(tenant));
            } else {
                queue.drr.wake(key(tenant));
            }
        }
    }

    /// Activates a tenant in a model queue, and moves its debt there from the queues where it is idle.
    fn activate_tenant(&mut self, queue_id: ModelQueueId, tenant: TenantId) {
        let debt = self.collect_debt(queue_id.priority, tenant);
        let entry = self.tenants.entry(tenant);
        entry.queues.insert(queue_id);
        let Some(queue) = self.queues.get_mut(&queue_id) else { return };
        // The id is below the scheduler's limit, so adding the key cannot fail.
        if !entry.is_capped() && debt == Cost::ZERO {
            let added = queue.drr.add_key(key(tenant), entry.rule.weight);
            debug_assert!(added.is_ok());
            return;
        }
        // Settle the debt while it is parked: an active key might be the current one, and would lose its turn.
        let added = queue.drr.add_parked(key(tenant), entry.rule.weight);
        debug_assert!(added.is_ok());
        queue.drr.settle(key(tenant), Cost::ZERO, debt, Settlement::Running);
        if !entry.is_capped() {
            queue.drr.wake(key(tenant));
        }
    }

    /// Moves debt from model queues where a tenant is idle to one where it is active, if there is one.
    ///
    /// Debt stays within its priority: background work used spare capacity, so interactive requests do not pay for it.
    fn move_debt(&mut self, priority: Priority, tenant: TenantId) {
        let is_active = |(queue_id, queue): (&ModelQueueId, &ModelQueue)| {
            (queue.drr.key_status(key(tenant)) != KeyStatus::Idle).then_some(*queue_id)
        };
        let entry = self.tenants.entry(tenant);
        let same_priority = entry.queues.iter().filter(|queue_id| queue_id.priority == priority);
        let existing = same_priority.filter_map(|queue_id| self.queues.get_key_value(queue_id));
        let Some(queue_id) = existing.into_iter().find_map(is_active) else { return };
        let debt = self.collect_debt(priority, tenant);
        if let Some(queue) = self.queues.get_mut(&queue_id).filter(|_| debt > Cost::ZERO) {
            queue.drr.settle(key(tenant), Cost::ZERO, debt, Settlement::Running);
        }
    }

    /// Clears a tenant's debt in every model queue where it is idle, and returns the total.
    fn collect_debt(&mut self, priority: Priority, tenant: TenantId) -> Cost {
        let mut collected = Cost::ZERO;
        for queue_id in
            self.tenants.entry(tenant).queues.iter().filter(|queue_id| queue_id.priority == priority)
        {
            let Some(queue) = self.queues.get_mut(queue_id) else { continue };
            let debt = queue.drr.debt(key(tenant));
            if debt == Cost::ZERO || queue.drr.key_status(key(tenant)) != KeyStatus::Idle {
                continue;
            }
            queue.drr.settle(key(tenant), debt, Cost::ZERO, Settlement::Final);
            collected += debt;
        }
        collected
    }

    pub(crate) fn queue(&self, queue_id: ModelQueueId) -> Option<&ModelQueue> {
        self.queues.get(&queue_id)
    }

    pub(crate) fn queue_mut(&mut self, queue_id: ModelQueueId) -> Option<&mut ModelQueue> {
        self.queues.get_mut(&queue_id)
    }

    pub(crate) fn queues(&self) -> impl Iterator<Item = (ModelQueueId, &ModelQueue)> {
        self.queues.iter().map(|(queue_id, queue)| (*queue_id, queue))
    }

    pub(crate) fn tenants(&self) -> &Tenants {
        &self.tenants
    }

    /// Returns the entry of a tenant whose requests were admitted.
    pub(crate) fn tenant_mut(&mut self, tenant: TenantId) -> &mut TenantEntry {
        self.tenants.entry(tenant)
    }

    /// Reports whether a model queue has an active tenant.
    pub(crate) fn has_ready(&self, queue_id: ModelQueueId) -> bool {
        self.queues.get(&queue_id).is_some_and(|queue| queue.drr.has_active_keys())
    }

    /// Reports whether a model has an active tenant, at any priority.
    pub(crate) fn has_ready_for(&self, model: ModelId) -> bool {
        Priority::ALL.into_iter().any(|priority| self.has_ready(ModelQueueId { model, priority }))
    }

    /// Reports whether any model queue has an active tenant.
    pub(crate) fn has_any_ready(&self) -> bool {
        self.queues.values().any(|queue| queue.drr.has_active_keys())
    }

    pub(crate) fn tenant_queue(&self, queue_id: ModelQueueId, tenant: TenantId) -> Option<&TenantQueue> {
        self.queues.get(&queue_id)?.tenant_queue(tenant)
    }

    pub(crate) fn tenant_queue_mut(
        &mut self,
        queue_id: ModelQueueId,
        tenant: TenantId,
    ) -> Option<&mut TenantQueue> {
        self.queues.get_mut(&queue_id)?.tenant_queue_mut(tenant)
    }

    pub(crate) fn waiting(&self, queue_id: ModelQueueId) -> usize {
        self.queues.get(&queue_id).map_or(0, |queue| queue.admission.waiting())
    }
}

/// Returns a tenant's DRR key.
pub(crate) fn key(tenant: TenantId) -> Key {
    Key(tenant.0)
}
