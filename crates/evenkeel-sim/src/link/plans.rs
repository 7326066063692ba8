//! Predefined plans of links.

use evenkeel_link::flow::{DatagramMode, FlowLane, Side};
use evenkeel_link::session::SessionConfig;
use evenkeel_policy::time::Duration;

use super::{LinkFlowPlan, LinkPathPlan, LinkPlan, PathFault, PathFaultKind};
use crate::rng::Rng;

/// Creates a plan from a seed.
type PlanFn = fn(u64) -> LinkPlan;

const ALL: [(&str, PlanFn); 22] = [
    ("link-a", |seed| throughput(seed, &[(50.0, 10), (50.0, 10)])),
    ("link-b", |seed| throughput(seed, &[(50.0, 10), (20.0, 30)])),
    ("link-c", |seed| throughput(seed, &[(50.0, 10), (50.0, 100)])),
    ("link-d", |seed| throughput(seed, &[(10.0, 5), (100.0, 40)])),
    ("link-failover", |seed| black_hole(seed, 0, FlowLane::Stream)),
    ("link-redundant", |seed| black_hole(seed, 0, FlowLane::Redundant)),
    ("link-outage", |seed| all_paths_down(seed, Duration::from_secs(30))),
    ("link-flapping", flapping),
    ("link-limping", limping_path),
    ("link-slow", steady_slow_path),
    ("link-shares", shares),
    ("link-unhealthy", unhealthy_path),
    ("link-bad-path", bad_path),
    ("link-short-transfers", short_transfers),
    ("link-recovering", recovering_path),
    ("link-candidate", better_candidate),
    ("link-takeover", candidate_takeover),
    ("link-similar", similar_candidate),
    ("link-stripe", |seed| datagrams(seed, DatagramMode::Stripe)),
    ("link-pin", |seed| datagrams(seed, DatagramMode::Pin)),
    ("link-duplicate", |seed| datagrams(seed, DatagramMode::Duplicate)),
    ("link-random", random_faults),
];

/// Returns the names of all plans.
pub fn link_names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Creates a plan by name.
pub fn link_plan(name: &str, seed: u64) -> Option<LinkPlan> {
    let (name, make) = ALL.iter().find(|(other, _)| *other == name)?;
    Some(LinkPlan { name, ..make(seed) })
}

/// Creates a plan with one bonded flow over paths with these rates (Mbit/s) and delays (ms).
pub fn throughput(seed: u64, paths: &[(f64, u64)]) -> LinkPlan {
    let paths = paths.iter().map(|&(mbit, delay_ms)| path(mbit, delay_ms)).collect();
    let flows = vec![flow(FlowLane::Bonded, u64::MAX / 4)];
    plan(seed, "one bonded flow", 20, paths, flows)
}

/// Creates a plan in which one of three paths drops every packet from a random time in the sixth second on.
pub fn black_hole(seed: u64, dead: usize, lane: FlowLane) -> LinkPlan {
    let mut paths = vec![path(20.0, 10), path(20.0, 25), path(20.0, 50)];
    let from = Duration::from_micros(5_000_000 + Rng::new(seed).below(1_000_000));
    let until = Duration::from_secs(60);
    paths[dead].faults.push(PathFault { from, until, kind: PathFaultKind::BlackHole });
    let flows = match lane {
        FlowLane::Bonded => vec![flow(lane, u64::MAX / 4)],
        // Enough flows that each path has some.
        FlowLane::Stream | FlowLane::Redundant | FlowLane::Datagram(_) => {
            vec![LinkFlowPlan { pace: Some(Duration::from_millis(50)), ..flow(lane, 400_000) }; 30]
        }
    };
    plan(seed, "one of three paths drops every packet from 5 s on", 20, paths, flows)
}

/// Creates a plan in which both paths drop every packet for some time.
pub fn all_paths_down(seed: u64, outage: Duration) -> LinkPlan {
    let mut paths = vec![path(20.0, 10), path(20.0, 25)];
    for path in &mut paths {
        let from = Duration::from_secs(5);
        path.faults.push(PathFault { from, until: from + outage, kind: PathFaultKind::BlackHole });
    }
    let paced = |lane| LinkFlowPlan { pace: Some(Duration::from_millis(100)), ..flow(lane, 600_000) };
    let flows = vec![paced(FlowLane::Stream), paced(FlowLane::Stream), paced(FlowLane::Bonded)];
    let plan = plan(seed, "both paths drop every packet for some time", 0, paths, flows);
    LinkPlan { duration: Duration::from_secs(65) + outage, ..plan }
}

/// Creates a plan in which one of two paths is a black hole for 2 of every 4 s.
pub fn flapping(seed: u64) -> LinkPlan {
    let mut paths = vec![path(20.0, 10), path(20.0, 30)];
    paths[1].faults =
        (1..16).map(|round| fault(4 * round, 4 * round + 2, PathFaultKind::BlackHole)).collect();
    let paced = LinkFlowPlan { pace: Some(Duration::from_millis(100)), ..flow(FlowLane::Stream, 600_000) };
    let mut flows = vec![paced; 10];
    flows.push(flow(FlowLane::Bonded, u64::MAX / 4));
    plan(seed, "one of two paths is a black hole for 2 of every 4 s", 64, paths, flows)
}

/// Creates a plan in which one of two paths loses 0.5 % of its packets and its RTT grows to 37 s.
pub fn limping_path(seed: u64) -> LinkPlan {
    let mut paths = vec![path(20.0, 10), path(20.0, 30)];
    paths[1].faults.push(fault(10, 70, PathFaultKind::GrowingDelay(Duration::from_millis(18_500))));
    paths[1].loss = 0.005;
    let paced = LinkFlowPlan { pace: Some(Duration::from_millis(100)), ..flow(FlowLane::Stream, 600_000) };
    let mut flows = vec![paced; 10];
    flows.push(flow(FlowLane::Bonded, u64::MAX / 4));
    plan(seed, "the round trip of one of two paths grows to 37 s", 70, paths, flows)
}

/// Creates a plan with a path of 20 ms and one of 800 ms.
pub fn steady_slow_path(seed: u64) -> LinkPlan {
    let paths = vec![path(20.0, 10), path(20.0, 400)];
    plan(seed, "paths of 20 and 800 ms", 70, paths, vec![flow(FlowLane::Bonded, u64::MAX / 4)])
}

/// Creates a plan with 1600 short flows on unloaded paths of 10, 20 and 100 ms.
pub fn shares(seed: u64) -> LinkPlan {
    let paths = vec![path(50.0, 5), path(50.0, 10), path(50.0, 50)];
    let open = |number| LinkFlowPlan {
        at: Duration::from_secs(8) + number * Duration::from_millis(10),
        reply: 1_000,
        ..flow(FlowLane::Stream, 1_000)
    };
    plan(seed, "1600 short flows on paths of 10, 20 and 100 ms", 30, paths, (0..1_600).map(open).collect())
}

/// Creates a plan with 1600 short flows on a path of 20 ms and one of 200 ms that loses 30 % of its packets.
pub fn unhealthy_path(seed: u64) -> LinkPlan {
    let mut paths = vec![path(50.0, 10), path(50.0, 100)];
    paths[1].loss = 0.3;
    let about = "1600 short flows on a path of 20 ms and one of 200 ms that loses 30 %";
    LinkPlan { about, paths, ..shares(seed) }
}

/// One bonded flow over a path of 50 Mbit/s and one of 2 Mbit/s with a long delay and loss.
///
/// The window of the flow is 4 MiB: less than the first path carries while a chunk of the second is sent twice.
pub fn bad_path(seed: u64) -> LinkPlan {
    let paths = vec![path(50.0, 10), LinkPathPlan { loss: 0.03, ..path(2.0, 300) }];
    let mut plan = plan(
        seed,
        "a second path that is slow and lossy",
        30,
        paths,
        vec![flow(FlowLane::Bonded, u64::MAX / 4)],
    );
    plan.config.credit_bonded = 4 << 20;
    plan
}

/// Bonded transfers of 1 MiB, one every 500 ms, over the paths of [`bad_path`].
pub fn short_transfers(seed: u64) -> LinkPlan {
    let open = |number| LinkFlowPlan {
        at: Duration::from_secs(2) + number * Duration::from_millis(500),
        ..flow(FlowLane::Bonded, 1 << 20)
    };
    let flows = (0..50).map(open).collect();
    LinkPlan { about: "short transfers with a slow and lossy second path", flows, ..bad_path(seed) }
}

/// The paths of [`bad_path`], of which the second has a short delay from 100 s on.
pub fn recovering_path(seed: u64) -> LinkPlan {
    let mut plan = bad_path(seed);
    plan.paths[1].delay = Duration::from_millis(10);
    plan.paths[1].faults.push(fault(0, 100, PathFaultKind::Delayed(Duration::from_millis(300))));
    let duration = Duration::from_secs(130);
    LinkPlan { about: "a second path that is slow for 100 s", duration, ..plan }
}

/// Three paths, of which two carry traffic; from 20 s on, the third is faster than the second.
pub fn better_candidate(seed: u64) -> LinkPlan {
    let mut paths = vec![path(20.0, 10), path(20.0, 20), path(20.0, 12)];
    paths[2].faults.push(fault(0, 20, PathFaultKind::Delayed(Duration::from_millis(22))));
    let paced = LinkFlowPlan { pace: Some(Duration::from_millis(10)), ..flow(FlowLane::Stream, 4_000_000) };
    let mut flows = vec![paced; 10];
    flows.push(LinkFlowPlan { lane: FlowLane::Bonded, ..paced });
    let mut plan = plan(seed, "a candidate becomes faster than one of two active paths", 60, paths, flows);
    plan.config.paths_active_max = 2;
    plan
}

/// Two paths, of which one carries traffic; it swallows everything from 5 s on.
pub fn candidate_takeover(seed: u64) -> LinkPlan {
    let mut plan = black_hole(seed, 0, FlowLane::Stream);
    plan.paths.truncate(2);
    plan.config.paths_active_max = 1;
    LinkPlan { about: "the only active of two paths swallows everything from 5 s on", ..plan }
}

/// Two similar paths for ten minutes, of which one carries a flow that fills it and its queue.
pub fn similar_candidate(seed: u64) -> LinkPlan {
    let paths = vec![path(4.0, 20), path(4.0, 19)];
    let flows = vec![flow(FlowLane::Bonded, u64::MAX / 4)];
    let mut plan = plan(seed, "an active path and a similar candidate", 600, paths, flows);
    plan.config.paths_active_max = 1;
    plan
}

/// Creates a plan with one flow of 4000 datagrams, 250 per second, over two paths of 10 and 40 ms that lose 1 %.
pub fn datagrams(seed: u64, mode: DatagramMode) -> LinkPlan {
    let lossy = |delay_ms| LinkPathPlan { loss: 0.01, ..path(20.0, delay_ms) };
    let pace = Some(Duration::from_millis(4));
    let flow = LinkFlowPlan { pace, ..flow(FlowLane::Datagram(mode), 4_000_000) };
    plan(seed, "one flow of datagrams over two lossy paths", 20, vec![lossy(5), lossy(20)], vec![flow])
}

/// Creates a plan with random faults: loss, disorder, black holes, refused and replaced connections, flows of both lanes and sides.
pub fn random_faults(seed: u64) -> LinkPlan {
    let mut rng = Rng::new(seed ^ 0x11_4c);
    let count = 2 + rng.below(3);
    let paths = (0..count).map(|_| random_path(&mut rng)).collect();
    let flows = (0..12).map(|_| random_flow(&mut rng)).collect();
    plan(seed, "random paths, faults and flows", 90, paths, flows)
}

fn random_path(rng: &mut Rng) -> LinkPathPlan {
    let mut faults = Vec::new();
    let mut from = 1 + rng.below(4);
    while from < 45 {
        let until = from + 1 + rng.below(6);
        let kind = match rng.below(3) {
            0 => PathFaultKind::Refused,
            1 => PathFaultKind::Replaced,
            _ => PathFaultKind::BlackHole,
        };
        faults.push(fault(from, until, kind));
        from = until + 1 + rng.below(10);
    }
    LinkPathPlan {
        loss: rng.unit() * 0.01,
        disorder: rng.unit() * 0.3,
        faults,
        ..path(2.0 + rng.unit() * 30.0, 2 + rng.below(80))
    }
}

fn random_flow(rng: &mut Rng) -> LinkFlowPlan {
    LinkFlowPlan {
        at: Duration::from_millis(rng.below(20_000)),
        lane: if rng.below(2) == 0 { FlowLane::Stream } else { FlowLane::Bonded },
        opener: if rng.below(2) == 0 { Side::Connecting } else { Side::Listening },
        bytes: rng.below(3_000_000),
        reply: rng.below(2_000_000),
        pace: (rng.below(3) == 0).then(|| Duration::from_millis(1 + rng.below(10))),
    }
}

fn path(mbit: f64, delay_ms: u64) -> LinkPathPlan {
    LinkPathPlan {
        mbit,
        delay: Duration::from_millis(delay_ms),
        queue: Duration::from_millis(50),
        loss: 0.0,
        disorder: 0.0,
        faults: Vec::new(),
    }
}

fn fault(from_secs: u64, until_secs: u64, kind: PathFaultKind) -> PathFault {
    PathFault { from: Duration::from_secs(from_secs), until: Duration::from_secs(until_secs), kind }
}

fn flow(lane: FlowLane, bytes: u64) -> LinkFlowPlan {
    LinkFlowPlan { at: Duration::from_secs(1), lane, opener: Side::Connecting, bytes, reply: 0, pace: None }
}

fn plan(
    seed: u64,
    about: &'static str,
    seconds: u64,
    paths: Vec<LinkPathPlan>,
    flows: Vec<LinkFlowPlan>,
) -> LinkPlan {
    LinkPlan {
        name: "",
        about,
        seed,
        duration: Duration::from_secs(seconds),
        paths,
        flows,
        config: SessionConfig::default(),
    }
}
