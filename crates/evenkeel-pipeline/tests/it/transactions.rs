//! Transactions: places of a node, their shares, and gates by capacity alone.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use evenkeel_pipeline::{
    Arrival, AttemptFailure, Event, NodeSpec, PipelineOptions, Priority, RegistryError, RequestEnd, RequestId,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::score::{GateRule, HotColdConfig, Limits, LimitsConfig, RequestKind, SelectionPolicy};
use evenkeel_policy::time::Duration;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::driver::{Driver, MODEL, OTHER_MODEL, arrival_of, spec};

const NODE: NodeId = NodeId(0);
const SECOND: Duration = Duration::from_secs(1);

#[test]
fn begins_beyond_the_limit_wait_while_plain_statements_behind_them_are_sent() {
    let mut driver = driver_with_places(4, Some(2));
    let begins: Vec<_> = (0..4).map(|_| begin(&mut driver, 0)).collect();
    let query = arrive(&mut driver, 0, RequestKind::Query);
    let execute = arrive(&mut driver, 0, RequestKind::Execute);
    assert_eq!(in_flight(&driver, &begins), [true, true, false, false]);
    assert_eq!(in_flight(&driver, &[query, execute]), [true, true]);
    driver.end(query, 10);
    assert_eq!(in_flight(&driver, &begins), [true, true, false, false], "a slot is free, but no place");
    driver.end(begins[1], 10);
    assert_eq!(in_flight(&driver, &begins[2..]), [true, false]);
    assert_eq!(held(&driver, [0, 1]), [2, 0]);
}

#[test]
fn without_a_limit_every_slot_may_hold_a_transaction() {
    let mut driver = driver_with_places(4, None);
    (0..6).for_each(|_| {
        begin(&mut driver, 0);
    });
    assert_eq!((held(&driver, [0]), driver.waiting()), ([4], 2));
    assert_eq!(driver.pipeline.over_share(NODE), []);
}

#[test]
fn the_limit_changes_at_run_time_and_ends_no_transaction() {
    let mut driver = driver_with_places(6, Some(1));
    let begins: Vec<_> = (0..6).map(|_| begin(&mut driver, 0)).collect();
    set_places(&mut driver, Some(3));
    assert_eq!(held(&driver, [0]), [3]);
    set_places(&mut driver, Some(1));
    driver.end(begins[0], 10);
    driver.end(begins[1], 10);
    assert_eq!(held(&driver, [0]), [1], "transactions above the limit go on, and none begins");
    set_places(&mut driver, None);
    assert_eq!(held(&driver, [0]), [4]);
    let unknown = driver.pipeline.set_transactions_max(driver.now, NodeId(9), None);
    assert_eq!(unknown, Err(RegistryError::UnknownNode { node: NodeId(9) }));
}

#[test]
fn a_node_without_places_serves_plain_statements_only() {
    let mut driver = driver_with_places(2, Some(0));
    let first = begin(&mut driver, 0);
    let query = arrive(&mut driver, 0, RequestKind::Query);
    assert_eq!(in_flight(&driver, &[first, query]), [false, true]);
}

#[test]
fn a_begin_uses_the_node_that_has_a_free_place() {
    let mut driver = driver_with_places(8, Some(1));
    let other = driver.add_spec(&NodeSpec { transactions_max: Some(1), ..spec(8, &[MODEL]) });
    let begins: Vec<_> = (0..3).map(|_| begin(&mut driver, 0)).collect();
    assert_eq!(in_flight(&driver, &begins), [true, true, false]);
    assert_ne!(driver.node_of(begins[0]), driver.node_of(begins[1]));
    let on_other = begins.iter().find(|request| driver.node_of(**request) == other).copied().unwrap();
    driver.end(on_other, 10);
    assert_eq!(driver.node_of(begins[2]), other);
}

/// Every begin is served after a second, 48 at a time.
#[test]
fn a_thousand_begins_for_fifty_connections_are_all_served_in_turn() {
    let places = Limits::default().transaction_places(50);
    let mut driver = driver_with_places(60, Some(places));
    let begins: Vec<_> = (0..1_000).map(|_| begin(&mut driver, 0)).collect();
    let mut rounds = 0;
    while !driver.in_flight.is_empty() {
        assert!(driver.in_flight.len() <= 48);
        driver.advance(SECOND);
        let running: Vec<_> = driver.in_flight.keys().copied().collect();
        running.into_iter().for_each(|request| driver.end(request, 1_000_000));
        rounds += 1;
    }
    let served: Vec<_> = driver.dispatches.iter().map(|(request, ..)| *request).collect();
    assert_eq!(served, begins);
    assert_eq!((rounds, driver.rejected.len()), (1_000_u32.div_ceil(48), 0));
}

#[test]
fn a_tenant_alone_may_use_every_place_and_gives_up_half_when_an_equal_one_waits() {
    let mut driver = driver_with_places(8, Some(4));
    let first: Vec<_> = (0..8).map(|_| begin(&mut driver, 0)).collect();
    assert_eq!(held(&driver, [0, 1]), [4, 0]);
    let second: Vec<_> = (0..6).map(|_| begin(&mut driver, 1)).collect();
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(0), 2)]);
    driver.end(first[0], 10);
    assert_eq!(held(&driver, [0, 1]), [3, 1]);
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(0), 1)]);
    driver.end(first[1], 10);
    assert_eq!(held(&driver, [0, 1]), [2, 2]);
    assert_eq!(driver.pipeline.over_share(NODE), [], "no tenant is below its share");
    // From here on, each place goes to the tenant that gave one back.
    driver.end(first[2], 10);
    driver.end(second[0], 10);
    driver.end(second[1], 10);
    assert_eq!(held(&driver, [0, 1]), [2, 2]);
}

#[test]
fn shares_of_places_follow_the_weights_of_the_tenants_that_compete() {
    let mut driver = driver_with_places(20, Some(12));
    (0..3).for_each(|tenant| driver.set_rule(tenant, f64::from(tenant + 1), u32::MAX));
    (0..20).for_each(|_| {
        begin(&mut driver, 0);
    });
    for tenant in [1, 2] {
        (0..20).for_each(|_| {
            begin(&mut driver, tenant);
        });
    }
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(0), 10)]);
    for _ in 0..10 {
        end_one_of(&mut driver, 0);
    }
    assert_eq!(held(&driver, [0, 1, 2]), [2, 4, 6]);
    driver.set_rule(2, 1.0, u32::MAX);
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(2), 3)], "a quarter of twelve is three");
    driver.set_rule(2, 3.0, u32::MAX);
    assert_eq!(driver.pipeline.over_share(NODE), []);
}

#[test]
fn a_tenant_that_cannot_use_a_place_keeps_no_other_tenant_from_it() {
    let mut driver = driver_with_places(8, Some(4));
    driver.set_rule(1, 1.0, 0);
    begin(&mut driver, 1);
    (0..4).for_each(|_| {
        begin(&mut driver, 0);
    });
    assert_eq!(held(&driver, [0, 1]), [4, 0], "the other tenant is at its concurrency limit");
    assert_eq!(driver.pipeline.over_share(NODE), []);
    driver.set_rule(1, 1.0, 1);
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(0), 2)]);
    driver.pipeline.drain_node(driver.now, NODE).unwrap();
    driver.drain_events();
    assert_eq!(driver.pipeline.over_share(NODE), [], "no transaction begins on a draining node");
    assert_eq!(driver.pipeline.over_share(NodeId(9)), []);
}

#[test]
fn a_tenant_whose_begins_failed_on_a_node_does_not_wait_for_its_places() {
    let mut driver = driver_with_places(4, Some(2));
    let failed = begin(&mut driver, 1);
    driver.add_spec(&NodeSpec { transactions_max: Some(0), ..spec(4, &[MODEL]) });
    driver.fail(failed, AttemptFailure::BadResponse);
    assert!(!driver.is_in_flight(failed) && !driver.rejected.contains_key(&failed));
    begin(&mut driver, 0);
    begin(&mut driver, 0);
    assert_eq!(held(&driver, [0, 1]), [2, 0]);
    begin(&mut driver, 1);
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(0), 1)], "a begin that never failed there waits");
}

#[test]
fn background_begins_claim_no_place_from_interactive_ones() {
    let mut driver = driver_with_places(4, Some(2));
    let first = begin(&mut driver, 0);
    begin(&mut driver, 0);
    let background =
        Arrival { request: RequestKind::BeginTx, priority: Priority::Background, ..arrival_of(1) };
    let job = driver.arrive(background);
    let second = begin(&mut driver, 0);
    assert_eq!(driver.pipeline.over_share(NODE), []);
    driver.end(first, 10);
    assert_eq!(in_flight(&driver, &[job, second]), [false, true]);
}

#[test]
fn tenants_that_wait_for_different_models_of_a_node_share_its_places() {
    let mut driver = Driver::new(options(GateRule::CapacityOnly));
    driver.add_spec(&NodeSpec { transactions_max: Some(2), ..spec(8, &[MODEL, OTHER_MODEL]) });
    let first: Vec<_> = (0..4).map(|_| begin(&mut driver, 0)).collect();
    let other = Arrival { request: RequestKind::BeginTx, model: OTHER_MODEL, ..arrival_of(1) };
    let others: Vec<_> = (0..2).map(|_| driver.arrive(other)).collect();
    assert_eq!(driver.pipeline.over_share(NODE), [(TenantId(0), 1)]);
    driver.end(first[0], 10);
    assert_eq!(in_flight(&driver, &others), [true, false]);
    driver.end(first[1], 10);
    assert_eq!(held(&driver, [0, 1]), [1, 1]);
}

/// A connection that is lost before the first byte releases the place; the request waits for another node.
#[test]
fn a_failed_begin_releases_its_place() {
    let mut driver = driver_with_places(4, Some(1));
    let other = driver.add_spec(&NodeSpec { transactions_max: Some(1), ..spec(4, &[MODEL]) });
    let begins: Vec<_> = (0..3).map(|_| begin(&mut driver, 0)).collect();
    let failed = begins.iter().find(|request| driver.node_of(**request) == NODE).copied().unwrap();
    driver.fail(failed, AttemptFailure::BadResponse);
    assert!(!driver.is_in_flight(failed), "the other node has no free place");
    assert_eq!((driver.node_of(begins[2]), held(&driver, [0])), (NODE, [1]));
    let on_other =
        begins.iter().find(|request| driver.is_in_flight(**request) && driver.node_of(**request) == other);
    driver.end(*on_other.unwrap(), 10);
    assert_eq!(driver.node_of(failed), other);
}

#[test]
fn a_slow_and_failing_single_node_still_serves() {
    let kinds = [RequestKind::Query, RequestKind::Execute, RequestKind::BeginTx];
    for (gates, served) in [(GateRule::CapacityOnly, [true; 3]), (GateRule::Quality, [false, false, true])] {
        let mut driver = Driver::new(options(gates));
        driver.add(100, &[MODEL]);
        let slow: Vec<_> = (0..100).map(|_| arrive(&mut driver, 0, RequestKind::Query)).collect();
        driver.advance(3 * SECOND);
        for (index, request) in slow.into_iter().enumerate() {
            let outcome = if index % 17 == 0 { Outcome::Bad } else { Outcome::Good };
            driver.pipeline.handle_end(driver.now, request, RequestEnd { actual: Cost(3_000_000), outcome });
        }
        driver.advance(SECOND);
        let node = driver.pipeline.status().nodes[0].clone();
        assert!(node.p95.is_some_and(|p95| p95 > 2 * SECOND), "{:?}", node.p95);
        assert!((0.055..0.065).contains(&node.error_rate), "{}", node.error_rate);
        let requests = kinds.map(|kind| arrive(&mut driver, 0, kind));
        assert_eq!(in_flight(&driver, &requests), served, "{gates:?}");
    }
}

/// A call of the pipeline in the property test below.
#[derive(Clone, Copy, Debug)]
enum Step {
    Arrive(u32, RequestKind),
    End(usize),
    SetWeight(u32, u32),
    SetPlaces(u32),
}

proptest! {
    /// The driver's audit also fails if a place stays free although a tenant could use it.
    #[test]
    fn no_tenant_exceeds_its_share_while_one_below_its_share_waits(
        slots in 1..10_u32,
        places in 0..8_u32,
        steps in vec(step(), 1..200),
    ) {
        let mut driver = driver_with_places(slots, Some(places));
        let mut model = PlacesModel { places, ..PlacesModel::default() };
        for step in steps {
            match step {
                Step::Arrive(tenant, kind) => {
                    let request = arrive(&mut driver, tenant, kind);
                    model.waiting.insert(request, (tenant, kind));
                }
                Step::End(index) => {
                    let running = driver.in_flight.keys().copied().nth(index % driver.in_flight.len().max(1));
                    running.into_iter().for_each(|request| driver.end(request, 10));
                }
                Step::SetWeight(tenant, weight) => {
                    model.weights.insert(tenant, weight);
                    driver.set_rule(tenant, f64::from(weight), u32::MAX);
                }
                Step::SetPlaces(places) => {
                    model.places = places;
                    set_places(&mut driver, Some(places));
                }
            }
            for event in core::mem::take(&mut driver.events) {
                model.apply(&event)?;
            }
            for tenant in 0..4 {
                prop_assert_eq!(held(&driver, [tenant]), [model.held_by(tenant)]);
            }
            prop_assert_eq!(driver.pipeline.over_share(NODE), model.over_share());
        }
    }
}

fn step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![3 => Just(RequestKind::BeginTx), 1 => Just(RequestKind::Query)];
    prop_oneof![
        6 => (0..4_u32, kind).prop_map(|(tenant, kind)| Step::Arrive(tenant, kind)),
        5 => (0..10_usize).prop_map(Step::End),
        1 => (0..4_u32, 1..5_u32).prop_map(|(tenant, weight)| Step::SetWeight(tenant, weight)),
        1 => (0..8_u32).prop_map(Step::SetPlaces),
    ]
}

/// The rule for transaction places, computed anew for each event.
#[derive(Default)]
struct PlacesModel {
    places: u32,
    weights: BTreeMap<u32, u32>,
    waiting: BTreeMap<RequestId, (u32, RequestKind)>,
    holders: BTreeMap<RequestId, u32>,
}

impl PlacesModel {
    fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match *event {
            Event::Dispatch { request, tenant, .. } => {
                let (_, kind) = self.waiting[&request];
                if kind == RequestKind::BeginTx {
                    prop_assert!(self.holders.len() < self.places as usize, "no place is free");
                    let is_below = self.held_by(tenant.0) < self.share(tenant.0);
                    prop_assert!(is_below || !self.has_claimant(), "{tenant:?} is at its share");
                    self.holders.insert(request, tenant.0);
                }
                self.waiting.remove(&request);
            }
            Event::Done { request, .. } => {
                self.holders.remove(&request);
            }
            _ => {}
        }
        Ok(())
    }

    fn over_share(&self) -> Vec<(TenantId, u32)> {
        if !self.has_claimant() {
            return vec![];
        }
        let excess = |tenant: u32| self.held_by(tenant).saturating_sub(self.share(tenant));
        let mut over: Vec<_> = (0..4).map(|tenant| (TenantId(tenant), excess(tenant))).collect();
        over.retain(|(_, excess)| *excess > 0);
        over.sort_by_key(|(_, excess)| Reverse(*excess));
        over
    }

    /// Reports whether a tenant below its share waits for a place.
    fn has_claimant(&self) -> bool {
        self.waiting_to_begin().any(|tenant| self.held_by(tenant) < self.share(tenant))
    }

    fn share(&self, tenant: u32) -> u32 {
        let competing: BTreeSet<u32> =
            self.holders.values().copied().chain(self.waiting_to_begin()).collect();
        let sum: u32 = competing.into_iter().map(|tenant| self.weight(tenant)).sum();
        (self.places * self.weight(tenant) / sum).max(1)
    }

    fn weight(&self, tenant: u32) -> u32 {
        self.weights.get(&tenant).copied().unwrap_or(1)
    }

    fn held_by(&self, tenant: u32) -> u32 {
        self.holders.values().filter(|holder| **holder == tenant).count() as u32
    }

    fn waiting_to_begin(&self) -> impl Iterator<Item = u32> {
        let begins = self.waiting.values().filter(|(_, kind)| *kind == RequestKind::BeginTx);
        begins.map(|(tenant, _)| *tenant)
    }
}

/// Ends one of a tenant's requests in flight.
fn end_one_of(driver: &mut Driver, tenant: u32) {
    let mut sent = driver.dispatches.iter();
    let is_running = |request: RequestId, of: TenantId| of.0 == tenant && driver.is_in_flight(request);
    let (request, ..) = *sent.find(|(request, of, _)| is_running(*request, *of)).unwrap();
    driver.end(request, 10);
}

/// Creates a driver for a database node of one model, whose queue is not closed by slow or failing statements.
pub(crate) fn driver_with_places(slots: u32, transactions_max: Option<u32>) -> Driver {
    let mut driver = Driver::new(options(GateRule::CapacityOnly));
    driver.add_spec(&NodeSpec { transactions_max, ..spec(slots, &[MODEL]) });
    driver
}

/// Returns the options of a database pool that charges microseconds and delays no request.
fn options(gates: GateRule) -> PipelineOptions {
    let limits = Limits::new(LimitsConfig { gates, ..LimitsConfig::default() }).unwrap();
    let wait_queue = WaitQueueConfig {
        max_waiting: 1_000,
        warning_threshold: 0.99,
        overload_threshold: 1.0,
        default_timeout: Duration::from_secs(60),
    };
    let backpressure = BackpressureConfig {
        max_queue_size: 1_000,
        warning_threshold: 0.99,
        overload_threshold: 1.0,
        ..BackpressureConfig::default()
    };
    PipelineOptions {
        load: LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() },
        quantum: Cost(25_000),
        selection: SelectionPolicy::HotCold(HotColdConfig { limits, ..HotColdConfig::default() }),
        ..PipelineOptions::default()
    }
}

fn begin(driver: &mut Driver, tenant: u32) -> RequestId {
    arrive(driver, tenant, RequestKind::BeginTx)
}

fn arrive(driver: &mut Driver, tenant: u32, request: RequestKind) -> RequestId {
    driver.arrive(Arrival { request, ..arrival_of(tenant) })
}

fn set_places(driver: &mut Driver, transactions_max: Option<u32>) {
    driver.pipeline.set_transactions_max(driver.now, NODE, transactions_max).unwrap();
    driver.drain_events();
}

fn in_flight<const N: usize>(driver: &Driver, requests: &[RequestId]) -> [bool; N] {
    let flags: Vec<bool> = requests.iter().map(|request| driver.is_in_flight(*request)).collect();
    flags.try_into().unwrap()
}

/// Returns the number of places that each tenant holds.
fn held<const N: usize>(driver: &Driver, tenants: [u32; N]) -> [u32; N] {
    tenants.map(|tenant| driver.pipeline.transactions_held(NODE, TenantId(tenant)))
}
