//! Drop guards of a request: [`SlotFuture`] while it is queued, [`SlotGuard`] while a node serves it.
//!
//! Guarantees: a queue entry or slot is released exactly once: when it is handed on, completed, or dropped. A poll
//! that finds no decision stores its waker under the same lock, so there is no lost wake-up.

use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_pipeline::{AttemptFailure, OptimizedLoadManager, Rejection, RequestEnd};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::Step;

use super::{RequestHandle, SlotDecision, SlotGrant, WaiterEntry};

/// Resolves to a [`SlotGuard`]. Dropping the future removes the request from the queue.
pub struct SlotFuture {
    /// `None` once the future has resolved.
    pub(super) handle: Option<RequestHandle>,
    /// Decision known at creation; otherwise it arrives in the scheduler's `waiters`.
    decision: Option<SlotDecision>,
    since: Instant,
    /// Time spent queued before earlier attempts.
    waited_before: Duration,
}

/// Rejection of a queued request.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("rejected after {waited:?} in the queue")]
pub struct WaitRejection {
    #[source]
    pub rejection: Rejection,
    /// Time spent queued, over all attempts.
    pub waited: Duration,
}

impl SlotFuture {
    pub(super) fn new(
        handle: RequestHandle,
        decision: Option<SlotDecision>,
        since: Instant,
        waited_before: Duration,
    ) -> Self {
        Self { handle: Some(handle), decision, since, waited_before }
    }

    /// Returns the decision and the time at which it was seen, or stores the waker.
    fn poll_decision(&mut self, cx: &Context<'_>) -> Poll<(SlotDecision, Instant)> {
        if let Some(decision) = self.decision.take() {
            return Poll::Ready((decision, self.since));
        }
        let Some(handle) = &self.handle else { return Poll::Pending };
        let mut state = handle.scheduler.state.lock();
        let Some(waiter) = state.waiters.get_mut(&handle.request) else { return Poll::Pending };
        let Some(decision) = waiter.decision.take() else {
            waiter.set_waker(cx);
            return Poll::Pending;
        };
        state.waiters.remove(&handle.request);
        drop(state);
        Poll::Ready((decision, handle.scheduler.now()))
    }
}

impl WaiterEntry {
    pub(super) fn set_waker(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }
}

impl Future for SlotFuture {
    type Output = Result<SlotGuard, WaitRejection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready((decision, now)) = self.poll_decision(cx) else { return Poll::Pending };
        let Some(handle) = self.handle.take() else { return Poll::Pending };
        Poll::Ready(match decision {
            SlotDecision::Granted(grant) => Ok(SlotGuard::new(handle, grant, now)),
            SlotDecision::Rejected(rejection) => {
                Err(WaitRejection { rejection, waited: self.waited_before + now.since(self.since) })
            }
        })
    }
}

impl Drop for SlotFuture {
    fn drop(&mut self) {
        let Some(handle) = &self.handle else { return };
        if !matches!(self.decision, Some(SlotDecision::Rejected(_))) {
            handle.scheduler.cancel(handle, Cost::ZERO);
        }
    }
}

/// Cost that a request accumulates between two reports to the pipeline, since reporting every token is not free: 16
/// output tokens.
const COST_REPORT_STEP: Cost = Cost(32);

/// A reserved slot on a node. Dropping the guard releases the slot and cancels the request.
pub struct SlotGuard {
    /// `None` once the request has ended or is queued again.
    handle: Option<RequestHandle>,
    grant: SlotGrant,
    granted_at: Instant,
    so_far: Cost,
}

impl SlotGuard {
    fn new(handle: RequestHandle, grant: SlotGrant, now: Instant) -> Self {
        Self { handle: Some(handle), grant, granted_at: now, so_far: Cost::ZERO }
    }

    pub fn node(&self) -> NodeId {
        self.grant.node
    }

    /// Returns the chosen path, if the node has more than one.
    pub fn path(&self) -> Option<PathId> {
        self.grant.path
    }

    /// Returns the time spent queued, over all attempts.
    pub fn waited(&self) -> Duration {
        self.grant.waited
    }

    /// Records the first byte of the response; from here on there is no failover.
    pub fn on_first_byte(&self) {
        let Some(handle) = &self.handle else { return };
        handle.scheduler.update(|pipeline, now| pipeline.handle_first_byte(now, handle.request));
        self.record_first_byte(handle, handle.scheduler.now());
    }

    /// Records, before its first byte, that the response reports a client error: its latency counts for nothing.
    pub fn on_client_error(&self) {
        let Some(handle) = &self.handle else { return };
        handle.scheduler.update(|pipeline, now| pipeline.handle_client_error(now, handle.request));
    }

    /// Reports the cost of the request so far.
    pub fn report_cost(&mut self, so_far: Cost) {
        self.so_far = self.so_far.max(so_far);
        let Some(handle) = &mut self.handle else { return };
        // Charging ahead covers the cost that has not been reported yet.
        if handle.reported + COST_REPORT_STEP <= self.so_far {
            handle.reported = self.so_far;
            let request = handle.request;
            handle.scheduler.update(|pipeline, now| pipeline.handle_progress(now, request, so_far));
        }
    }

    /// Completes a request whose first byte was recorded.
    pub fn complete(mut self, actual: Cost, outcome: Outcome) {
        if let Some(handle) = self.handle.take() {
            finish(&handle, handle.scheduler.now(), |pipeline, now| {
                pipeline.handle_end(now, handle.request, RequestEnd { actual, outcome });
            });
        }
    }

    /// Completes a request whose response arrived as a whole.
    pub fn complete_whole(mut self, actual: Cost) {
        if let Some(handle) = self.handle.take() {
            let now = handle.scheduler.now();
            self.record_first_byte(&handle, now);
            finish(&handle, now, |pipeline, now| {
                pipeline.handle_end(now, handle.request, RequestEnd { actual, outcome: Outcome::Good });
            });
        }
    }

    /// Ends a request whose node failed after the first byte.
    pub fn fail_mid_stream(mut self, failure: AttemptFailure) {
        let so_far = self.so_far;
        if let Some(handle) = self.handle.take() {
            finish(&handle, handle.scheduler.now(), |pipeline, now| {
                pipeline.handle_progress(now, handle.request, so_far);
                pipeline.handle_failure(now, handle.request, failure);
            });
        }
    }

    /// Releases the slot after the node failed before the first byte. The request is queued for another node (failover)
    /// or rejected. Its tenant is charged `input`, the cost of the prompt, if the node may have processed it.
    pub fn fail(mut self, failure: AttemptFailure, input: Cost) -> Result<SlotFuture, WaitRejection> {
        let waited = self.grant.waited;
        let Some(handle) = self.handle.take() else {
            return Err(WaitRejection { rejection: Rejection::Cancelled, waited });
        };
        let scheduler = handle.scheduler.clone();
        let now = scheduler.now();
        let mut state = scheduler.state.lock();
        state.pipeline.handle_progress(now, handle.request, input);
        state.pipeline.handle_failure(now, handle.request, failure);
        let effects = state.drain(Some(handle.request));
        if effects.decision.is_none() {
            state.waiters.insert(handle.request, WaiterEntry::default());
        }
        drop(state);
        let decision = effects.decision;
        scheduler.apply(now, effects, handle.arrived_at);
        match decision {
            Some(SlotDecision::Rejected(rejection)) => Err(WaitRejection { rejection, waited }),
            Some(SlotDecision::Granted(_)) | None => Ok(SlotFuture::new(handle, decision, now, waited)),
        }
    }

    fn record_first_byte(&self, handle: &RequestHandle, now: Instant) {
        handle.record(now, Step::FirstByte { node: self.grant.node, after: now.since(self.granted_at) });
    }
}

/// Ends a request in the pipeline and applies the effects.
fn finish(handle: &RequestHandle, now: Instant, end: impl FnOnce(&mut OptimizedLoadManager, Instant)) {
    let mut state = handle.scheduler.state.lock();
    end(&mut state.pipeline, now);
    let effects = state.drain(None);
    drop(state);
    handle.scheduler.apply(now, effects, handle.arrived_at);
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(handle) = &self.handle {
            handle.scheduler.cancel(handle, self.so_far);
        }
    }
}
