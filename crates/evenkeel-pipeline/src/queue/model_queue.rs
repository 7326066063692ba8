//! One model's ring: its lanes, its waiting places, its rate and its horizon.
//!
//! Bound: a lane exists while its tenant has a place, and its tenant takes turns while something is in the lane.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use evenkeel_policy::backpressure;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::DrrScheduler;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::busy_throughput::{BusyThroughput, QueueLoad};
use super::charge_ahead::ChargeAhead;
use super::{QueueEnd, key};
use crate::accept::{RequestId, RequestRecord};
use crate::admit::AdmissionControl;

/// Who waits for one model.
#[derive(Clone, Debug)]
pub(crate) struct ModelQueue {
    pub(crate) drr: DrrScheduler,
    pub(crate) places: AdmissionControl,
    pub(super) horizon: ChargeAhead,
    lanes: BTreeMap<TenantId, TenantQueue>,
    rate: BusyThroughput,
}

/// Who waits of one tenant.
#[derive(Clone, Debug, Default)]
pub(crate) struct TenantQueue {
    /// Those that take turns, in turn.
    queue: VecDeque<RequestId>,
    /// Everybody, delayed ones too, in the order of arrival.
    waiting: BTreeSet<(u64, RequestId)>,
    cost: Cost,
}

impl TenantQueue {
    pub(crate) fn queue(&self) -> &VecDeque<RequestId> {
        &self.queue
    }

    pub(crate) fn waiting(&self) -> &BTreeSet<(u64, RequestId)> {
        &self.waiting
    }

    pub(crate) fn cost(&self) -> Cost {
        self.cost
    }
}

impl ModelQueue {
    pub(super) fn new(drr: DrrScheduler, places: AdmissionControl, rate: BusyThroughput) -> Self {
        Self { drr, places, horizon: ChargeAhead::default(), lanes: BTreeMap::new(), rate }
    }

    pub(super) fn pass(&mut self, now: Instant) {
        let load = self.load();
        self.rate.pass(now, load);
    }

    pub(super) fn complete(&mut self, cost: Cost) {
        if self.load() == QueueLoad::Queued {
            self.rate.record(cost);
        }
    }

    pub(super) fn forget_rate(&mut self) {
        self.rate.forget();
    }

    pub(crate) fn rate(&self) -> Option<f64> {
        self.rate.per_second()
    }

    pub(super) fn expected_wait(&self, tenant: TenantId, weight: Weight) -> Option<Duration> {
        let queued = self.lanes.get(&tenant).map_or(Cost::ZERO, |lane| lane.cost);
        backpressure::expected_wait(queued, self.rate.per_second()?, self.places.weight_share(tenant, weight))
    }

    pub(super) fn join(&mut self, request: RequestId, ticket: &RequestRecord) {
        let lane = self.lanes.entry(ticket.arrival.tenant).or_default();
        lane.waiting.insert((ticket.order, request));
        lane.cost += ticket.arrival.cost;
    }

    /// Puts a request into its lane, and tells whether it is the only one there.
    pub(super) fn enter(&mut self, request: RequestId, tenant: TenantId, end: QueueEnd) -> bool {
        let lane = self.lanes.entry(tenant).or_default();
        match end {
            QueueEnd::Front => lane.queue.push_front(request),
            QueueEnd::Back => lane.queue.push_back(request),
        }
        lane.queue.len() == 1
    }

    pub(super) fn leave(&mut self, request: RequestId, ticket: &RequestRecord) {
        let tenant = ticket.arrival.tenant;
        let Some(lane) = self.lanes.get_mut(&tenant) else { return };
        if !lane.waiting.remove(&(ticket.order, request)) {
            return;
        }
        lane.cost = lane.cost - ticket.arrival.cost;
        if let Some(at) = lane.queue.iter().position(|queued| *queued == request) {
            lane.queue.remove(at);
            if lane.queue.is_empty() {
                self.drr.remove_key(key(tenant));
            }
        }
        if lane.waiting.is_empty() {
            self.lanes.remove(&tenant);
        }
    }

    pub(super) fn newest(&self, tenant: TenantId) -> Option<RequestId> {
        self.lanes.get(&tenant)?.waiting.last().map(|(_, request)| *request)
    }

    pub(crate) fn lane(&self, tenant: TenantId) -> Option<&TenantQueue> {
        self.lanes.get(&tenant)
    }

    pub(crate) fn lanes(&self) -> impl Iterator<Item = (TenantId, &TenantQueue)> {
        self.lanes.iter().map(|(tenant, lane)| (*tenant, lane))
    }

    fn load(&self) -> QueueLoad {
        if self.drr.has_active_keys() { QueueLoad::Queued } else { QueueLoad::Idle }
    }
}
