//! Property tests over random sequences of all driver calls: no request is lost, no slot leaks, and no counter drifts.

use evenkeel_pipeline::{
    AdmitRule, Arrival, AttemptFailure, Class, EngineLoad, ModelId, NodeSpec, OutageRule, PipelineLimits,
    PipelineOptions, Priority, RequestEnd, RequestId, SessionId, Slots, TenantFlow, TenantRule,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::score::{
    GateRule, HotColdConfig, Limits, LimitsConfig, RequestKind, ScoreConfig, SelectionPolicy,
};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::driver::{Driver, spec, with_paths};

const NODES_MAX: usize = 4;
const IN_FLIGHT_MAX: usize = 12;

/// One call of the pipeline; a request is given by its index, a node, model or tenant by its id.
#[derive(Clone, Debug)]
enum Step {
    Arrive(Arrival),
    Cancel(usize),
    FirstByte(usize),
    Progress(usize, u64),
    End(usize, u64, Outcome),
    Fail(usize, AttemptFailure),
    Probe(u32, Option<u32>, Probe),
    Advance(u64),
    /// Time passes without a call of `handle_time`, so timers are late.
    AdvanceWithoutTimers(u64),
    AddNode(u32, Option<u32>, Vec<u32>),
    AddPaths(u32),
    SetModels(u32, Vec<u32>),
    SetSlots(u32, Slots),
    SetTransactionsMax(u32, Option<u32>),
    EngineLoad(u32, Option<(u32, u32)>),
    Drain(u32),
    Resume(u32),
    Remove(u32),
    SetTenant(u32, u32, u32),
}

proptest! {
    /// The driver audits after every step: counters match the request records, and there is no lost wake-up.
    #[test]
    fn the_audit_passes_after_every_step_of_a_random_history(
        steps in vec(step(), 1..150),
        admit in prop_oneof![Just(AdmitRule::ByShare), Just(AdmitRule::ByLoad)],
        scored in any::<bool>(),
        gates in prop_oneof![Just(GateRule::Quality), Just(GateRule::CapacityOnly)],
    ) {
        let mut driver = Driver::new(options(admit, scored, gates));
        driver.add(2, &[ModelId(0), ModelId(1)]);
        let mut requests = vec![];
        for step in steps {
            run_step(&mut driver, &mut requests, step);
            for node in driver.pipeline.status().nodes {
                let in_flight = driver.in_flight.values().filter(|sent| sent.node == node.node).count();
                prop_assert_eq!(in_flight, node.busy as usize);
            }
            prop_assert!(driver.in_flight.len() <= IN_FLIGHT_MAX);
        }
        let left: Vec<_> = driver.in_flight.keys().copied().collect();
        left.into_iter().for_each(|request| driver.end(request, 10));
        driver.advance(Duration::from_secs(400));
        let left: Vec<_> = requests.into_iter().filter(|request| !driver.rejected.contains_key(request)).collect();
        left.into_iter().for_each(|request| driver.cancel(request));
        prop_assert_eq!((driver.waiting(), driver.in_flight.len()), (0, 0));
    }

    /// Only lowering its number of slots can leave a node with more requests than slots.
    #[test]
    fn a_node_never_gets_more_requests_than_slots(steps in vec(step(), 1..150)) {
        let mut driver = Driver::new(options(AdmitRule::ByShare, false, GateRule::Quality));
        let mut requests = vec![];
        for step in steps {
            let before = driver.pipeline.status().nodes;
            run_step(&mut driver, &mut requests, step);
            for node in driver.pipeline.status().nodes {
                // A call that lowers the number of slots first runs late timers, which may still fill the old slots.
                let previous = before.iter().find(|previous| previous.node == node.node);
                let busy_max = previous.map_or(0, |previous| previous.busy.max(previous.slots));
                prop_assert!(node.busy <= node.slots.max(busy_max), "{node:?}, before: {previous:?}");
            }
        }
    }
}

fn run_step(driver: &mut Driver, requests: &mut Vec<RequestId>, step: Step) {
    let now = driver.now;
    let known = |index: usize| requests.get(index % requests.len().max(1)).copied();
    let ids = |models: Vec<u32>| models.into_iter().map(ModelId).collect::<Vec<_>>();
    match step {
        Step::Arrive(arrival) => requests.push(driver.arrive(arrival)),
        Step::Advance(millis) => driver.advance(Duration::from_millis(millis)),
        Step::AdvanceWithoutTimers(millis) => {
            driver.now += Duration::from_millis(millis);
            return;
        }
        Step::AddNode(slots, transactions_max, models) => {
            let full = driver.pipeline.status().nodes.len() == NODES_MAX;
            let spec = NodeSpec { transactions_max, ..spec(slots, &ids(models)) };
            assert_eq!(driver.pipeline.add_node(now, &spec).is_err(), full);
        }
        Step::AddPaths(slots) => {
            let _ = driver.pipeline.add_node(now, &with_paths(slots, &[5, 20]));
        }
        Step::SetTenant(tenant, weight, concurrency_max) => {
            let rule = TenantRule { weight: Weight::whole(weight).unwrap(), concurrency_max };
            driver.pipeline.set_tenant(now, TenantId(tenant), rule).unwrap();
        }
        Step::Probe(node, path, probe) => {
            driver.pipeline.handle_probe(now, NodeId(node), path.map(PathId), probe);
        }
        // Calls with an unknown node fail, which is allowed here.
        Step::SetModels(node, models) => {
            let _ = driver.pipeline.set_node_models(now, NodeId(node), &ids(models));
        }
        Step::SetSlots(node, slots) => {
            let _ = driver.pipeline.set_slots(now, NodeId(node), slots);
        }
        Step::SetTransactionsMax(node, transactions_max) => {
            let _ = driver.pipeline.set_transactions_max(now, NodeId(node), transactions_max);
        }
        Step::EngineLoad(node, load) => {
            let load =
                load.map(|(running, waiting)| EngineLoad { running, waiting, ..EngineLoad::default() });
            driver.pipeline.handle_engine_load(now, NodeId(node), load);
        }
        Step::Drain(node) => {
            let _ = driver.pipeline.drain_node(now, NodeId(node));
        }
        Step::Resume(node) => {
            let _ = driver.pipeline.resume_node(now, NodeId(node));
        }
        Step::Remove(node) => {
            let _ = driver.pipeline.remove_node(now, NodeId(node));
        }
        Step::Cancel(at) => {
            known(at).into_iter().for_each(|request| driver.pipeline.handle_cancel(now, request));
        }
        Step::FirstByte(at) => {
            known(at).into_iter().for_each(|request| driver.pipeline.handle_first_byte(now, request));
        }
        Step::Progress(at, cost) => {
            known(at)
                .into_iter()
                .for_each(|request| driver.pipeline.handle_progress(now, request, Cost(cost)));
        }
        Step::End(at, cost, outcome) => {
            let end = RequestEnd { actual: Cost(cost), outcome };
            known(at).into_iter().for_each(|request| driver.pipeline.handle_end(now, request, end));
        }
        Step::Fail(at, failure) => {
            known(at).into_iter().for_each(|request| driver.pipeline.handle_failure(now, request, failure));
        }
    }
    driver.drain_events();
}

/// Returns options with a small queue, few nodes and few requests in flight, so that every limit is reached.
fn options(admit: AdmitRule, scored: bool, gates: GateRule) -> PipelineOptions {
    let limits = Limits::new(LimitsConfig { gates, ..LimitsConfig::default() }).unwrap();
    let wait_queue = WaitQueueConfig { max_waiting: 8, ..WaitQueueConfig::default() };
    let backpressure = BackpressureConfig { max_queue_size: 8, ..BackpressureConfig::default() };
    let selection = match scored {
        true => SelectionPolicy::Score(ScoreConfig { limits, ..ScoreConfig::default() }),
        false => SelectionPolicy::HotCold(HotColdConfig { limits, ..HotColdConfig::default() }),
    };
    PipelineOptions {
        load: LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() },
        admit,
        selection,
        limits: PipelineLimits {
            tenants_max: 5,
            models_max: 3,
            nodes_max: NODES_MAX,
            in_flight_max: IN_FLIGHT_MAX,
            sessions_max: 4,
        },
        ..PipelineOptions::default()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..60_usize;
    let node = || 0..6_u32;
    let adaptive = LimitConfig { max: 6, initial: 4, ..LimitConfig::default() };
    let outcome = prop_oneof![4 => Just(Outcome::Good), 1 => Just(Outcome::Bad)];
    prop_oneof![
        12 => arrival().prop_map(Step::Arrive),
        3 => at().prop_map(Step::Cancel),
        3 => at().prop_map(Step::FirstByte),
        2 => (at(), 0..5_000_u64).prop_map(|(at, cost)| Step::Progress(at, cost)),
        8 => (at(), 0..5_000_u64, outcome).prop_map(|(at, cost, outcome)| Step::End(at, cost, outcome)),
        6 => (at(), failure()).prop_map(|(at, failure)| Step::Fail(at, failure)),
        2 => (node(), option::of(0..3_u32), probe())
            .prop_map(|(node, path, probe)| Step::Probe(node, path, probe)),
        4 => prop_oneof![0..200_u64, 0..3_000_u64, 0..40_000_u64].prop_map(Step::Advance),
        3 => prop_oneof![0..200_u64, 0..3_000_u64, 0..40_000_u64].prop_map(Step::AdvanceWithoutTimers),
        2 => (0..4_u32, transactions_max(), vec(0..3_u32, 0..3))
            .prop_map(|(slots, transactions_max, models)| Step::AddNode(slots, transactions_max, models)),
        1 => (1..4_u32).prop_map(Step::AddPaths),
        1 => (node(), vec(0..3_u32, 0..3)).prop_map(|(node, models)| Step::SetModels(node, models)),
        1 => (node(), 0..4_u32).prop_map(|(node, slots)| Step::SetSlots(node, Slots::Fixed(slots))),
        1 => node().prop_map(move |node| Step::SetSlots(node, Slots::Adaptive(adaptive))),
        1 => (node(), transactions_max())
            .prop_map(|(node, transactions_max)| Step::SetTransactionsMax(node, transactions_max)),
        2 => (node(), option::of((0..20_u32, 0..20_u32))).prop_map(|(node, load)| Step::EngineLoad(node, load)),
        1 => node().prop_map(Step::Drain),
        1 => node().prop_map(Step::Resume),
        1 => node().prop_map(Step::Remove),
        2 => (0..5_u32, 1..9_u32, 0..4_u32)
            .prop_map(|(tenant, weight, concurrency_max)| Step::SetTenant(tenant, weight, concurrency_max)),
    ]
}

fn transactions_max() -> impl Strategy<Value = Option<u32>> {
    option::weighted(0.7, 0..4_u32)
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let request = prop_oneof![
        4 => Just(RequestKind::Infer),
        1 => Just(RequestKind::Query),
        1 => Just(RequestKind::Execute),
        3 => Just(RequestKind::BeginTx)
    ];
    let deadline = option::of((0..20_000_u64).prop_map(Duration::from_millis));
    let priority = prop_oneof![2 => Just(Priority::Interactive), 1 => Just(Priority::Background)];
    let class = prop_oneof![Just(Class::High), Just(Class::Normal), Just(Class::Low)];
    let flow = (class, option::of((0..5_u64).prop_map(SessionId)))
        .prop_map(|(class, session)| TenantFlow { session, class });
    let options = (request, priority, flow);
    (0..6_u32, 0..4_u32, (1..3_000_u64, 0..3_000_u64), option::of(0..4_u64), deadline, options).prop_map(
        |(tenant, model, (cost, upfront), affinity, deadline, (request, priority, flow))| Arrival {
            tenant: TenantId(tenant),
            model: ModelId(model),
            cost: Cost(cost),
            upfront: Cost(upfront),
            affinity,
            deadline,
            request,
            priority,
            flow,
            outage: OutageRule::Hold,
        },
    )
}

fn failure() -> impl Strategy<Value = AttemptFailure> {
    prop_oneof![
        Just(AttemptFailure::Unreachable),
        Just(AttemptFailure::TimedOut),
        Just(AttemptFailure::BadResponse),
        option::of((0..5_000_u64).prop_map(Duration::from_millis))
            .prop_map(|retry_after| AttemptFailure::Busy { retry_after }),
    ]
}

fn probe() -> impl Strategy<Value = Probe> {
    prop_oneof![
        (1..100_u64).prop_map(|millis| Probe::Answered { rtt: Duration::from_millis(millis) }),
        Just(Probe::Lost),
        Just(Probe::Failed),
    ]
}
