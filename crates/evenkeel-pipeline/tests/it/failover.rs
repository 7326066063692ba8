//! Failover: circuit breakers, cooldowns, retries on other nodes, and no retry after the first byte.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, BreakerState, Event, NoRetryReason, PipelineOptions, Rejection, RequestId,
    RequestOutcome, RetryOptions, TripReason,
};
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::{PathState, Probe};
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, MODEL, arrival_of, with_paths};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn before_the_first_byte_a_failed_request_is_retried_on_another_node() {
    let mut driver = Driver::with_nodes(&[1, 1, 1]);
    let request = driver.submit(0);
    let mut tried = vec![driver.node_of(request)];
    for _ in 0..2 {
        driver.fail(request, AttemptFailure::BadResponse);
        assert!(!tried.contains(&driver.node_of(request)), "{tried:?}");
        tried.push(driver.node_of(request));
    }
    let attempt = driver.events.iter().rev().find_map(|event| match event {
        Event::Dispatch { attempt, .. } => Some(*attempt),
        _ => None,
    });
    assert_eq!(attempt, Some(3));
    driver.fail(request, AttemptFailure::TimedOut);
    assert_eq!(no_retry(&driver, request), NoRetryReason::AttemptsUsed);
    assert_eq!(driver.pipeline.status().counts.retried, 2);
}

#[test]
fn after_the_first_byte_a_failure_ends_the_request() {
    let mut driver = Driver::with_nodes(&[1, 1]);
    let request = driver.submit(0);
    driver.first_byte(request);
    driver.progress(request, 70);
    driver.fail(request, AttemptFailure::BadResponse);
    let done = driver.events.iter().find_map(|event| match event {
        Event::Done { actual, outcome, .. } => Some((actual.0, *outcome)),
        _ => None,
    });
    assert_eq!(done, Some((70, RequestOutcome::FailedMidStream { failure: AttemptFailure::BadResponse })));
}

#[test]
fn a_failed_attempt_is_charged_its_prompt_and_a_refusal_nothing() {
    for (failure, charged) in [
        (AttemptFailure::BadResponse, 70),
        (AttemptFailure::TimedOut, 70),
        (AttemptFailure::Unreachable, 0),
        (AttemptFailure::Busy { retry_after: None }, 0),
    ] {
        let mut driver = Driver::with_nodes(&[1, 1]);
        let request = driver.submit(0);
        driver.progress(request, 70);
        driver.fail(request, failure);
        let served = |driver: &Driver| driver.pipeline.status().tenants[0].served.0;
        assert_eq!(served(&driver), charged, "{failure:?}");
        driver.end(request, 500);
        assert_eq!(served(&driver), charged + 500, "{failure:?}");
    }
}

#[test]
fn a_failed_request_is_rejected_if_no_other_node_is_left() {
    let mut driver = Driver::with_nodes(&[1]);
    let request = driver.submit(0);
    driver.fail(request, AttemptFailure::BadResponse);
    assert_eq!(no_retry(&driver, request), NoRetryReason::NoOtherNode);
    let error = driver.rejected[&request].to_string();
    assert_eq!(
        error,
        "node returned an error or an incomplete response at attempt 1, no other node serves it"
    );
}

#[test]
fn a_request_whose_deadline_has_passed_is_not_retried() {
    let mut driver = Driver::with_nodes(&[1, 1]);
    let request = driver.arrive(Arrival { deadline: Some(SECOND), ..arrival_of(0) });
    driver.advance(SECOND);
    driver.fail(request, AttemptFailure::BadResponse);
    assert_eq!(no_retry(&driver, request), NoRetryReason::DeadlinePassed);
    let patient = driver.submit(0);
    driver.advance(60 * SECOND);
    driver.fail(patient, AttemptFailure::BadResponse);
    assert!(driver.is_in_flight(patient), "without a deadline only the time in the queue is limited");
}

#[test]
fn a_retried_request_goes_to_the_front_of_its_queue_and_keeps_its_deadline() {
    let mut driver = Driver::with_nodes(&[1, 1]);
    let failing = driver.arrive(Arrival { deadline: Some(3 * SECOND), ..arrival_of(0) });
    let other = driver.submit(0);
    let next_waiting = driver.submit(0);
    let waiting = driver.submit(0);
    driver.advance(SECOND);
    driver.fail(failing, AttemptFailure::BadResponse);
    let entry = driver.pipeline.wait_entry(failing).unwrap();
    assert_eq!(entry.timeout_at, driver.now + 2 * SECOND);
    driver.end(other, 500);
    assert!(
        driver.is_in_flight(next_waiting) && driver.is_in_flight(failing) && !driver.is_in_flight(waiting)
    );
}

/// A hundred requests fail at once.
#[test]
fn at_most_a_tenth_of_the_requests_are_retried() {
    let mut driver = Driver::with_nodes(&[100, 100]);
    let requests: Vec<_> = (0..100).map(|_| driver.submit(0)).collect();
    requests.iter().for_each(|request| driver.fail(*request, AttemptFailure::BadResponse));
    let counts = driver.pipeline.status().counts;
    assert_eq!(counts.retried, 10);
    let over_budget = requests.iter().filter(|request| {
        matches!(
            driver.rejected.get(request),
            Some(Rejection::Failed { no_retry: NoRetryReason::BudgetSpent, .. })
        )
    });
    assert_eq!(over_budget.count(), 90);
}

#[test]
fn a_retry_that_finds_the_queue_full_is_rejected() {
    let mut driver = Driver::with_nodes(&[2]);
    let failing = driver.submit(0);
    (0..300).for_each(|tenant| {
        driver.submit(tenant);
    });
    assert_eq!(driver.waiting(), 100);
    driver.add(0, &[MODEL]);
    driver.fail(failing, AttemptFailure::BadResponse);
    assert_eq!(no_retry(&driver, failing), NoRetryReason::QueueFull);
}

#[test]
fn an_overloaded_node_cools_down_for_its_retry_after_and_its_breaker_stays_closed() {
    let mut driver = Driver::with_nodes(&[4]);
    let retry_after = 3 * SECOND;
    for _ in 0..3 {
        let request = driver.submit(0);
        driver.fail(request, AttemptFailure::Busy { retry_after: Some(retry_after) });
        assert!(!driver.is_in_flight(request) && !driver.rejected.contains_key(&request));
        driver.advance(retry_after - Duration::from_millis(1));
        assert!(!driver.is_in_flight(request));
        driver.advance(Duration::from_millis(1));
        assert!(driver.is_in_flight(request), "the same node may get the request again");
        driver.end(request, 500);
        driver.advance(11 * SECOND);
    }
    let node = &driver.pipeline.status().nodes[0];
    assert_eq!((node.breaker, node.cooldown_until), (BreakerState::Closed, None));
}

/// Neither `attempts_max` nor the retry budget applies, because the node never accepted the request.
#[test]
fn a_request_refused_by_an_overloaded_node_waits_until_the_node_accepts_it() {
    let mut driver = Driver::with_nodes(&[1]);
    let request = driver.submit(0);
    for _ in 0..20 {
        driver.fail(request, AttemptFailure::Busy { retry_after: None });
        assert!(!driver.is_in_flight(request) && !driver.rejected.contains_key(&request));
        driver.advance(SECOND);
        assert!(driver.is_in_flight(request));
    }
    driver.end(request, 500);
    let other = driver.submit(0);
    driver.fail(other, AttemptFailure::BadResponse);
    assert_eq!(no_retry(&driver, other), NoRetryReason::NoOtherNode, "other failures still count");
}

#[test]
fn a_node_that_stays_overloaded_refuses_one_request_per_cooldown() {
    let mut driver = Driver::with_nodes(&[4]);
    let requests: Vec<_> = (0..4).map(|_| driver.submit(0)).collect();
    requests.iter().for_each(|request| driver.fail(*request, AttemptFailure::Busy { retry_after: None }));
    for _ in 0..3 {
        driver.advance(SECOND);
        let probe = only_in_flight(&driver);
        driver.fail(probe, AttemptFailure::Busy { retry_after: None });
        assert!(driver.in_flight.is_empty());
    }
    driver.advance(SECOND);
    driver.first_byte(only_in_flight(&driver));
    assert_eq!(driver.in_flight.len(), 4, "after an answered probe all waiting requests are sent");
}

#[test]
fn a_request_whose_deadline_is_after_the_cooldown_waits() {
    let mut driver = Driver::with_nodes(&[1]);
    let request = driver.submit(0);
    driver.fail(request, AttemptFailure::Busy { retry_after: Some(29 * SECOND) });
    let late = driver.submit(0);
    assert!(driver.rejected.is_empty());
    driver.advance(29 * SECOND);
    assert!(driver.is_in_flight(request) || driver.is_in_flight(late));
}

#[test]
fn an_open_breaker_blocks_all_requests_then_allows_single_probes_then_closes() {
    let mut driver = node_with_open_breaker();
    let waiting: Vec<_> = (0..3).map(|_| driver.submit(0)).collect();
    driver.advance(SECOND - Duration::from_millis(1));
    assert!(driver.in_flight.is_empty());
    driver.advance(Duration::from_millis(1));
    let probe = only_in_flight(&driver);
    assert_eq!(breaker(&driver), BreakerState::HalfOpen);
    driver.cancel(probe);
    let probe = only_in_flight(&driver);
    driver.first_byte(probe);
    assert_eq!(breaker(&driver), BreakerState::Closed);
    assert!(waiting.iter().all(|request| driver.is_in_flight(*request) || *request == waiting[0]));
}

#[test]
fn a_failed_probe_doubles_the_backoff() {
    let mut driver = node_with_open_breaker();
    driver.submit(0);
    driver.advance(SECOND);
    let probe = only_in_flight(&driver);
    driver.fail(probe, AttemptFailure::BadResponse);
    assert_eq!(
        breaker(&driver),
        BreakerState::Open { until: driver.now + 2 * SECOND, reason: TripReason::ProbeFailed }
    );
}

#[test]
fn health_checks_open_the_breaker_and_close_it() {
    let mut driver = Driver::with_nodes(&[1]);
    let node = NodeId(0);
    (0..5).for_each(|_| driver.pipeline.handle_probe(driver.now, node, None, Probe::Failed));
    let reason = TripReason::HealthChecks { count: 5 };
    assert_eq!(breaker(&driver), BreakerState::Open { until: driver.now + SECOND, reason });
    driver.advance(SECOND);
    driver.pipeline.handle_probe(driver.now, node, None, Probe::Answered { rtt: Duration::from_millis(1) });
    assert_eq!(breaker(&driver), BreakerState::Closed);
    driver.drain_events();
}

#[test]
fn an_unreachable_path_is_deactivated_and_its_node_keeps_serving() {
    let mut driver = Driver::new(PipelineOptions {
        retry: RetryOptions { retries_min: 100, attempts_max: 16, ..RetryOptions::default() },
        ..PipelineOptions::default()
    });
    let node = driver.add_spec(&with_paths(4, &[10, 10]));
    let bad = PathId(1);
    for _ in 0..40 {
        let request = driver.submit(0);
        while driver.in_flight[&request].path == Some(bad) {
            driver.fail(request, AttemptFailure::Unreachable);
            assert_eq!(driver.node_of(request), node, "retried over the other path to the same node");
        }
        driver.end(request, 500);
    }
    let status = &driver.pipeline.status().nodes[0];
    assert_eq!(status.breaker, BreakerState::Closed);
    assert_eq!(status.paths[1].state, PathState::Inactive);
    let failed_attempts = driver.dispatches.len() - 40;
    assert_eq!(failed_attempts, 2, "two failures deactivate the path");
}

#[test]
fn calls_for_an_ended_request_have_no_effect() {
    let mut driver = Driver::with_nodes(&[1]);
    let request = driver.submit(0);
    driver.end(request, 500);
    let next = driver.submit(0);
    let before = driver.pipeline.status();
    driver.end(request, 9_999);
    driver.fail(request, AttemptFailure::BadResponse);
    driver.cancel(request);
    driver.first_byte(request);
    driver.progress(request, 9_999);
    let mut after = driver.pipeline.status();
    assert_eq!(after.counts.unknown, 5);
    after.counts.unknown = 0;
    assert_eq!(after, before);
    assert!(driver.is_in_flight(next));
}

/// Returns a node that failed the requests of two tenants.
fn node_with_open_breaker() -> Driver {
    let mut driver = Driver::with_nodes(&[10]);
    let requests: Vec<_> = (0..10).map(|index| driver.submit(1 + index / 5)).collect();
    requests.into_iter().for_each(|request| {
        let end =
            evenkeel_pipeline::RequestEnd { actual: evenkeel_policy::cost::Cost(1), outcome: Outcome::Bad };
        driver.pipeline.handle_end(driver.now, request, end);
        driver.drain_events();
    });
    assert!(matches!(breaker(&driver), BreakerState::Open { .. }));
    driver
}

fn breaker(driver: &Driver) -> BreakerState {
    driver.pipeline.status().nodes[0].breaker
}

fn only_in_flight(driver: &Driver) -> RequestId {
    assert_eq!(driver.in_flight.len(), 1);
    *driver.in_flight.keys().next().unwrap()
}

fn no_retry(driver: &Driver, request: RequestId) -> NoRetryReason {
    match driver.rejected[&request] {
        Rejection::Failed { no_retry, .. } => no_retry,
        other => panic!("rejected for another reason: {other}"),
    }
}
