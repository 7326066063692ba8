//! No tenant starves another: turns by cost, whatever tenants, models and estimates do.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, BreakerState, ModelId, ModelStatus, PipelineOptions, Rejection, RequestId,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;

use crate::driver::{Audits, Door, MODEL, OTHER, asks};

const FLOOD: u32 = 0;
const QUIET: u32 = 1;

/// 1000 requests for each of the quiet tenant's, on four slots that take 10 ms each.
#[test]
fn beside_a_flood_the_quiet_tenant_is_never_turned_away_and_hardly_waits() {
    let mut door = Door::to(&[4]).audited(Audits::AtTheEnd);
    let mut quiet = vec![];
    let mut ends: Vec<(u64, RequestId)> = vec![];
    for tick in 0..40_000_u64 {
        door.pass(Duration::from_micros(500));
        ends.extend(new_flights(&door, &ends).into_iter().map(|request| (tick + 20, request)));
        for (_, request) in ends.extract_if(.., |(at, _)| *at <= tick).collect::<Vec<_>>() {
            door.end(request, 500);
        }
        door.ask(FLOOD);
        if tick % 1_000 == 999 {
            quiet.push(door.ask(QUIET));
        }
    }
    door.audit();
    assert!(quiet.iter().all(|request| !door.rejected.contains_key(request)));
    let flood_refused = door.walk.status().counts.backpressure_rejections();
    assert!(flood_refused > 20_000, "{flood_refused}");
    let waits = door.events.iter().filter_map(|event| match event {
        evenkeel_pipeline::Event::Dispatch { tenant, waited, .. } if tenant.0 == QUIET => Some(*waited),
        _ => None,
    });
    let longest = waits.max().unwrap();
    assert!(longest <= Duration::from_millis(20), "two service times, not {longest:?}");
}

fn new_flights(door: &Door, known: &[(u64, RequestId)]) -> Vec<RequestId> {
    door.flying.keys().copied().filter(|request| known.iter().all(|(_, it)| it != request)).collect()
}

/// Costs of 100 to 3000 tokens, estimates off by up to tenfold either way.
#[test]
fn token_shares_follow_weights_within_2_percent_while_both_are_backlogged() {
    for (weights, slots) in [([1.0, 1.0], 1), ([1.0, 3.0], 4), ([0.5, 5.0], 2)] {
        let mut door = Door::to(&[slots]);
        (0..2).for_each(|tenant| door.rule(tenant, weights[tenant as usize], u32::MAX));
        let mut draw = 1_u64;
        for _ in 0..6_000 {
            top_up(&mut door, 2, 10, &mut draw);
            let request = door.flying.keys().min_by_key(|it| mix(it.number())).copied().unwrap();
            door.end(request, 100 + mix(request.number()) % 2_900);
        }
        let served = served(&door);
        let ratio = served[0] / weights[0] / (served[1] / weights[1]);
        println!("weights {weights:?}, {slots} slots: service per weight {ratio:.4} to 1");
        assert!((0.98..1.02).contains(&ratio), "{weights:?}: {ratio}");
    }
}

/// Keeps so many of each tenant waiting.
fn top_up(door: &mut Door, tenants: u32, depth: usize, draw: &mut u64) {
    for tenant in 0..tenants {
        while door.walk.status().tenants.get(tenant as usize).is_none_or(|it| it.waiting < depth) {
            *draw += 1;
            door.arrive(Arrival { cost: Cost(300 + mix(*draw) % 2_700), ..asks(tenant) });
        }
    }
}

#[test]
fn a_charge_rises_with_progress_and_is_settled_at_the_end() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    let charged = |door: &Door| door.walk.status().tenants[0].in_flight_cost;
    assert_eq!(charged(&door), Cost(500));
    for (so_far, expected) in [(100, 500), (600, 600), (400, 600), (900, 900)] {
        door.progress(request, so_far);
        assert_eq!(charged(&door), Cost(expected));
        assert_eq!(door.walk.status().nodes[0].in_flight, Cost(expected));
    }
    door.end(request, 950);
    let tenant = door.walk.status().tenants[0];
    assert_eq!((tenant.in_flight_cost, tenant.served), (Cost::ZERO, Cost(950)));
}

/// A short answer of another tenant sets how far ahead a long one is charged; its node counts all of it.
#[test]
fn a_long_answer_is_charged_as_far_ahead_as_a_short_one_lasts() {
    let mut door = Door::to(&[2]);
    let short = Arrival { cost: Cost(400), upfront: Cost(200), ..asks(1) };
    let long = Arrival { cost: Cost(1_000), upfront: Cost(100), ..asks(0) };
    let done = door.arrive(short);
    door.end(done, 400);
    let request = door.arrive(long);
    let charged = |door: &Door| door.walk.status().tenants[0].in_flight_cost;
    // 11 more than the short one had to come: a longer request makes it a little longer again.
    assert_eq!(charged(&door), Cost(100 + 211));
    for (so_far, expected) in [(100, 311), (300, 511), (900, 1_000), (1_200, 1_200)] {
        door.progress(request, so_far);
        assert_eq!(charged(&door), Cost(expected));
        assert_eq!(door.walk.status().nodes[0].in_flight, Cost(expected.max(1_000)));
    }
    door.end(request, 1_250);
    assert_eq!(door.walk.status().tenants[0].served, Cost(1_250));
}

#[test]
fn a_request_that_is_cancelled_on_a_node_pays_for_what_it_used() {
    let mut door = Door::to(&[1]);
    let request = door.ask(0);
    door.progress(request, 120);
    door.cancel(request);
    assert_eq!(door.walk.status().tenants[0].served, Cost(120));
}

/// Tenant 0 overdraws on one model and comes back for another.
#[test]
fn debt_follows_a_tenant_from_one_model_to_another() {
    let mut door = Door::new(PipelineOptions::default());
    let node = door.add(1, &[MODEL, OTHER]);
    let request = door.arrive(Arrival { cost: Cost(1), ..asks(0) });
    door.end(request, 10_000);
    let blocker = door.arrive(Arrival { model: OTHER, ..asks(2) });
    // The other one first: alone in a ring, a tenant's debt is paid by rounds that nobody else is in.
    for tenant in [1, 0] {
        (0..25).for_each(|_| {
            door.arrive(Arrival { model: OTHER, ..asks(tenant) });
        });
    }
    let mut next = blocker;
    let mut order = vec![];
    for _ in 0..25 {
        door.end(next, 500);
        let (request, tenant, at) = *door.dispatches.last().unwrap();
        assert_eq!(at, node);
        next = request;
        order.push(tenant.0);
    }
    let first = order.iter().position(|tenant| *tenant == 0).unwrap_or(25);
    assert!(first >= 19, "10 000 tokens are 20 requests of the other's, not {first}: {order:?}");
}

/// Tenant 0 has left a model's ring when the truth about its request there comes out.
#[test]
fn debt_that_comes_out_late_counts_where_the_tenant_is_by_then() {
    let mut door = Door::new(PipelineOptions::default());
    door.add(1, &[MODEL]);
    door.add(1, &[OTHER]);
    let owing = door.arrive(Arrival { cost: Cost(1), ..asks(0) });
    let mut next = door.arrive(Arrival { model: OTHER, ..asks(1) });
    for tenant in [1, 0] {
        (0..25).for_each(|_| {
            door.arrive(Arrival { model: OTHER, ..asks(tenant) });
        });
    }
    door.end(owing, 10_000);
    let mut order = vec![];
    for _ in 0..19 {
        door.end(next, 500);
        let (request, tenant, _) = *door.dispatches.last().unwrap();
        next = request;
        order.push(tenant.0);
    }
    assert!(order.iter().filter(|tenant| **tenant == 0).count() <= 1, "{order:?}");
}

/// One request at a time, said to cost 1 and costing 3000, beside a tenant that has both models backlogged. Debt that
/// stayed in the ring it was made in would double what it gets.
#[test]
fn a_tenant_that_changes_models_to_leave_its_debt_behind_gains_nothing() {
    let served_by = |models: [ModelId; 2]| {
        let mut door = Door::new(PipelineOptions::default());
        door.add(1, &[MODEL, OTHER]);
        let mut asked = 0;
        for _ in 0..2_000 {
            for model in [MODEL, OTHER] {
                let waits = |it: &ModelStatus| it.model == model && it.waiting >= 5;
                while !door.walk.status().models.iter().any(waits) {
                    door.arrive(Arrival { model, ..asks(1) });
                }
            }
            let gamer = door.walk.status().tenants[0];
            if gamer.waiting == 0 && gamer.in_flight == 0 {
                door.arrive(Arrival { model: models[asked % 2], cost: Cost(1), ..asks(0) });
                asked += 1;
            }
            let (request, tenant, _) = *door.dispatches.last().unwrap();
            door.end(request, if tenant == TenantId(0) { 3_000 } else { 500 });
        }
        served(&door)
    };
    let staying = served_by([MODEL, MODEL]);
    let changing = served_by([MODEL, OTHER]);
    println!("staying {staying:?}, changing {changing:?}");
    assert!(changing[0] <= 1.05 * staying[0], "{} by changing, {} by staying", changing[0], staying[0]);
    assert!(changing[0] < changing[1]);
}

#[test]
fn a_dead_model_with_a_full_ring_delays_no_other() {
    let mut door = Door::new(PipelineOptions::default());
    let dead = door.add(2, &[OTHER]);
    door.add(1, &[MODEL]);
    for _ in 0..5 {
        let request = door.arrive(Arrival { model: OTHER, ..asks(0) });
        door.fail(request, AttemptFailure::BadResponse);
    }
    assert!(matches!(door.walk.status().nodes[0].breaker, BreakerState::Open { .. }), "{dead:?} is broken");
    let full = (0..150).map(|_| door.arrive(Arrival { model: OTHER, ..asks(0) })).collect::<Vec<_>>();
    let turned_away = |it: &&RequestId| matches!(door.rejected.get(it), Some(Rejection::QueueFull { .. }));
    assert!(full.iter().filter(turned_away).count() > 50);
    for _ in 0..100 {
        let request = door.ask(0);
        assert!(door.is_flying(request), "the same tenant's other model has a slot at once");
        door.end(request, 500);
    }
}

/// Node 0 serves models 0 and 1, node 1 model 2 alone; slots come free in turn.
#[test]
fn a_node_turns_to_each_of_its_models_whatever_other_nodes_do() {
    let mut door = Door::new(PipelineOptions::default());
    let shared = door.add(1, &[ModelId(0), ModelId(1)]);
    let alone = door.add(1, &[ModelId(2)]);
    for _ in 0..20 {
        for model in 0..3 {
            door.arrive(Arrival { model: ModelId(model), ..asks(model) });
        }
    }
    for _ in 0..15 {
        for node in [shared, alone] {
            let request = door.flying.iter().find(|(_, it)| it.node == node).map(|(it, _)| *it).unwrap();
            door.end(request, 500);
        }
    }
    let of_shared = door.dispatches.iter().filter(|(.., node)| *node == shared).map(|(_, it, _)| it.0);
    let of_shared: Vec<_> = of_shared.collect();
    assert!(of_shared.windows(2).all(|two| two[0] != two[1]), "{of_shared:?}");
}

#[test]
fn a_tenant_at_its_cap_is_passed_by_and_woken_when_it_falls_below() {
    let mut door = Door::to(&[4]);
    door.rule(0, 1.0, 2);
    let capped: Vec<_> = (0..4).map(|_| door.ask(0)).collect();
    let other = door.ask(1);
    assert_eq!(capped.iter().filter(|it| door.is_flying(**it)).count(), 2);
    assert!(door.is_flying(other), "a capped tenant holds nobody up");
    door.end(capped[0], 500);
    assert!(door.is_flying(capped[2]) && !door.is_flying(capped[3]));
    door.rule(0, 1.0, 0);
    door.end(capped[1], 500);
    assert!(!door.is_flying(capped[3]), "at a cap of none all wait");
    door.rule(0, 1.0, 3);
    assert!(door.is_flying(capped[3]));
}

/// Ten thousand clients, of whom each leaves: while delayed, while queued, on a node, or after the first byte.
#[test]
fn after_a_storm_of_cancels_nothing_is_left() {
    let wait_queue = WaitQueueConfig { max_waiting: 1_000, ..WaitQueueConfig::default() };
    let backpressure = BackpressureConfig { max_queue_size: 1_000, ..BackpressureConfig::default() };
    let load = LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() };
    let mut door =
        Door::new(PipelineOptions { load, ..PipelineOptions::default() }).audited(Audits::AtTheEnd);
    (0..4).for_each(|_| {
        door.add(16, &[MODEL, OTHER]);
    });
    let mut here = vec![];
    for client in 0..10_000_u64 {
        let model = if mix(client).is_multiple_of(3) { OTHER } else { MODEL };
        let affinity = Some(mix(client) % 50);
        here.push(door.arrive(Arrival { model, affinity, ..asks((client % 7) as u32) }));
        if client % 2 == 0 {
            door.pass(Duration::from_millis(1));
        }
        if here.len() > 500 {
            let leaver = here.swap_remove(mix(client ^ 7) as usize % here.len());
            if mix(client ^ 9).is_multiple_of(2) && door.is_flying(leaver) {
                door.first_byte(leaver);
                door.progress(leaver, mix(client) % 2_000);
            }
            door.cancel(leaver);
            door.cancel(leaver);
        }
        if client % 1_000 == 0 {
            door.audit();
        }
    }
    here.into_iter().for_each(|request| door.cancel(request));
    door.audit();
    let status = door.walk.status();
    assert_eq!((status.waiting, status.in_flight), (0, 0));
    assert!(status.nodes.iter().all(|node| node.busy == 0 && node.in_flight == Cost::ZERO));
    assert!(
        status.tenants.iter().all(|it| (it.waiting, it.in_flight, it.in_flight_cost) == (0, 0, Cost::ZERO))
    );
    assert!(status.counts.unknown > 4_000, "who leaves twice is counted: {:?}", status.counts);
    assert_eq!(door.walk.poll_timeout(), None);
}

fn served(door: &Door) -> Vec<f64> {
    let mut tenants = door.walk.status().tenants;
    tenants.sort_by_key(|tenant| tenant.tenant);
    assert_eq!(tenants[0].tenant, TenantId(0));
    tenants.iter().map(|tenant| tenant.served.0 as f64).collect()
}

/// Numbers that look random and are the same every time.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}
