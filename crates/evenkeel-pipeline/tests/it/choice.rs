//! Node choice: what is measured, and what each figure decides.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, EngineLoad, Event, NodeSpec, PickReason, PipelineOptions, RequestEnd, RequestId,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::score::{ChoiceReason, RequestKind, ScoreConfig, SelectionPolicy, SubScores};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

use crate::driver::{Driver, MODEL, arrival_of, spec};

const FAST: Duration = Duration::from_millis(25);
const SLOW: Duration = Duration::from_millis(822);
const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);

#[test]
fn requests_share_nodes_by_weight_whether_streamed_or_whole() {
    for whole in [stream(), whole()] {
        let mut driver = Driver::new(PipelineOptions::default());
        for weight in [9, 1] {
            let weight = Weight::whole(weight).unwrap();
            driver.add_spec(&NodeSpec { weight, ..spec(16, &[MODEL]) });
        }
        let sent = (0..100).filter(|_| serve(&mut driver, whole, |_| FAST) == A).count();
        // One more than its share goes to the light node, to measure it early.
        assert!((89..=90).contains(&sent), "{sent}");
    }
}

/// With shared credits the light node would get every fifth of the one kind and none of the other.
#[test]
fn alternating_kinds_each_follow_the_weights() {
    let mut driver = Driver::new(PipelineOptions::default());
    for weight in [9, 1] {
        let weight = Weight::whole(weight).unwrap();
        driver.add_spec(&NodeSpec { weight, ..spec(16, &[MODEL]) });
    }
    let mut light = [0, 0];
    for index in 0..200 {
        let arrival = [stream(), whole()][index % 2];
        light[index % 2] += usize::from(serve(&mut driver, arrival, |_| FAST) == B);
    }
    assert_eq!(light, [10, 10]);
}

#[test]
fn a_slow_node_is_left_to_requests_that_find_no_other_slot() {
    let mut driver = Driver::with_nodes(&[2, 2]);
    measure(&mut driver, stream());
    let sent = [(); 3].map(|()| driver.arrive(stream()));
    assert_eq!(sent.map(|request| driver.node_of(request)), [A, A, B]);
}

#[test]
fn streams_and_whole_responses_are_estimated_apart() {
    let mut driver = Driver::with_nodes(&[16, 16]);
    measure(&mut driver, stream());
    let mut reversed = |node| if node == A { SLOW } else { FAST };
    for _ in 0..8 {
        serve(&mut driver, whole(), &mut reversed);
    }
    assert_eq!((serve(&mut driver, stream(), |_| FAST), serve(&mut driver, whole(), reversed)), (A, B));
}

#[test]
fn client_errors_and_failures_are_not_measured() {
    let mut driver = Driver::with_nodes(&[16, 16]);
    measure(&mut driver, stream());
    driver.advance(Duration::from_secs(31));
    // B refuses requests at once: as a client error, then as a failure.
    for _ in 0..200 {
        let request = driver.arrive(stream());
        let node = driver.node_of(request);
        if node == B {
            driver.pipeline.handle_client_error(driver.now, request);
        }
        driver.advance(FAST);
        driver.first_byte(request);
        driver.end(request, 500);
    }
    let to_b = driver.dispatches.iter().rev().take(200).filter(|(.., node)| *node == B).count();
    assert!((1..=20).contains(&to_b), "{to_b} of 200 went to a node whose errors come fast");
}

#[test]
fn one_request_measures_a_node_whose_estimate_is_old() {
    let mut driver = Driver::with_nodes(&[64, 64]);
    measure(&mut driver, stream());
    for _ in 0..20 {
        assert_eq!(serve(&mut driver, stream(), |_| FAST), A);
    }
    driver.advance(Duration::from_secs(31));
    let sent: Vec<_> = (0..30).map(|_| driver.arrive(stream())).collect();
    let to_b: Vec<_> = sent.iter().filter(|request| driver.node_of(**request) == B).collect();
    assert_eq!(to_b.len(), 1, "one at a time");
    assert_eq!(reason(&driver, *to_b[0]), PickReason::Chosen(ChoiceReason::Measure));
}

#[test]
fn rare_requests_go_to_the_fast_node_although_every_estimate_is_old() {
    let mut driver = Driver::with_nodes(&[4, 4]);
    measure(&mut driver, stream());
    let mut to_b = 0;
    for _ in 0..100 {
        driver.advance(Duration::from_secs(60));
        to_b += u32::from(serve(&mut driver, stream(), latency) == B);
    }
    assert!((5..10).contains(&to_b), "{to_b} of 100");
}

#[test]
fn a_conversation_leaves_a_node_that_became_slow_and_stays_on_one_that_is_warm() {
    let mut driver = Driver::with_nodes(&[16, 16]);
    let keyed = |key| Arrival { affinity: Some(key), ..stream() };
    for key in 0..20 {
        serve(&mut driver, keyed(key), |_| Duration::from_millis(400));
    }
    let home = serve(&mut driver, keyed(3), |_| Duration::from_millis(100));
    for _ in 0..3 {
        // A cache that is warm on its node: others are judged by cold prompts.
        assert_eq!(serve(&mut driver, keyed(3), |_| Duration::from_millis(100)), home);
    }
    let hits = driver.pipeline.status().cache.hits;
    assert_eq!(hits, 3);
    let last = (0..12)
        .map(|_| serve(&mut driver, keyed(3), |node| if node == home { SLOW * 3 } else { FAST }))
        .last();
    assert_ne!(last, Some(home), "its warm estimate is beyond twice the others' cold ones");
}

#[test]
fn a_cached_node_that_is_full_for_its_share_is_a_miss() {
    let mut driver = Driver::with_nodes(&[32, 32]);
    let keyed = |key| Arrival { affinity: Some(key), ..stream() };
    let home = serve(&mut driver, keyed(7), |_| FAST);
    serve(&mut driver, stream(), |_| FAST);
    serve(&mut driver, stream(), |_| FAST);
    let load = EngineLoad { running: 40, ..EngineLoad::default() };
    driver.pipeline.handle_engine_load(driver.now, home, Some(load));
    let before = driver.pipeline.status().cache;
    let elsewhere = serve(&mut driver, keyed(7), |_| FAST);
    let after = driver.pipeline.status().cache;
    assert_ne!(elsewhere, home);
    assert_eq!((after.hits - before.hits, after.misses - before.misses), (0, 1));
}

#[test]
fn a_measurement_does_not_move_a_conversation() {
    let mut driver = Driver::with_nodes(&[16, 16]);
    measure(&mut driver, stream());
    let keyed = Arrival { affinity: Some(1), ..stream() };
    let mut to_b = 0;
    for _ in 0..100 {
        driver.advance(Duration::from_secs(1));
        to_b += u32::from(serve(&mut driver, keyed, latency) == B);
    }
    assert!((1..=3).contains(&to_b), "{to_b} detours in 100 seconds");
    assert_eq!(driver.pipeline.cached(MODEL, 1).unwrap().runtime_id, A);
}

#[test]
fn timeouts_lower_a_nodes_score_for_a_minute() {
    let mut driver = score_driver();
    assert!((sub_scores(&mut driver).to - 1.0).abs() < 1e-9);
    for _ in 0..4 {
        let request = driver.arrive(query());
        driver.fail(request, AttemptFailure::TimedOut);
        driver.advance(Duration::from_millis(1_100));
    }
    assert!((sub_scores(&mut driver).to - 0.8).abs() < 1e-9, "4 of 20");
    driver.advance(Duration::from_secs(70));
    assert!((sub_scores(&mut driver).to - 1.0).abs() < 1e-9);
}

#[test]
fn uptime_counts_from_the_engines_start_or_from_the_nodes_addition() {
    let mut driver = score_driver();
    driver.advance(Duration::from_secs(30));
    assert!((sub_scores(&mut driver).uptime - 0.1).abs() < 1e-9, "30 of 300 seconds");
    let load = EngineLoad { uptime: Some(Duration::from_secs(120)), ..EngineLoad::default() };
    driver.pipeline.handle_engine_load(driver.now, A, Some(load));
    driver.advance(Duration::from_secs(30));
    assert!((sub_scores(&mut driver).uptime - 0.5).abs() < 1e-9, "150 of 300 seconds");
    let restarted = EngineLoad { uptime: Some(Duration::ZERO), ..EngineLoad::default() };
    driver.pipeline.handle_engine_load(driver.now, A, Some(restarted));
    driver.advance(Duration::from_secs(3));
    assert!((sub_scores(&mut driver).uptime - 0.01).abs() < 1e-9, "3 of 300 seconds");
}

/// Gives each node an estimate: [`FAST`] on A, [`SLOW`] on B.
fn measure(driver: &mut Driver, arrival: Arrival) {
    for _ in 0..4 {
        serve(driver, arrival, latency);
    }
}

fn latency(node: NodeId) -> Duration {
    if node == A { FAST } else { SLOW }
}

/// Serves a request after the latency of the node that it is sent to; returns the node.
fn serve(driver: &mut Driver, arrival: Arrival, mut latency: impl FnMut(NodeId) -> Duration) -> NodeId {
    let request = driver.arrive(arrival);
    let node = driver.node_of(request);
    driver.advance(latency(node));
    if arrival.upfront < arrival.cost {
        driver.first_byte(request);
    }
    driver.end(request, 500);
    node
}

fn stream() -> Arrival {
    Arrival { upfront: Cost(100), ..arrival_of(0) }
}

fn whole() -> Arrival {
    arrival_of(0)
}

fn query() -> Arrival {
    Arrival { request: RequestKind::Query, ..arrival_of(0) }
}

fn score_driver() -> Driver {
    let selection = SelectionPolicy::Score(ScoreConfig::default());
    let mut driver = Driver::new(PipelineOptions { selection, ..PipelineOptions::default() });
    driver.add(40, &[MODEL]);
    driver
}

/// Returns the sub-scores of the only node, as a query shows them.
fn sub_scores(driver: &mut Driver) -> SubScores {
    let request = driver.arrive(query());
    let PickReason::Chosen(ChoiceReason::Score(breakdown)) = reason(driver, request) else { panic!() };
    let end = RequestEnd { actual: Cost(1), outcome: Outcome::Good };
    driver.pipeline.handle_end(driver.now, request, end);
    driver.drain_events();
    breakdown.sub_scores
}

fn reason(driver: &Driver, wanted: RequestId) -> PickReason {
    let sent = |event: &Event| match event {
        Event::Dispatch { request, reason, .. } if *request == wanted => Some(*reason),
        _ => None,
    };
    driver.events.iter().find_map(sent).unwrap()
}
