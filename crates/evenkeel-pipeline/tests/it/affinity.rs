//! Affinity: a conversation returns to the node whose cache is warm, without creating hot spots.

use evenkeel_pipeline::{Arrival, Event, ModelId, PickReason, PipelineOptions, RequestId};
use evenkeel_policy::id::NodeId;
use evenkeel_policy::path::Probe;
use evenkeel_policy::score::ChoiceReason;
use evenkeel_policy::time::Duration;

use crate::driver::{Driver, MODEL, OTHER_MODEL, arrival_of};

#[test]
fn a_conversation_returns_to_its_node_while_cached_and_after_its_entry_has_expired() {
    let mut driver = Driver::with_nodes(&[4, 4, 4, 4]);
    let measuring = [(); 4].map(|()| driver.submit(0));
    measuring.into_iter().for_each(|request| driver.end(request, 500));
    for key in 0..20 {
        let first = submit_with_key(&mut driver, key);
        let home = driver.node_of(first);
        driver.end(first, 500);
        let again = submit_with_key(&mut driver, key);
        assert_eq!((driver.node_of(again), reason(&driver, again)), (home, PickReason::Cached));
        driver.end(again, 500);
        driver.advance(Duration::from_secs(6));
        assert_eq!(driver.pipeline.cached(MODEL, key), None);
        let later = submit_with_key(&mut driver, key);
        assert_eq!(driver.node_of(later), home);
        assert!(matches!(reason(&driver, later), PickReason::Chosen(ChoiceReason::Affinity { .. })));
        driver.end(later, 500);
    }
    let stats = driver.pipeline.status().cache;
    assert_eq!((stats.hits, stats.misses), (20, 40));
}

#[test]
fn a_cache_hit_renews_the_entry() {
    let mut driver = Driver::with_nodes(&[1, 1]);
    for _ in 0..3 {
        let request = submit_with_key(&mut driver, 1);
        driver.end(request, 500);
        driver.advance(Duration::from_secs(4));
    }
    let entry = driver.pipeline.cached(MODEL, 1).unwrap();
    assert_eq!(entry.created_at.as_nanos(), 0);
    assert_eq!(entry.expires_at.as_nanos(), 13_000_000_000);
}

#[test]
fn a_cached_node_without_a_free_slot_is_a_miss_and_the_next_node_is_cached() {
    let mut driver = Driver::with_nodes(&[1, 1]);
    let first = submit_with_key(&mut driver, 1);
    let second = submit_with_key(&mut driver, 1);
    assert_ne!(driver.node_of(first), driver.node_of(second));
    assert_eq!(driver.pipeline.cached(MODEL, 1).unwrap().runtime_id, driver.node_of(second));
    assert_eq!(driver.pipeline.status().cache.hits, 0);
}

/// Sends a burst of conversations without cache entries that all prefer the same node.
#[test]
fn a_preferred_node_never_becomes_a_hot_spot() {
    let mut driver = Driver::with_nodes(&[32, 32, 32, 32]);
    let home = {
        let request = submit_with_key(&mut driver, 0);
        driver.node_of(request)
    };
    let keys: Vec<u64> = (1..10_000).filter(|key| preferred(*key) == home).take(39).collect();
    keys.into_iter().for_each(|key| {
        submit_with_key(&mut driver, key);
    });
    let busy: Vec<_> = driver.pipeline.status().nodes.iter().map(|node| node.busy).collect();
    assert!(
        busy.iter().all(|busy| *busy <= 16),
        "more than 1.25 times the mean of ten and its root: {busy:?}"
    );
}

/// Returns the node to which an idle pool of four sends a key.
fn preferred(key: u64) -> NodeId {
    let mut driver = Driver::with_nodes(&[1, 1, 1, 1]);
    let request = submit_with_key(&mut driver, key);
    driver.node_of(request)
}

/// The first queued request has no cached node; the later ones have the node that becomes free in the cache.
#[test]
fn a_freed_slot_prefers_a_cached_request_and_skips_the_first_one_at_most_four_times() {
    let mut driver = Driver::with_nodes(&[1]);
    let mut running = submit_with_key(&mut driver, 7);
    let first = submit_with_key(&mut driver, 1_000);
    let cached: Vec<_> = (0..6).map(|_| submit_with_key(&mut driver, 7)).collect();
    let mut order = vec![];
    for _ in 0..6 {
        driver.end(running, 500);
        running = driver.dispatches.last().unwrap().0;
        order.push(running);
    }
    assert_eq!(order[..4], cached[..4]);
    assert_eq!(order[4], first);
    assert_eq!(order[5], cached[4]);
}

#[test]
fn only_lookahead_max_requests_of_a_tenant_queue_are_searched() {
    let mut driver = Driver::with_nodes(&[1]);
    let running = submit_with_key(&mut driver, 7);
    let cold: Vec<_> = (0..8).map(|key| submit_with_key(&mut driver, 1_000 + key)).collect();
    submit_with_key(&mut driver, 7);
    driver.end(running, 500);
    assert!(driver.is_in_flight(cold[0]), "the cached request is the ninth, beyond the lookahead of eight");
}

#[test]
fn entries_are_invalidated_when_their_node_is_drained_fails_is_removed_or_loses_the_model() {
    let changes: [fn(&mut Driver, NodeId); 4] = [
        |driver, node| driver.pipeline.drain_node(driver.now, node).unwrap(),
        |driver, node| driver.pipeline.remove_node(driver.now, node).unwrap(),
        |driver, node| driver.pipeline.set_node_models(driver.now, node, &[OTHER_MODEL]).unwrap(),
        |driver, node| {
            (0..5).for_each(|_| driver.pipeline.handle_probe(driver.now, node, None, Probe::Failed));
        },
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let mut driver = Driver::new(PipelineOptions::default());
        (0..3).for_each(|_| {
            driver.add(8, &[MODEL, OTHER_MODEL]);
        });
        let request = submit_with_key(&mut driver, 1);
        let node = driver.node_of(request);
        driver.end(request, 500);
        change(&mut driver, node);
        driver.drain_events();
        let left = driver.pipeline.cached(MODEL, 1).map(|entry| entry.runtime_id);
        assert_ne!(left, Some(node), "change {index}");
        assert!(driver.pipeline.status().cache.invalidations > 0, "change {index}");
    }
}

#[test]
fn the_same_affinity_key_on_another_model_is_a_different_entry() {
    let mut driver = Driver::new(PipelineOptions::default());
    driver.add(4, &[MODEL, OTHER_MODEL]);
    let request = submit_with_key(&mut driver, 1);
    driver.end(request, 500);
    assert!(driver.pipeline.cached(MODEL, 1).is_some() && driver.pipeline.cached(ModelId(1), 1).is_none());
}

fn submit_with_key(driver: &mut Driver, key: u64) -> RequestId {
    driver.arrive(Arrival { affinity: Some(key), ..arrival_of(0) })
}

fn reason(driver: &Driver, wanted: RequestId) -> PickReason {
    let sent = |event: &Event| match event {
        Event::Dispatch { request, reason, .. } if *request == wanted => Some(*reason),
        _ => None,
    };
    driver.events.iter().find_map(sent).unwrap()
}
