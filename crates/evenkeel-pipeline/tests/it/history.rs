//! Random histories of everything a door can say: nothing is lost, nothing leaks, nothing drifts.

use evenkeel_pipeline::{
    AdmitRule, Arrival, AttemptFailure, EngineLoad, ModelId, PipelineLimits, PipelineOptions, Priority,
    RequestEnd, RequestId, Slots, TenantRule,
};
use evenkeel_policy::backpressure::{BackpressureConfig, LoadManagerConfig, WaitQueueConfig};
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::{NodeId, PathId, TenantId};
use evenkeel_policy::path::Probe;
use evenkeel_policy::score::{HotColdConfig, RequestKind, ScoreConfig, SelectionPolicy};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::driver::{Door, spec, with_paths};

const NODES_MAX: usize = 4;
const IN_FLIGHT_MAX: usize = 12;

#[derive(Clone, Debug)]
enum Step {
    Arrive(Arrival),
    Cancel(usize),
    FirstByte(usize),
    Progress(usize, u64),
    End(usize, u64, Outcome),
    Fail(usize, AttemptFailure),
    Probe(u32, Option<u32>, Probe),
    Pass(u64),
    /// The clock goes on and nobody says so: whatever comes next is late.
    Late(u64),
    AddNode(u32, Vec<u32>),
    AddPaths(u32),
    SetModels(u32, Vec<u32>),
    SetSlots(u32, u32),
    Adapt(u32),
    EngineLoad(u32, Option<(u32, u32)>),
    Drain(u32),
    Resume(u32),
    Remove(u32),
    SetTenant(u32, u32, u32),
}

proptest! {
    /// The door audits after every step: counters recomputed, no slot free beside somebody who could have it.
    #[test]
    fn after_every_step_of_any_history_everything_adds_up(
        steps in vec(step(), 1..150),
        admit in prop_oneof![Just(AdmitRule::ByShare), Just(AdmitRule::ByLoad)],
        scored in any::<bool>(),
    ) {
        let mut door = Door::new(options(admit, scored));
        door.add(2, &[ModelId(0), ModelId(1)]);
        let mut requests = vec![];
        for step in steps {
            take(&mut door, &mut requests, step);
            for node in door.walk.status().nodes {
                prop_assert_eq!(door.flying.values().filter(|it| it.node == node.node).count(), node.busy as usize);
            }
            prop_assert!(door.flying.len() <= IN_FLIGHT_MAX);
        }
        let left: Vec<_> = door.flying.keys().copied().collect();
        left.into_iter().for_each(|request| door.end(request, 10));
        door.pass(Duration::from_secs(400));
        let left: Vec<_> = requests.into_iter().filter(|request| !door.rejected.contains_key(request)).collect();
        left.into_iter().for_each(|request| door.cancel(request));
        prop_assert_eq!((door.waiting(), door.flying.len()), (0, 0));
    }

    /// A slot count is never exceeded by giving a slot: only lowering the count can leave more.
    #[test]
    fn a_node_is_never_given_more_than_its_slots(steps in vec(step(), 1..150)) {
        let mut door = Door::new(options(AdmitRule::ByShare, false));
        let mut requests = vec![];
        for step in steps {
            let before: Vec<_> = door.walk.status().nodes.iter().map(|it| (it.node, it.busy)).collect();
            take(&mut door, &mut requests, step);
            for node in door.walk.status().nodes {
                let had = before.iter().find(|(id, _)| *id == node.node).map_or(0, |(_, busy)| *busy);
                prop_assert!(node.busy <= node.slots.max(had), "{node:?} had {had}");
            }
        }
    }
}

fn take(door: &mut Door, requests: &mut Vec<RequestId>, step: Step) {
    let now = door.now;
    let known = |at: usize| requests.get(at % requests.len().max(1)).copied();
    let ids = |models: Vec<u32>| models.into_iter().map(ModelId).collect::<Vec<_>>();
    match step {
        Step::Arrive(arrival) => requests.push(door.arrive(arrival)),
        Step::Pass(millis) => door.pass(Duration::from_millis(millis)),
        Step::Late(millis) => {
            door.now += Duration::from_millis(millis);
            return;
        }
        Step::AddNode(slots, models) => {
            let full = door.walk.status().nodes.len() == NODES_MAX;
            assert_eq!(door.walk.add_node(now, &spec(slots, &ids(models))).is_err(), full);
        }
        Step::AddPaths(slots) => {
            let _ = door.walk.add_node(now, &with_paths(slots, &[5, 20]));
        }
        Step::SetTenant(tenant, weight, concurrency_max) => {
            let rule = TenantRule { weight: Weight::whole(weight).unwrap(), concurrency_max };
            door.walk.set_tenant(now, TenantId(tenant), rule).unwrap();
        }
        Step::Probe(node, path, probe) => {
            door.walk.handle_probe(now, NodeId(node), path.map(PathId), probe);
        }
        // Nodes that are not there are refused, which is all there is to see.
        Step::SetModels(node, models) => {
            let _ = door.walk.set_node_models(now, NodeId(node), &ids(models));
        }
        Step::SetSlots(node, slots) => {
            let _ = door.walk.set_slots(now, NodeId(node), Slots::Fixed(slots));
        }
        Step::Adapt(node) => {
            let config = LimitConfig { max: 6, initial: 4, ..LimitConfig::default() };
            let _ = door.walk.set_slots(now, NodeId(node), Slots::Adaptive(config));
        }
        Step::EngineLoad(node, load) => {
            let load = load.map(|(running, waiting)| EngineLoad { running, waiting, cache_used: None });
            door.walk.handle_engine_load(now, NodeId(node), load);
        }
        Step::Drain(node) => {
            let _ = door.walk.drain_node(now, NodeId(node));
        }
        Step::Resume(node) => {
            let _ = door.walk.resume_node(now, NodeId(node));
        }
        Step::Remove(node) => {
            let _ = door.walk.remove_node(now, NodeId(node));
        }
        Step::Cancel(at) => known(at).into_iter().for_each(|it| door.walk.handle_cancel(now, it)),
        Step::FirstByte(at) => known(at).into_iter().for_each(|it| door.walk.handle_first_byte(now, it)),
        Step::Progress(at, cost) => {
            known(at).into_iter().for_each(|it| door.walk.handle_progress(now, it, Cost(cost)));
        }
        Step::End(at, cost, outcome) => {
            let end = RequestEnd { actual: Cost(cost), outcome };
            known(at).into_iter().for_each(|it| door.walk.handle_end(now, it, end));
        }
        Step::Fail(at, failure) => {
            known(at).into_iter().for_each(|it| door.walk.handle_failure(now, it, failure));
        }
    }
    door.settle();
}

/// Few places, few slots and few nodes, so that every limit is met.
fn options(admit: AdmitRule, scored: bool) -> PipelineOptions {
    let wait_queue = WaitQueueConfig { max_waiting: 8, ..WaitQueueConfig::default() };
    let backpressure = BackpressureConfig { max_queue_size: 8, ..BackpressureConfig::default() };
    let chooser = match scored {
        true => SelectionPolicy::Score(ScoreConfig::default()),
        false => SelectionPolicy::HotCold(HotColdConfig::default()),
    };
    PipelineOptions {
        load: LoadManagerConfig { wait_queue, backpressure, ..LoadManagerConfig::default() },
        admit,
        chooser,
        limits: PipelineLimits {
            tenants_max: 5,
            models_max: 3,
            nodes_max: NODES_MAX,
            in_flight_max: IN_FLIGHT_MAX,
        },
        ..PipelineOptions::default()
    }
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..60_usize;
    let node = || 0..6_u32;
    let outcome = prop_oneof![4 => Just(Outcome::Good), 1 => Just(Outcome::Bad)];
    prop_oneof![
        12 => arrival().prop_map(Step::Arrive),
        3 => at().prop_map(Step::Cancel),
        3 => at().prop_map(Step::FirstByte),
        2 => (at(), 0..5_000_u64).prop_map(|(at, cost)| Step::Progress(at, cost)),
        8 => (at(), 0..5_000_u64, outcome).prop_map(|(at, cost, outcome)| Step::End(at, cost, outcome)),
        6 => (at(), failure()).prop_map(|(at, failure)| Step::Fail(at, failure)),
        2 => (node(), option::of(0..3_u32), probe()).prop_map(|(node, path, it)| Step::Probe(node, path, it)),
        4 => prop_oneof![0..200_u64, 0..3_000_u64, 0..40_000_u64].prop_map(Step::Pass),
        3 => prop_oneof![0..200_u64, 0..3_000_u64, 0..40_000_u64].prop_map(Step::Late),
        2 => (0..4_u32, vec(0..3_u32, 0..3)).prop_map(|(slots, models)| Step::AddNode(slots, models)),
        1 => (1..4_u32).prop_map(Step::AddPaths),
        1 => (node(), vec(0..3_u32, 0..3)).prop_map(|(node, models)| Step::SetModels(node, models)),
        1 => (node(), 0..4_u32).prop_map(|(node, slots)| Step::SetSlots(node, slots)),
        1 => node().prop_map(Step::Adapt),
        2 => (node(), option::of((0..20_u32, 0..20_u32))).prop_map(|(node, load)| Step::EngineLoad(node, load)),
        1 => node().prop_map(Step::Drain),
        1 => node().prop_map(Step::Resume),
        1 => node().prop_map(Step::Remove),
        2 => (0..5_u32, 1..9_u32, 0..4_u32).prop_map(|(it, weight, most)| Step::SetTenant(it, weight, most)),
    ]
}

fn arrival() -> impl Strategy<Value = Arrival> {
    let request = prop_oneof![
        6 => Just(RequestKind::Infer),
        1 => Just(RequestKind::Query),
        1 => Just(RequestKind::Execute),
        1 => Just(RequestKind::BeginTx)
    ];
    let deadline = option::of((0..20_000_u64).prop_map(Duration::from_millis));
    let urgency = prop_oneof![2 => Just(Priority::Interactive), 1 => Just(Priority::Background)];
    (0..6_u32, 0..4_u32, (1..3_000_u64, 0..3_000_u64), option::of(0..4_u64), deadline, (request, urgency))
        .prop_map(|(tenant, model, (cost, upfront), affinity, deadline, (request, urgency))| Arrival {
            tenant: TenantId(tenant),
            model: ModelId(model),
            cost: Cost(cost),
            upfront: Cost(upfront),
            affinity,
            deadline,
            request,
            urgency,
        })
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
