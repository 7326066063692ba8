//! Nodes, tenants and limits, as they change under way.

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

use crate::driver::{Door, MODEL, OTHER, asks, spec};

#[test]
fn a_drained_node_finishes_what_it_has_and_takes_work_again_when_resumed() {
    let mut door = Door::to(&[2]);
    let node = NodeId(0);
    let running = door.ask(0);
    let also = door.ask(0);
    let waiting = door.ask(0);
    door.walk.drain_node(door.now, node).unwrap();
    door.settle();
    door.end(running, 500);
    assert!(!door.is_flying(waiting) && door.is_flying(also));
    door.walk.resume_node(door.now, node).unwrap();
    door.settle();
    assert!(door.is_flying(waiting));
}

#[test]
fn a_removed_node_is_forgotten_with_its_last_request() {
    let mut door = Door::to(&[1]);
    let node = NodeId(0);
    let running = door.ask(0);
    door.walk.remove_node(door.now, node).unwrap();
    door.settle();
    assert_eq!(door.walk.status().nodes[0].duty, AdminState::Removing);
    assert_eq!(door.walk.resume_node(door.now, node), Err(RegistryError::UnknownNode { node }));
    door.end(running, 500);
    assert!(door.walk.status().nodes.is_empty());
    let next = door.add(1, &[MODEL]);
    assert_ne!(next, node, "an id is never given twice");
}

#[test]
fn more_slots_are_used_at_once_and_fewer_as_work_ends() {
    let mut door = Door::to(&[1]);
    let requests: Vec<_> = (0..6).map(|_| door.ask(0)).collect();
    let set = |door: &mut Door, slots| {
        door.walk.set_slots(door.now, NodeId(0), Slots::Fixed(slots)).unwrap();
        door.settle();
    };
    set(&mut door, 3);
    assert_eq!(door.flying.len(), 3);
    set(&mut door, 1);
    door.end(requests[0], 500);
    door.end(requests[1], 500);
    assert_eq!(door.flying.len(), 1, "two slots are gone");
    door.end(requests[2], 500);
    assert!(door.is_flying(requests[3]));
}

#[test]
fn a_model_that_a_node_gains_is_served_at_once() {
    let mut door = Door::new(PipelineOptions::default());
    door.add(0, &[OTHER]);
    door.add(1, &[MODEL]);
    let waiting = door.arrive(Arrival { model: OTHER, ..asks(0) });
    door.walk.set_node_models(door.now, NodeId(1), &[MODEL, OTHER]).unwrap();
    door.settle();
    assert_eq!(door.node_of(waiting), NodeId(1));
}

#[test]
fn every_limit_is_reached_and_kept() {
    let limits = PipelineLimits { tenants_max: 2, models_max: 2, nodes_max: 2, in_flight_max: 3 };
    let mut door = Door::new(PipelineOptions { limits, ..PipelineOptions::default() });
    door.add(2, &[MODEL]);
    door.add(2, &[MODEL]);
    let now = door.now;
    let refused = door.walk.add_node(now, &spec(1, &[MODEL]));
    assert_eq!(refused, Err(RegistryError::TooManyNodes { nodes_max: 2 }));
    let refused = door.walk.set_node_models(now, NodeId(0), &[ModelId(2)]);
    assert_eq!(refused, Err(RegistryError::TooManyModels { models_max: 2 }));
    let refused = door.walk.set_tenant(now, TenantId(2), TenantRule::default());
    assert_eq!(refused, Err(RegistryError::TooManyTenants { tenants_max: 2 }));
    let requests: Vec<_> = (0..4).map(|_| door.ask(0)).collect();
    assert_eq!((door.flying.len(), door.waiting()), (3, 1), "a slot is free and nobody gets it");
    door.end(requests[0], 500);
    assert_eq!((door.flying.len(), door.waiting()), (3, 0));
}

#[test]
fn options_out_of_range_make_no_walk() {
    let new = |options| OptimizedLoadManager::new(options).err();
    let default = PipelineOptions::default;
    assert_eq!(new(default()), None);
    let wait_queue = WaitQueueConfig { max_waiting: 50, ..WaitQueueConfig::default() };
    let load = LoadManagerConfig { wait_queue, ..LoadManagerConfig::default() };
    assert_eq!(new(PipelineOptions { load, ..default() }), Some(InvalidOptions::QueuesDiffer));
    let backpressure = BackpressureConfig { max_queue_size: 0, ..BackpressureConfig::default() };
    let wait_queue = WaitQueueConfig { max_waiting: 0, ..WaitQueueConfig::default() };
    let load = LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() };
    let refused = new(PipelineOptions { load, ..default() }).unwrap();
    assert_eq!(refused, InvalidOptions::Load(InvalidConfig::MaxWaiting));
    assert_eq!(refused.to_string(), "Max waiting must be between 1 and 1000");
    let retry = RetryOptions { attempts_max: 0, ..RetryOptions::default() };
    let refused = new(PipelineOptions { retry, ..default() }).unwrap();
    assert_eq!(refused.to_string(), "attempts_max 0 is not between 1 and 16");
    assert!(new(PipelineOptions { quantum: Cost(0), ..default() }).is_some());
}

/// A database: the same slots, charged in milliseconds, chosen by score.
#[test]
fn transactions_leave_the_last_slots_to_queries() {
    let mut door = Door::new(PipelineOptions {
        chooser: SelectionPolicy::Score(ScoreConfig::default()),
        ..PipelineOptions::default()
    });
    door.add(40, &[MODEL]);
    let begin = |door: &mut Door| door.arrive(Arrival { request: RequestKind::BeginTx, ..asks(0) });
    let begun: Vec<_> = (0..45).map(|_| begin(&mut door)).collect();
    assert_eq!(door.flying.len(), 39, "below 5 % free no transaction begins");
    let query = door.arrive(Arrival { request: RequestKind::Query, ..asks(0) });
    assert!(door.is_flying(query), "a query passes the transactions that wait before it");
    door.end(query, 5);
    door.end(begun[0], 5);
    assert!(door.is_flying(begun[39]));
}

/// Errors close a database's gate as well as its breaker: the trial must get past both.
#[test]
fn a_database_that_broke_is_tried_again_after_its_backoff() {
    let mut door = Door::new(PipelineOptions {
        chooser: SelectionPolicy::Score(ScoreConfig::default()),
        ..PipelineOptions::default()
    });
    door.add(40, &[MODEL]);
    let query = Arrival { request: RequestKind::Query, ..asks(0) };
    let queries: Vec<_> = (0..40).map(|_| door.arrive(query)).collect();
    for request in queries {
        let end = RequestEnd { actual: Cost(1), outcome: Outcome::Bad };
        door.walk.handle_end(door.now, request, end);
        door.settle();
    }
    let waiting = door.arrive(query);
    door.pass(Duration::from_millis(999));
    assert!(!door.is_flying(waiting));
    door.pass(Duration::from_millis(1));
    assert!(door.is_flying(waiting));
}

/// Twenty statements of three seconds close the gate for a minute, and nobody says when the minute is over.
#[test]
fn a_gate_that_opens_with_time_alone_is_noticed() {
    let mut door = Door::new(PipelineOptions {
        chooser: SelectionPolicy::Score(ScoreConfig::default()),
        ..PipelineOptions::default()
    });
    door.add(20, &[MODEL]);
    let query = Arrival { request: RequestKind::Query, deadline: Some(Duration::from_secs(200)), ..asks(0) };
    let queries: Vec<_> = (0..20).map(|_| door.arrive(query)).collect();
    door.pass(Duration::from_secs(3));
    queries.into_iter().for_each(|request| door.end(request, 3_000));
    door.pass(Duration::from_secs(1));
    let waiting = door.arrive(query);
    assert!(!door.is_flying(waiting));
    while !door.is_flying(waiting) {
        let due = door.walk.poll_timeout().unwrap();
        door.pass(due.since(door.now));
    }
    assert!(door.now.as_nanos() < 70_000_000_000, "{:?}", door.now);
}

#[test]
fn the_same_seed_and_history_give_the_same_events() {
    let run = |seed| {
        let mut door = Door::new(PipelineOptions {
            chooser: SelectionPolicy::Score(ScoreConfig::default()),
            seed,
            ..PipelineOptions::default()
        });
        (0..5).for_each(|_| {
            door.add(4, &[MODEL]);
        });
        (0..20).for_each(|_| {
            door.ask(0);
        });
        door.events.into_iter().filter(|event| matches!(event, Event::Dispatch { .. })).collect::<Vec<_>>()
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}
