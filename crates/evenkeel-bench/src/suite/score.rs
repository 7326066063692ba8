//! Selection of a node: by score and by hot/cold, compared with the fewest requests in flight.

use std::hint::black_box;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::NodeId;
use evenkeel_policy::score::{
    Candidate, Comparison, HotColdConfig, LatencyEstimate, NodeSelector, NodeStats, RequestKind, ScoreConfig,
    SelectionPolicy, Spread, Status,
};
use evenkeel_policy::weight::Weight;

use super::Group;
use super::order::AccessOrder;
use crate::measure::{Contender, Work};

const NODES: [u32; 3] = [3, 30, 1_000];

/// Number of random numbers after which they repeat.
const DRAWS: u32 = 1 << 10;

const SPREAD: Spread = Spread { key: None, load_max: 1.25 };

pub(super) fn groups() -> impl Iterator<Item = Group> {
    NODES.into_iter().map(|nodes| Group::new(format!("score/{nodes}-nodes"), move || contenders(nodes)))
}

fn contenders(nodes: u32) -> Vec<Contender> {
    let score = SelectionPolicy::Score(ScoreConfig::default());
    let hot_cold = SelectionPolicy::HotCold(HotColdConfig::default());
    vec![
        Contender::new("fewest in flight", FewestInFlight { candidates: candidates(nodes) }),
        Contender::new("fewest in flight again", FewestInFlight { candidates: candidates(nodes) }),
        Contender::new("score", Pick::new(score, nodes)),
        Contender::new("hot cold", Pick::new(hot_cold, nodes)),
    ]
}

/// Creates nodes that all pass the gates and all differ.
fn candidates(nodes: u32) -> Vec<Candidate> {
    let spread = AccessOrder::Shuffled.indices(nodes);
    let candidate = |(node, spread): (u32, u32)| {
        // 0 for the least loaded node, nearly 1 for the most.
        let load = f64::from(spread) / f64::from(nodes);
        let loaded = |count: f64| (count * load) as u32;
        let stats = NodeStats {
            running_http_session: loaded(100.0),
            running_sql: loaded(80.0),
            running_tx: loaded(40.0),
            max_http_sessions: 120,
            max_open_conns: 100,
            max_transaction_conns: 50,
            open_conns: 10 + loaded(80.0),
            idle_conns: 10,
            wait_conn_count: loaded(8.0),
            p95_latency_ms: 5.0 + 200.0 * load,
            latency_samples: 100,
            error_rate_1m: 0.02 * load,
            timeouts_1m: loaded(10.0),
            uptime_sec: 3_600,
            status: Status::Serving,
            in_flight: Cost(u64::from(spread)),
            latency_estimate_ms: 5.0 + 200.0 * load,
        };
        let estimate = LatencyEstimate { mean_ms: stats.latency_estimate_ms, deviation_ms: 1.0 };
        let comparison = Comparison { estimate: Some(estimate), ..Comparison::default() };
        Candidate { node: NodeId(node), weight: Weight::ONE, stats, comparison }
    };
    (0..nodes).zip(spread).map(candidate).collect()
}

struct FewestInFlight {
    candidates: Vec<Candidate>,
}

impl Work for FewestInFlight {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            let candidates = black_box(self.candidates.as_slice());
            black_box(candidates.iter().min_by_key(|candidate| candidate.stats.in_flight));
        }
    }
}

struct Pick {
    selector: NodeSelector,
    candidates: Vec<Candidate>,
    draws: Vec<f64>,
    index: usize,
}

impl Pick {
    fn new(policy: SelectionPolicy, nodes: u32) -> Self {
        let draws = AccessOrder::Shuffled.indices(DRAWS);
        Self {
            selector: NodeSelector::new(policy).expect("the defaults are in range"),
            candidates: candidates(nodes),
            draws: draws.into_iter().map(|draw| f64::from(draw) / f64::from(DRAWS)).collect(),
            index: 0,
        }
    }

    fn random(&mut self) -> f64 {
        self.index = (self.index + 1) % self.draws.len();
        self.draws[self.index]
    }
}

impl Work for Pick {
    fn run(&mut self, ops: u64) {
        for _ in 0..ops {
            let random = self.random();
            let candidates = black_box(&mut self.candidates);
            black_box(self.selector.pick(candidates, RequestKind::Query, SPREAD, random));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_policy::score::{ChoiceReason, LatencyBasis};

    #[test]
    fn every_node_passes_the_gates_and_latencies_are_compared() {
        for nodes in NODES {
            let mut pick = Pick::new(SelectionPolicy::Score(ScoreConfig::default()), nodes);
            let choice = pick.selector.pick(&mut pick.candidates, RequestKind::Query, SPREAD, 0.5).unwrap();
            let ChoiceReason::Score(scored) = choice.reason else { panic!("{choice:?}") };
            assert_eq!(scored.open, nodes as usize);
            assert!(matches!(scored.latency, LatencyBasis::Relative { .. }), "{:?}", scored.latency);
        }
    }
}
