//! The actor that checks one path to a node.

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
    pub(super) voice: Arc<ReportSink>,
    pub(super) caller: NodeClient,
    pub(super) origin: Origin,
    pub(super) path: Option<PathId>,
    pub(super) interval: Duration,
    pub(super) node: ActorRef<NodeMonitorMsg>,
    pub(super) question: CheckEndpoint,
    /// Whether the last check was answered.
    pub(super) answered: Reachability,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reachability {
    Yes,
    No,
}

/// A check that is over.
pub(super) struct CheckDone {
    check: HealthCheckResult,
    next: CheckEndpoint,
    began_at: Instant,
}

impl Prober {
    fn begin(&self) -> HandlerResult<CheckDone> {
        let caller = self.caller.clone();
        let origin = self.origin.clone();
        let question = self.question;
        Ok(Flow::wait(async move {
            let began_at = Instant::now();
            let (check, next) = check(&caller, &origin, question).await;
            CheckDone { check, next, began_at }
        }))
    }
}

impl Actor for Prober {
    type Msg = CheckDone;

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<CheckDone> {
        self.begin()
    }

    fn receive(&mut self, checked: CheckDone, ctx: &mut Context<'_, Self>) -> HandlerResult<CheckDone> {
        self.question = checked.next;
        let answered = if checked.check.is_answered() { Reachability::Yes } else { Reachability::No };
        self.voice.report(Finding::Checked { path: self.path, check: checked.check });
        if (self.answered, answered) == (Reachability::No, Reachability::Yes) {
            self.node.tell(NodeMonitorMsg::Back);
        }
        self.answered = answered;
        wait(ctx, NEXT, self.interval.saturating_sub(checked.began_at.elapsed()))
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<CheckDone> {
        if signal == Signal::Timer(NEXT) { self.begin() } else { Ok(Flow::Continue) }
    }
}

/// Sets when an actor goes on.
pub(super) fn wait<A: Actor>(
    ctx: &mut Context<'_, A>,
    timer: TimerId,
    span: Duration,
) -> HandlerResult<A::Msg> {
    // A node that takes longer than the interval is asked again at once, and others get their turn.
    if ctx.set_timer(timer, span.max(Duration::from_millis(1)), Repeat::Once) {
        return Ok(Flow::Continue);
    }
    Err(ActorError::new("no timer is left"))
}
