//! How many requests a node is given at once, and what others do to it.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, EngineLoad, NodeSpec, PipelineOptions, RegistryError, RequestId, Slots,
};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::time::Duration;

use crate::driver::{Door, MODEL, asks, spec};

const SOON: Duration = Duration::from_millis(50);
const LATE: Duration = Duration::from_secs(2);

#[test]
fn a_node_gets_more_while_it_begins_its_answers_soon_and_less_when_it_does_not() {
    let mut door = adaptive();
    let mut settle = |knee: u32| {
        for _ in 0..300 {
            let first_token = if knee < slots(&door) { LATE } else { SOON };
            round(&mut door, first_token);
        }
        slots(&door)
    };
    let limit = settle(20);
    assert!((10..=26).contains(&limit), "{limit}");
    let limit = settle(6);
    assert!((3..=9).contains(&limit), "{limit}");
}

/// An answer in one piece begins when all of it is made.
#[test]
fn how_long_answers_in_one_piece_take_says_nothing() {
    let mut door = adaptive();
    for _ in 0..200 {
        let whole = door.ask(0);
        door.pass(LATE);
        door.first_byte(whole);
        door.end(whole, 500);
    }
    assert_eq!(door.walk.status().nodes[0].limit.unwrap().recent_ms, None);
}

#[test]
fn fewer_slots_take_nothing_back() {
    let mut door = adaptive();
    let flying: Vec<RequestId> = (0..4).map(|_| stream(&mut door)).collect();
    let refused = door.fail_one(flying[0]);
    assert_eq!((slots(&door), door.flying.len()), (2, 3), "three were there when the fourth was refused");
    door.end(flying[1], 500);
    door.pass(Duration::from_secs(5));
    assert!(!door.is_flying(refused), "two are on it, and two it may have");
    door.end(flying[2], 500);
    assert!(door.is_flying(refused));
    assert!(door.rejected.is_empty());
}

#[test]
fn an_engines_own_queue_lowers_the_limit() {
    let mut door = adaptive();
    let node = NodeId(0);
    (0..4).for_each(|_| {
        stream(&mut door);
    });
    door.walk.handle_engine_load(
        door.now,
        node,
        Some(EngineLoad { running: 2, waiting: 2, cache_used: None }),
    );
    door.settle();
    assert_eq!(slots(&door), 3);
    let told = door.walk.status().nodes[0].clone();
    assert_eq!((told.engine.map(|it| it.waiting), told.elsewhere), (Some(2), 0));
}

#[test]
fn a_node_that_nobody_streams_from_gets_more_while_its_engine_has_no_queue() {
    let mut door = adaptive();
    (0..50).for_each(|_| {
        door.ask(0);
    });
    for running in 4..20 {
        let load = EngineLoad { running, waiting: 0, cache_used: None };
        door.walk.handle_engine_load(door.now, NodeId(0), Some(load));
        door.settle();
    }
    assert_eq!((slots(&door), door.flying.len()), (20, 20));
}

#[test]
fn what_others_have_an_engine_do_counts_as_its_load_until_it_does_not_say_so() {
    let mut door = Door::to(&[8, 8]);
    let busy = NodeId(0);
    let load = EngineLoad { running: 5, waiting: 1, cache_used: Some(0.5) };
    door.walk.handle_engine_load(door.now, busy, Some(load));
    for _ in 0..4 {
        let request = door.ask(0);
        assert_ne!(door.node_of(request), busy);
    }
    assert_eq!(door.walk.status().nodes[0].elsewhere, 6);
    door.walk.handle_engine_load(door.now, busy, None);
    let request = door.ask(0);
    assert_eq!(door.node_of(request), busy);
    assert_eq!(door.walk.status().nodes[0].elsewhere, 0);
}

#[test]
fn a_limit_that_cannot_be_makes_no_node() {
    let mut door = Door::new(PipelineOptions::default());
    let slots = Slots::Adaptive(LimitConfig { min: 0, ..LimitConfig::default() });
    let refused = door.walk.add_node(door.now, &NodeSpec { slots, ..spec(1, &[MODEL]) });
    assert!(matches!(refused, Err(RegistryError::Limit(_))), "{refused:?}");
}

/// A door to one node that begins with four requests.
fn adaptive() -> Door {
    let mut door = Door::new(PipelineOptions::default());
    let slots = Slots::Adaptive(LimitConfig { initial: 4, ..LimitConfig::default() });
    door.add_spec(&NodeSpec { slots, ..spec(1, &[MODEL]) });
    door
}

fn stream(door: &mut Door) -> RequestId {
    door.arrive(Arrival { upfront: Cost(100), ..asks(0) })
}

/// As many streams as the node takes, whose answers begin after so long.
fn round(door: &mut Door, first_token: Duration) {
    let streams: Vec<_> = (0..slots(door)).map(|_| stream(door)).collect();
    door.pass(first_token);
    let flying: Vec<_> = streams.iter().copied().filter(|it| door.is_flying(*it)).collect();
    flying.iter().for_each(|it| door.first_byte(*it));
    streams.into_iter().for_each(|it| door.cancel(it));
}

fn slots(door: &Door) -> u32 {
    door.walk.status().nodes[0].slots
}

impl Door {
    /// Has the node refuse a request, which is given back.
    fn fail_one(&mut self, request: RequestId) -> RequestId {
        self.fail(request, AttemptFailure::Busy { retry_after: None });
        request
    }
}
