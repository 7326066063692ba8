//! Async request scheduler: the sans-I/O pipeline behind one short lock, where each request is a future.
//!
//! Every call into the pipeline collects its effects (events, wakers, the next timer) while it holds the lock, and
//! records the events and wakes the tasks after releasing it. The decision about a queued request and the waker of its
//! task are guarded by the same lock, which rules out a lost wake-up. Dropping a
//! [`SlotFuture`] removes its request from the queue; dropping a [`SlotGuard`] releases its slot.
//!
//! Guarantees: the lock is never held across an await, a wake-up or a call to the observer.
//!
//! Limits: one entry per queued request; one timer.

mod clock;
mod lock;
#[cfg(loom)]
#[cfg(test)]
mod loom_models;
mod slot;
mod telemetry;

use core::sync::atomic::{AtomicU64, Ordering};
use core::task::Waker;
use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_pipeline::{
    Arrival, Event, InvalidOptions, OptimizedLoadManager, PipelineOptions, Priority, Rejection, RequestId,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::{Observer, RequestName, Step};

use clock::SchedulerClock;
use lock::Mutex;
pub use slot::{SlotFuture, SlotGuard, WaitRejection};

/// Scheduler of one pool of nodes, shared by all its requests.
pub struct RequestScheduler {
    clock: SchedulerClock,
    state: Mutex<State>,
    observer: Arc<Observer>,
    /// Number of ids given to requests outside the pipeline.
    outside: AtomicU64,
}

struct State {
    pipeline: OptimizedLoadManager,
    /// Requests that wait for a decision, or whose decision has not been polled yet.
    waiters: HashMap<RequestId, WaiterEntry>,
    /// Time for which the timer is set.
    timer_at: Option<Instant>,
}

#[derive(Default)]
struct WaiterEntry {
    decision: Option<SlotDecision>,
    waker: Option<Waker>,
}

/// The pipeline's decision about a queued request.
#[derive(Clone, Copy, Debug)]
enum SlotDecision {
    Granted(SlotGrant),
    Rejected(Rejection),
}

/// A reserved slot.
#[derive(Clone, Copy, Debug)]
struct SlotGrant {
    node: NodeId,
    path: Option<PathId>,
    waited: Duration,
}

/// An accepted request and its scheduler.
struct RequestHandle {
    scheduler: Arc<RequestScheduler>,
    request: RequestId,
    tenant: TenantId,
    arrived_at: Instant,
    /// Cost last reported to the pipeline.
    reported: Cost,
}

/// Effects of one call into the pipeline, applied after the lock is released.
#[derive(Default)]
struct Effects {
    /// Decision about the request that made the call.
    decision: Option<SlotDecision>,
    /// The only event of most calls; spares them an allocation.
    first: Option<Event>,
    more: Vec<Event>,
    wakers: Vec<Waker>,
    resets_timer: bool,
}

impl RequestScheduler {
    /// Starts a scheduler without nodes, and its timer task. Needs a Tokio runtime.
    pub fn start(options: PipelineOptions, observer: Arc<Observer>) -> Result<Arc<Self>, InvalidOptions> {
        let pipeline = OptimizedLoadManager::new(options)?;
        let state = Mutex::new(State { pipeline, waiters: HashMap::new(), timer_at: None });
        let scheduler =
            Arc::new(Self { clock: SchedulerClock::start(), state, observer, outside: AtomicU64::new(0) });
        scheduler.clock.spawn_timer(&scheduler);
        Ok(scheduler)
    }

    /// Returns the time by the clock that drives the pipeline.
    pub fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Returns the sink of the pipeline's events.
    pub fn observer(&self) -> &Observer {
        &self.observer
    }

    /// Submits a request, which the request log finds by its name; a free slot is granted before this returns.
    pub fn submit(self: &Arc<Self>, arrival: Arrival, name: RequestName<'_>) -> SlotFuture {
        let now = self.now();
        let mut state = self.state.lock();
        let request = state.pipeline.handle_arrival(now, arrival);
        let effects = state.drain(Some(request));
        if effects.decision.is_none() {
            state.waiters.insert(request, WaiterEntry::default());
        }
        let waiting = state.pipeline.waiting(arrival.model);
        let delayed_until = state.pipeline.delayed_until(request);
        drop(state);
        let handle = RequestHandle {
            scheduler: self.clone(),
            request,
            tenant: arrival.tenant,
            arrived_at: now,
            reported: Cost::ZERO,
        };
        self.observer.request_log().set_name(request, arrival.tenant, name);
        let flow = (arrival.priority == Priority::Interactive).then_some(arrival.flow);
        handle.record(now, Step::Accepted { model: arrival.model, cost: arrival.cost, flow });
        match effects.decision {
            Some(SlotDecision::Rejected(_)) => {}
            Some(SlotDecision::Granted(_)) => handle.record(now, Step::Admitted { waiting: waiting + 1 }),
            None => handle.record(now, Step::Admitted { waiting }),
        }
        if let Some(until) = delayed_until {
            handle.record(now, Step::Delayed { delay: until.since(now) });
        }
        let decision = effects.decision;
        self.apply(now, effects, now);
        SlotFuture::new(handle, decision, now, Duration::ZERO)
    }

    /// Returns an id for the steps of a request outside the pipeline, which assigns ids from 0 up and not this one.
    pub fn outside_id(&self) -> RequestId {
        RequestId(u64::MAX - self.outside.fetch_add(1, Ordering::Relaxed))
    }

    /// Records a step of a request outside the pipeline.
    pub fn record_outside(&self, request: RequestId, tenant: TenantId, name: RequestName<'_>, step: Step) {
        self.observer.record(self.now(), &telemetry::request_event(request, tenant, step));
        self.observer.request_log().set_name(request, tenant, name);
    }

    /// Changes nodes, tenants or measurements of the pipeline.
    pub fn update<R>(&self, change: impl FnOnce(&mut OptimizedLoadManager, Instant) -> R) -> R {
        let now = self.now();
        let mut state = self.state.lock();
        let changed = change(&mut state.pipeline, now);
        let effects = state.drain(None);
        drop(state);
        self.apply(now, effects, now);
        changed
    }

    /// Reads the pipeline under the lock.
    pub fn inspect<R>(&self, read: impl FnOnce(&OptimizedLoadManager) -> R) -> R {
        read(&self.state.lock().pipeline)
    }

    /// Cancels a request that has cost `so_far`, and releases its queue entry or slot.
    fn cancel(&self, handle: &RequestHandle, so_far: Cost) {
        let now = self.now();
        let mut state = self.state.lock();
        let decision = state.waiters.remove(&handle.request).and_then(|waiter| waiter.decision);
        if matches!(decision, Some(SlotDecision::Rejected(_))) {
            return;
        }
        if so_far > Cost::ZERO {
            state.pipeline.handle_progress(now, handle.request, so_far);
        }
        state.pipeline.handle_cancel(now, handle.request);
        let effects = state.drain(None);
        drop(state);
        self.apply(now, effects, handle.arrived_at);
    }

    /// Handles due timeouts; returns when the next one is due.
    fn on_timer(&self) -> Option<Instant> {
        let now = self.now();
        let mut state = self.state.lock();
        state.pipeline.handle_time(now);
        state.timer_at = None;
        let effects = state.drain(None);
        let due = state.timer_at;
        drop(state);
        self.apply(now, Effects { resets_timer: false, ..effects }, now);
        due
    }

    /// Records events and wakes tasks. A request that ends by this call arrived at `arrived_at`.
    fn apply(&self, now: Instant, effects: Effects, arrived_at: Instant) {
        for event in effects.first.iter().chain(&effects.more) {
            self.observer.record(now, &telemetry::to_telemetry(event, now, arrived_at));
        }
        effects.wakers.into_iter().for_each(Waker::wake);
        if effects.resets_timer {
            self.clock.notify();
        }
    }
}

/// Wakes the timer task, which ends once the scheduler is gone.
impl Drop for RequestScheduler {
    fn drop(&mut self) {
        self.clock.notify();
    }
}

impl State {
    /// Collects the effects of a call that was made for the request `own`, if any.
    fn drain(&mut self, own: Option<RequestId>) -> Effects {
        let mut effects = Effects::default();
        while let Some(event) = self.pipeline.poll_event() {
            if let Some((request, decision)) = SlotDecision::from_event(&event) {
                if own == Some(request) {
                    effects.decision = Some(decision);
                } else if let Some(waiter) = self.waiters.get_mut(&request) {
                    waiter.decision = Some(decision);
                    effects.wakers.extend(waiter.waker.take());
                }
            }
            match effects.first {
                None => effects.first = Some(event),
                Some(_) => effects.more.push(event),
            }
        }
        let due = self.pipeline.poll_timeout();
        if due.is_some_and(|due| self.timer_at.is_none_or(|at| due < at)) {
            self.timer_at = due;
            effects.resets_timer = true;
        }
        effects
    }
}

impl SlotDecision {
    fn from_event(event: &Event) -> Option<(RequestId, Self)> {
        match *event {
            Event::Dispatch { request, node, path, waited, .. } => {
                Some((request, Self::Granted(SlotGrant { node, path, waited })))
            }
            Event::Reject { request, rejection, .. } => Some((request, Self::Rejected(rejection))),
            Event::Retry { .. }
            | Event::Done { .. }
            | Event::Redirected { .. }
            | Event::AdminState { .. }
            | Event::NodeRemoved { .. }
            | Event::Breaker { .. }
            | Event::Cooldown { .. }
            | Event::ClosedToTenant { .. }
            | Event::OpenedToTenant { .. }
            | Event::Path { .. } => None,
        }
    }
}

impl RequestHandle {
    fn record(&self, now: Instant, step: Step) {
        self.scheduler.observer.record(now, &telemetry::request_event(self.request, self.tenant, step));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
