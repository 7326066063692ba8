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
pub(super) fn request_event(request: pipeline::RequestId, tenant: TenantId, step: Step) -> Event {
    Event::Request { request: RequestId(request.number()), tenant, step }
}

/// Something that happened to a request that never entered the walk.
pub(super) fn outside(tenant: TenantId, step: Step) -> Event {
    Event::Request { request: OUTSIDE, tenant, step }
}

/// What the pipeline told; a request that ended by it took `took`.
pub(super) fn to_telemetry(event: &pipeline::Event, took: Duration) -> Event {
    match *event {
        pipeline::Event::Dispatch { request, tenant, node, path, waited, because, attempt } => {
            let because = because_of(because);
            request_event(request, tenant, Step::Dispatched { node, path, waited, because, attempt })
        }
        pipeline::Event::Reject { request, tenant, rejection } => {
            request_event(request, tenant, rejected(&rejection))
        }
        pipeline::Event::Retry { request, tenant, failure, attempt } => {
            request_event(request, tenant, Step::FailedOver { failure: failure_of(failure), attempt })
        }
        pipeline::Event::Done { request, tenant, node, actual, ending } => {
            let ending = match ending {
                pipeline::RequestOutcome::Served { outcome } => RequestOutcome::Served(outcome),
                pipeline::RequestOutcome::Cancelled => RequestOutcome::Cancelled,
                pipeline::RequestOutcome::FailedMidStream { failure } => {
                    RequestOutcome::FailedMidStream(failure_of(failure))
                }
            };
            request_event(request, tenant, Step::Finished { node, actual, took, ending })
        }
        pipeline::Event::AdminState { node, duty } => {
            let change = match duty {
                AdminState::Serving => NodeEvent::Serving,
                AdminState::Draining => NodeEvent::Draining,
                AdminState::Removing => NodeEvent::Removing,
            };
            Event::Node { node, change }
        }
        pipeline::Event::NodeRemoved { node } => Event::Node { node, change: NodeEvent::Removed },
        pipeline::Event::Breaker { node, state } => {
            let change = match state {
                BreakerState::Open { until } => NodeEvent::BreakerOpened { until },
                BreakerState::HalfOpen => NodeEvent::BreakerHalfOpen,
                BreakerState::Closed => NodeEvent::BreakerClosed,
            };
            Event::Node { node, change }
        }
        pipeline::Event::Cooldown { node, until } => {
            Event::Node { node, change: NodeEvent::CooldownStarted { until } }
        }
        pipeline::Event::Path { node, path, transition } => {
            Event::Node { node, change: NodeEvent::Path { path, transition } }
        }
    }
}

fn rejected(rejection: &Rejection) -> Step {
    let reason = match rejection {
        Rejection::Evicted { current_size, .. } => return Step::Evicted { waiting: *current_size },
        Rejection::Cancelled => return Step::Cancelled,
        Rejection::QueueFull { .. } => RejectReason::QueueFull,
        Rejection::WaitTimeout { .. } => RejectReason::WaitTimeout,
        Rejection::WouldMissDeadline { .. } => RejectReason::TooLate,
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
        pipeline::AttemptFailure::BadResponse => AttemptFailure::BadResponse,
        pipeline::AttemptFailure::Busy { .. } => AttemptFailure::Busy,
    }
}
