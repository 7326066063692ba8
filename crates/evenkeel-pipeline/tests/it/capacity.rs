//! Capacity: adaptive concurrency limits, and load from other clients.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, EngineLoad, NodeSpec, PipelineOptions, RegistryError, RequestId, Slots,
};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, MODEL, arrival_of, spec};

const FAST_TTFT: Duration = Duration::from_millis(50);
const SLOW_TTFT: Duration = Duration::from_secs(2);

#[test]
fn the_limit_rises_while_first_tokens_are_fast_and_falls_when_they_are_slow() {
    let mut driver = driver_with_adaptive_node();
    // The knee is the number of requests above which the engine becomes slow.
    let mut limit_at_knee = |knee: u32| {
        for _ in 0..300 {
            let first_token = if knee < slots(&driver) { SLOW_TTFT } else { FAST_TTFT };
            run_round(&mut driver, first_token);
        }
        slots(&driver)
    };
    let limit = limit_at_knee(20);
    assert!((10..=26).contains(&limit), "{limit}");
    let limit = limit_at_knee(6);
    assert!((3..=9).contains(&limit), "{limit}");
}

/// A non-streamed response sends its first byte only after all tokens are generated.
#[test]
fn the_latency_of_non_streamed_responses_is_not_sampled() {
    let mut driver = driver_with_adaptive_node();
    for _ in 0..200 {
        let request = driver.submit(0);
        driver.advance(SLOW_TTFT);
        driver.first_byte(request);
        driver.end(request, 500);
    }
    assert_eq!(driver.pipeline.status().nodes[0].limit.unwrap().recent_ms, None);
}

#[test]
fn a_single_refusal_leaves_the_limit_alone() {
    let mut driver = driver_with_adaptive_node();
    let in_flight: Vec<RequestId> = (0..4).map(|_| submit_streamed(&mut driver)).collect();
    driver.fail(in_flight[0], AttemptFailure::Busy { retry_after: None });
    assert_eq!((slots(&driver), driver.in_flight.len()), (4, 3));
}

#[test]
fn lowering_the_limit_does_not_cancel_requests_in_flight() {
    let mut driver = driver_with_adaptive_node();
    let in_flight: Vec<RequestId> = (0..4).map(|_| submit_streamed(&mut driver)).collect();
    let waiting = submit_streamed(&mut driver);
    report_queue(&mut driver, 4);
    assert_eq!((slots(&driver), driver.in_flight.len()), (3, 4));
    driver.end(in_flight[0], 500);
    assert!(!driver.is_in_flight(waiting), "three of three slots are in use");
    driver.end(in_flight[1], 500);
    assert!(driver.is_in_flight(waiting));
    assert!(driver.rejected.is_empty());
}

#[test]
fn a_queue_inside_the_engine_lowers_the_limit() {
    let mut driver = driver_with_adaptive_node();
    (0..4).for_each(|_| {
        submit_streamed(&mut driver);
    });
    report_queue(&mut driver, 2);
    assert_eq!(slots(&driver), 3);
    let status = driver.pipeline.status().nodes[0].clone();
    assert_eq!((status.engine.map(|engine| engine.waiting), status.external_load), (Some(2), 0));
}

#[test]
fn a_change_of_the_settings_keeps_the_limit_and_never_exceeds_the_new_one() {
    let mut driver = driver_with_adaptive_node();
    (0..9).for_each(|_| {
        submit_streamed(&mut driver);
    });
    assert_eq!((slots(&driver), driver.in_flight.len()), (4, 4));
    let adaptive = Slots::Adaptive(LimitConfig { max: 3, ..LimitConfig::default() });
    driver.pipeline.set_slots(driver.now, NodeId(0), adaptive).unwrap();
    driver.drain_events();
    assert_eq!((slots(&driver), driver.in_flight.len()), (3, 4));
}

#[test]
fn without_streamed_responses_the_limit_rises_while_the_engine_has_no_queue() {
    let mut driver = driver_with_adaptive_node();
    (0..50).for_each(|_| {
        driver.submit(0);
    });
    for running in [4, 8] {
        let load = EngineLoad { running, waiting: 0, ..EngineLoad::default() };
        driver.pipeline.handle_engine_load(driver.now, NodeId(0), Some(load));
        driver.drain_events();
    }
    assert_eq!((slots(&driver), driver.in_flight.len()), (16, 16));
}

#[test]
fn requests_from_other_clients_count_as_load_until_the_engine_stops_reporting() {
    let mut driver = Driver::with_nodes(&[8, 8]);
    let busy = NodeId(0);
    let load = EngineLoad { running: 16, waiting: 2, ..EngineLoad::default() };
    driver.pipeline.handle_engine_load(driver.now, busy, Some(load));
    for _ in 0..6 {
        let request = driver.submit(0);
        assert_ne!(driver.node_of(request), busy);
    }
    assert_eq!(driver.pipeline.status().nodes[0].external_load, 18);
    driver.pipeline.handle_engine_load(driver.now, busy, None);
    let request = driver.submit(0);
    assert_eq!(driver.node_of(request), busy);
    assert_eq!(driver.pipeline.status().nodes[0].external_load, 0);
}

#[test]
fn a_node_with_an_invalid_limit_is_rejected() {
    let mut driver = Driver::new(PipelineOptions::default());
    let slots = Slots::Adaptive(LimitConfig { min: 0, ..LimitConfig::default() });
    let result = driver.pipeline.add_node(driver.now, &NodeSpec { slots, ..spec(1, &[MODEL]) });
    assert!(matches!(result, Err(RegistryError::Limit(_))), "{result:?}");
}

/// Creates a driver with one node whose adaptive limit starts at 4.
fn driver_with_adaptive_node() -> Driver {
    let mut driver = Driver::new(PipelineOptions::default());
    let slots = Slots::Adaptive(LimitConfig { initial: 4, ..LimitConfig::default() });
    driver.add_spec(&NodeSpec { slots, ..spec(1, &[MODEL]) });
    driver
}

fn report_queue(driver: &mut Driver, waiting: u32) {
    let load = EngineLoad { running: 2, waiting, ..EngineLoad::default() };
    driver.pipeline.handle_engine_load(driver.now, NodeId(0), Some(load));
    driver.drain_events();
}

/// Submits a streamed request: an upfront cost below the total cost marks it as one.
fn submit_streamed(driver: &mut Driver) -> RequestId {
    driver.arrive(Arrival { upfront: Cost(100), ..arrival_of(0) })
}

/// Fills the node with streams whose first token takes `first_token`, and whose output takes as long.
fn run_round(driver: &mut Driver, first_token: Duration) {
    let streams: Vec<_> = (0..2 * slots(driver)).map(|_| submit_streamed(driver)).collect();
    driver.advance(first_token);
    let in_flight: Vec<_> = streams.iter().copied().filter(|request| driver.is_in_flight(*request)).collect();
    in_flight.iter().for_each(|request| driver.first_byte(*request));
    driver.advance(first_token);
    in_flight.iter().for_each(|request| driver.end(*request, 500));
    streams.into_iter().for_each(|request| driver.cancel(request));
}

fn slots(driver: &Driver) -> u32 {
    driver.pipeline.status().nodes[0].slots
}
