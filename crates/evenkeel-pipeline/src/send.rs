//! Send: assigns free slots to queued requests, releases each slot exactly once, and handles failover to other nodes.
//!
//! [`dispatch`](OptimizedLoadManager::dispatch) is the second half of the pipeline: it takes the next request from the
//! queue, picks a node and a path, and sends.
//!
//! Guarantees: a request is sent only when a node has a free slot for it; a freed slot goes to exactly one waiting
//! request in the same step. At the end of every step, no slot is free while a request that could use it waits, and a
//! background request has got a slot only if no waiting interactive request could use it.
//!
//! Limits: a search of a flow checks at most one request of each kind that was never sent, and the requests that
//! failed before; so the number of `BeginTx` requests that wait for a place does not slow down other requests. A
//! dispatch that sends nothing although a slot is free is O(nodes + flows that wait).

use evenkeel_policy::backpressure::retry_after;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{Key, ModelId, NodeId, PathId, RequestId, TenantId};
use evenkeel_policy::outcome::{AttemptFailure, PickReason};
use evenkeel_policy::score::{ChoiceReason, RequestKind};
use evenkeel_policy::time::{Duration, Instant};

use crate::OptimizedLoadManager;
use crate::accept::{
    Arrival, Attempt, ModelQueueId, OutageRule, Priority, RequestRecord, RequestState, Requests,
    ResponseState,
};
use crate::load_manager::TimerTarget;
use crate::observe::Event;
use crate::pick_node::{AdminState, Node, Pick, PromptCache, STATS_AGE_MAX, SlotRequest};
use crate::queue::{FlowQueue, ModelQueue, QueueEnd, TenantEntry, TenantQueue};
use crate::rejection::{NoRetryReason, Rejection};
use crate::transactions::AtShare;

/// Refusals by nodes that serve other requests after which the client gets the refusal.
const REFUSALS_MAX: u32 = 2;

/// A queued request and the node picked for it.
struct Placement {
    request: RequestId,
    tenant: TenantId,
    queue_id: ModelQueueId,
    pick: Pick,
    /// Tenants whose turn it was but that had no request that fits a node; parked until this request is sent.
    passed_over: Vec<Key>,
}

/// A request found in a flow.
struct Found<T> {
    request: RequestId,
    result: T,
    /// Number of requests checked before it.
    passed_over: usize,
}

impl OptimizedLoadManager {
    /// Sends queued requests until none fits a free slot.
    pub(crate) fn dispatch(&mut self) {
        if self.wait_queue.has_any_ready() {
            self.nodes.refresh(self.now);
        }
        while let Some(placement) = self.next_placement() {
            let path = self.pick_path(placement.pick.node);
            self.send(placement, path);
        }
        self.schedule_recheck();
    }

    /// Takes the next request from the queue and picks its node; background requests come last.
    fn next_placement(&mut self) -> Option<Placement> {
        if !self.wait_queue.has_any_ready() || self.in_flight >= self.options.limits.in_flight_max {
            return None;
        }
        self.reserve_probes();
        Priority::ALL.into_iter().find_map(|priority| self.pick_from_priority(priority))
    }

    /// Keeps the probe of a half-open node from the tenants whose failures opened its breaker while others wait.
    fn reserve_probes(&mut self) {
        let wait_queue = &self.wait_queue;
        self.nodes.reserve_probes(|node| {
            let queues = node.models().iter().filter_map(|model| {
                wait_queue.queue(ModelQueueId { model: *model, priority: Priority::Interactive })
            });
            let mut tenant_queues = queues.flat_map(ModelQueue::tenant_queues);
            tenant_queues.any(|(tenant, tenant_queue)| {
                0 < tenant_queue.queued_len()
                    && node.tenants.allows(tenant)
                    && !node.tenants.is_blamed(tenant)
            })
        });
    }

    /// Picks a request of one priority: checks the models of each node with a free slot, round robin per node.
    fn pick_from_priority(&mut self, priority: Priority) -> Option<Placement> {
        let at_share = self.tenants_at_share(priority);
        let mut checked: Vec<ModelId> = Vec::new();
        let free_nodes: Vec<NodeId> =
            self.nodes.iter().filter(|(_, node)| node.has_free_slot()).map(|(id, _)| id).collect();
        for node in free_nodes {
            let models: Vec<ModelId> =
                self.nodes.get(node).map(|node| node.models_round_robin().collect()).unwrap_or_default();
            for model in models {
                let queue_id = ModelQueueId { model, priority };
                if checked.contains(&model) || !self.wait_queue.has_ready(queue_id) {
                    continue;
                }
                if let Some(placement) = self.pick_from_model_queue(queue_id, &at_share) {
                    return Some(placement);
                }
                checked.push(model);
            }
        }
        None
    }

    /// Picks a request from one model queue, trying tenants in DRR order.
    ///
    /// The nodes with a free slot may all have failed the tenant's requests, reject them by their gates, or have no
    /// transaction place for them. Such a tenant is parked until another has been served, and keeps its turn.
    fn pick_from_model_queue(&mut self, queue_id: ModelQueueId, at_share: &AtShare) -> Option<Placement> {
        let mut passed_over = Vec::new();
        while let Some(key) = self.wait_queue.queue(queue_id).and_then(|queue| queue.drr.next_key()) {
            if let Some(placement) = self.pick_from_tenant_queue(queue_id, TenantId(key.0), at_share) {
                return Some(Placement { passed_over, ..placement });
            }
            // Parking may open DRR rounds, which pay off debts: if no tenant can be served, leave all as they are.
            if passed_over.is_empty() && !self.has_servable(queue_id, at_share) {
                return None;
            }
            passed_over.push(key);
            self.wait_queue.queue_mut(queue_id)?.drr.park(key);
        }
        self.wake(queue_id, passed_over);
        None
    }

    /// Reports whether a node can serve any queued request of a model queue now.
    fn has_servable(&self, queue_id: ModelQueueId, at_share: &AtShare) -> bool {
        let is_servable = |(tenant, tenant_queue): (TenantId, &TenantQueue)| {
            !self.wait_queue.tenants().get(tenant).is_some_and(TenantEntry::is_capped)
                && self.has_servable_flow(queue_id.model, tenant_queue, at_share)
        };
        self.wait_queue.queue(queue_id).is_some_and(|queue| queue.tenant_queues().any(is_servable))
    }

    /// Reports whether a node can serve any queued request of a tenant queue now.
    fn has_servable_flow(&self, model: ModelId, tenant_queue: &TenantQueue, at_share: &AtShare) -> bool {
        let has_room = |kind: &RequestKind| self.nodes.has_room_for(model, *kind);
        let can_serve = |record: &RequestRecord| {
            self.nodes.iter().find(|(id, _)| self.nodes.can_serve(*id, record, at_share)).map(|_| ())
        };
        let is_servable = |flow: &FlowQueue| {
            let mut kinds = RequestKind::ALL.into_iter().filter(|kind| flow.queued_len_of(*kind) > 0);
            kinds.any(|kind| has_room(&kind)) && find_first(&self.requests, flow, can_serve).is_some()
        };
        tenant_queue.flows().any(is_servable)
    }

    fn wake(&mut self, queue_id: ModelQueueId, passed_over: Vec<Key>) {
        if let Some(queue) = self.wait_queue.queue_mut(queue_id) {
            passed_over.into_iter().for_each(|key| queue.drr.wake(key));
        }
    }

    /// Picks a request from one tenant queue, trying its flows in DRR order.
    ///
    /// A flow without a request that fits a node keeps its turn: it is parked until another one is found.
    fn pick_from_tenant_queue(
        &mut self,
        queue_id: ModelQueueId,
        tenant: TenantId,
        at_share: &AtShare,
    ) -> Option<Placement> {
        let mut passed_over: Vec<Key> = Vec::new();
        let placement = loop {
            let tenant_queue = self.wait_queue.tenant_queue(queue_id, tenant)?;
            let Some(flow) = tenant_queue.next_flow() else { break None };
            if let Some(placement) = self.pick_from_flow(queue_id, tenant, flow, at_share) {
                break Some(placement);
            }
            let tenant_queue = self.wait_queue.tenant_queue(queue_id, tenant)?;
            if passed_over.is_empty() && !self.has_servable_flow(queue_id.model, tenant_queue, at_share) {
                return None;
            }
            passed_over.push(flow);
            self.wait_queue.tenant_queue_mut(queue_id, tenant)?.park(flow);
        };
        let tenant_queue = self.wait_queue.tenant_queue_mut(queue_id, tenant)?;
        passed_over.into_iter().for_each(|flow| tenant_queue.wake(flow));
        placement
    }

    /// Picks a request from one flow: the first that fits a node, or another one with a warm cache.
    fn pick_from_flow(
        &mut self,
        queue_id: ModelQueueId,
        tenant: TenantId,
        flow: Key,
        at_share: &AtShare,
    ) -> Option<Placement> {
        let found = self.pick_node_for_first(queue_id, tenant, flow, at_share)?;
        let first = Placement {
            request: found.request,
            tenant,
            queue_id,
            pick: found.result,
            passed_over: Vec::new(),
        };
        if found.passed_over > 0 || first.pick.reason == PickReason::Cached {
            return Some(first);
        }
        Some(self.prefer_cached(&first, flow, at_share).unwrap_or(first))
    }

    /// Picks a node for the first request of a flow that fits one.
    fn pick_node_for_first(
        &mut self,
        queue_id: ModelQueueId,
        tenant: TenantId,
        flow: Key,
        at_share: &AtShare,
    ) -> Option<Found<Pick>> {
        let flow = self.wait_queue.tenant_queue(queue_id, tenant)?.flow(flow)?;
        let nodes = &mut self.nodes;
        let now = self.now;
        find_first(&self.requests, flow, |record| nodes.pick(now, &self.node_cache, record, at_share))
    }

    /// Finds a request whose cached node is free, shortly after `first` in its flow or first in another flow of its class,
    /// unless `first` was skipped too often.
    fn prefer_cached(&mut self, first: &Placement, flow: Key, at_share: &AtShare) -> Option<Placement> {
        let affinity = self.options.affinity;
        if self.requests.get(first.request)?.skipped >= affinity.skips_max {
            return None;
        }
        let tenant_queue = self.wait_queue.tenant_queue(first.queue_id, first.tenant)?;
        let nodes = &mut self.nodes;
        let cached = |request: RequestId| {
            let record = self.requests.get(request)?;
            let node = nodes.cached_node(self.now, &self.node_cache, record, at_share)?;
            Some((request, Pick { node, reason: PickReason::Cached }))
        };
        let same_flow = tenant_queue.flow(flow)?.queued().skip(1);
        let others = tenant_queue.neighbours(flow, affinity.lookahead_max);
        let mut lookahead = same_flow
            .take(affinity.lookahead_max - 1)
            .chain(others.filter_map(|other| other.queued().next()))
            .take(affinity.lookahead_max - 1);
        let (request, pick) = lookahead.find_map(cached)?;
        self.requests.get_mut(first.request)?.skipped += 1;
        let Placement { tenant, queue_id, .. } = *first;
        Some(Placement { request, tenant, queue_id, pick, passed_over: Vec::new() })
    }

    /// Picks a path to a node; `None` when the node has no paths to choose from.
    fn pick_path(&mut self, node: NodeId) -> Option<PathId> {
        self.nodes.get_mut(node)?.paths.pick(self.now)
    }

    /// Moves a request from the queue to a slot of the picked node.
    fn send(&mut self, placement: Placement, path: Option<PathId>) {
        let Placement { request, tenant, queue_id, pick, passed_over } = placement;
        let now = self.now;
        let Some(record) = self.requests.get(request) else { return };
        let arrival = record.arrival;
        let waited = record.waited(now);
        let charged = self.wait_queue.charge(record);
        self.leave_queue(request);
        self.wait_queue.release_capacity(queue_id, tenant);
        self.wake(queue_id, passed_over);
        let prompt_cache =
            if pick.reason == PickReason::Cached { PromptCache::Warm } else { PromptCache::Cold };
        let work = SlotRequest::new(&arrival, prompt_cache, arrival.cost);
        let departure = self.nodes.get_mut(pick.node).map(|node| node.reserve_slot(now, request, &work));
        let level = self.nodes.get(pick.node).map_or(0, |node| node.busy);
        self.schedule_node(pick.node);
        self.remember_node(&arrival, pick);
        self.in_flight += 1;
        self.counts.dispatched += 1;
        let Some(record) = self.requests.get_mut(request) else { return };
        record.attempts += 1;
        record.waited_before = waited;
        record.state = RequestState::InFlight(Attempt {
            node: pick.node,
            path,
            since: now,
            level,
            departure: departure.unwrap_or_default(),
            reported_at: now,
            prompt_cache,
            response: ResponseState::Pending,
            charged,
            load: arrival.cost,
            actual: Cost::ZERO,
        });
        let attempt = record.attempts;
        if attempt == 1 {
            self.retries.earn(now);
            let rule = self.options.retry.budget_rule();
            self.wait_queue.tenant_mut(tenant).retries(rule).earn(now);
        }
        let reason = pick.reason;
        self.emit(Event::Dispatch { request, tenant, node: pick.node, path, waited, reason, attempt });
    }

    /// Records a request's node in the affinity cache; after a request that only measures a node, its key stays where it
    /// was.
    fn remember_node(&mut self, arrival: &Arrival, pick: Pick) {
        let Some(affinity) = arrival.affinity else { return };
        let key = (arrival.model, affinity);
        match pick.reason {
            PickReason::Chosen(ChoiceReason::Measure) => {
                self.node_cache.record_detour(self.now, key, pick.node);
            }
            PickReason::Cached | PickReason::Chosen(_) => self.node_cache.record(self.now, key, pick.node),
        }
    }

    /// Frees the slot of an attempt and charges its tenant `actual`.
    pub(crate) fn release_slot(&mut self, request: RequestId, attempt: &Attempt, actual: Cost) {
        let Some(record) = self.requests.get(request) else { return };
        let arrival = record.arrival;
        self.in_flight -= 1;
        self.wait_queue.settle(record, attempt.charged, actual);
        let Some(node) = self.nodes.get_mut(attempt.node) else { return };
        let work = SlotRequest::new(&arrival, attempt.prompt_cache, attempt.load);
        node.release_slot(self.now, request, &work, attempt.departure);
        if let Some(path) = attempt.path {
            node.paths.release(path);
        }
        if node.admin_state == AdminState::Removing && node.busy == 0 {
            self.forget_node(attempt.node);
        }
        self.schedule_node(attempt.node);
    }

    /// Charges a tenant for the work that a node did before the attempt failed.
    pub(crate) fn charge_failed(&mut self, request: RequestId, cost: Cost) {
        if let Some(record) = self.requests.get(request).filter(|_| cost > Cost::ZERO) {
            self.wait_queue.charge_failed(record, cost);
        }
    }

    /// Retries a failed request on another node, or ends it.
    pub(crate) fn retry(&mut self, request: RequestId, failure: AttemptFailure) {
        match self.reserve_retry(request) {
            Ok(()) => self.requeue_front(request, failure),
            Err(no_retry) => self.fail(request, failure, no_retry),
        }
    }

    /// Requeues a request that an overloaded node refused or that could not be sent; as no node accepted it, this uses no
    /// retry.
    ///
    /// Rejects it if nodes that serve others refused it twice, if every node's cooldown lasts longer than the request may
    /// wait, or if no node could be reached for too long.
    pub(crate) fn requeue_unserved(&mut self, request: RequestId, failure: AttemptFailure) {
        let Some(record) = self.requests.get_mut(request) else { return };
        record.unserved += 1;
        let Some(record) = self.requests.get(request) else { return };
        let queue_id = record.arrival.queue_id();
        let tenant = record.arrival.tenant;
        let cooldown_ends_at = self.nodes.cooldown_ends_at(self.now, &record.arrival, record.into());
        if REFUSALS_MAX <= record.refused {
            self.fail(request, failure, NoRetryReason::RefusedTwice);
        } else if let Some(outage) = self.outage(queue_id.model).or_else(|| self.outage_without_hold(record))
        {
            self.reject(request, outage);
        } else if matches!(failure, AttemptFailure::Busy { .. })
            && self.now < cooldown_ends_at
            && self.wait_ends_at(record) <= cooldown_ends_at
        {
            let retry_after = retry_after(Some(cooldown_ends_at.since(self.now)));
            self.reject(request, Rejection::WouldMissDeadline { retry_after });
        } else if !self.nodes.has_untried(record) {
            self.fail(request, failure, NoRetryReason::NoOtherNode);
        } else if self.wait_ends_at(record) <= self.now {
            self.fail(request, failure, NoRetryReason::DeadlinePassed);
        } else if !self.wait_queue.readmit(queue_id, tenant) {
            self.fail(request, failure, NoRetryReason::QueueFull);
        } else {
            self.requeue_front(request, failure);
        }
    }

    /// Returns the rejection of a request that does not wait for unreachable nodes.
    fn outage_without_hold(&self, record: &RequestRecord) -> Option<Rejection> {
        let Arrival { model, outage, .. } = record.arrival;
        let is_rejected = outage == OutageRule::Reject && self.nodes.is_unreachable(model);
        is_rejected.then_some(Rejection::Outage { retry_after: Duration::from_secs(1) })
    }

    /// Ends a failed request that is not retried.
    fn fail(&mut self, request: RequestId, failure: AttemptFailure, no_retry: NoRetryReason) {
        let attempts = self.requests.get(request).map_or(0, |record| record.attempts);
        self.reject(request, Rejection::Failed { attempts, failure, no_retry });
    }

    /// Puts a readmitted request at the front of its tenant queue, with its remaining time.
    fn requeue_front(&mut self, request: RequestId, failure: AttemptFailure) {
        let now = self.now;
        let Some(timeout_at) = self.requests.get(request).map(|record| self.wait_ends_at(record)) else {
            return;
        };
        let Some(record) = self.requests.get_mut(request) else { return };
        record.waiting_since = now;
        record.timeout_at = timeout_at;
        record.state = RequestState::Queued;
        let tenant = record.arrival.tenant;
        let attempt = record.attempts;
        self.wait_queue.add_waiting(request, record);
        self.wait_queue.enqueue(request, record, QueueEnd::Front);
        self.timers.set_request(request, record);
        self.counts.retried += 1;
        self.emit(Event::Retry { request, tenant, failure, attempt });
    }

    /// Returns the time until which a requeued request may wait.
    fn wait_ends_at(&self, record: &RequestRecord) -> Instant {
        let wait_max = self.options.load.wait_queue.default_timeout;
        record.deadline_at.unwrap_or(self.now + wait_max.saturating_sub(record.waited_before))
    }

    /// Reserves queue capacity and a retry from the budget, or returns the reason for not retrying.
    fn reserve_retry(&mut self, request: RequestId) -> Result<(), NoRetryReason> {
        let record = self.requests.get(request).ok_or(NoRetryReason::NoOtherNode)?;
        if record.attempts - record.unserved >= self.options.retry.attempts_max {
            return Err(NoRetryReason::AttemptsUsed);
        }
        if self.wait_ends_at(record) <= self.now {
            return Err(NoRetryReason::DeadlinePassed);
        }
        if !self.nodes.has_untried(record) {
            return Err(NoRetryReason::NoOtherNode);
        }
        let queue_id = record.arrival.queue_id();
        let tenant = record.arrival.tenant;
        if !self.wait_queue.readmit(queue_id, tenant) {
            return Err(NoRetryReason::QueueFull);
        }
        if !self.spend_retry(self.now, tenant) {
            self.wait_queue.release_capacity(queue_id, tenant);
            return Err(NoRetryReason::BudgetSpent);
        }
        Ok(())
    }

    /// Updates the node's timer if its due time has changed.
    fn schedule_node(&mut self, id: NodeId) {
        let at = self.nodes.get(id).and_then(Node::timeout);
        if self.timers.due_at(TimerTarget::Node(id)) != at {
            self.timers.set_node(id, at);
        }
    }

    /// Schedules another dispatch if requests wait although a slot is free: gates may open as time passes.
    fn schedule_recheck(&mut self) {
        let blocked = self.in_flight < self.options.limits.in_flight_max
            && self.wait_queue.has_any_ready()
            && self.nodes.iter().any(|(_, node)| {
                node.has_free_slot()
                    && node.models().iter().any(|model| self.wait_queue.has_ready_for(*model))
            });
        let at = blocked.then(|| self.now + STATS_AGE_MAX);
        self.timers.set_recheck(at);
    }
}

/// Finds the first request of a flow for which `check` returns a result.
///
/// A request that was never sent differs from the later ones of its kind only in its preferences: if it fits no node,
/// neither do they.
fn find_first<T>(
    requests: &Requests,
    flow: &FlowQueue,
    mut check: impl FnMut(&RequestRecord) -> Option<T>,
) -> Option<Found<T>> {
    let mut queued = flow.queued();
    let mut passed_over = 0;
    while let Some(request) = queued.next() {
        let record = requests.get(request)?;
        if let Some(result) = check(record) {
            return Some(Found { request, result, passed_over });
        }
        passed_over += 1;
        if record.attempts == 0 {
            queued.skip_kind(record.arrival.request);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pick_node::{NodeSpec, Slots};
    use evenkeel_policy::class::TenantFlow;
    use evenkeel_policy::weight::Weight;

    #[test]
    fn a_search_checks_one_of_many_begins_before_the_plain_statement_behind_them() {
        let mut pipeline = OptimizedLoadManager::new(Default::default()).unwrap();
        let spec = NodeSpec {
            slots: Slots::Fixed(1),
            transactions_max: Some(0),
            weight: Weight::ONE,
            models: vec![ModelId(0)],
            paths: vec![],
        };
        pipeline.add_node(Instant::ORIGIN, &spec).unwrap();
        let mut kinds = vec![RequestKind::Query];
        kinds.extend([RequestKind::BeginTx; 40]);
        kinds.push(RequestKind::Query);
        let requests: Vec<_> = kinds
            .into_iter()
            .map(|request| pipeline.handle_arrival(Instant::ORIGIN, arrival(request)))
            .collect();
        let queue_id = ModelQueueId { model: ModelId(0), priority: Priority::Interactive };
        let tenant_queue = pipeline.wait_queue.queue(queue_id).unwrap().tenant_queue(TenantId(0)).unwrap();
        assert_eq!(tenant_queue.queued_len(), 41);
        let mut checks = 0;
        let flow = tenant_queue.flow(tenant_queue.next_flow().unwrap()).unwrap();
        let found = find_first(&pipeline.requests, flow, |record| {
            checks += 1;
            (record.arrival.request == RequestKind::Query).then_some(())
        });
        let found = found.unwrap();
        assert_eq!((found.request, found.passed_over, checks), (requests[41], 1, 2));
    }

    fn arrival(request: RequestKind) -> Arrival {
        Arrival {
            tenant: TenantId(0),
            model: ModelId(0),
            cost: Cost(500),
            upfront: Cost::MAX,
            affinity: None,
            deadline: None,
            request,
            priority: Priority::Interactive,
            flow: TenantFlow::default(),
            outage: OutageRule::Hold,
        }
    }
}
