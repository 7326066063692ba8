//! One model's queue: tenant queues, queue capacity, throughput and charge-ahead.
//!
//! Guarantees: a tenant queue exists while a request of its tenant waits or is in flight; its tenant is active in DRR
//! while a request is queued.

use std::collections::BTreeMap;

use evenkeel_policy::backpressure;
use evenkeel_policy::class::TenantFlow;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::DrrScheduler;
use evenkeel_policy::id::{Key, RequestId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::busy_throughput::{BusyThroughput, QueueLoad};
use super::charge_ahead::ChargeAhead;
use super::tenant_queue::TenantQueue;
use super::{QueueEnd, key};
use crate::accept::{Arrival, RequestRecord};
use crate::admit::AdmissionControl;

/// Maximum number of idle tenant queues.
const IDLE_QUEUES_MAX: usize = 16;

/// Requests waiting for one model, at one priority.
#[derive(Clone, Debug)]
pub(crate) struct ModelQueue {
    pub(crate) drr: DrrScheduler,
    pub(crate) admission: AdmissionControl,
    pub(super) charge_ahead: ChargeAhead,
    tenant_queues: BTreeMap<TenantId, TenantQueue>,
    /// Cloned to create a tenant queue if none is idle.
    template: TenantQueue,
    /// Cleared tenant queues, which save allocations while requests do not wait.
    idle: Vec<TenantQueue>,
    throughput: BusyThroughput,
}

impl ModelQueue {
    pub(super) fn new(drr: DrrScheduler, admission: AdmissionControl, template: TenantQueue) -> Self {
        let throughput = BusyThroughput::new(Instant::ORIGIN);
        Self {
            drr,
            admission,
            charge_ahead: ChargeAhead::default(),
            tenant_queues: BTreeMap::new(),
            template,
            idle: Vec::new(),
            throughput,
        }
    }

    /// Starts the clock of a new model queue.
    pub(super) fn starting_at(self, now: Instant) -> Self {
        Self { throughput: BusyThroughput::new(now), ..self }
    }

    pub(super) fn advance_time(&mut self, now: Instant) {
        let load = self.load();
        self.throughput.advance_time(now, load);
    }

    pub(super) fn complete(&mut self, cost: Cost) {
        if self.load() == QueueLoad::Queued {
            self.throughput.record(cost);
        }
    }

    pub(super) fn reset_throughput(&mut self) {
        self.throughput.reset();
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        self.throughput.per_second()
    }

    /// Estimates the wait of the next request of a flow: behind the flow's requests at its share of the tenant's service,
    /// but no longer than behind all requests of the tenant.
    pub(super) fn expected_wait(
        &self,
        tenant: TenantId,
        weight: Weight,
        flow: TenantFlow,
    ) -> Option<Duration> {
        let rate = self.throughput.per_second()?;
        let share = self.admission.weight_share(tenant, weight);
        let Some(tenant_queue) = self.tenant_queues.get(&tenant) else {
            return backpressure::expected_wait(Cost::ZERO, rate, share);
        };
        let behind_flow = backpressure::expected_wait(
            tenant_queue.cost_of(flow),
            rate,
            share * tenant_queue.share_of(flow),
        )?;
        Some(behind_flow.min(backpressure::expected_wait(tenant_queue.cost(), rate, share)?))
    }

    /// Returns the account of an arrival's flow, which the request holds until [`close_flow`](Self::close_flow).
    pub(super) fn open_flow(&mut self, arrival: &Arrival) -> Key {
        let tenant_queue = self.tenant_queues.entry(arrival.tenant);
        let create = || self.idle.pop().unwrap_or_else(|| self.template.clone());
        tenant_queue.or_insert_with(create).open(arrival.flow)
    }

    pub(super) fn close_flow(&mut self, tenant: TenantId, flow: Key) {
        let Some(tenant_queue) = self.tenant_queues.get_mut(&tenant) else { return };
        if tenant_queue.close(flow) {
            return;
        }
        if let Some(mut unused) = self.tenant_queues.remove(&tenant)
            && self.idle.len() < IDLE_QUEUES_MAX
            && unused.clear()
        {
            self.idle.push(unused);
        }
    }

    pub(super) fn register(&mut self, request: RequestId, record: &RequestRecord) {
        if let Some(tenant_queue) = self.tenant_queues.get_mut(&record.arrival.tenant) {
            tenant_queue.register(request, record);
        }
    }

    /// Adds a request to its tenant queue; returns whether it is the only one there.
    pub(super) fn push(&mut self, request: RequestId, record: &RequestRecord, end: QueueEnd) -> bool {
        let tenant_queue = self.tenant_queues.get_mut(&record.arrival.tenant);
        tenant_queue.is_some_and(|tenant_queue| tenant_queue.push(request, record, end))
    }

    pub(super) fn leave(&mut self, request: RequestId, record: &RequestRecord) {
        let tenant = record.arrival.tenant;
        let Some(tenant_queue) = self.tenant_queues.get_mut(&tenant) else { return };
        if tenant_queue.leave(request, record) && tenant_queue.queued_len() == 0 {
            self.drr.remove_key(key(tenant));
        }
    }

    pub(crate) fn tenant_queue(&self, tenant: TenantId) -> Option<&TenantQueue> {
        self.tenant_queues.get(&tenant)
    }

    pub(crate) fn tenant_queue_mut(&mut self, tenant: TenantId) -> Option<&mut TenantQueue> {
        self.tenant_queues.get_mut(&tenant)
    }

    pub(crate) fn tenant_queues(&self) -> impl Iterator<Item = (TenantId, &TenantQueue)> {
        self.tenant_queues.iter().map(|(tenant, tenant_queue)| (*tenant, tenant_queue))
    }

    fn load(&self) -> QueueLoad {
        if self.drr.has_active_keys() { QueueLoad::Queued } else { QueueLoad::Idle }
    }
}
