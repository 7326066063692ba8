//! Actor that health-checks one path to a node.

use evenkeel_actor::{Actor, ActorError, ActorRef, Context, Flow, HandlerResult, Repeat, Signal, TimerId};
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::Duration;
use std::sync::Arc;
use tokio::time::Instant;

use super::health_check::{CheckEndpoint, HealthCheckResult, check};
use super::node_client::NodeClient;
use super::node_monitor::NodeMonitorMsg;
use super::{Finding, ReportSink};
use evenkeel_upstream::Origin;

const NEXT: TimerId = TimerId(0);

pub(super) struct Prober {
    pub(super) sink: Arc<ReportSink>,
    pub(super) client: NodeClient,
    pub(super) origin: Origin,
    pub(super) path: Option<PathId>,
    pub(super) interval: Duration,
    pub(super) node: ActorRef<NodeMonitorMsg>,
    pub(super) endpoint: CheckEndpoint,
    /// Result of the last check.
    pub(super) reachable: Reachability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reachability {
    Yes,
    No,
}

/// A completed check.
pub(super) struct CheckDone {
    check: HealthCheckResult,
    next: CheckEndpoint,
    started_at: Instant,
}

impl Prober {
    fn start_check(&self) -> HandlerResult<CheckDone> {
        let client = self.client.clone();
        let origin = self.origin.clone();
        let endpoint = self.endpoint;
        Ok(Flow::wait(async move {
            let started_at = Instant::now();
            let (check, next) = check(&client, &origin, endpoint).await;
            CheckDone { check, next, started_at }
        }))
    }
}

impl Actor for Prober {
    type Msg = CheckDone;

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<CheckDone> {
        self.start_check()
    }

    fn receive(&mut self, done: CheckDone, ctx: &mut Context<'_, Self>) -> HandlerResult<CheckDone> {
        self.endpoint = done.next;
        let reachable = if done.check.is_reachable() { Reachability::Yes } else { Reachability::No };
        self.sink.report(Finding::Checked { path: self.path, check: done.check });
        if self.reachable == Reachability::No && reachable == Reachability::Yes {
            self.node.tell(NodeMonitorMsg::Recovered);
        }
        self.reachable = reachable;
        schedule_next(ctx, NEXT, self.interval.saturating_sub(done.started_at.elapsed()))
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<CheckDone> {
        if signal == Signal::Timer(NEXT) { self.start_check() } else { Ok(Flow::Continue) }
    }
}

/// Sets the timer for an actor's next check, scrape or discovery.
pub(super) fn schedule_next<A: Actor>(
    ctx: &mut Context<'_, A>,
    timer: TimerId,
    delay: Duration,
) -> HandlerResult<A::Msg> {
    // After a check that took longer than the interval, the next one starts at once, but other actors run first.
    if ctx.set_timer(timer, delay.max(Duration::from_millis(1)), Repeat::Once) {
        return Ok(Flow::Continue);
    }
    Err(ActorError::new("no timer left for the actor"))
}
