//! Audit for tests: recomputes every counter from the request records.

use std::collections::BTreeMap;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::KeyStatus;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::score::RequestKind;

use crate::OptimizedLoadManager;
use crate::accept::{ModelQueueId, Priority, RequestRecord, RequestState};
use crate::load_manager::TimerTarget;
use crate::pick_node::{AdminState, BreakerState, Node};
use crate::queue::{TenantEntry, key};
use crate::transactions::AtShare;

/// Totals recomputed from the request records alone.
#[derive(Default)]
struct AuditTotals {
    in_flight: usize,
    tenants: BTreeMap<TenantId, (u32, Cost)>,
    nodes: BTreeMap<NodeId, (u32, Cost)>,
    transactions: BTreeMap<NodeId, BTreeMap<TenantId, u32>>,
    paths: BTreeMap<(NodeId, PathId), u32>,
    waiting: BTreeMap<(ModelQueueId, TenantId), (usize, Cost)>,
    queued: BTreeMap<(ModelQueueId, TenantId), usize>,
    /// Requests that wait or are in flight.
    live: BTreeMap<(ModelQueueId, TenantId), u32>,
}

impl OptimizedLoadManager {
    /// Recomputes every counter and returns the first mismatch; O(requests × nodes), for tests.
    pub fn audit(&self) -> Result<(), String> {
        let mut totals = AuditTotals::default();
        for (_, record) in self.requests.iter() {
            totals.add(record);
        }
        self.audit_slots(&totals)?;
        self.audit_queue(&totals)?;
        self.audit_timers()?;
        self.audit_wake_ups()?;
        check(self.node_cache.is_sound(), || "the affinity cache's indexes differ".to_owned())
    }

    fn audit_slots(&self, totals: &AuditTotals) -> Result<(), String> {
        check(self.in_flight == totals.in_flight, || {
            format!("{} in flight, expected {}", self.in_flight, totals.in_flight)
        })?;
        for (id, tenant) in self.wait_queue.tenants().iter() {
            let (count, cost) = totals.tenants.get(&id).copied().unwrap_or_default();
            let same = (tenant.in_flight, tenant.in_flight_cost) == (count, cost);
            check(same, || format!("{id:?}: {tenant:?}, expected {count} in flight for {cost}"))?;
        }
        for (id, node) in self.nodes.iter() {
            let (busy, cost) = totals.nodes.get(&id).copied().unwrap_or_default();
            check((node.busy, node.in_flight) == (busy, cost), || {
                format!("{id:?} has {} for {}, expected {busy} for {cost}", node.busy, node.in_flight)
            })?;
            totals.check_transactions(id, node)?;
            check(node.admin_state != AdminState::Removing || busy > 0, || {
                format!("{id:?} is idle and was not removed")
            })?;
            for path in node.paths.statuses() {
                let expected = totals.paths.get(&(id, path.path)).copied().unwrap_or_default();
                check(path.in_flight == expected, || {
                    format!("{id:?}: {path:?}, expected {expected} in flight")
                })?;
            }
            if let Some(probe) = node.cooldown.probe_request() {
                let is_in_flight = self
                    .requests
                    .get(probe)
                    .and_then(RequestRecord::attempt)
                    .is_some_and(|attempt| attempt.node == id);
                check(is_in_flight, || format!("{id:?}: cooldown probe {probe:?} is not in flight"))?;
            }
            if let Some(probe) = node.breaker.probe() {
                let is_in_flight = self
                    .requests
                    .get(probe)
                    .and_then(RequestRecord::attempt)
                    .is_some_and(|attempt| attempt.node == id);
                let is_half_open = node.breaker.state() == BreakerState::HalfOpen;
                check(is_in_flight && is_half_open, || {
                    format!("{id:?}: breaker probe {probe:?} is not in flight")
                })?;
            }
        }
        let known = totals.nodes.keys().all(|node| self.nodes.get(*node).is_some());
        check(known, || "a request is in flight on a node that was removed".to_owned())
    }

    fn audit_queue(&self, totals: &AuditTotals) -> Result<(), String> {
        let max_waiting = self.options.load.wait_queue.max_waiting;
        let mut tenant_queues = 0;
        for (queue_id, queue) in self.wait_queue.queues() {
            let is_within =
                queue_id.priority == Priority::Background || queue.admission.waiting() <= max_waiting;
            check(is_within, || format!("{queue_id:?}: {} waiting", queue.admission.waiting()))?;
            let mut waiting = 0;
            for (tenant, tenant_queue) in queue.tenant_queues() {
                tenant_queues += 1;
                let places = tenant_queue.waiting().count();
                waiting += places;
                let live = totals.live.get(&(queue_id, tenant)).copied().unwrap_or_default();
                tenant_queue.audit(live).map_err(|error| format!("{queue_id:?} {tenant:?}: {error}"))?;
                let expected = totals.waiting.get(&(queue_id, tenant)).copied().unwrap_or_default();
                let same = (places, tenant_queue.cost()) == expected;
                check(same, || format!("{queue_id:?} {tenant:?}: {tenant_queue:?}, expected {expected:?}"))?;
                let queued = totals.queued.get(&(queue_id, tenant)).copied().unwrap_or_default();
                check(tenant_queue.queued_len() == queued, || {
                    format!("{queue_id:?} {tenant:?}: expected {queued} queued")
                })?;
                check(queue.admission.waiting_of(tenant) == places, || {
                    format!("{queue_id:?} {tenant:?}: admission control has a different count")
                })?;
            }
            check(waiting == queue.admission.waiting(), || format!("{queue_id:?}: {waiting} waiting"))?;
            for (tenant, entry) in self.wait_queue.tenants().iter() {
                let queued = totals.queued.contains_key(&(queue_id, tenant));
                let status = queue.drr.key_status(key(tenant));
                let is_consistent = match (queued, entry.is_capped()) {
                    (false, _) => status == KeyStatus::Idle,
                    (true, true) => status == KeyStatus::Parked,
                    (true, false) => !matches!(status, KeyStatus::Idle | KeyStatus::Parked),
                };
                check(is_consistent, || format!("{queue_id:?} {tenant:?} is {status:?}, queued {queued}"))?;
            }
        }
        check(tenant_queues == totals.live.len(), || {
            format!("{tenant_queues} tenant queues, expected {}", totals.live.len())
        })
    }

    fn audit_timers(&self) -> Result<(), String> {
        let mut expected = usize::from(self.timers.due_at(TimerTarget::Recheck).is_some());
        for (request, record) in self.requests.iter() {
            let at = record.due_at();
            expected += usize::from(at.is_some());
            check(self.timers.due_at(TimerTarget::Request(request)) == at, || {
                format!("{request:?}: timer should be due at {at:?}")
            })?;
        }
        for (id, node) in self.nodes.iter() {
            expected += usize::from(node.timeout().is_some());
            let same = self.timers.due_at(TimerTarget::Node(id)) == node.timeout();
            check(same, || format!("{id:?}: timer should be due at {:?}", node.timeout()))?;
        }
        check(self.timers.len() == expected, || format!("{} timers, expected {expected}", self.timers.len()))
    }

    /// Fails on a lost wake-up: a request that waits although it could use a free slot.
    ///
    /// Ignores the shares of transaction places: they decide which tenant gets a free place, and never leave one free.
    fn audit_wake_ups(&self) -> Result<(), String> {
        if self.in_flight >= self.options.limits.in_flight_max {
            return Ok(());
        }
        for (request, record) in self.requests.iter() {
            let tenant = self.wait_queue.tenants().get(record.arrival.tenant);
            if record.state != RequestState::Queued || tenant.is_some_and(TenantEntry::is_capped) {
                continue;
            }
            let lost = |node: NodeId| format!("{request:?} waits although {node:?} has a free slot");
            for (node, _) in self.nodes.iter() {
                let can_serve = self.nodes.can_serve(node, record, &AtShare::default());
                check(!can_serve, || lost(node))?;
            }
        }
        Ok(())
    }
}

impl AuditTotals {
    fn add(&mut self, record: &RequestRecord) {
        let arrival = &record.arrival;
        let tenant_queue = (arrival.queue_id(), arrival.tenant);
        *self.live.entry(tenant_queue).or_default() += 1;
        match record.state {
            RequestState::Delayed { .. } | RequestState::Queued => {
                let (count, cost) = self.waiting.entry(tenant_queue).or_default();
                *count += 1;
                *cost += arrival.cost;
                if record.state == RequestState::Queued {
                    *self.queued.entry(tenant_queue).or_default() += 1;
                }
            }
            RequestState::InFlight(attempt) => {
                self.in_flight += 1;
                let (count, cost) = self.tenants.entry(arrival.tenant).or_default();
                *count += 1;
                *cost += attempt.charged;
                let (busy, cost) = self.nodes.entry(attempt.node).or_default();
                *busy += 1;
                *cost += attempt.load;
                if arrival.request == RequestKind::BeginTx {
                    let holders = self.transactions.entry(attempt.node).or_default();
                    *holders.entry(arrival.tenant).or_default() += 1;
                }
                if let Some(path) = attempt.path {
                    *self.paths.entry((attempt.node, path)).or_default() += 1;
                }
            }
        }
    }

    fn check_transactions(&self, id: NodeId, node: &Node) -> Result<(), String> {
        let expected = self.transactions.get(&id).cloned().unwrap_or_default();
        let held: BTreeMap<TenantId, u32> = node.transactions.holders().collect();
        check(held == expected, || format!("{id:?}: transactions {held:?}, expected {expected:?}"))?;
        let in_use = node.transactions.in_use();
        check(in_use == expected.values().sum::<u32>(), || {
            format!("{id:?}: {in_use} transactions, expected {expected:?}")
        })
    }
}

pub(crate) fn check(holds: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(error()) }
}
