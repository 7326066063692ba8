//! Classes and sessions of one tenant: minimum shares, fairness among sessions, eviction, and no effect on other tenants.

use std::collections::BTreeMap;

use evenkeel_pipeline::{
    Arrival, Class, ClassShares, ClassStatus, PipelineLimits, PipelineOptions, Rejection, RequestId,
    SessionId, TenantFlow,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::driver::{Audits, Driver, MODEL, arrival_of};

const LOOP: TenantFlow = session(1);
const QUIET: TenantFlow = session(2);

const fn session(id: u64) -> TenantFlow {
    TenantFlow { session: Some(SessionId(id)), class: Class::Normal }
}

const fn class(class: Class) -> TenantFlow {
    TenantFlow { session: None, class }
}

/// A tenant's requests by flow, so that tests can count what each flow was served.
struct Team {
    driver: Driver,
    flows: BTreeMap<RequestId, TenantFlow>,
}

impl Team {
    /// One node with one slot, and a queue for `max_waiting` requests.
    fn new(max_waiting: usize) -> Self {
        Self::with_options(PipelineOptions { load: load(max_waiting), ..PipelineOptions::default() })
    }

    fn with_options(options: PipelineOptions) -> Self {
        let mut driver = Driver::new(options);
        driver.add(1, &[MODEL]);
        Self { driver, flows: BTreeMap::new() }
    }

    fn send(&mut self, flow: TenantFlow) -> RequestId {
        self.arrive(Arrival { flow, ..arrival_of(0) })
    }

    fn arrive(&mut self, arrival: Arrival) -> RequestId {
        let request = self.driver.arrive(arrival);
        self.flows.insert(request, arrival.flow);
        if self.driver.pipeline.delayed_until(request).is_some() {
            self.driver.advance(Duration::from_millis(100));
        }
        request
    }

    /// Ends the request in flight at a cost, and returns the flow of the next one.
    fn serve(&mut self, cost: u64) -> Option<TenantFlow> {
        let request = *self.driver.in_flight.keys().next()?;
        self.driver.end(request, cost);
        self.driver.in_flight.keys().next().map(|request| self.flows[request])
    }

    /// Counts the dispatches of each flow while every one of `flows` always has a request waiting.
    fn contest(
        &mut self,
        flows: &[TenantFlow],
        picks: usize,
        cost: impl Fn(TenantFlow) -> u64,
    ) -> BTreeMap<TenantFlow, usize> {
        for flow in flows {
            (0..4).for_each(|_| {
                self.send(*flow);
            });
        }
        let mut served = BTreeMap::new();
        for _ in 0..picks {
            let (request, ..) = *self.driver.dispatches.last().unwrap();
            let flow = self.flows[&request];
            self.serve(cost(flow)).expect("a request waits");
            self.send(flow);
            *served.entry(flow).or_default() += 1;
        }
        served
    }

    fn evicted(&self) -> Vec<TenantFlow> {
        let is_evicted = |rejection: &Rejection| matches!(rejection, Rejection::Evicted { .. });
        let evicted = self.driver.rejected.iter().filter(|(_, rejection)| is_evicted(rejection));
        evicted.map(|(request, _)| self.flows[request]).collect()
    }
}

#[test]
fn a_quiet_session_is_served_before_the_backlog_of_a_loop() {
    let mut team = Team::new(100);
    (0..40).for_each(|_| {
        team.send(LOOP);
    });
    for _ in 0..5 {
        team.send(QUIET);
        let came_first = (0..).find(|_| team.serve(500) == Some(QUIET)).unwrap();
        assert!(came_first <= 2, "{came_first} requests of the loop came first");
    }
}

#[test]
fn sessions_share_by_cost_and_not_by_requests() {
    let mut team = Team::new(100);
    let served = team.contest(&[LOOP, QUIET], 500, |flow| if flow == LOOP { 2_000 } else { 500 });
    let ratio = served[&QUIET] as f64 / served[&LOOP] as f64;
    assert!((3.7..4.3).contains(&ratio), "{served:?}");
}

/// The loop's requests are charged 500 at dispatch and turn out to cost 4000, which is known only at their end.
#[test]
fn the_settlement_of_a_request_is_charged_to_its_session() {
    let mut team = Team::new(100);
    let served = team.contest(&[LOOP, QUIET, session(3)], 600, |flow| if flow == LOOP { 4_000 } else { 500 });
    assert!(served[&LOOP] * 7 <= served[&QUIET], "{served:?}");
    assert!(served[&QUIET].abs_diff(served[&session(3)]) <= 8, "{served:?}");
}

#[test]
fn every_class_gets_its_minimum_share_and_the_highest_the_rest() {
    let flows = [class(Class::High), class(Class::Normal), class(Class::Low)];
    let shares = |options: ClassShares, flows: &[TenantFlow]| {
        let mut team =
            Team::with_options(PipelineOptions { class_shares: options, ..PipelineOptions::default() });
        let served = team.contest(flows, 1_000, |_| 500);
        flows.iter().map(|flow| served[flow]).collect::<Vec<_>>()
    };
    assert_within(&shares(ClassShares::default(), &flows), &[600, 300, 100]);
    assert_within(&shares(ClassShares::new(50, 20, 5).unwrap(), &flows), &[750, 200, 50]);
    assert_within(&shares(ClassShares::default(), &flows[1..]), &[900, 100]);
}

fn assert_within(served: &[usize], expected: &[usize]) {
    let close = served.iter().zip(expected).all(|(served, expected)| served.abs_diff(*expected) <= 15);
    assert!(close, "{served:?}, expected {expected:?}");
}

#[test]
fn a_class_that_returns_is_served_next_and_the_status_shows_every_class() {
    let mut team = Team::new(100);
    (0..10).for_each(|_| {
        team.send(class(Class::Low));
    });
    team.send(class(Class::High));
    let status = team.driver.pipeline.status().tenants[0];
    assert_eq!(status.classes.map(|class| class.waiting), [9, 0, 1]);
    assert_eq!(team.serve(700), Some(class(Class::High)));
    team.serve(300);
    let status = team.driver.pipeline.status().tenants[0];
    let served = |cost| ClassStatus { waiting: 0, served: Cost(cost) };
    assert_eq!(status.classes[Class::High.index()], served(300));
    assert_eq!(status.classes[Class::Low.index()], ClassStatus { waiting: 8, ..served(700) });
    assert_eq!((status.served, status.background), (Cost(1_000), ClassStatus::default()));
}

#[test]
fn a_session_that_pauses_does_not_escape_its_debt() {
    let mut team = Team::new(100);
    let paused = team.send(LOOP);
    (0..20).for_each(|_| {
        team.send(QUIET);
    });
    team.driver.progress(paused, 5_000);
    assert_eq!(team.serve(5_000), Some(QUIET));
    team.send(LOOP);
    let before = (0..).find(|_| team.serve(500) == Some(LOOP)).unwrap();
    assert!(before >= 8, "{before} requests of the other session were served first");
}

/// A loop that uses a new session id for every request gets at most `sessions_max` accounts. They are in debt until the
/// others have been served as much.
#[test]
fn sessions_beyond_the_limit_share_an_account_and_starve_nobody() {
    let limits = PipelineLimits { sessions_max: 4, ..PipelineLimits::default() };
    let mut team =
        Team::with_options(PipelineOptions { limits, load: load(100), ..PipelineOptions::default() });
    let mut ids = 100..;
    (0..5).for_each(|_| {
        team.send(QUIET);
    });
    let mut served = 0;
    for _ in 0..400 {
        while team.driver.waiting() < 30 {
            team.send(session(ids.next().unwrap()));
        }
        if team.serve(500) == Some(QUIET) {
            served += 1;
            team.send(QUIET);
        }
    }
    assert!(served >= 60, "the established session was served {served} times out of 400");
}

#[test]
fn a_session_cannot_fill_its_tenants_places() {
    let mut team = Team::new(10);
    (0..20).for_each(|_| {
        team.send(LOOP);
    });
    let kept = team.driver.waiting();
    let quiet: Vec<RequestId> = (0..20).map(|_| team.send(QUIET)).collect();
    let waiting = |flow: TenantFlow| {
        let waits = |request: &&RequestId| team.driver.pipeline.wait_entry(**request).is_some();
        team.flows.iter().filter(|(request, of)| **of == flow && waits(request)).count()
    };
    assert_eq!((waiting(LOOP), waiting(QUIET), kept), (4, 4, 8));
    assert_eq!(team.evicted(), [LOOP; 4], "newest first");
    assert!(quiet[..4].iter().all(|request| !team.driver.rejected.contains_key(request)));
    let rejected = &team.driver.rejected[&quiet[4]];
    assert!(matches!(rejected, Rejection::QueueFull { .. }), "{rejected:?}");
}

#[test]
fn the_lowest_class_of_the_largest_session_makes_room() {
    let of_loop = |class| TenantFlow { class, ..LOOP };
    let mut team = Team::new(10);
    team.send(QUIET);
    let quiet_low = team.send(TenantFlow { class: Class::Low, ..QUIET });
    for class in [Class::High, Class::Low, Class::Normal, Class::Low, Class::High, Class::High, Class::High] {
        team.send(of_loop(class));
    }
    assert_eq!(team.driver.waiting(), 8, "the tenant is at its limit");
    let high = team.send(of_loop(Class::High));
    assert_eq!(
        team.evicted(),
        [of_loop(Class::Low)],
        "a higher class of the same session displaces a lower one"
    );
    assert!(!team.driver.rejected.contains_key(&high));
    let low = team.send(of_loop(Class::Low));
    assert!(matches!(team.driver.rejected[&low], Rejection::QueueFull { .. }));
    // A tenant below its share takes the place of the same session.
    let other = team.driver.submit(1);
    assert_eq!(team.evicted(), [of_loop(Class::Low), of_loop(Class::Low)]);
    assert!(![quiet_low, other].iter().any(|request| team.driver.rejected.contains_key(request)));
}

#[test]
fn a_session_below_the_average_skips_the_warning_delay() {
    let mut team = Team::new(100);
    for _ in 0..70 {
        team.send(LOOP);
    }
    // With another tenant, the loop's tenant is above its share of the queue.
    team.arrive(arrival_of(1));
    team.arrive(arrival_of(1));
    let delayed = |team: &mut Team, flow| {
        let request = team.driver.arrive(Arrival { flow, ..arrival_of(0) });
        team.driver.pipeline.delayed_until(request).is_some()
    };
    assert!(!delayed(&mut team, QUIET));
    assert!(delayed(&mut team, LOOP));
}

/// Behind the loop's backlog the request would miss its deadline; it waits only for its own session's turn.
#[test]
fn the_expected_wait_is_that_of_the_session() {
    let mut team = Team::new(100);
    for _ in 0..60 {
        team.send(LOOP);
        team.driver.advance(Duration::from_secs(1));
        if team.driver.waiting() > 40 {
            team.serve(500);
        }
    }
    let soon = |flow| Arrival { flow, deadline: Some(Duration::from_secs(5)), ..arrival_of(0) };
    let of_loop = team.driver.arrive(soon(LOOP));
    let of_quiet = team.driver.arrive(soon(QUIET));
    assert!(matches!(team.driver.rejected.get(&of_loop), Some(Rejection::WouldMissDeadline { .. })));
    assert!(!team.driver.rejected.contains_key(&of_quiet));
}

proptest! {
    /// Tenant 0 uses any classes and sessions; tenants 1 and 2 use none. Whose turn it is does not depend on them.
    #[test]
    fn classes_and_sessions_do_not_change_the_turns_of_tenants(
        flows in vec((0..3_usize, option::of(0..9_u64)), 60),
        slots in 1..4_u32,
        costs in vec(1..4_000_u64, 3),
    ) {
        let turns = |flow_of: &dyn Fn(usize) -> TenantFlow| {
            let mut driver = Driver::new(PipelineOptions {
                load: load(500),
                limits: PipelineLimits { sessions_max: 5, ..PipelineLimits::default() },
                ..PipelineOptions::default()
            }).with_audits(Audits::Manual);
            driver.add(slots, &[MODEL]);
            driver.set_rule(2, 2.0, u32::MAX);
            for n in 0..60 {
                driver.arrive(Arrival { flow: flow_of(n), ..arrival_of(0) });
                driver.submit(1);
                driver.submit(2);
            }
            for _ in 0..150 {
                let oldest = driver.dispatches.iter().find(|(id, ..)| driver.is_in_flight(*id));
                let (request, tenant, _) = *oldest.unwrap();
                driver.end(request, costs[tenant.index()]);
            }
            driver.audit();
            driver.dispatches.iter().map(|(_, tenant, _)| *tenant).collect::<Vec<TenantId>>()
        };
        let plain = turns(&|_| TenantFlow::default());
        let with_flows = turns(&|n| {
            let (class, session) = flows[n];
            TenantFlow { class: Class::ALL[class], session: session.map(SessionId) }
        });
        prop_assert_eq!(plain, with_flows);
    }

    /// Every class that always has a request waiting gets its share of the tenant's service, whatever its requests cost.
    #[test]
    fn a_class_gets_its_share_whatever_its_requests_cost(
        costs in vec(50..3_000_u64, 3),
        high in 20..60_u8,
        normal in 10..30_u8,
        low in 3..10_u8,
    ) {
        let class_shares = ClassShares::new(high, normal, low).unwrap();
        let mut team = Team::with_options(PipelineOptions { class_shares, ..PipelineOptions::default() });
        team.driver = team.driver.with_audits(Audits::Manual);
        let flows = Class::ALL.map(class);
        let served = team.contest(&flows, 1_500, |flow| costs[flow.class.index()]);
        let cost = |flow: TenantFlow| served.get(&flow).map_or(0, |count| *count as u64 * costs[flow.class.index()]);
        let total: u64 = flows.iter().map(|flow| cost(*flow)).sum();
        for class_flow in flows {
            let least = total as f64 * f64::from(class_shares.percent(class_flow.class)) / 100.0;
            let slack = 2.0 * *costs.iter().max().unwrap() as f64 + 1_000.0;
            prop_assert!(least - slack <= cost(class_flow) as f64, "{class_flow:?}: {served:?} of {total}");
        }
    }
}

fn load(max_waiting: usize) -> LoadManagerConfig {
    let wait_queue = WaitQueueConfig {
        max_waiting,
        default_timeout: Duration::from_secs(300),
        ..WaitQueueConfig::default()
    };
    let backpressure = BackpressureConfig { max_queue_size: max_waiting, ..BackpressureConfig::default() };
    LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() }
}
