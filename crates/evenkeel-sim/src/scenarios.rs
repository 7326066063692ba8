//! Predefined scenarios.

use evenkeel_pipeline::{Class, SessionId, TenantFlow};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::{HotColdConfig, RequestKind, ScoreConfig, SelectionPolicy};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

use crate::scenario::{
    AdmitPolicy, Demand, NodePlan, PathPlan, Scenario, ServiceOrder, TenantAction, TenantPlan,
};

/// Creates a scenario from a seed.
type Make = fn(u64) -> Scenario;

const ALL: [(&str, Make); 11] = [
    ("flood", flood_and_trickle),
    ("weights", weights),
    ("weight-change", weight_change),
    ("sybil", sybil),
    ("agent-loop", agent_loop),
    ("classes", classes),
    ("invented-sessions", invented_sessions),
    ("park-wake", park_wake_storm),
    ("inference", inference),
    ("database", database),
    ("demo", demo),
];

/// Returns the names of all scenarios.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Creates a scenario by name.
pub fn by_name(name: &str, seed: u64) -> Option<Scenario> {
    ALL.iter().find(|(other, _)| *other == name).map(|(_, make)| make(seed))
}

/// Creates a tenant that sends 1000 times as many requests as a quiet one, on four slots with 10 ms per message.
pub fn flood_and_trickle(seed: u64) -> Scenario {
    let tenants = vec![
        TenantPlan::new("flood", Demand::Every(Duration::from_micros(500))),
        TenantPlan::new("quiet", Demand::Every(Duration::from_millis(500))),
    ];
    Scenario { admit: AdmitPolicy::ByShare(BackpressureConfig::default()), ..one_node(seed, tenants, 4) }
}

/// Creates five backlogged tenants with weights 1 to 5.
pub fn weights(seed: u64) -> Scenario {
    let names = ["one", "two", "three", "four", "five"];
    let tenants = (1..).zip(names).map(|(weight, name)| weighted(name, weight)).collect();
    one_node(seed, tenants, 1)
}

/// Creates two backlogged tenants; halfway, the weight of the second one changes from 1 to 4.
pub fn weight_change(seed: u64) -> Scenario {
    let tenants = vec![weighted("steady", 1), weighted("promoted", 1)];
    let four = Weight::whole(4).unwrap_or(Weight::MAX);
    let changes = vec![(Duration::from_secs(30), TenantAction::Weight(TenantId(1), four))];
    Scenario { changes, ..one_node(seed, tenants, 1) }
}

/// Creates one tenant with ten keys and two tenants with one key each.
pub fn sybil(seed: u64) -> Scenario {
    let many = TenantPlan { keys: 10, ..weighted("sybil", 1) };
    one_node(seed, vec![many, weighted("plain", 1), weighted("simple", 1)], 1)
}

/// Creates a team with an agent that always has 100 requests waiting and nine members who send one now and then, and
/// another backlogged tenant, on four slots.
pub fn agent_loop(seed: u64) -> Scenario {
    let names = ["amy", "ben", "cal", "dee", "eve", "fay", "gus", "hal", "ivy"];
    let mut tenants = vec![TenantPlan::new("agent", Demand::Backlog(100))];
    tenants.extend(names.map(|name| TenantPlan::new(name, Demand::Every(Duration::from_millis(200)))));
    for (id, member) in (0..).zip(&mut tenants) {
        member.team = Some(TenantId(0));
        member.flow.session = Some(SessionId(id));
    }
    tenants.push(weighted("other", 1));
    one_node(seed, tenants, 4)
}

/// Creates one tenant with a flood of high requests, fewer normal and few low ones, all backlogged.
pub fn classes(seed: u64) -> Scenario {
    let plan = |name, class, depth| TenantPlan {
        team: Some(TenantId(0)),
        flow: TenantFlow { session: None, class },
        ..TenantPlan::new(name, Demand::Backlog(depth))
    };
    let tenants =
        vec![plan("high", Class::High, 100), plan("normal", Class::Normal, 20), plan("low", Class::Low, 5)];
    one_node(seed, tenants, 1)
}

/// Creates a tenant that spreads its requests over nine sessions in three classes, and one that names neither.
pub fn invented_sessions(seed: u64) -> Scenario {
    let names = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];
    let member = |(id, name): (u64, &'static str)| TenantPlan {
        team: Some(TenantId(0)),
        flow: TenantFlow { session: Some(SessionId(id)), class: Class::ALL[id as usize % Class::COUNT] },
        ..weighted(name, 1)
    };
    let mut tenants: Vec<_> = (0..).zip(names).map(member).collect();
    tenants.push(weighted("plain", 1));
    one_node(seed, tenants, 1)
}

/// Creates three tenants, of which a random one is parked or woken every 100 µs for 50 s.
pub fn park_wake_storm(seed: u64) -> Scenario {
    let tenants: Vec<_> = ["ant", "bee", "cat"]
        .map(|name| TenantPlan::new(name, Demand::Every(Duration::from_millis(10))))
        .into();
    let mut changes = vec![];
    for step in 0..500_000_u32 {
        let change = if step % 2 == 0 { TenantAction::ParkSome } else { TenantAction::WakeSome };
        changes.push((Duration::from_micros(100) * step, change));
    }
    changes.push((Duration::from_secs(50), TenantAction::WakeAll));
    Scenario { changes, ..one_node(seed, tenants, 4) }
}

/// Creates an inference pool charged in tokens: four engines with 16 slots each, 8 s per 1000 tokens.
///
/// Two tenants are backlogged, one with twice the other's weight and requests four times as long; a third sends
/// interactive requests. Each has eight conversations.
pub fn inference(seed: u64) -> Scenario {
    let engine = NodePlan { first_byte: Duration::from_millis(80), ..node(16, Duration::from_secs(8)) };
    let batch = |name, weight, least, most, estimate| TenantPlan {
        keys: 8,
        actual: (Cost(least), Cost(most)),
        estimate: Cost(estimate),
        ..weighted(name, weight)
    };
    let talk = TenantPlan {
        keys: 8,
        actual: (Cost(50), Cost(300)),
        estimate: Cost(200),
        ..TenantPlan::new("talk", Demand::Every(Duration::from_millis(250)))
    };
    Scenario {
        duration: Duration::from_secs(300),
        nodes: vec![engine; 4],
        quantum: Cost(500),
        admit: AdmitPolicy::ByShare(BackpressureConfig::default()),
        ..one_node(seed, vec![batch("long", 2, 200, 1_200, 400), batch("short", 1, 50, 300, 400), talk], 0)
    }
}

/// Creates a database pool charged in milliseconds: two servers with 20 connections each, picked by score.
///
/// A reporting tenant is backlogged with statements of about 100 ms; an application sends statements of about 10 ms.
pub fn database(seed: u64) -> Scenario {
    let reports = TenantPlan { actual: (Cost(20), Cost(180)), estimate: Cost(60), ..weighted("reports", 1) };
    let app = TenantPlan {
        actual: (Cost(2), Cost(20)),
        estimate: Cost(10),
        ..TenantPlan::new("app", Demand::Every(Duration::from_millis(2)))
    };
    Scenario {
        nodes: vec![node(20, Duration::from_secs(1)); 2],
        quantum: Cost(50),
        request: RequestKind::Query,
        selection: SelectionPolicy::Score(ScoreConfig::default()),
        admit: AdmitPolicy::ByShare(BackpressureConfig::default()),
        ..one_node(seed, vec![reports, app], 0)
    }
}

/// Creates three tenants with unequal demand on three nodes with two paths each, for a minute.
pub fn demo(seed: u64) -> Scenario {
    let node = |message_millis| NodePlan {
        slots: 4,
        message_time: Duration::from_millis(message_millis),
        first_byte: Duration::ZERO,
        paths: [2, 8].map(|rtt| PathPlan { rtt: Duration::from_millis(rtt) }).into(),
    };
    let tenant = |name, weight, millis| TenantPlan {
        weight: Weight::whole(weight).unwrap_or(Weight::ONE),
        actual: (Cost(200), Cost(3_000)),
        estimate: Cost(1_600),
        ..TenantPlan::new(name, Demand::Every(Duration::from_millis(millis)))
    };
    Scenario {
        tenants: vec![tenant("greedy", 1, 4), tenant("steady", 2, 35), tenant("quiet", 1, 700)],
        nodes: vec![node(100), node(120), node(160)],
        admit: AdmitPolicy::ByShare(BackpressureConfig::default()),
        ..one_node(seed, vec![], 0)
    }
}

/// Creates a scenario of one minute with one node that takes 10 ms per message; every request is admitted.
fn one_node(seed: u64, tenants: Vec<TenantPlan>, slots: u32) -> Scenario {
    Scenario {
        seed,
        duration: Duration::from_secs(60),
        tenants,
        nodes: vec![node(slots, Duration::from_millis(10))],
        admit: AdmitPolicy::All,
        order: ServiceOrder::Drr,
        quantum: Cost::MESSAGE,
        request: RequestKind::Infer,
        selection: SelectionPolicy::HotCold(HotColdConfig::default()),
        changes: vec![],
    }
}

/// Creates a node without paths that responds in one piece.
fn node(slots: u32, message_time: Duration) -> NodePlan {
    NodePlan { slots, message_time, first_byte: Duration::ZERO, paths: vec![] }
}

fn weighted(name: &'static str, weight: u32) -> TenantPlan {
    TenantPlan {
        weight: Weight::whole(weight).unwrap_or(Weight::ONE),
        ..TenantPlan::new(name, Demand::Backlog(20))
    }
}
