//! An audit for tests: everything that is counted along the way, counted again from scratch.

use std::collections::BTreeMap;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::drr::KeyStatus;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::score::RequestKind;

use crate::OptimizedLoadManager;
use crate::accept::{ModelQueueId, Priority, RequestRecord, RequestState};
use crate::load_manager::TimerTarget;
use crate::pick_node::{AdminState, BreakerState};
use crate::queue::{TenantEntry, key};

/// What the tickets alone say.
#[derive(Default)]
struct AuditTotals {
    in_flight: usize,
    tenants: BTreeMap<TenantId, (u32, Cost)>,
    nodes: BTreeMap<NodeId, (u32, u32, Cost)>,
    paths: BTreeMap<(NodeId, PathId), u32>,
    places: BTreeMap<(ModelQueueId, TenantId), (usize, Cost)>,
    queued: BTreeMap<(ModelQueueId, TenantId), usize>,
}

impl OptimizedLoadManager {
    /// Counts everything again and says what does not add up; for tests, as it looks at everything.
    pub fn audit(&self) -> Result<(), String> {
        let mut tally = AuditTotals::default();
        for (_, ticket) in self.requests.iter() {
            tally.add(ticket);
        }
        self.audit_slots(&tally)?;
        self.audit_queue(&tally)?;
        self.audit_timers()?;
        self.audit_wake_ups()?;
        check(self.node_cache.is_sound(), || "the cache's views differ".to_owned())
    }

    fn audit_slots(&self, tally: &AuditTotals) -> Result<(), String> {
        check(self.in_flight == tally.in_flight, || format!("{} in flight", self.in_flight))?;
        for (id, tenant) in self.wait_queue.tenants().iter() {
            let (count, cost) = tally.tenants.get(&id).copied().unwrap_or_default();
            let same = (tenant.in_flight, tenant.in_flight_cost) == (count, cost);
            check(same, || format!("{id:?}: {tenant:?} beside {count} for {cost}"))?;
        }
        for (id, node) in self.nodes.iter() {
            let (busy, transactions, cost) = tally.nodes.get(&id).copied().unwrap_or_default();
            let same = (node.busy, node.transactions(), node.in_flight) == (busy, transactions, cost);
            check(same, || {
                format!("{id:?} has {} for {} beside {busy} for {cost}", node.busy, node.in_flight)
            })?;
            check(node.duty != AdminState::Removing || busy > 0, || {
                format!("{id:?} left and is still there")
            })?;
            for path in node.paths.statuses() {
                let carried = tally.paths.get(&(id, path.path)).copied().unwrap_or_default();
                check(path.in_flight == carried, || format!("{id:?}: {path:?} beside {carried}"))?;
            }
            if let Some(asking) = node.rest.probe_request() {
                let flies =
                    self.requests.get(asking).and_then(RequestRecord::flight).is_some_and(|it| it.node == id);
                check(flies, || format!("{id:?} is asked by {asking:?}"))?;
            }
            if let Some(probe) = node.breaker.probe() {
                let flies =
                    self.requests.get(probe).and_then(RequestRecord::flight).is_some_and(|it| it.node == id);
                let tried = node.breaker.state() == BreakerState::HalfOpen;
                check(flies && tried, || format!("{id:?} is tried by {probe:?}"))?;
            }
        }
        let known = tally.nodes.keys().all(|node| self.nodes.get(*node).is_some());
        check(known, || "a slot is taken on a node that is gone".to_owned())
    }

    fn audit_queue(&self, tally: &AuditTotals) -> Result<(), String> {
        let max_waiting = self.options.load.wait_queue.max_waiting;
        let mut lanes = 0;
        for (line, ring) in self.wait_queue.rings() {
            let within = line.urgency == Priority::Background || ring.places.waiting() <= max_waiting;
            check(within, || format!("{line:?}: {}", ring.places.waiting()))?;
            let mut waiting = 0;
            for (tenant, lane) in ring.lanes() {
                lanes += 1;
                waiting += lane.waiting().len();
                let expected = tally.places.get(&(line, tenant)).copied().unwrap_or_default();
                let same = (lane.waiting().len(), lane.cost()) == expected;
                check(same, || format!("{line:?} {tenant:?}: {lane:?} beside {expected:?}"))?;
                let queued = tally.queued.get(&(line, tenant)).copied().unwrap_or_default();
                check(lane.queue().len() == queued, || format!("{line:?} {tenant:?}: {queued} queued"))?;
                check(ring.places.waiting_of(tenant) == lane.waiting().len(), || {
                    format!("{tenant:?} places")
                })?;
            }
            check(waiting == ring.places.waiting(), || format!("{line:?}: {waiting} wait"))?;
            for (tenant, entry) in self.wait_queue.tenants().iter() {
                let queued = tally.queued.contains_key(&(line, tenant));
                let standing = ring.drr.key_status(key(tenant));
                let right = match (queued, entry.is_capped()) {
                    (false, _) => standing == KeyStatus::Idle,
                    (true, true) => standing == KeyStatus::Parked,
                    (true, false) => !matches!(standing, KeyStatus::Idle | KeyStatus::Parked),
                };
                check(right, || format!("{line:?} {tenant:?} is {standing:?}, queued {queued}"))?;
            }
        }
        check(lanes == tally.places.len(), || format!("{lanes} lanes beside {}", tally.places.len()))
    }

    fn audit_timers(&self) -> Result<(), String> {
        let mut expected = usize::from(self.timers.of(TimerTarget::Recheck).is_some());
        for (request, ticket) in self.requests.iter() {
            let at = match ticket.stage {
                RequestState::Delayed { enters_at } => Some(enters_at.min(ticket.timeout_at)),
                RequestState::Queued => Some(ticket.timeout_at),
                RequestState::InFlight(_) => None,
            };
            expected += usize::from(at.is_some());
            check(self.timers.of(TimerTarget::Request(request)) == at, || {
                format!("{request:?} is due at {at:?}")
            })?;
        }
        for (id, node) in self.nodes.iter() {
            expected += usize::from(node.timeout().is_some());
            let same = self.timers.of(TimerTarget::Node(id)) == node.timeout();
            check(same, || format!("{id:?} is due at {:?}", node.timeout()))?;
        }
        check(self.timers.len() == expected, || format!("{} timers beside {expected}", self.timers.len()))
    }

    /// Fails if anybody waits who could have a free slot.
    fn audit_wake_ups(&self) -> Result<(), String> {
        if self.options.limits.in_flight_max <= self.in_flight {
            return Ok(());
        }
        for (request, ticket) in self.requests.iter() {
            let tenant = self.wait_queue.tenants().get(ticket.arrival.tenant);
            if ticket.stage != RequestState::Queued || tenant.is_some_and(TenantEntry::is_capped) {
                continue;
            }
            let lost = |node: NodeId| format!("{request:?} waits beside a slot of {node:?}");
            for (node, _) in self.nodes.iter() {
                check(!self.nodes.can_take(node, ticket), || lost(node))?;
            }
        }
        Ok(())
    }
}

impl AuditTotals {
    fn add(&mut self, ticket: &RequestRecord) {
        let arrival = &ticket.arrival;
        let lane = (arrival.line(), arrival.tenant);
        match ticket.stage {
            RequestState::Delayed { .. } | RequestState::Queued => {
                let (count, cost) = self.places.entry(lane).or_default();
                *count += 1;
                *cost += arrival.cost;
                if ticket.stage == RequestState::Queued {
                    *self.queued.entry(lane).or_default() += 1;
                }
            }
            RequestState::InFlight(flight) => {
                self.in_flight += 1;
                let (count, cost) = self.tenants.entry(arrival.tenant).or_default();
                *count += 1;
                *cost += flight.charged;
                let (busy, transactions, cost) = self.nodes.entry(flight.node).or_default();
                *busy += 1;
                *transactions += u32::from(arrival.request == RequestKind::BeginTx);
                *cost += flight.load;
                if let Some(path) = flight.path {
                    *self.paths.entry((flight.node, path)).or_default() += 1;
                }
            }
        }
    }
}

fn check(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
