//! The pipeline's events in telemetry's words.

use evenkeel_pipeline as pipeline;
use evenkeel_pipeline::{AdminState, BreakerState, Rejection};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_telemetry::{
    AttemptFailure, Event, NodeEvent, PickReason, RejectReason, RequestId, RequestOutcome, Step,
};

/// Numbers what never got a number from the walk; far beyond those it gives.
const OUTSIDE: RequestId = RequestId(u64::MAX);

/// Something that happened to a request, as only the door sees it.
pub(super) fn step(request: pipeline::RequestId, tenant: TenantId, step: Step) -> Event {
    Event::Request { request: RequestId(request.number()), tenant, step }
}

/// Something that happened to a request that never entered the walk.
pub(super) fn outside(tenant: TenantId, step: Step) -> Event {
    Event::Request { request: OUTSIDE, tenant, step }
}

/// What the pipeline told; a request that ended by it took `took`.
pub(super) fn telemetry(event: &pipeline::Event, took: Duration) -> Event {
    match *event {
        pipeline::Event::Dispatch { request, tenant, node, path, waited, because, attempt } => {
            let because = because_of(because);
            step(request, tenant, Step::Dispatched { node, path, waited, because, attempt })
        }
        pipeline::Event::Reject { request, tenant, rejection } => step(request, tenant, rejected(&rejection)),
        pipeline::Event::Retry { request, tenant, failure, attempt } => {
            step(request, tenant, Step::FailedOver { failure: failure_of(failure), attempt })
        }
        pipeline::Event::Done { request, tenant, node, actual, ending } => {
            let ending = match ending {
                pipeline::RequestOutcome::Served { outcome } => RequestOutcome::Served(outcome),
                pipeline::RequestOutcome::Cancelled => RequestOutcome::Cancelled,
                pipeline::RequestOutcome::Broken { failure } => RequestOutcome::Broken(failure_of(failure)),
            };
            step(request, tenant, Step::Finished { node, actual, took, ending })
        }
        pipeline::Event::Duty { node, duty } => {
            let change = match duty {
                AdminState::Serving => NodeEvent::Serving,
                AdminState::Draining => NodeEvent::Draining,
                AdminState::Leaving => NodeEvent::Leaving,
            };
            Event::Node { node, change }
        }
        pipeline::Event::Left { node } => Event::Node { node, change: NodeEvent::Left },
        pipeline::Event::Breaker { node, state } => {
            let change = match state {
                BreakerState::Open { until } => NodeEvent::Opened { until },
                BreakerState::HalfOpen => NodeEvent::HalfOpened,
                BreakerState::Closed => NodeEvent::Closed,
            };
            Event::Node { node, change }
        }
        pipeline::Event::Spared { node, until } => Event::Node { node, change: NodeEvent::Spared { until } },
        pipeline::Event::Path { node, path, transition } => {
            Event::Node { node, change: NodeEvent::Path { path, transition } }
        }
    }
}

fn rejected(rejection: &Rejection) -> Step {
    let reason = match rejection {
        Rejection::PushedOut { current_size, .. } => return Step::PushedOut { waiting: *current_size },
        Rejection::Cancelled => return Step::Cancelled,
        Rejection::QueueFull { .. } => RejectReason::QueueFull,
        Rejection::WaitTimeout { .. } => RejectReason::WaitTimeout,
        Rejection::TooLate { .. } => RejectReason::TooLate,
        Rejection::UnknownTenant { .. } => RejectReason::UnknownTenant,
        Rejection::UnknownModel { .. } => RejectReason::UnknownModel,
        Rejection::NoNode { .. } => RejectReason::NoNode,
        Rejection::Failed { .. } => RejectReason::Failed,
    };
    Step::Rejected { reason }
}

fn because_of(because: pipeline::PickReason) -> PickReason {
    match because {
        pipeline::PickReason::Cached => PickReason::Cached,
        pipeline::PickReason::Preferred => PickReason::Preferred,
        pipeline::PickReason::Chosen(because) => PickReason::Chosen(because),
    }
}

fn failure_of(failure: pipeline::AttemptFailure) -> AttemptFailure {
    match failure {
        pipeline::AttemptFailure::Unreachable => AttemptFailure::Unreachable,
        pipeline::AttemptFailure::TimedOut => AttemptFailure::TimedOut,
        pipeline::AttemptFailure::Broken => AttemptFailure::Broken,
        pipeline::AttemptFailure::Busy { .. } => AttemptFailure::Busy,
    }
}
