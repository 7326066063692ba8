//! Fairness: no tenant starves another, for any use of models, wrong estimates and cancellations.

use evenkeel_pipeline::{
    Arrival, AttemptFailure, BreakerState, ModelId, ModelStatus, PipelineOptions, Rejection, RequestId,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;

use crate::driver::{Audits, Driver, MODEL, OTHER_MODEL, arrival_of};

const FLOOD: u32 = 0;
const QUIET: u32 = 1;

/// The flood sends 1000 requests for each of the quiet tenant's, to four slots that take 10 ms per request.
#[test]
fn during_a_flood_the_quiet_tenant_is_never_rejected_and_hardly_waits() {
    let mut driver = Driver::with_nodes(&[4]).with_audits(Audits::Manual);
    let mut quiet = vec![];
    let mut ends: Vec<(u64, RequestId)> = vec![];
    for tick in 0..40_000_u64 {
        driver.advance(Duration::from_micros(500));
        ends.extend(newly_in_flight(&driver, &ends).into_iter().map(|request| (tick + 20, request)));
        for (_, request) in ends.extract_if(.., |(at, _)| *at <= tick).collect::<Vec<_>>() {
            driver.end(request, 500);
        }
        driver.submit(FLOOD);
        if tick % 1_000 == 999 {
            quiet.push(driver.submit(QUIET));
        }
    }
    driver.audit();
    assert!(quiet.iter().all(|request| !driver.rejected.contains_key(request)));
    let flood_rejected = driver.pipeline.status().counts.backpressure_rejections();
    assert!(flood_rejected > 20_000, "{flood_rejected}");
    let waits = driver.events.iter().filter_map(|event| match event {
        evenkeel_pipeline::Event::Dispatch { tenant, waited, .. } if tenant.0 == QUIET => Some(*waited),
        _ => None,
    });
    let longest = waits.max().unwrap();
    assert!(longest <= Duration::from_millis(20), "waited {longest:?}, expected at most two service times");
}

fn newly_in_flight(driver: &Driver, known: &[(u64, RequestId)]) -> Vec<RequestId> {
    driver
        .in_flight
        .keys()
        .copied()
        .filter(|request| known.iter().all(|(_, other)| other != request))
        .collect()
}

/// Actual costs are 100 to 3000 tokens; estimates may be ten times too high or too low.
#[test]
fn token_shares_follow_weights_within_2_percent_while_both_are_backlogged() {
    for (weights, slots) in [([1.0, 1.0], 1), ([1.0, 3.0], 4), ([0.5, 5.0], 2)] {
        let mut driver = Driver::with_nodes(&[slots]);
        (0..2).for_each(|tenant| driver.set_rule(tenant, weights[tenant as usize], u32::MAX));
        let mut counter = 1_u64;
        for _ in 0..6_000 {
            top_up(&mut driver, 2, 10, &mut counter);
            let request = driver.in_flight.keys().min_by_key(|request| mix(request.0)).copied().unwrap();
            driver.end(request, 100 + mix(request.0) % 2_900);
        }
        let served = served(&driver);
        let ratio = served[0] / weights[0] / (served[1] / weights[1]);
        println!("weights {weights:?}, {slots} slots: service per weight {ratio:.4} to 1");
        assert!((0.98..1.02).contains(&ratio), "{weights:?}: {ratio}");
    }
}

/// Keeps `depth` requests of each tenant waiting.
fn top_up(driver: &mut Driver, tenants: u32, depth: usize, counter: &mut u64) {
    for tenant in 0..tenants {
        while driver
            .pipeline
            .status()
            .tenants
            .get(tenant as usize)
            .is_none_or(|status| status.waiting < depth)
        {
            *counter += 1;
            driver.arrive(Arrival { cost: Cost(300 + mix(*counter) % 2_700), ..arrival_of(tenant) });
        }
    }
}

#[test]
fn a_charge_rises_with_progress_and_is_settled_at_the_end() {
    let mut driver = Driver::with_nodes(&[1]);
    let request = driver.submit(0);
    let charged = |driver: &Driver| driver.pipeline.status().tenants[0].in_flight_cost;
    assert_eq!(charged(&driver), Cost(500));
    for (so_far, expected) in [(100, 500), (600, 600), (400, 600), (900, 900)] {
        driver.progress(request, so_far);
        assert_eq!(charged(&driver), Cost(expected));
        assert_eq!(driver.pipeline.status().nodes[0].in_flight, Cost(expected));
    }
    driver.end(request, 950);
    let tenant = driver.pipeline.status().tenants[0];
    assert_eq!((tenant.in_flight_cost, tenant.served), (Cost::ZERO, Cost(950)));
}

/// Another tenant's short response limits how far ahead a long one is charged; the node's load counts all of it.
#[test]
fn a_long_response_is_charged_no_further_ahead_than_a_short_one_lasts() {
    let mut driver = Driver::with_nodes(&[2]);
    let short = Arrival { cost: Cost(400), upfront: Cost(200), ..arrival_of(1) };
    let long = Arrival { cost: Cost(1_000), upfront: Cost(100), ..arrival_of(0) };
    let done = driver.arrive(short);
    driver.end(done, 400);
    let request = driver.arrive(long);
    let charged = |driver: &Driver| driver.pipeline.status().tenants[0].in_flight_cost;
    // 11 more than the short response's 200, because each longer response raises the charge-ahead a little.
    assert_eq!(charged(&driver), Cost(100 + 211));
    for (so_far, expected) in [(100, 311), (300, 511), (900, 1_000), (1_200, 1_200)] {
        driver.progress(request, so_far);
        assert_eq!(charged(&driver), Cost(expected));
        assert_eq!(driver.pipeline.status().nodes[0].in_flight, Cost(expected.max(1_000)));
    }
    driver.end(request, 1_250);
    assert_eq!(driver.pipeline.status().tenants[0].served, Cost(1_250));
}

#[test]
fn a_request_cancelled_in_flight_is_charged_for_what_it_used() {
    let mut driver = Driver::with_nodes(&[1]);
    let request = driver.submit(0);
    driver.progress(request, 120);
    driver.cancel(request);
    assert_eq!(driver.pipeline.status().tenants[0].served, Cost(120));
}

/// Tenant 0 runs into debt on one model and then uses another.
#[test]
fn debt_follows_a_tenant_from_one_model_to_another() {
    let mut driver = Driver::new(PipelineOptions::default());
    let node = driver.add(1, &[MODEL, OTHER_MODEL]);
    let request = driver.arrive(Arrival { cost: Cost(1), ..arrival_of(0) });
    driver.end(request, 10_000);
    let blocker = driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(2) });
    // The other tenant must be queued first: if tenant 0 were alone, rounds would open at once and pay off its debt.
    for tenant in [1, 0] {
        (0..25).for_each(|_| {
            driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(tenant) });
        });
    }
    let mut next = blocker;
    let mut order = vec![];
    for _ in 0..25 {
        driver.end(next, 500);
        let (request, tenant, at) = *driver.dispatches.last().unwrap();
        assert_eq!(at, node);
        next = request;
        order.push(tenant.0);
    }
    let first = order.iter().position(|tenant| *tenant == 0).unwrap_or(25);
    assert!(
        first >= 19,
        "a debt of 10 000 tokens is worth 20 requests of the other tenant, not {first}: {order:?}"
    );
}

/// Tenant 0 has left a model queue by the time its request there turns out to be expensive.
#[test]
fn debt_from_a_late_settlement_counts_in_the_queue_where_the_tenant_is_active() {
    let mut driver = Driver::new(PipelineOptions::default());
    driver.add(1, &[MODEL]);
    driver.add(1, &[OTHER_MODEL]);
    let owing = driver.arrive(Arrival { cost: Cost(1), ..arrival_of(0) });
    let mut next = driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(1) });
    for tenant in [1, 0] {
        (0..25).for_each(|_| {
            driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(tenant) });
        });
    }
    driver.end(owing, 10_000);
    let mut order = vec![];
    for _ in 0..19 {
        driver.end(next, 500);
        let (request, tenant, _) = *driver.dispatches.last().unwrap();
        next = request;
        order.push(tenant.0);
    }
    assert!(order.iter().filter(|tenant| **tenant == 0).count() <= 1, "{order:?}");
}

/// Tenant 0 sends one request at a time, estimated at 1 and costing 3000, against a tenant with a backlog on both
/// models. If debt applied only in the model queue where it arose, tenant 0 would get twice as much by switching.
#[test]
fn a_tenant_cannot_escape_its_debt_by_switching_models() {
    let served_by = |models: [ModelId; 2]| {
        let mut driver = Driver::new(PipelineOptions::default());
        driver.add(1, &[MODEL, OTHER_MODEL]);
        let mut sent = 0;
        for _ in 0..2_000 {
            for model in [MODEL, OTHER_MODEL] {
                let waits = |status: &ModelStatus| status.model == model && status.waiting >= 5;
                while !driver.pipeline.status().models.iter().any(waits) {
                    driver.arrive(Arrival { model, ..arrival_of(1) });
                }
            }
            let switcher = driver.pipeline.status().tenants[0];
            if switcher.waiting == 0 && switcher.in_flight == 0 {
                driver.arrive(Arrival { model: models[sent % 2], cost: Cost(1), ..arrival_of(0) });
                sent += 1;
            }
            let (request, tenant, _) = *driver.dispatches.last().unwrap();
            driver.end(request, if tenant == TenantId(0) { 3_000 } else { 500 });
        }
        served(&driver)
    };
    let same_model = served_by([MODEL, MODEL]);
    let switching = served_by([MODEL, OTHER_MODEL]);
    println!("same_model {same_model:?}, switching {switching:?}");
    assert!(
        switching[0] <= 1.05 * same_model[0],
        "{} when switching models, {} on the same model",
        switching[0],
        same_model[0]
    );
    assert!(switching[0] < switching[1]);
}

#[test]
fn a_dead_model_with_a_full_queue_delays_no_other_model() {
    let mut driver = Driver::new(PipelineOptions::default());
    let dead = driver.add(2, &[OTHER_MODEL]);
    driver.add(1, &[MODEL]);
    for tenant in [0, 0, 0, 0, 0, 1, 1, 1, 1, 1] {
        let request = driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(tenant) });
        driver.fail(request, AttemptFailure::BadResponse);
    }
    assert!(
        matches!(driver.pipeline.status().nodes[0].breaker, BreakerState::Open { .. }),
        "the breaker of {dead:?} is open"
    );
    let requests =
        (0..150).map(|_| driver.arrive(Arrival { model: OTHER_MODEL, ..arrival_of(0) })).collect::<Vec<_>>();
    let queue_full =
        |request: &&RequestId| matches!(driver.rejected.get(request), Some(Rejection::QueueFull { .. }));
    assert!(requests.iter().filter(queue_full).count() > 50);
    for _ in 0..100 {
        let request = driver.submit(0);
        assert!(
            driver.is_in_flight(request),
            "the same tenant's request for the other model gets a slot at once"
        );
        driver.end(request, 500);
    }
}

/// Node 0 serves models 0 and 1, node 1 only model 2; slots become free alternately.
#[test]
fn a_node_alternates_between_its_models_regardless_of_other_nodes() {
    let mut driver = Driver::new(PipelineOptions::default());
    let shared = driver.add(1, &[ModelId(0), ModelId(1)]);
    let alone = driver.add(1, &[ModelId(2)]);
    for _ in 0..20 {
        for model in 0..3 {
            driver.arrive(Arrival { model: ModelId(model), ..arrival_of(model) });
        }
    }
    for _ in 0..15 {
        for node in [shared, alone] {
            let (&request, _) = driver.in_flight.iter().find(|(_, sent)| sent.node == node).unwrap();
            driver.end(request, 500);
        }
    }
    let tenants_on_shared =
        driver.dispatches.iter().filter(|(.., node)| *node == shared).map(|(_, tenant, _)| tenant.0);
    let tenants_on_shared: Vec<_> = tenants_on_shared.collect();
    assert!(tenants_on_shared.windows(2).all(|pair| pair[0] != pair[1]), "{tenants_on_shared:?}");
}

#[test]
fn a_tenant_at_its_concurrency_limit_is_parked_and_woken_when_it_falls_below() {
    let mut driver = Driver::with_nodes(&[4]);
    driver.set_rule(0, 1.0, 2);
    let capped: Vec<_> = (0..4).map(|_| driver.submit(0)).collect();
    let other = driver.submit(1);
    assert_eq!(capped.iter().filter(|request| driver.is_in_flight(**request)).count(), 2);
    assert!(driver.is_in_flight(other), "a tenant at its limit does not block others");
    driver.end(capped[0], 500);
    assert!(driver.is_in_flight(capped[2]) && !driver.is_in_flight(capped[3]));
    driver.set_rule(0, 1.0, 0);
    driver.end(capped[1], 500);
    assert!(!driver.is_in_flight(capped[3]), "at a limit of 0 all requests wait");
    driver.set_rule(0, 1.0, 3);
    assert!(driver.is_in_flight(capped[3]));
}

/// Ten thousand clients that all disconnect: while delayed, queued, in flight, or after the first byte.
#[test]
fn mass_cancellation_leaks_no_slots_or_queue_capacity() {
    let wait_queue = WaitQueueConfig { max_waiting: 1_000, ..WaitQueueConfig::default() };
    let backpressure = BackpressureConfig { max_queue_size: 1_000, ..BackpressureConfig::default() };
    let load = LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() };
    let mut driver =
        Driver::new(PipelineOptions { load, ..PipelineOptions::default() }).with_audits(Audits::Manual);
    (0..4).for_each(|_| {
        driver.add(16, &[MODEL, OTHER_MODEL]);
    });
    let mut clients = vec![];
    for client in 0..10_000_u64 {
        let model = if mix(client).is_multiple_of(3) { OTHER_MODEL } else { MODEL };
        let affinity = Some(mix(client) % 50);
        clients.push(driver.arrive(Arrival { model, affinity, ..arrival_of((client % 7) as u32) }));
        if client % 2 == 0 {
            driver.advance(Duration::from_millis(1));
        }
        if clients.len() > 500 {
            let leaving = clients.swap_remove(mix(client ^ 7) as usize % clients.len());
            if mix(client ^ 9).is_multiple_of(2) && driver.is_in_flight(leaving) {
                driver.first_byte(leaving);
                driver.progress(leaving, mix(client) % 2_000);
            }
            driver.cancel(leaving);
            driver.cancel(leaving);
        }
        if client % 1_000 == 0 {
            driver.audit();
        }
    }
    clients.into_iter().for_each(|request| driver.cancel(request));
    driver.audit();
    let status = driver.pipeline.status();
    assert_eq!((status.waiting, status.in_flight), (0, 0));
    assert!(status.nodes.iter().all(|node| node.busy == 0 && node.in_flight == Cost::ZERO));
    assert!(
        status
            .tenants
            .iter()
            .all(|tenant| (tenant.waiting, tenant.in_flight, tenant.in_flight_cost) == (0, 0, Cost::ZERO))
    );
    assert!(status.counts.unknown > 4_000, "cancelling twice counts as unknown: {:?}", status.counts);
    assert_eq!(driver.pipeline.poll_timeout(), None);
}

fn served(driver: &Driver) -> Vec<f64> {
    let mut tenants = driver.pipeline.status().tenants;
    tenants.sort_by_key(|tenant| tenant.tenant);
    assert_eq!(tenants[0].tenant, TenantId(0));
    tenants.iter().map(|tenant| tenant.served.0 as f64).collect()
}

/// Returns a reproducible pseudo-random number.
fn mix(number: u64) -> u64 {
    let mixed = (number ^ (number >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20
}
