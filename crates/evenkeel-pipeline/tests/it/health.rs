//! Health of nodes: what one tenant's refusals and failures mean to it and to others, and outages.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, BreakerState, Event, NoRetryReason, OutageRule, PipelineOptions, Rejection,
    RequestId, RetryOptions,
};
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::outcome::TripReason;
use evenkeel_policy::path::Probe;
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, MODEL, arrival_of};

const SECOND: Duration = Duration::from_secs(1);
const REFUSED: AttemptFailure = AttemptFailure::Busy { retry_after: None };
const ALICE: u32 = 1;
const BOB: u32 = 2;
const CAROL: u32 = 3;

#[test]
fn a_refused_request_avoids_the_node_for_its_retry_after_up_to_half_of_the_timeout() {
    for (retry_after, wait) in [(3 * SECOND, 3 * SECOND), (86_400 * SECOND, 15 * SECOND)] {
        let mut driver = Driver::with_nodes(&[4]);
        let request = driver.submit(ALICE);
        driver.fail(request, AttemptFailure::Busy { retry_after: Some(retry_after) });
        let other = driver.submit(ALICE);
        assert!(driver.is_in_flight(other), "one refusal closes the node to nobody");
        driver.cancel(other);
        driver.advance(wait - Duration::from_millis(1));
        assert!(!driver.is_in_flight(request));
        driver.advance(Duration::from_millis(1));
        assert!(driver.is_in_flight(request));
    }
}

#[test]
fn half_of_eight_responses_refused_close_the_node_to_that_tenant_only() {
    let mut driver = Driver::with_nodes(&[16]);
    refuse(&mut driver, ALICE, 4);
    let alice = driver.submit(ALICE);
    let bob = driver.submit(BOB);
    assert!(!driver.is_in_flight(alice) && driver.is_in_flight(bob));
    let node = &driver.pipeline.status().nodes[0];
    assert_eq!((&node.closed_to[..], node.cooldown_until), (&[TenantId(ALICE)][..], None));
}

#[test]
fn a_node_that_closes_to_a_tenant_and_opens_again_is_reported() {
    let mut driver = Driver::with_nodes(&[16]);
    refuse(&mut driver, ALICE, 4);
    let until = driver.now + SECOND;
    driver.advance(SECOND);
    let probe = *driver.in_flight.keys().next().unwrap();
    driver.first_byte(probe);
    let node = NodeId(0);
    let tenant = TenantId(ALICE);
    let is_change =
        |event: &&Event| matches!(event, Event::ClosedToTenant { .. } | Event::OpenedToTenant { .. });
    let reported: Vec<_> = driver.events.iter().filter(is_change).copied().collect();
    let reason = TripReason::Refusals;
    assert_eq!(
        reported,
        [Event::ClosedToTenant { node, tenant, until, reason }, Event::OpenedToTenant { node, tenant }]
    );
}

#[test]
fn a_cooldown_lasts_at_most_half_of_the_timeout() {
    let mut options = PipelineOptions::default();
    options.breaker.cooldown = 40 * SECOND;
    let mut driver = Driver::new(options);
    driver.add(16, &[MODEL]);
    refuse(&mut driver, ALICE, 4);
    driver.advance(15 * SECOND);
    assert_eq!(driver.in_flight.len(), 1, "the probe");
}

#[test]
fn refusals_of_two_tenants_are_a_cooldown_for_all_as_long_as_the_retry_after() {
    let mut driver = Driver::with_nodes(&[16]);
    let early = driver.submit(CAROL);
    refuse(&mut driver, ALICE, 4);
    let requests: Vec<_> = (0..4).map(|_| driver.submit(BOB)).collect();
    for request in requests {
        driver.fail(request, AttemptFailure::Busy { retry_after: Some(9 * SECOND) });
    }
    let until = driver.now + 9 * SECOND;
    assert_eq!(driver.pipeline.status().nodes[0].cooldown_until, Some(until));
    let carol = driver.submit(CAROL);
    assert!(!driver.is_in_flight(carol));
    driver.fail(early, REFUSED);
    assert_eq!(
        driver.pipeline.status().nodes[0].cooldown_until,
        Some(until),
        "a shorter one changes nothing"
    );
}

#[test]
fn a_probe_that_is_not_refused_for_a_second_ends_the_cooldown() {
    let mut driver = Driver::with_nodes(&[16]);
    refuse(&mut driver, ALICE, 4);
    driver.advance(SECOND);
    assert_eq!(driver.in_flight.len(), 1);
    driver.advance(SECOND);
    assert_eq!(driver.in_flight.len(), 4, "a response in one piece may take minutes");
}

#[test]
fn a_request_that_would_time_out_before_a_node_may_serve_it_is_rejected_at_once() {
    let mut driver = Driver::with_nodes(&[16]);
    let hurried = driver.arrive(Arrival { deadline: Some(10 * SECOND), ..arrival_of(CAROL) });
    driver.fail(hurried, AttemptFailure::Busy { retry_after: Some(50 * SECOND) });
    assert_eq!(driver.rejected[&hurried], Rejection::WouldMissDeadline { retry_after: 15 * SECOND });
    let queued = refuse(&mut driver, ALICE, 4);
    let late = driver.arrive(Arrival { deadline: Some(SECOND / 2), ..arrival_of(ALICE) });
    assert_eq!(driver.rejected[&late], Rejection::WouldMissDeadline { retry_after: SECOND });
    assert!(queued.iter().all(|request| driver.pipeline.wait_entry(*request).is_some()));
}

#[test]
fn a_request_that_nodes_refuse_twice_while_they_serve_others_gets_their_refusal() {
    for nodes in [1, 3] {
        let mut driver = Driver::with_nodes(&vec![4; nodes]);
        serve_on_all(&mut driver, nodes);
        let refused = AttemptFailure::Busy { retry_after: Some(30 * SECOND) };
        let poison = driver.submit(ALICE);
        driver.fail(poison, refused);
        if nodes == 1 {
            assert!(!driver.is_in_flight(poison), "it waits until the node serves another request");
            serve_on_all(&mut driver, nodes);
        }
        driver.fail(poison, refused);
        assert!(matches!(
            driver.rejected[&poison],
            Rejection::Failed { attempts: 2, no_retry: NoRetryReason::RefusedTwice, .. }
        ));
        assert!(driver.pipeline.status().nodes.iter().all(|node| node.closed_to.is_empty()));
    }
}

#[test]
fn failures_of_one_tenant_close_the_node_to_it_and_of_a_second_one_to_all() {
    let mut driver = Driver::with_nodes(&[16, 16]);
    fail_on(&mut driver, NodeId(0), ALICE, 5);
    let closed_to = |driver: &Driver| driver.pipeline.status().nodes[0].closed_to.clone();
    assert_eq!(closed_to(&driver), [TenantId(ALICE)]);
    assert_eq!(breaker(&driver), BreakerState::Closed);
    fail_on(&mut driver, NodeId(0), BOB, 5);
    assert!(matches!(breaker(&driver), BreakerState::Open { .. }));
}

#[test]
fn failures_of_two_tenants_do_not_close_a_node_that_serves_a_third_one() {
    let mut driver = Driver::with_nodes(&[16, 16]);
    fail_on(&mut driver, NodeId(0), ALICE, 5);
    fail_on(&mut driver, NodeId(0), BOB, 3);
    serve_on_all(&mut driver, 2);
    fail_on(&mut driver, NodeId(0), BOB, 2);
    assert_eq!(breaker(&driver), BreakerState::Closed);
}

#[test]
fn a_failure_that_a_request_repeats_on_a_second_node_counts_against_neither() {
    let mut driver = Driver::new(PipelineOptions {
        retry: RetryOptions { retries_min: 1_000, attempts_max: 2, ..RetryOptions::default() },
        ..PipelineOptions::default()
    });
    (0..3).for_each(|_| {
        driver.add(16, &[MODEL]);
    });
    for _ in 0..50 {
        let poison = driver.submit(ALICE);
        driver.fail(poison, AttemptFailure::BadResponse);
        driver.fail(poison, AttemptFailure::BadResponse);
    }
    let status = driver.pipeline.status();
    assert!(
        status.nodes.iter().all(|node| node.closed_to.is_empty() && node.breaker == BreakerState::Closed)
    );
}

#[test]
fn the_only_node_stays_open_to_a_tenant_without_comparison() {
    let mut driver = Driver::with_nodes(&[16]);
    fail_on(&mut driver, NodeId(0), ALICE, 20);
    let request = driver.submit(ALICE);
    assert!(driver.is_in_flight(request));
}

#[test]
fn the_probe_is_not_taken_from_a_tenant_that_opened_the_breaker_while_another_waits() {
    for (others, prober) in [(vec![], ALICE), (vec![CAROL], CAROL)] {
        let mut driver = two_blamed();
        driver.submit(ALICE);
        others.into_iter().for_each(|tenant| {
            driver.submit(tenant);
        });
        driver.advance(SECOND);
        let (_, tenant, _) = *driver.dispatches.last().unwrap();
        assert_eq!(tenant, TenantId(prober));
    }
}

#[test]
fn a_connection_that_fails_uses_neither_attempts_nor_the_retry_budget() {
    let mut driver = Driver::with_nodes(&[100, 100]);
    let requests: Vec<_> = (0..100).map(|_| driver.submit(ALICE)).collect();
    for request in &requests {
        driver.fail(*request, AttemptFailure::Unreachable);
    }
    assert!(driver.rejected.is_empty());
}

#[test]
fn a_request_with_a_fallback_is_rejected_once_no_node_can_be_reached_and_others_wait() {
    for (outage, rejected) in
        [(OutageRule::Hold, None), (OutageRule::Reject, Some(Rejection::Outage { retry_after: SECOND }))]
    {
        let mut driver = Driver::with_nodes(&[4, 4]);
        let request = driver.arrive(Arrival { outage, ..arrival_of(ALICE) });
        driver.fail(request, AttemptFailure::Unreachable);
        assert!(driver.is_in_flight(request), "the other node is tried");
        driver.fail(request, AttemptFailure::Unreachable);
        assert_eq!(driver.rejected.get(&request), rejected.as_ref());
        assert_eq!(driver.pipeline.wait_entry(request).is_some(), rejected.is_none());
    }
}

#[test]
fn a_tenant_whose_requests_fail_leaves_retries_to_others() {
    let mut driver = Driver::with_nodes(&[100, 100]);
    let poison: Vec<_> = (0..90).map(|_| driver.submit(ALICE)).collect();
    let victims: Vec<_> = (0..10).map(|_| driver.submit(BOB)).collect();
    poison.iter().for_each(|request| driver.fail(*request, AttemptFailure::TimedOut));
    driver.fail(victims[0], AttemptFailure::TimedOut);
    assert_eq!(driver.rejected.len(), 81);
    assert!(!driver.rejected.contains_key(&victims[0]), "{:?}", driver.rejected.get(&victims[0]));
}

#[test]
fn requests_wait_out_a_restart_and_a_good_check_ends_the_backoff() {
    let mut driver = Driver::with_nodes(&[16]);
    let requests: Vec<_> = (0..8).map(|_| driver.submit(ALICE)).collect();
    unreachable_for(&mut driver, 20 * SECOND);
    assert!(driver.rejected.is_empty() && matches!(breaker(&driver), BreakerState::Open { .. }));
    driver.pipeline.handle_probe(driver.now, NodeId(0), None, Probe::Answered { rtt: SECOND / 1_000 });
    driver.drain_events();
    let probe = *driver.in_flight.keys().next().unwrap();
    driver.first_byte(probe);
    assert!(requests.iter().all(|request| driver.is_in_flight(*request)));
}

#[test]
fn after_the_hold_waiting_and_new_requests_are_rejected_until_a_node_is_back() {
    let mut driver = Driver::with_nodes(&[16]);
    let patient = Arrival { deadline: Some(600 * SECOND), ..arrival_of(ALICE) };
    let waiting = driver.arrive(patient);
    unreachable_for(&mut driver, 29 * SECOND);
    assert!(driver.rejected.is_empty());
    unreachable_for(&mut driver, 2 * SECOND);
    assert!(matches!(driver.rejected[&waiting], Rejection::Outage { .. }));
    let BreakerState::Open { until, .. } = breaker(&driver) else { panic!("{:?}", breaker(&driver)) };
    let late = driver.submit(BOB);
    let retry_after = until.since(driver.now) + SECOND;
    assert_eq!(driver.rejected[&late], Rejection::Outage { retry_after });
    driver.pipeline.handle_probe(driver.now, NodeId(0), None, Probe::Answered { rtt: SECOND / 1_000 });
    driver.drain_events();
    let back = driver.submit(BOB);
    assert!(driver.is_in_flight(back));
}

/// Lets connections and checks fail for a while.
fn unreachable_for(driver: &mut Driver, duration: Duration) {
    let end = driver.now + duration;
    while driver.now < end {
        let in_flight: Vec<_> = driver.in_flight.keys().copied().collect();
        in_flight.into_iter().for_each(|request| driver.fail(request, AttemptFailure::Unreachable));
        driver.pipeline.handle_probe(driver.now, NodeId(0), None, Probe::Failed);
        driver.drain_events();
        driver.advance(SECOND);
    }
}

/// Returns a node that two tenants' failures closed to all.
fn two_blamed() -> Driver {
    let mut driver = Driver::with_nodes(&[16, 16]);
    fail_on(&mut driver, NodeId(0), ALICE, 5);
    fail_on(&mut driver, NodeId(0), BOB, 5);
    driver.pipeline.drain_node(driver.now, NodeId(1)).unwrap();
    driver.drain_events();
    driver
}

/// Sends requests of a tenant that are refused.
fn refuse(driver: &mut Driver, tenant: u32, count: u32) -> Vec<RequestId> {
    let requests: Vec<_> = (0..count).map(|_| driver.submit(tenant)).collect();
    requests.iter().for_each(|request| driver.fail(*request, REFUSED));
    requests
}

/// Lets requests of a tenant fail on a node and on no other.
fn fail_on(driver: &mut Driver, node: NodeId, tenant: u32, count: u32) {
    let mut failed = 0;
    while failed < count {
        let request = driver.submit(tenant);
        if driver.in_flight.get(&request).is_some_and(|attempt| attempt.node == node) {
            driver.fail(request, AttemptFailure::BadResponse);
            failed += 1;
        }
        driver.cancel(request);
        driver.advance(SECOND / 100);
    }
}

/// Serves requests of another tenant until every node has served one, four at a time.
fn serve_on_all(driver: &mut Driver, nodes: usize) {
    driver.advance(SECOND / 100);
    for _ in 0..4 {
        let requests: Vec<_> = (0..nodes).map(|_| driver.submit(CAROL)).collect();
        driver.advance(SECOND / 100);
        requests.into_iter().for_each(|request| driver.end(request, 500));
    }
}

fn breaker(driver: &Driver) -> BreakerState {
    driver.pipeline.status().nodes[0].breaker
}
