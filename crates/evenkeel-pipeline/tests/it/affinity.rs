//! A conversation comes back to its warm node, and never at the price of a hot spot.

use evenkeel_pipeline::{Arrival, AttemptFailure, Event, ModelId, PickReason, PipelineOptions, RequestId};
use evenkeel_policy::id::NodeId;
use evenkeel_policy::time::Duration;

use crate::driver::{Door, MODEL, OTHER, asks};

#[test]
fn a_conversation_comes_back_to_its_node_while_it_is_remembered_and_after() {
    let mut door = Door::to(&[4, 4, 4, 4]);
    for key in 0..20 {
        let first = talk(&mut door, key);
        let home = door.node_of(first);
        door.end(first, 500);
        let again = talk(&mut door, key);
        assert_eq!((door.node_of(again), because(&door, again)), (home, PickReason::Cached));
        door.end(again, 500);
        door.pass(Duration::from_secs(6));
        assert_eq!(door.walk.cached(MODEL, key), None);
        let later = talk(&mut door, key);
        assert_eq!((door.node_of(later), because(&door, later)), (home, PickReason::Preferred));
        door.end(later, 500);
    }
    let stats = door.walk.status().cache;
    assert_eq!((stats.hits, stats.misses), (20, 40));
}

#[test]
fn a_use_renews_what_is_remembered() {
    let mut door = Door::to(&[1, 1]);
    for _ in 0..3 {
        let request = talk(&mut door, 1);
        door.end(request, 500);
        door.pass(Duration::from_secs(4));
    }
    let entry = door.walk.cached(MODEL, 1).unwrap();
    assert_eq!(entry.created_at.as_nanos(), 0);
    assert_eq!(entry.expires_at.as_nanos(), 13_000_000_000);
}

#[test]
fn a_warm_node_without_a_slot_is_a_miss_and_the_next_node_is_remembered() {
    let mut door = Door::to(&[1, 1]);
    let first = talk(&mut door, 1);
    let second = talk(&mut door, 1);
    assert_ne!(door.node_of(first), door.node_of(second));
    assert_eq!(door.walk.cached(MODEL, 1).unwrap().runtime_id, door.node_of(second));
    assert_eq!(door.walk.status().cache.hits, 0);
}

/// Every conversation there is prefers the same node: a burst without anything remembered.
#[test]
fn a_preferred_node_is_never_a_hot_spot() {
    let mut door = Door::to(&[16, 16, 16, 16]);
    let home = {
        let request = talk(&mut door, 0);
        door.node_of(request)
    };
    let keys: Vec<u64> = (1..10_000).filter(|key| preferred(*key) == home).take(39).collect();
    keys.into_iter().for_each(|key| {
        talk(&mut door, key);
    });
    let busy: Vec<_> = door.walk.status().nodes.iter().map(|node| node.busy).collect();
    assert!(busy.iter().all(|busy| *busy <= 13), "a quarter above ten, rounded up: {busy:?}");
}

/// Where an idle pool of four sends a key.
fn preferred(key: u64) -> NodeId {
    let mut door = Door::to(&[1, 1, 1, 1]);
    let request = talk(&mut door, key);
    door.node_of(request)
}

/// Two nodes of one slot; the lane's head has no home, others are at home on the node that comes free.
#[test]
fn a_freed_slot_prefers_a_request_at_home_there_and_the_head_is_passed_over_four_times_at_most() {
    let mut door = Door::to(&[1]);
    let mut running = talk(&mut door, 7);
    let head = talk(&mut door, 1_000);
    let at_home: Vec<_> = (0..6).map(|_| talk(&mut door, 7)).collect();
    let mut order = vec![];
    for _ in 0..6 {
        door.end(running, 500);
        running = door.dispatches.last().unwrap().0;
        order.push(running);
    }
    assert_eq!(order[..4], at_home[..4]);
    assert_eq!(order[4], head);
    assert_eq!(order[5], at_home[4]);
}

#[test]
fn only_so_many_of_a_lane_are_looked_at() {
    let mut door = Door::to(&[1]);
    let running = talk(&mut door, 7);
    let cold: Vec<_> = (0..8).map(|key| talk(&mut door, 1_000 + key)).collect();
    talk(&mut door, 7);
    door.end(running, 500);
    assert!(door.is_flying(cold[0]), "the ninth is too far back");
}

#[test]
fn what_leads_to_a_node_that_drains_breaks_leaves_or_loses_the_model_is_forgotten() {
    let changes: [fn(&mut Door, NodeId); 4] = [
        |door, node| door.walk.drain_node(door.now, node).unwrap(),
        |door, node| door.walk.remove_node(door.now, node).unwrap(),
        |door, node| door.walk.set_node_models(door.now, node, &[OTHER]).unwrap(),
        |door, node| {
            let requests: Vec<_> = (0..40).filter(|key| preferred_of(door, *key) == node).take(8).collect();
            for key in requests {
                let request = talk(door, key);
                if door.is_flying(request) && door.node_of(request) == node {
                    door.fail(request, AttemptFailure::BadResponse);
                }
            }
        },
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let mut door = Door::new(PipelineOptions::default());
        (0..3).for_each(|_| {
            door.add(8, &[MODEL, OTHER]);
        });
        let request = talk(&mut door, 1);
        let node = door.node_of(request);
        door.end(request, 500);
        change(&mut door, node);
        door.settle();
        let left = door.walk.cached(MODEL, 1).map(|entry| entry.runtime_id);
        assert_ne!(left, Some(node), "change {number}");
        assert!(door.walk.status().cache.invalidations > 0, "change {number}");
    }
}

/// Where a copy of the door would send a key.
fn preferred_of(door: &Door, key: u64) -> NodeId {
    let mut walk = door.walk.clone();
    let request = walk.handle_arrival(door.now, Arrival { affinity: Some(key), ..asks(0) });
    std::iter::from_fn(|| walk.poll_event())
        .find_map(|event| match event {
            Event::Dispatch { request: sent, node, .. } if sent == request => Some(node),
            _ => None,
        })
        .unwrap()
}

#[test]
fn the_same_conversation_on_another_model_is_another() {
    let mut door = Door::new(PipelineOptions::default());
    door.add(4, &[MODEL, OTHER]);
    let request = talk(&mut door, 1);
    door.end(request, 500);
    assert!(door.walk.cached(MODEL, 1).is_some() && door.walk.cached(ModelId(1), 1).is_none());
}

fn talk(door: &mut Door, key: u64) -> RequestId {
    door.arrive(Arrival { affinity: Some(key), ..asks(0) })
}

fn because(door: &Door, wanted: RequestId) -> PickReason {
    let sent = |event: &Event| match event {
        Event::Dispatch { request, because, .. } if *request == wanted => Some(*because),
        _ => None,
    };
    door.events.iter().find_map(sent).unwrap()
}
