//! What a request holds: a place while it waits, a slot while a node works on it.
//!
//! Bound: whatever is held is given back exactly once, when it is handed on, ended, or dropped.

use core::pin::Pin;
use core::task::{Context, Poll};

use evenkeel_pipeline::{AttemptFailure, Rejection, RequestEnd};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::Step;

use super::{RequestHandle, SlotDecision, SlotGrant, WaiterEntry};

/// A request that waits for a slot; dropped, it gives its place back.
pub struct SlotFuture {
    /// `None` once it has a slot or was turned away.
    pub(super) ticket: Option<RequestHandle>,
    /// Known already; otherwise it comes by way of the walk's waiters.
    verdict: Option<SlotDecision>,
    since: Instant,
    /// How long it waited before earlier attempts.
    waited_before: Duration,
}

/// A request that was turned away.
#[derive(Clone, Copy, Debug)]
pub struct WaitRejection {
    /// Why.
    pub rejection: Rejection,
    /// How long it waited, for all its attempts together.
    pub waited: Duration,
}

impl SlotFuture {
    pub(super) fn new(
        ticket: RequestHandle,
        verdict: Option<SlotDecision>,
        since: Instant,
        waited_before: Duration,
    ) -> Self {
        Self { ticket: Some(ticket), verdict, since, waited_before }
    }

    /// Takes the verdict and when it was seen, or leaves the waker where the verdict will come.
    fn poll_verdict(&mut self, cx: &Context<'_>) -> Poll<(SlotDecision, Instant)> {
        if let Some(verdict) = self.verdict.take() {
            return Poll::Ready((verdict, self.since));
        }
        let Some(ticket) = &self.ticket else { return Poll::Pending };
        let mut state = ticket.walk.state.lock();
        let Some(waiter) = state.waiters.get_mut(&ticket.request) else { return Poll::Pending };
        let Some(verdict) = waiter.verdict.take() else {
            waiter.keep(cx);
            return Poll::Pending;
        };
        state.waiters.remove(&ticket.request);
        drop(state);
        Poll::Ready((verdict, ticket.walk.now()))
    }
}

impl WaiterEntry {
    pub(super) fn keep(&mut self, cx: &Context<'_>) {
        match &mut self.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => self.waker = Some(cx.waker().clone()),
        }
    }
}

impl Future for SlotFuture {
    type Output = Result<SlotGuard, WaitRejection>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Poll::Ready((verdict, now)) = self.poll_verdict(cx) else { return Poll::Pending };
        let Some(ticket) = self.ticket.take() else { return Poll::Pending };
        Poll::Ready(match verdict {
            SlotDecision::Granted(grant) => Ok(SlotGuard::new(ticket, grant, now)),
            SlotDecision::Rejected(rejection) => {
                Err(WaitRejection { rejection, waited: self.waited_before + now.since(self.since) })
            }
        })
    }
}

impl Drop for SlotFuture {
    fn drop(&mut self) {
        let Some(ticket) = &self.ticket else { return };
        if !matches!(self.verdict, Some(SlotDecision::Rejected(_))) {
            ticket.walk.cancel(ticket, Cost::ZERO);
        }
    }
}

/// How much more a request has cost each time the machine is told, as so many calls are not free: 16 tokens.
const COST_REPORT_STEP: Cost = Cost(32);

/// A request that has a slot; dropped, it gives the slot back as one whose client has gone.
pub struct SlotGuard {
    /// `None` once it has ended or waits again.
    ticket: Option<RequestHandle>,
    grant: SlotGrant,
    granted_at: Instant,
    so_far: Cost,
}

impl SlotGuard {
    fn new(ticket: RequestHandle, grant: SlotGrant, now: Instant) -> Self {
        Self { ticket: Some(ticket), grant, granted_at: now, so_far: Cost::ZERO }
    }

    /// The node that has the slot.
    pub fn node(&self) -> NodeId {
        self.grant.node
    }

    /// The way to it, where there is a choice.
    pub fn path(&self) -> Option<PathId> {
        self.grant.path
    }

    /// How long it waited, before all its attempts together.
    pub fn waited(&self) -> Duration {
        self.grant.waited
    }

    /// Takes in that the node has begun to answer: from here on there is no second attempt.
    pub fn on_first_byte(&self) {
        let Some(ticket) = &self.ticket else { return };
        ticket.walk.update(|machine, now| machine.handle_first_byte(now, ticket.request));
        self.tell_first_byte(ticket, ticket.walk.now());
    }

    /// Takes in what the request has cost so far.
    pub fn report_cost(&mut self, so_far: Cost) {
        self.so_far = self.so_far.max(so_far);
        let Some(ticket) = &mut self.ticket else { return };
        // What is charged ahead makes up for what is not told yet.
        if ticket.told + COST_REPORT_STEP <= self.so_far {
            ticket.told = self.so_far;
            let request = ticket.request;
            ticket.walk.update(|machine, now| machine.handle_progress(now, request, so_far));
        }
    }

    /// Ends a request whose answer has begun.
    pub fn complete(mut self, actual: Cost, outcome: Outcome) {
        if let Some(ticket) = self.ticket.take() {
            finish(&ticket, ticket.walk.now(), |machine, now| {
                machine.handle_end(now, ticket.request, RequestEnd { actual, outcome });
            });
        }
    }

    /// Ends a request that was answered in one piece.
    pub fn complete_whole(mut self, actual: Cost) {
        if let Some(ticket) = self.ticket.take() {
            let now = ticket.walk.now();
            self.tell_first_byte(&ticket, now);
            finish(&ticket, now, |machine, now| {
                machine.handle_end(now, ticket.request, RequestEnd { actual, outcome: Outcome::Good });
            });
        }
    }

    /// Ends a request whose node failed after it had begun to answer.
    pub fn fail_mid_stream(mut self, failure: AttemptFailure) {
        let so_far = self.so_far;
        if let Some(ticket) = self.ticket.take() {
            finish(&ticket, ticket.walk.now(), |machine, now| {
                machine.handle_progress(now, ticket.request, so_far);
                machine.handle_failure(now, ticket.request, failure);
            });
        }
    }

    /// Gives the slot back because its node failed before it answered; the request waits for another, or is turned
    /// away.
    pub fn fail(mut self, failure: AttemptFailure) -> Result<SlotFuture, WaitRejection> {
        let turned = WaitRejection { rejection: Rejection::Cancelled, waited: self.grant.waited };
        let Some(ticket) = self.ticket.take() else { return Err(turned) };
        let walk = ticket.walk.clone();
        let now = walk.now();
        let mut state = walk.state.lock();
        state.machine.handle_failure(now, ticket.request, failure);
        let outcome = state.drain(Some(ticket.request));
        if outcome.verdict.is_none() {
            state.waiters.insert(ticket.request, WaiterEntry::default());
        }
        drop(state);
        let verdict = outcome.verdict;
        walk.publish(now, outcome, ticket.entered_at);
        match verdict {
            Some(SlotDecision::Rejected(rejection)) => Err(WaitRejection { rejection, ..turned }),
            Some(SlotDecision::Granted(_)) | None => Ok(SlotFuture::new(ticket, verdict, now, turned.waited)),
        }
    }

    fn tell_first_byte(&self, ticket: &RequestHandle, now: Instant) {
        ticket.tell(now, Step::FirstByte { node: self.grant.node, after: now.since(self.granted_at) });
    }
}

/// Ends a request, which took since it came in.
fn finish(
    ticket: &RequestHandle,
    now: Instant,
    end: impl FnOnce(&mut evenkeel_pipeline::OptimizedLoadManager, Instant),
) {
    let mut state = ticket.walk.state.lock();
    end(&mut state.machine, now);
    let outcome = state.drain(None);
    drop(state);
    ticket.walk.publish(now, outcome, ticket.entered_at);
}

impl Drop for SlotGuard {
    fn drop(&mut self) {
        if let Some(ticket) = &self.ticket {
            ticket.walk.cancel(ticket, self.so_far);
        }
    }
}
