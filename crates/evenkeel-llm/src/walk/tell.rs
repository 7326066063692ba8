//! The pipeline's events in telemetry's words.

use evenkeel_pipeline as pipeline;
use evenkeel_pipeline::{BreakerState, Duty, Rejection};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_telemetry::{Because, Ending, Event, Failure, NodeChange, Reason, RequestId, Step};

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
                pipeline::Ending::Served { outcome } => Ending::Served(outcome),
                pipeline::Ending::Cancelled => Ending::Cancelled,
                pipeline::Ending::Broken { failure } => Ending::Broken(failure_of(failure)),
            };
            step(request, tenant, Step::Finished { node, actual, took, ending })
        }
        pipeline::Event::Duty { node, duty } => {
            let change = match duty {
                Duty::Serving => NodeChange::Serving,
                Duty::Draining => NodeChange::Draining,
                Duty::Leaving => NodeChange::Leaving,
            };
            Event::Node { node, change }
        }
        pipeline::Event::Left { node } => Event::Node { node, change: NodeChange::Left },
        pipeline::Event::Breaker { node, state } => {
            let change = match state {
                BreakerState::Open { until } => NodeChange::Opened { until },
                BreakerState::HalfOpen => NodeChange::HalfOpened,
                BreakerState::Closed => NodeChange::Closed,
            };
            Event::Node { node, change }
        }
        pipeline::Event::Spared { node, until } => Event::Node { node, change: NodeChange::Spared { until } },
        pipeline::Event::Path { node, path, transition } => {
            Event::Node { node, change: NodeChange::Path { path, transition } }
        }
    }
}

fn rejected(rejection: &Rejection) -> Step {
    let reason = match rejection {
        Rejection::PushedOut { current_size, .. } => return Step::PushedOut { waiting: *current_size },
        Rejection::Cancelled => return Step::Cancelled,
        Rejection::QueueFull { .. } => Reason::QueueFull,
        Rejection::WaitTimeout { .. } => Reason::WaitTimeout,
        Rejection::TooLate { .. } => Reason::TooLate,
        Rejection::UnknownTenant { .. } => Reason::UnknownTenant,
        Rejection::UnknownModel { .. } => Reason::UnknownModel,
        Rejection::NoNode { .. } => Reason::NoNode,
        Rejection::Failed { .. } => Reason::Failed,
    };
    Step::Rejected { reason }
}

fn because_of(because: pipeline::Because) -> Because {
    match because {
        pipeline::Because::Cached => Because::Cached,
        pipeline::Because::Preferred => Because::Preferred,
        pipeline::Because::Chosen(because) => Because::Chosen(because),
    }
}

fn failure_of(failure: pipeline::Failure) -> Failure {
    match failure {
        pipeline::Failure::Unreachable => Failure::Unreachable,
        pipeline::Failure::TimedOut => Failure::TimedOut,
        pipeline::Failure::Broken => Failure::Broken,
        pipeline::Failure::Busy { .. } => Failure::Busy,
    }
}
