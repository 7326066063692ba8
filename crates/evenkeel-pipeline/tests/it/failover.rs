//! A failing node is left alone, its requests go elsewhere, and nobody is told half a truth.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, BreakerState, Event, NoRetryReason, PipelineOptions, Rejection, RequestId,
    RequestOutcome, RetryOptions,
};
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId};
use evenkeel_policy::path::{PathState, Probe};
use evenkeel_policy::time::Duration;

use crate::driver::{Door, MODEL, asks, with_paths};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn before_the_first_byte_a_request_goes_to_another_node() {
    let mut door = Door::to(&[1, 1, 1]);
    let request = door.ask(0);
    let mut tried = vec![door.node_of(request)];
    for _ in 0..2 {
        door.fail(request, AttemptFailure::BadResponse);
        assert!(!tried.contains(&door.node_of(request)), "{tried:?}");
        tried.push(door.node_of(request));
    }
    let attempt = door.events.iter().rev().find_map(|event| match event {
        Event::Dispatch { attempt, .. } => Some(*attempt),
        _ => None,
    });
    assert_eq!(attempt, Some(3));
    door.fail(request, AttemptFailure::TimedOut);
    assert_eq!(stopped(&door, request), NoRetryReason::AttemptsUsed);
    assert_eq!(door.walk.status().counts.retried, 2);
}

#[test]
fn after_the_first_byte_a_failure_is_an_honest_end() {
    let mut door = Door::to(&[1, 1]);
    let request = door.ask(0);
    door.first_byte(request);
    door.progress(request, 70);
    door.fail(request, AttemptFailure::BadResponse);
    let done = door.events.iter().find_map(|event| match event {
        Event::Done { actual, ending, .. } => Some((actual.0, *ending)),
        _ => None,
    });
    assert_eq!(done, Some((70, RequestOutcome::FailedMidStream { failure: AttemptFailure::BadResponse })));
}

#[test]
fn with_no_node_left_to_try_a_failure_is_the_answer() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    door.fail(request, AttemptFailure::BadResponse);
    assert_eq!(stopped(&door, request), NoRetryReason::NoOtherNode);
    let said = door.rejected[&request].to_string();
    assert_eq!(said, "node broke off at attempt 1, no other node serves it");
}

#[test]
fn a_request_whose_deadline_has_passed_is_not_tried_again() {
    let mut door = Door::to(&[1, 1]);
    let request = door.arrive(Arrival { deadline: Some(SECOND), ..asks(0) });
    door.pass(SECOND);
    door.fail(request, AttemptFailure::BadResponse);
    assert_eq!(stopped(&door, request), NoRetryReason::DeadlinePassed);
    let patient = door.ask(0);
    door.pass(60 * SECOND);
    door.fail(patient, AttemptFailure::BadResponse);
    assert!(door.is_flying(patient), "without a deadline only waiting is limited");
}

#[test]
fn a_request_that_is_tried_again_goes_before_those_that_wait_and_keeps_its_deadline() {
    let mut door = Door::to(&[1, 1]);
    let failing = door.arrive(Arrival { deadline: Some(3 * SECOND), ..asks(0) });
    let other = door.ask(0);
    let takes_its_slot = door.ask(0);
    let waiting = door.ask(0);
    door.pass(SECOND);
    door.fail(failing, AttemptFailure::BadResponse);
    let entry = door.walk.wait_entry(failing).unwrap();
    assert_eq!(entry.timeout_at, door.now + 2 * SECOND);
    door.end(other, 500);
    assert!(door.is_flying(takes_its_slot) && door.is_flying(failing) && !door.is_flying(waiting));
}

/// A hundred requests in flight, of which every one fails at once.
#[test]
fn no_more_than_a_tenth_are_tried_again() {
    let mut door = Door::to(&[100, 100]);
    let requests: Vec<_> = (0..100).map(|_| door.ask(0)).collect();
    requests.iter().for_each(|request| door.fail(*request, AttemptFailure::Unreachable));
    let counts = door.walk.status().counts;
    assert_eq!(counts.retried, 10);
    let spent = requests.iter().filter(|it| {
        matches!(door.rejected.get(it), Some(Rejection::Failed { stopped: NoRetryReason::BudgetSpent, .. }))
    });
    assert_eq!(spent.count(), 90);
}

#[test]
fn a_retry_that_finds_the_queue_full_is_turned_away() {
    let mut door = Door::to(&[2]);
    let failing = door.ask(0);
    (0..300).for_each(|tenant| {
        door.ask(tenant);
    });
    assert_eq!(door.waiting(), 100);
    door.add(0, &[MODEL]);
    door.fail(failing, AttemptFailure::BadResponse);
    assert_eq!(stopped(&door, failing), NoRetryReason::QueueFull);
}

#[test]
fn a_busy_node_rests_as_long_as_it_asks_for_and_is_not_broken() {
    let mut door = Door::to(&[4]);
    let asked = 3 * SECOND;
    for _ in 0..3 {
        let request = door.ask(0);
        door.fail(request, AttemptFailure::Busy { retry_after: Some(asked) });
        assert!(!door.is_flying(request) && !door.rejected.contains_key(&request));
        door.pass(asked - Duration::from_millis(1));
        assert!(!door.is_flying(request));
        door.pass(Duration::from_millis(1));
        assert!(door.is_flying(request), "the same node may be asked again");
        door.end(request, 500);
        door.pass(11 * SECOND);
    }
    let node = &door.walk.status().nodes[0];
    assert_eq!((node.breaker, node.spared_until), (BreakerState::Closed, None));
}

#[test]
fn a_busy_node_is_spared_for_the_longest_it_asked_for() {
    let mut door = Door::to(&[2]);
    let first = door.ask(0);
    let second = door.ask(0);
    door.fail(first, AttemptFailure::Busy { retry_after: Some(9 * SECOND) });
    door.fail(second, AttemptFailure::Busy { retry_after: None });
    assert_eq!(door.walk.status().nodes[0].spared_until, Some(door.now + 9 * SECOND));
}

#[test]
fn a_busy_node_that_asks_for_a_day_is_spared_a_minute() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    door.fail(request, AttemptFailure::Busy { retry_after: Some(86_400 * SECOND) });
    assert_eq!(door.walk.status().nodes[0].spared_until, Some(door.now + 60 * SECOND));
}

/// Neither attempts nor the retry budget limit this: nothing was attempted.
#[test]
fn a_request_that_a_node_without_room_refuses_waits_on_until_it_has_room() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    for _ in 0..20 {
        door.fail(request, AttemptFailure::Busy { retry_after: None });
        assert!(!door.is_flying(request) && !door.rejected.contains_key(&request));
        door.pass(SECOND);
        assert!(door.is_flying(request));
    }
    door.end(request, 500);
    let other = door.ask(0);
    door.fail(other, AttemptFailure::BadResponse);
    assert_eq!(stopped(&door, other), NoRetryReason::NoOtherNode, "a failure is still one");
}

#[test]
fn a_node_that_stays_busy_refuses_one_request_per_rest() {
    let mut door = Door::to(&[4]);
    let requests: Vec<_> = (0..4).map(|_| door.ask(0)).collect();
    requests.iter().for_each(|request| door.fail(*request, AttemptFailure::Busy { retry_after: None }));
    for _ in 0..3 {
        door.pass(SECOND);
        let asking = only_flying(&door);
        door.fail(asking, AttemptFailure::Busy { retry_after: None });
        assert!(door.flying.is_empty());
    }
    door.pass(SECOND);
    door.first_byte(only_flying(&door));
    assert_eq!(door.flying.len(), 4, "one that was answered opens it to all");
}

#[test]
fn a_rested_node_is_taken_to_have_room_when_it_does_not_refuse_at_once() {
    let mut door = Door::to(&[2]);
    let first = door.ask(0);
    let second = door.ask(0);
    door.fail(first, AttemptFailure::Busy { retry_after: Some(5 * SECOND) });
    door.end(second, 500);
    door.ask(0);
    door.pass(5 * SECOND);
    only_flying(&door);
    door.pass(SECOND);
    assert_eq!(door.flying.len(), 2, "an answer in one piece may take minutes");
}

#[test]
fn when_every_node_rests_longer_than_anybody_waits_all_are_turned_away_at_once() {
    let mut door = Door::to(&[1, 1]);
    let one = door.ask(0);
    let other = door.ask(0);
    let waits = door.ask(0);
    let patient = door.arrive(Arrival { deadline: Some(120 * SECOND), ..asks(0) });
    door.fail(one, AttemptFailure::Busy { retry_after: Some(50 * SECOND) });
    assert!(!door.rejected.contains_key(&one), "the other node does not rest");
    door.fail(other, AttemptFailure::Busy { retry_after: Some(40 * SECOND) });
    let late = door.ask(0);
    for turned in [one, other, waits, late] {
        let told = door.rejected[&turned];
        assert_eq!(told, Rejection::WouldMissDeadline { retry_after: 40 * SECOND });
    }
    assert!(door.walk.wait_entry(patient).is_some(), "who has time waits");
    door.pass(40 * SECOND);
    assert_eq!(only_flying(&door), patient);
}

#[test]
fn whoever_can_wait_for_a_node_to_rest_does() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    door.fail(request, AttemptFailure::Busy { retry_after: Some(29 * SECOND) });
    let late = door.ask(0);
    assert!(door.rejected.is_empty());
    door.pass(29 * SECOND);
    assert!(door.is_flying(request) || door.is_flying(late));
}

#[test]
fn a_broken_node_takes_nothing_then_one_request_at_a_time_then_all() {
    let mut door = broken_node();
    let waiting: Vec<_> = (0..3).map(|_| door.ask(0)).collect();
    door.pass(SECOND - Duration::from_millis(1));
    assert!(door.flying.is_empty());
    door.pass(Duration::from_millis(1));
    let probe = only_flying(&door);
    assert_eq!(breaker(&door), BreakerState::HalfOpen);
    door.cancel(probe);
    let probe = only_flying(&door);
    door.first_byte(probe);
    assert_eq!(breaker(&door), BreakerState::Closed);
    assert!(waiting.iter().all(|request| door.is_flying(*request) || *request == waiting[0]));
}

#[test]
fn a_failed_trial_doubles_the_time_a_node_is_left_alone() {
    let mut door = broken_node();
    door.ask(0);
    door.pass(SECOND);
    let probe = only_flying(&door);
    door.fail(probe, AttemptFailure::BadResponse);
    assert_eq!(breaker(&door), BreakerState::Open { until: door.now + 2 * SECOND });
}

#[test]
fn an_active_check_breaks_a_node_and_mends_it() {
    let mut door = Door::to(&[1]);
    let node = NodeId(0);
    (0..5).for_each(|_| door.walk.handle_probe(door.now, node, None, Probe::Failed));
    assert!(matches!(breaker(&door), BreakerState::Open { .. }));
    door.pass(SECOND);
    door.walk.handle_probe(door.now, node, None, Probe::Answered { rtt: Duration::from_millis(1) });
    assert_eq!(breaker(&door), BreakerState::Closed);
    door.settle();
}

#[test]
fn a_path_that_cannot_be_reached_is_left_alone_and_its_node_is_not_blamed() {
    let mut door = Door::new(PipelineOptions {
        retry: RetryOptions { retries_min: 100, attempts_max: 16, ..RetryOptions::default() },
        ..PipelineOptions::default()
    });
    let node = door.add_spec(&with_paths(4, &[10, 10]));
    let bad = PathId(1);
    for _ in 0..40 {
        let request = door.ask(0);
        while door.flying[&request].path == Some(bad) {
            door.fail(request, AttemptFailure::Unreachable);
            assert_eq!(door.node_of(request), node, "there is another way to the same node");
        }
        door.end(request, 500);
    }
    let status = &door.walk.status().nodes[0];
    assert_eq!(status.breaker, BreakerState::Closed);
    assert_eq!(status.paths[1].state, PathState::Inactive);
    let carried = door.dispatches.len() - 40;
    assert_eq!(carried, 2, "two failures switch it off");
}

#[test]
fn a_word_about_a_request_that_has_ended_changes_nothing() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    door.end(request, 500);
    let next = door.ask(0);
    let before = door.walk.status();
    door.end(request, 9_999);
    door.fail(request, AttemptFailure::BadResponse);
    door.cancel(request);
    door.first_byte(request);
    door.progress(request, 9_999);
    let mut after = door.walk.status();
    assert_eq!(after.counts.unknown, 5);
    after.counts.unknown = 0;
    assert_eq!(after, before);
    assert!(door.is_flying(next));
}

fn broken_node() -> Door {
    let mut door = Door::to(&[8]);
    let requests: Vec<_> = (0..5).map(|_| door.ask(1)).collect();
    requests.into_iter().for_each(|request| {
        let end =
            evenkeel_pipeline::RequestEnd { actual: evenkeel_policy::cost::Cost(1), outcome: Outcome::Bad };
        door.walk.handle_end(door.now, request, end);
        door.settle();
    });
    assert!(matches!(breaker(&door), BreakerState::Open { .. }));
    door
}

fn breaker(door: &Door) -> BreakerState {
    door.walk.status().nodes[0].breaker
}

fn only_flying(door: &Door) -> RequestId {
    assert_eq!(door.flying.len(), 1);
    *door.flying.keys().next().unwrap()
}

fn stopped(door: &Door, request: RequestId) -> NoRetryReason {
    match door.rejected[&request] {
        Rejection::Failed { stopped, .. } => stopped,
        other => panic!("turned away because {other}"),
    }
}
