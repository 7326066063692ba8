//! Nodes, tenants and limits that change at run time.

use evenkeel_pipeline::{
    AdminState, Arrival, Event, InvalidOptions, ModelId, OptimizedLoadManager, PipelineLimits,
    PipelineOptions, RegistryError, RequestEnd, RetryOptions, Slots, TenantRule,
};
use evenkeel_policy::backpressure::{BackpressureConfig, InvalidConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::{RequestKind, ScoreConfig, SelectionPolicy};
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, MODEL, OTHER_MODEL, arrival_of, spec};

#[test]
fn a_drained_node_finishes_its_requests_and_gets_new_ones_when_resumed() {
    let mut driver = Driver::with_nodes(&[2]);
    let node = NodeId(0);
    let running = driver.submit(0);
    let also_running = driver.submit(0);
    let waiting = driver.submit(0);
    driver.pipeline.drain_node(driver.now, node).unwrap();
    driver.drain_events();
    driver.end(running, 500);
    assert!(!driver.is_in_flight(waiting) && driver.is_in_flight(also_running));
    driver.pipeline.resume_node(driver.now, node).unwrap();
    driver.drain_events();
    assert!(driver.is_in_flight(waiting));
}

#[test]
fn a_removed_node_disappears_once_its_last_request_has_ended() {
    let mut driver = Driver::with_nodes(&[1]);
    let node = NodeId(0);
    let running = driver.submit(0);
    driver.pipeline.remove_node(driver.now, node).unwrap();
    driver.drain_events();
    assert_eq!(driver.pipeline.status().nodes[0].admin_state, AdminState::Removing);
    assert_eq!(driver.pipeline.resume_node(driver.now, node), Err(RegistryError::UnknownNode { node }));
    driver.end(running, 500);
    assert!(driver.pipeline.status().nodes.is_empty());
    let next = driver.add(1, &[MODEL]);
    assert_ne!(next, node, "an id is never reused");
}

#[test]
fn added_slots_are_used_at_once_and_removed_ones_disappear_as_requests_end() {
    let mut driver = Driver::with_nodes(&[1]);
    let requests: Vec<_> = (0..6).map(|_| driver.submit(0)).collect();
    let set = |driver: &mut Driver, slots| {
        driver.pipeline.set_slots(driver.now, NodeId(0), Slots::Fixed(slots)).unwrap();
        driver.drain_events();
    };
    set(&mut driver, 3);
    assert_eq!(driver.in_flight.len(), 3);
    set(&mut driver, 1);
    driver.end(requests[0], 500);
    driver.end(requests[1], 500);
    assert_eq!(driver.in_flight.len(), 1, "two slots were removed");
    driver.end(requests[2], 500);
    assert!(driver.is_in_flight(requests[3]));
}

#[test]
fn a_model_added_to_a_node_is_served_at_once() {
    let mut driver = Driver::new(PipelineOptions::default());
    driver.add(0, &[OTHER_MODEL]);
    driver.add(1, &[MODEL]);
    let waiting = driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(0) });
    driver.pipeline.set_node_models(driver.now, NodeId(1), &[MODEL, OTHER_MODEL]).unwrap();
    driver.drain_events();
    assert_eq!(driver.node_of(waiting), NodeId(1));
}

#[test]
fn every_limit_is_enforced() {
    let limits =
        PipelineLimits { tenants_max: 2, models_max: 2, nodes_max: 2, in_flight_max: 3, sessions_max: 1 };
    let mut driver = Driver::new(PipelineOptions { limits, ..PipelineOptions::default() });
    driver.add(2, &[MODEL]);
    driver.add(2, &[MODEL]);
    let now = driver.now;
    let result = driver.pipeline.add_node(now, &spec(1, &[MODEL]));
    assert_eq!(result, Err(RegistryError::TooManyNodes { nodes_max: 2 }));
    let result = driver.pipeline.set_node_models(now, NodeId(0), &[ModelId(2)]);
    assert_eq!(result, Err(RegistryError::TooManyModels { models_max: 2 }));
    let result = driver.pipeline.set_tenant(now, TenantId(2), TenantRule::default());
    assert_eq!(result, Err(RegistryError::TooManyTenants { tenants_max: 2 }));
    let requests: Vec<_> = (0..4).map(|_| driver.submit(0)).collect();
    assert_eq!(
        (driver.in_flight.len(), driver.waiting()),
        (3, 1),
        "a free slot stays unused because of `in_flight_max`"
    );
    driver.end(requests[0], 500);
    assert_eq!((driver.in_flight.len(), driver.waiting()), (3, 0));
}

#[test]
fn options_out_of_range_are_rejected() {
    let new = |options| OptimizedLoadManager::new(options).err();
    let default = PipelineOptions::default;
    assert_eq!(new(default()), None);
    let wait_queue = WaitQueueConfig { max_waiting: 50, ..WaitQueueConfig::default() };
    let load = LoadManagerConfig { wait_queue, ..LoadManagerConfig::default() };
    assert_eq!(new(PipelineOptions { load, ..default() }), Some(InvalidOptions::QueuesDiffer));
    let backpressure = BackpressureConfig { max_queue_size: 0, ..BackpressureConfig::default() };
    let wait_queue = WaitQueueConfig { max_waiting: 0, ..WaitQueueConfig::default() };
    let load = LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() };
    let result = new(PipelineOptions { load, ..default() }).unwrap();
    assert_eq!(result, InvalidOptions::Load(InvalidConfig::MaxWaiting));
    assert_eq!(result.to_string(), "Max waiting must be between 1 and 1000");
    let retry = RetryOptions { attempts_max: 0, ..RetryOptions::default() };
    let result = new(PipelineOptions { retry, ..default() }).unwrap();
    assert_eq!(result.to_string(), "attempts_max 0 is not between 1 and 16");
    assert!(new(PipelineOptions { quantum: Cost(0), ..default() }).is_some());
}

/// In a database pool slots are connections, costs are milliseconds, and nodes are chosen by score.
#[test]
fn transactions_leave_the_last_free_slots_to_queries() {
    let mut driver = Driver::new(PipelineOptions {
        selection: SelectionPolicy::Score(ScoreConfig::default()),
        ..PipelineOptions::default()
    });
    driver.add(40, &[MODEL]);
    let begin =
        |driver: &mut Driver| driver.arrive(Arrival { request: RequestKind::BeginTx, ..arrival_of(0) });
    let transactions: Vec<_> = (0..45).map(|_| begin(&mut driver)).collect();
    assert_eq!(driver.in_flight.len(), 39, "below 5 % free slots no transaction starts");
    let query = driver.arrive(Arrival { request: RequestKind::Query, ..arrival_of(0) });
    assert!(driver.is_in_flight(query), "a query overtakes the transactions that wait ahead of it");
    driver.end(query, 5);
    driver.end(transactions[0], 5);
    assert!(driver.is_in_flight(transactions[39]));
}

/// Errors close the database's error gate and open its circuit breaker; the probe must pass both.
#[test]
fn a_failed_database_is_probed_after_its_backoff() {
    let mut driver = Driver::new(PipelineOptions {
        selection: SelectionPolicy::Score(ScoreConfig::default()),
        ..PipelineOptions::default()
    });
    driver.add(40, &[MODEL]);
    let query = Arrival { request: RequestKind::Query, ..arrival_of(0) };
    let queries: Vec<_> = (0..40).map(|_| driver.arrive(query)).collect();
    for request in queries {
        let end = RequestEnd { actual: Cost(1), outcome: Outcome::Bad };
        driver.pipeline.handle_end(driver.now, request, end);
        driver.drain_events();
    }
    let waiting = driver.arrive(query);
    driver.advance(Duration::from_millis(999));
    assert!(!driver.is_in_flight(waiting));
    driver.advance(Duration::from_millis(1));
    assert!(driver.is_in_flight(waiting));
}

/// Twenty statements of three seconds close the latency gate for a minute, and no call to the pipeline marks the end of
/// that minute.
#[test]
fn a_gate_that_opens_only_because_time_passes_is_rechecked() {
    let mut driver = Driver::new(PipelineOptions {
        selection: SelectionPolicy::Score(ScoreConfig::default()),
        ..PipelineOptions::default()
    });
    driver.add(20, &[MODEL]);
    let query =
        Arrival { request: RequestKind::Query, deadline: Some(Duration::from_secs(200)), ..arrival_of(0) };
    let queries: Vec<_> = (0..20).map(|_| driver.arrive(query)).collect();
    driver.advance(Duration::from_secs(3));
    queries.into_iter().for_each(|request| driver.end(request, 3_000));
    driver.advance(Duration::from_secs(1));
    let waiting = driver.arrive(query);
    assert!(!driver.is_in_flight(waiting));
    while !driver.is_in_flight(waiting) {
        let due = driver.pipeline.poll_timeout().unwrap();
        driver.advance(due.since(driver.now));
    }
    assert!(driver.now.as_nanos() < 70_000_000_000, "{:?}", driver.now);
}

#[test]
fn the_same_seed_and_history_give_the_same_events() {
    let run = |seed| {
        let mut driver = Driver::new(PipelineOptions {
            selection: SelectionPolicy::Score(ScoreConfig::default()),
            seed,
            ..PipelineOptions::default()
        });
        (0..5).for_each(|_| {
            driver.add(4, &[MODEL]);
        });
        (0..20).for_each(|_| {
            driver.arrive(Arrival { request: RequestKind::Query, ..arrival_of(0) });
        });
        driver.events.into_iter().filter(|event| matches!(event, Event::Dispatch { .. })).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
