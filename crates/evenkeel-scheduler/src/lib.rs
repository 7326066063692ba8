//! The pipeline's machine behind one short lock, for requests that are futures.
//!
//! Whoever does something to the machine takes out everything that follows from it while the lock is held, and tells and
//! wakes once it is not. A request whose turn comes finds its slot reserved under the same lock that its waker is kept
//! under, so no wake-up is lost; a [`Place`] or a [`Slot`] that is dropped gives back what it holds.
//!
//! Bounds: the lock is never held across an await, a wake-up or a tell; one entry per request that waits; one timer.

mod clock;
mod lock;
#[cfg(loom)]
#[cfg(test)]
mod loom_models;
mod slot;
mod telemetry;

use core::task::Waker;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_pipeline::{
    Arrival, Event, InvalidOptions, OptimizedLoadManager, PipelineOptions, Rejection, RequestId,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::{Observer, RejectReason, Step};

use clock::SchedulerClock;
use lock::Mutex;
pub use slot::{SlotFuture, SlotGuard, WaitRejection};

/// One pool's walk, shared by all its requests.
pub struct RequestScheduler {
    clock: SchedulerClock,
    state: Mutex<State>,
    watch: Arc<Observer>,
}

struct State {
    machine: OptimizedLoadManager,
    /// Who waits for a verdict, or has one that is not yet taken.
    waiters: HashMap<RequestId, WaiterEntry>,
    /// When the timer goes off.
    alarm_at: Option<Instant>,
}

#[derive(Default)]
struct WaiterEntry {
    verdict: Option<SlotDecision>,
    waker: Option<Waker>,
}

/// What became of waiting.
#[derive(Clone, Copy, Debug)]
enum SlotDecision {
    Granted(SlotGrant),
    Rejected(Rejection),
}

/// A slot that is reserved.
#[derive(Clone, Copy, Debug)]
struct SlotGrant {
    node: NodeId,
    path: Option<PathId>,
    waited: Duration,
}

/// A request as the walk knows it from its arrival on.
struct RequestHandle {
    walk: Arc<RequestScheduler>,
    request: RequestId,
    tenant: TenantId,
    entered_at: Instant,
    /// What the machine knows it to have cost.
    told: Cost,
}

/// What follows from one thing done to the machine.
#[derive(Default)]
struct Effects {
    /// What became of the request it was done for.
    verdict: Option<SlotDecision>,
    /// Usually one event follows, or none.
    first: Option<Event>,
    more: Vec<Event>,
    wakers: Vec<Waker>,
    rings: bool,
}

impl RequestScheduler {
    /// Starts a walk without nodes, and its timer; needs a Tokio runtime.
    pub fn start(options: PipelineOptions, watch: Arc<Observer>) -> Result<Arc<Self>, InvalidOptions> {
        let machine = OptimizedLoadManager::new(options)?;
        let state = Mutex::new(State { machine, waiters: HashMap::new(), alarm_at: None });
        let walk = Arc::new(Self { clock: SchedulerClock::start(), state, watch });
        walk.clock.spawn_timer(&walk);
        Ok(walk)
    }

    /// The time, as every step of the walk is told it.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Who is told what happens.
    pub fn watch(&self) -> &Observer {
        &self.watch
    }

    /// Lets a request in; a slot that is free is granted before this returns.
    pub fn submit(self: &Arc<Self>, arrival: Arrival) -> SlotFuture {
        let now = self.now();
        let mut state = self.state.lock();
        let request = state.machine.handle_arrival(now, arrival);
        let outcome = state.drain(Some(request));
        if outcome.verdict.is_none() {
            state.waiters.insert(request, WaiterEntry::default());
        }
        let waiting = state.machine.waiting(arrival.model);
        let delayed_until = state.machine.delayed_until(request);
        drop(state);
        let ticket = RequestHandle {
            walk: self.clone(),
            request,
            tenant: arrival.tenant,
            entered_at: now,
            told: Cost::ZERO,
        };
        ticket.tell(now, Step::Accepted { model: arrival.model, cost: arrival.cost });
        match outcome.verdict {
            Some(SlotDecision::Rejected(_)) => {}
            Some(SlotDecision::Granted(_)) => ticket.tell(now, Step::Admitted { waiting: waiting + 1 }),
            None => ticket.tell(now, Step::Admitted { waiting }),
        }
        if let Some(until) = delayed_until {
            ticket.tell(now, Step::Delayed { delay: until.since(now) });
        }
        let verdict = outcome.verdict;
        self.publish(now, outcome, now);
        SlotFuture::new(ticket, verdict, now, Duration::ZERO)
    }

    /// Tells that a tenant's request was refused before it could enter.
    pub fn tell_rate_limited(&self, tenant: TenantId) {
        let step = Step::Rejected { reason: RejectReason::RateLimited };
        self.watch.record(self.now(), &telemetry::outside(tenant, step));
    }

    /// Changes nodes or tenants, or takes in what was found out about a node.
    pub fn update<R>(&self, change: impl FnOnce(&mut OptimizedLoadManager, Instant) -> R) -> R {
        let now = self.now();
        let mut state = self.state.lock();
        let changed = change(&mut state.machine, now);
        let outcome = state.drain(None);
        drop(state);
        self.publish(now, outcome, now);
        changed
    }

    /// Looks at the machine.
    pub fn inspect<R>(&self, look: impl FnOnce(&OptimizedLoadManager) -> R) -> R {
        look(&self.state.lock().machine)
    }

    /// Gives back whatever a request holds, which used `so_far`.
    fn cancel(&self, ticket: &RequestHandle, so_far: Cost) {
        let now = self.now();
        let mut state = self.state.lock();
        let verdict = state.waiters.remove(&ticket.request).and_then(|waiter| waiter.verdict);
        if matches!(verdict, Some(SlotDecision::Rejected(_))) {
            return;
        }
        if Cost::ZERO < so_far {
            state.machine.handle_progress(now, ticket.request, so_far);
        }
        state.machine.handle_cancel(now, ticket.request);
        let outcome = state.drain(None);
        drop(state);
        self.publish(now, outcome, ticket.entered_at);
    }

    /// Does what is due, and names the time at which the next thing is.
    fn on_timer(&self) -> Option<Instant> {
        let now = self.now();
        let mut state = self.state.lock();
        state.machine.handle_time(now);
        state.alarm_at = None;
        let outcome = state.drain(None);
        let due = state.alarm_at;
        drop(state);
        self.publish(now, Effects { rings: false, ..outcome }, now);
        due
    }

    /// Tells and wakes; a request that ends came in at `entered_at`.
    fn publish(&self, now: Instant, outcome: Effects, entered_at: Instant) {
        for event in outcome.first.iter().chain(&outcome.more) {
            self.watch.record(now, &telemetry::to_telemetry(event, now, entered_at));
        }
        outcome.wakers.into_iter().for_each(Waker::wake);
        if outcome.rings {
            self.clock.notify();
        }
    }
}

/// The timer ends by itself once nobody walks any more.
impl Drop for RequestScheduler {
    fn drop(&mut self) {
        self.clock.notify();
    }
}

impl State {
    /// Takes out everything that follows from what was done to the machine, done for `own` or for nobody.
    fn drain(&mut self, own: Option<RequestId>) -> Effects {
        let mut outcome = Effects::default();
        while let Some(event) = self.machine.poll_event() {
            if let Some((request, verdict)) = SlotDecision::of(&event) {
                if own == Some(request) {
                    outcome.verdict = Some(verdict);
                } else if let Some(waiter) = self.waiters.get_mut(&request) {
                    waiter.verdict = Some(verdict);
                    outcome.wakers.extend(waiter.waker.take());
                }
            }
            match outcome.first {
                None => outcome.first = Some(event),
                Some(_) => outcome.more.push(event),
            }
        }
        let due = self.machine.poll_timeout();
        if due.is_some_and(|due| self.alarm_at.is_none_or(|at| due < at)) {
            self.alarm_at = due;
            outcome.rings = true;
        }
        outcome
    }
}

impl SlotDecision {
    fn of(event: &Event) -> Option<(RequestId, Self)> {
        match *event {
            Event::Dispatch { request, node, path, waited, .. } => {
                Some((request, Self::Granted(SlotGrant { node, path, waited })))
            }
            Event::Reject { request, rejection, .. } => Some((request, Self::Rejected(rejection))),
            Event::Retry { .. }
            | Event::Done { .. }
            | Event::AdminState { .. }
            | Event::NodeRemoved { .. }
            | Event::Breaker { .. }
            | Event::Cooldown { .. }
            | Event::Path { .. } => None,
        }
    }
}

impl RequestHandle {
    fn tell(&self, now: Instant, step: Step) {
        self.walk.watch.record(now, &telemetry::request_event(self.request, self.tenant, step));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
