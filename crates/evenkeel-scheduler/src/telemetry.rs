//! Converts the pipeline's events to telemetry events: adds durations, and the steps that only the scheduler knows.

use evenkeel_pipeline as pipeline;
use evenkeel_pipeline::{AdminState, BreakerState, Rejection};
use evenkeel_policy::id::{NodeId, RequestId, TenantId};
use evenkeel_policy::time::Instant;
use evenkeel_telemetry::{Event, NodeEvent, RejectReason, Step};

/// Returns the event of a step that only the scheduler sees.
pub(super) fn request_event(request: RequestId, tenant: TenantId, step: Step) -> Event {
    Event::Request { request, tenant, step }
}

/// Converts a pipeline event that happened at `now`; a request that ended by it arrived at `arrived_at`.
pub(super) fn to_telemetry(event: &pipeline::Event, now: Instant, arrived_at: Instant) -> Event {
    match *event {
        pipeline::Event::Dispatch { request, tenant, node, path, waited, reason, attempt } => {
            request_event(request, tenant, Step::Dispatched { node, path, waited, reason, attempt })
        }
        pipeline::Event::Reject { request, tenant, rejection } => {
            request_event(request, tenant, rejection_step(&rejection))
        }
        pipeline::Event::Retry { request, tenant, failure, attempt } => {
            request_event(request, tenant, Step::FailedOver { failure, attempt })
        }
        pipeline::Event::Done { request, tenant, node, actual, outcome } => {
            let took = now.since(arrived_at);
            request_event(request, tenant, Step::Finished { node, actual, took, outcome })
        }
        pipeline::Event::Redirected { request, tenant, peer, kind, reason } => {
            request_event(request, tenant, Step::Redirected { peer, kind, reason })
        }
        pipeline::Event::AdminState { node, state } => node_event(node, admin_change(state)),
        pipeline::Event::NodeRemoved { node } => node_event(node, NodeEvent::Removed),
        pipeline::Event::Breaker { node, state } => node_event(node, breaker_change(state, now)),
        pipeline::Event::Cooldown { node, until } => {
            node_event(node, NodeEvent::CooldownStarted { duration: until.since(now) })
        }
        pipeline::Event::ClosedToTenant { node, tenant, until, reason } => {
            node_event(node, NodeEvent::ClosedToTenant { tenant, reason, backoff: until.since(now) })
        }
        pipeline::Event::OpenedToTenant { node, tenant } => {
            node_event(node, NodeEvent::OpenedToTenant { tenant })
        }
        pipeline::Event::Path { node, path, transition } => {
            node_event(node, NodeEvent::Path { path, transition })
        }
    }
}

fn node_event(node: NodeId, change: NodeEvent) -> Event {
    Event::Node { node, change }
}

fn admin_change(state: AdminState) -> NodeEvent {
    match state {
        AdminState::Serving => NodeEvent::Serving,
        AdminState::Draining => NodeEvent::Draining,
        AdminState::Removing => NodeEvent::Removing,
    }
}

fn breaker_change(state: BreakerState, now: Instant) -> NodeEvent {
    match state {
        BreakerState::Open { until, reason } => {
            NodeEvent::BreakerOpened { reason, backoff: until.since(now) }
        }
        BreakerState::HalfOpen => NodeEvent::BreakerHalfOpen,
        BreakerState::Closed => NodeEvent::BreakerClosed,
    }
}

fn rejection_step(rejection: &Rejection) -> Step {
    let reason = match rejection {
        Rejection::Evicted { current_size, .. } => return Step::Evicted { waiting: *current_size },
        Rejection::Cancelled => return Step::Cancelled,
        Rejection::QueueFull { .. } => RejectReason::QueueFull,
        Rejection::WaitTimeout { .. } => RejectReason::WaitTimeout,
        Rejection::WouldMissDeadline { .. } => RejectReason::WouldMissDeadline,
        Rejection::Outage { .. } => RejectReason::Outage,
        Rejection::UnknownTenant { .. } => RejectReason::UnknownTenant,
        Rejection::UnknownModel { .. } => RejectReason::UnknownModel,
        Rejection::NoNode { .. } => RejectReason::NoNode,
        Rejection::Failed { .. } => RejectReason::Failed,
    };
    Step::Rejected { reason }
}
