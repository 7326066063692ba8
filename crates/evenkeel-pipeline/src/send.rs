//! Send: bind requests to slots, and take the slots back exactly once.
//!
//! Bounds: a request is bound only when a node has a slot for it, and a freed slot goes to exactly one waiter in the
//! same step; whenever a step ends, nobody waits who could have had a free slot, and no slot went to the background
//! that somebody who waits could have had.

mod retry_budget;

use evenkeel_policy::backpressure::retry_after;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{Key, NodeId, TenantId};
use evenkeel_policy::time::Instant;

pub(crate) use retry_budget::RetryBudget;

use crate::OptimizedLoadManager;
use crate::accept::{
    Arrival, Attempt, AttemptFailure, ModelId, ModelQueueId, Priority, RequestId, RequestRecord,
    RequestState, ResponseState,
};
use crate::load_manager::TimerTarget;
use crate::observe::Event;
use crate::pick_node::{AdminState, FIGURES_AGE_MAX, Node, Pick, PickReason, SlotRequest, SlotReservation};
use crate::queue::QueueEnd;
use crate::rejection::{NoRetryReason, Rejection};

/// A request, and the node that has a slot for it.
struct Placement {
    request: RequestId,
    tenant: TenantId,
    line: ModelQueueId,
    pick: Pick,
    /// Who was in turn before and could not be placed.
    passed_over: Vec<Key>,
}

impl OptimizedLoadManager {
    /// Gives every free slot to whoever's turn it is.
    pub(crate) fn dispatch(&mut self) {
        if self.wait_queue.has_any_turn() {
            self.nodes.refresh(self.now);
        }
        while let Some(placed) = self.next_placement() {
            self.send(placed);
        }
        self.schedule_recheck();
    }

    /// Finds somebody whose turn it is at a node with room; one in the background only for want of anybody else.
    fn next_placement(&mut self) -> Option<Placement> {
        if !self.wait_queue.has_any_turn() || self.options.limits.in_flight_max <= self.in_flight {
            return None;
        }
        Priority::ALL.into_iter().find_map(|urgency| self.place_one(urgency))
    }

    /// Finds somebody of this urgency, each node turning to another of its models in turn.
    fn place_one(&mut self, urgency: Priority) -> Option<Placement> {
        let mut looked_at: Vec<ModelId> = Vec::new();
        let with_room: Vec<NodeId> =
            self.nodes.iter().filter(|(_, node)| node.has_room()).map(|(id, _)| id).collect();
        for node in with_room {
            let models: Vec<ModelId> =
                self.nodes.get(node).map(|node| node.models_in_turn().collect()).unwrap_or_default();
            for model in models {
                let line = ModelQueueId { model, urgency };
                if looked_at.contains(&model) || !self.wait_queue.has_turn(line) {
                    continue;
                }
                if let Some(placed) = self.place_one_of(line) {
                    return Some(placed);
                }
                looked_at.push(model);
            }
        }
        None
    }

    /// Finds the first in turn in a line who can be placed.
    ///
    /// Somebody may be in turn whose every request has failed on the nodes with room, or is closed out of them by a
    /// gate: it is set aside until another has been served, and keeps its turn.
    fn place_one_of(&mut self, line: ModelQueueId) -> Option<Placement> {
        let mut passed_over = Vec::new();
        while let Some(key) = self.wait_queue.ring(line).and_then(|ring| ring.drr.next_key()) {
            if let Some(placed) = self.place_one_of_lane(line, TenantId(key.0)) {
                return Some(Placement { passed_over, ..placed });
            }
            passed_over.push(key);
            self.wait_queue.ring_mut(line)?.drr.park(key);
        }
        self.wake(line, passed_over);
        None
    }

    fn wake(&mut self, line: ModelQueueId, passed_over: Vec<Key>) {
        if let Some(ring) = self.wait_queue.ring_mut(line) {
            passed_over.into_iter().for_each(|key| ring.drr.wake(key));
        }
    }

    /// Finds the first of a lane that can be placed, or one soon after it whose node is warm.
    fn place_one_of_lane(&mut self, line: ModelQueueId, tenant: TenantId) -> Option<Placement> {
        let lane = self.wait_queue.ring(line)?.lane(tenant)?;
        let mut picked = None;
        for (at, request) in lane.queue().iter().enumerate() {
            let Some(ticket) = self.requests.get(*request) else { continue };
            if let Some(pick) = self.nodes.pick(&self.node_cache, ticket) {
                picked = Some((at, *request, pick));
                break;
            }
        }
        let (at, request, pick) = picked?;
        let head = Placement { request, tenant, line, pick, passed_over: Vec::new() };
        if at > 0 || pick.because == PickReason::Cached {
            return Some(head);
        }
        Some(self.prefer_cached(&head).unwrap_or(head))
    }

    /// Finds one soon after the head of a lane whose node is warm, unless the head was passed over too often.
    fn prefer_cached(&mut self, head: &Placement) -> Option<Placement> {
        let affinity = self.options.affinity;
        if affinity.skips_max <= self.requests.get(head.request)?.skipped {
            return None;
        }
        let lane = self.wait_queue.ring(head.line)?.lane(head.tenant)?;
        let warm = |request: &RequestId| {
            let node = self.nodes.cached_node(&self.node_cache, self.requests.get(*request)?)?;
            Some((*request, Pick { node, because: PickReason::Cached }))
        };
        let (request, pick) = lane.queue().iter().take(affinity.lookahead_max).skip(1).find_map(warm)?;
        self.requests.get_mut(head.request)?.skipped += 1;
        Some(Placement { request, tenant: head.tenant, line: head.line, pick, passed_over: Vec::new() })
    }

    /// Binds a request to its slot.
    fn send(&mut self, placed: Placement) {
        let Placement { request, tenant, line, pick, passed_over } = placed;
        let model = line.model;
        let now = self.now;
        let Some(ticket) = self.requests.get(request) else { return };
        let arrival = ticket.arrival;
        let waited = ticket.waited(now);
        let charged = self.wait_queue.charge(&arrival);
        self.leave_queue(request);
        self.wait_queue.release_place(line, tenant);
        self.wake(line, passed_over);
        let work = SlotRequest { model, request: arrival.request, cost: arrival.cost };
        let taken = self.nodes.get_mut(pick.node).map(|node| node.reserve_slot(now, request, &work));
        let SlotReservation { path, epoch } = taken.unwrap_or_default();
        self.time_node(pick.node);
        if let Some(affinity) = arrival.affinity {
            self.node_cache.note(now, (model, affinity), pick.node);
        }
        self.in_flight += 1;
        self.counts.dispatched += 1;
        let Some(ticket) = self.requests.get_mut(request) else { return };
        ticket.attempts += 1;
        ticket.waited_before = waited;
        ticket.stage = RequestState::InFlight(Attempt {
            node: pick.node,
            path,
            since: now,
            epoch,
            answer: ResponseState::Pending,
            charged,
            load: arrival.cost,
            actual: Cost::ZERO,
        });
        let attempt = ticket.attempts;
        if attempt == 1 {
            self.retries.on_first_attempt(now);
        }
        let because = pick.because;
        self.emit(Event::Dispatch { request, tenant, node: pick.node, path, waited, because, attempt });
    }

    /// Takes a slot back, and charges what was used of it.
    pub(crate) fn release(&mut self, request: RequestId, arrival: &Arrival, flight: &Attempt, actual: Cost) {
        self.in_flight -= 1;
        self.wait_queue.settle(arrival.line(), arrival.tenant, flight.charged, actual);
        let Some(node) = self.nodes.get_mut(flight.node) else { return };
        let work = SlotRequest { model: arrival.model, request: arrival.request, cost: flight.load };
        node.release(request, &work, flight.path);
        if node.duty == AdminState::Removing && node.busy == 0 {
            self.forget_node(flight.node);
        }
        self.time_node(flight.node);
    }

    /// Tries a failed request elsewhere, or says why not.
    pub(crate) fn retry(&mut self, request: RequestId, failure: AttemptFailure) {
        match self.may_retry(request) {
            Ok(()) => self.requeue_front(request, failure),
            Err(stopped) => self.stop(request, failure, stopped),
        }
    }

    /// Lets a request wait on that a node without room refused: it had no slot, so this is no second attempt.
    ///
    /// It is turned away if no node will have rested before its time is over.
    pub(crate) fn requeue_refused(&mut self, request: RequestId, failure: AttemptFailure) {
        let Some(ticket) = self.requests.get_mut(request) else { return };
        ticket.refused += 1;
        let Some(ticket) = self.requests.get(request) else { return };
        let line = ticket.arrival.line();
        let tenant = ticket.arrival.tenant;
        let rested_at = self.nodes.cooldown_ends_at(self.now, line.model, &ticket.tried);
        if self.now < rested_at && self.wait_ends_at(ticket) <= rested_at {
            let retry_after = retry_after(Some(rested_at.since(self.now)));
            self.reject(request, Rejection::WouldMissDeadline { retry_after });
        } else if !self.nodes.has_untried(ticket) {
            self.stop(request, failure, NoRetryReason::NoOtherNode);
        } else if self.wait_ends_at(ticket) <= self.now {
            self.stop(request, failure, NoRetryReason::DeadlinePassed);
        } else if !self.wait_queue.rejoin(line, tenant) {
            self.stop(request, failure, NoRetryReason::QueueFull);
        } else {
            self.requeue_front(request, failure);
        }
    }

    /// Ends a request that is not tried again.
    fn stop(&mut self, request: RequestId, failure: AttemptFailure, stopped: NoRetryReason) {
        let attempts = self.requests.get(request).map_or(0, |ticket| ticket.attempts);
        self.reject(request, Rejection::Failed { attempts, failure, stopped });
    }

    /// Puts a request that has its place to the front of its lane, with what is left of its time.
    fn requeue_front(&mut self, request: RequestId, failure: AttemptFailure) {
        let now = self.now;
        let Some(timeout_at) = self.requests.get(request).map(|ticket| self.wait_ends_at(ticket)) else {
            return;
        };
        let Some(ticket) = self.requests.get_mut(request) else { return };
        ticket.waiting_since = now;
        ticket.timeout_at = timeout_at;
        ticket.stage = RequestState::Queued;
        let tenant = ticket.arrival.tenant;
        let attempt = ticket.attempts;
        self.wait_queue.add_waiting(request, ticket);
        self.wait_queue.enqueue(request, ticket, QueueEnd::Front);
        self.timers.set_request(request, ticket);
        self.counts.retried += 1;
        self.emit(Event::Retry { request, tenant, failure, attempt });
    }

    /// Until when a request that comes back from a node may wait.
    fn wait_ends_at(&self, ticket: &RequestRecord) -> Instant {
        let wait_max = self.options.load.wait_queue.default_timeout;
        ticket.deadline_at.unwrap_or(self.now + wait_max.saturating_sub(ticket.waited_before))
    }

    /// Takes a place and a retry for a request, or says why it gets neither.
    fn may_retry(&mut self, request: RequestId) -> Result<(), NoRetryReason> {
        let ticket = self.requests.get(request).ok_or(NoRetryReason::NoOtherNode)?;
        if self.options.retry.attempts_max <= ticket.attempts - ticket.refused {
            return Err(NoRetryReason::AttemptsUsed);
        }
        if self.wait_ends_at(ticket) <= self.now {
            return Err(NoRetryReason::DeadlinePassed);
        }
        if !self.nodes.has_untried(ticket) {
            return Err(NoRetryReason::NoOtherNode);
        }
        let line = ticket.arrival.line();
        let tenant = ticket.arrival.tenant;
        if !self.wait_queue.rejoin(line, tenant) {
            return Err(NoRetryReason::QueueFull);
        }
        if !self.retries.spend(self.now) {
            self.wait_queue.release_place(line, tenant);
            return Err(NoRetryReason::BudgetSpent);
        }
        Ok(())
    }

    /// Sets when something about a node changes by itself, if a request that came or went changed that.
    fn time_node(&mut self, id: NodeId) {
        let at = self.nodes.get(id).and_then(Node::timeout);
        if self.timers.of(TimerTarget::Node(id)) != at {
            self.timers.set_node(id, at);
        }
    }

    /// Looks again later if somebody waits beside a free slot: gates open with time alone.
    fn schedule_recheck(&mut self) {
        let blocked = self.in_flight < self.options.limits.in_flight_max
            && self.wait_queue.has_any_turn()
            && self.nodes.iter().any(|(_, node)| {
                node.has_room() && node.models().iter().any(|model| self.wait_queue.has_turn_for(*model))
            });
        let at = blocked.then(|| self.now + FIGURES_AGE_MAX);
        self.timers.set_recheck(at);
    }
}
