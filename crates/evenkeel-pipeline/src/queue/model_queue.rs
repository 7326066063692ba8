//! One model's queue: tenant queues, queue capacity, throughput and charge-ahead.
//!
//! Guarantees: a tenant queue exists while its tenant holds queue capacity; its tenant is active in DRR while a request is
//! queued.

use std::collections::BTreeMap;

use evenkeel_policy::backpressure;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::DrrScheduler;
use evenkeel_policy::id::{RequestId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::busy_throughput::{BusyThroughput, QueueLoad};
use super::charge_ahead::ChargeAhead;
use super::tenant_queue::TenantQueue;
use super::{QueueEnd, key};
use crate::accept::RequestRecord;
use crate::admit::AdmissionControl;

/// Requests waiting for one model, at one priority.
#[derive(Clone, Debug)]
pub(crate) struct ModelQueue {
    pub(crate) drr: DrrScheduler,
    pub(crate) admission: AdmissionControl,
    pub(super) charge_ahead: ChargeAhead,
    tenant_queues: BTreeMap<TenantId, TenantQueue>,
    throughput: BusyThroughput,
}

impl ModelQueue {
    pub(super) fn new(drr: DrrScheduler, admission: AdmissionControl) -> Self {
        let throughput = BusyThroughput::new(Instant::ORIGIN);
        Self {
            drr,
            admission,
            charge_ahead: ChargeAhead::default(),
            tenant_queues: BTreeMap::new(),
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

    pub(super) fn expected_wait(&self, tenant: TenantId, weight: Weight) -> Option<Duration> {
        let queued = self.tenant_queues.get(&tenant).map_or(Cost::ZERO, TenantQueue::cost);
        backpressure::expected_wait(
            queued,
            self.throughput.per_second()?,
            self.admission.weight_share(tenant, weight),
        )
    }

    pub(super) fn register(&mut self, request: RequestId, record: &RequestRecord) {
        self.tenant_queues.entry(record.arrival.tenant).or_default().register(request, record);
    }

    /// Adds a request to its tenant queue; returns whether it is the only one there.
    pub(super) fn push(&mut self, request: RequestId, record: &RequestRecord, end: QueueEnd) -> bool {
        let tenant_queue = self.tenant_queues.entry(record.arrival.tenant).or_default();
        tenant_queue.push(request, record.arrival.request, end);
        tenant_queue.queued_len() == 1
    }

    pub(super) fn leave(&mut self, request: RequestId, record: &RequestRecord) {
        let tenant = record.arrival.tenant;
        let Some(tenant_queue) = self.tenant_queues.get_mut(&tenant) else { return };
        if !tenant_queue.remove(request, record) {
            return;
        }
        if tenant_queue.queued_len() == 0 {
            self.drr.remove_key(key(tenant));
        }
        if tenant_queue.waiting().is_empty() {
            self.tenant_queues.remove(&tenant);
        }
    }

    pub(super) fn newest(&self, tenant: TenantId) -> Option<RequestId> {
        self.tenant_queues.get(&tenant)?.waiting().last().map(|(_, request)| *request)
    }

    pub(crate) fn tenant_queue(&self, tenant: TenantId) -> Option<&TenantQueue> {
        self.tenant_queues.get(&tenant)
    }

    pub(crate) fn tenant_queues(&self) -> impl Iterator<Item = (TenantId, &TenantQueue)> {
        self.tenant_queues.iter().map(|(tenant, tenant_queue)| (*tenant, tenant_queue))
    }

    fn load(&self) -> QueueLoad {
        if self.drr.has_active_keys() { QueueLoad::Queued } else { QueueLoad::Idle }
    }
}
