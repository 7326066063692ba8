//! Node selection: filters out the nodes that cannot serve a request and chooses one of the rest.
//!
//! [`NodeSelector::pick`] chooses by one of two policies. [`SelectionPolicy::Score`] adds up nine sub-scores per node
//! and draws one of the best few; [`SelectionPolicy::HotCold`] avoids nodes with much work in flight and takes the
//! fastest of the rest. Both apply the same gates ([`Limits::gate`]); a node that passes them is open.
//! [`PeerSelector`] chooses another gateway, from figures that have an age.
//!
//! Guarantees: every score lies in 0..=1, and an improving metric never lowers it (except that a larger
//! `max_open_conns` makes the same idle connections a smaller fraction). A gated node is never chosen, and `None` means
//! that every node is gated. The score policy draws in proportion to `score^power × weight` among the `top_k` nodes of
//! the highest `score × weight`. Hot/cold chooses no hot node while an open one is cold. The order of the candidates
//! has no influence.
//!
//! Limits: a pick is O(candidates) and allocates only while its buffer grows to the longest list seen.

use alloc::vec::Vec;

use crate::id::NodeId;
use crate::setting::SettingOutOfRange;
use crate::weight::Weight;

mod choice_reason;
mod config;
mod gate;
mod hot_cold;
mod limits;
mod node;
mod peer_choice;
mod peers;
mod sub_scores;
mod top_k;
mod transactions;

pub use choice_reason::{ChoiceReason, LatencyBasis, ScoreBreakdown};
pub use config::{HotColdConfig, LimitsConfig, ScoreConfig, TOP_K_MAX};
pub use gate::{Gate, GateRule};
pub use limits::{Limits, relative_latency};
pub use node::{NodeStats, Status};
pub use peer_choice::{NoPeerReason, NoRoomReason, PeerGate, RedirectReason};
pub use peers::{HandedOver, PeerCandidate, PeerChoice, PeerConfig, PeerSelector, PeersAllowed};
pub use sub_scores::{RequestKind, SubScores, clamp01};
pub use transactions::transaction_share;

/// Node that may be chosen, with its latest metrics.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The node's id.
    pub node: NodeId,
    /// Relative share of the work that the node should get.
    ///
    /// The score policy multiplies scores by it; hot/cold divides the work in flight by it.
    pub weight: Weight,
    /// Metrics that the node last reported.
    pub stats: NodeStats,
}

/// A chosen node and the reason for choosing it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The node to use.
    pub node: NodeId,
    /// Reason for this choice; dashboards show its `Display`.
    pub reason: ChoiceReason,
}

/// Policy by which a pool chooses among its open nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SelectionPolicy {
    /// Draws one of the nodes with the best scores.
    Score(ScoreConfig),
    /// Takes the fastest of the nodes that do not have too much in flight.
    HotCold(HotColdConfig),
}

/// Selection policy with valid settings and a buffer that its picks share.
#[derive(Clone, Debug)]
pub struct NodeSelector {
    policy: SelectionPolicy,
    scratch: Vec<f64>,
}

impl NodeSelector {
    /// Creates a selector; rejects settings out of range.
    pub fn new(policy: SelectionPolicy) -> Result<Self, SettingOutOfRange> {
        match &policy {
            SelectionPolicy::Score(config) => config.check()?,
            SelectionPolicy::HotCold(config) => config.check()?,
        }
        Ok(Self { policy, scratch: Vec::new() })
    }

    /// Chooses a node for the request; `None` if every candidate is gated.
    ///
    /// `random` is a fresh number in 0..1 for the draw among the best scores; hot/cold ignores it. A number outside the
    /// range counts as the nearer end, NaN as 0.
    pub fn pick(&mut self, candidates: &[Candidate], request: RequestKind, random: f64) -> Option<Choice> {
        match &self.policy {
            SelectionPolicy::Score(config) => {
                top_k::choose(config, candidates, request, random, &mut self.scratch)
            }
            SelectionPolicy::HotCold(config) => {
                hot_cold::choose(config, candidates, request, &mut self.scratch)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;

    #[test]
    fn a_selector_rejects_bad_settings() {
        let score = SelectionPolicy::Score(ScoreConfig { top_k: 0, ..ScoreConfig::default() });
        let hot_cold =
            SelectionPolicy::HotCold(HotColdConfig { hot_quantile: 0.9, ..HotColdConfig::default() });
        assert!(NodeSelector::new(score).is_err());
        assert!(NodeSelector::new(hot_cold).is_err());
    }

    #[test]
    fn a_selector_with_a_grown_buffer_allocates_nothing() {
        for policy in [
            SelectionPolicy::Score(ScoreConfig::default()),
            SelectionPolicy::HotCold(HotColdConfig::default()),
        ] {
            let mut selector = NodeSelector::new(policy).unwrap();
            let candidates: Vec<_> = (0..100).map(|node| candidate(node, example_node())).collect();
            assert!(selector.pick(&candidates, RequestKind::Infer, 0.5).is_some());
            let grown = selector.scratch.capacity();
            assert!(grown >= 100, "{policy:?} does not use the buffer that this test observes");
            for count in [100, 3, 57] {
                assert!(selector.pick(&candidates[..count], RequestKind::Infer, 0.5).is_some());
                assert_eq!(selector.scratch.capacity(), grown);
            }
        }
    }

    #[test]
    fn without_candidates_there_is_no_choice() {
        for policy in [
            SelectionPolicy::Score(ScoreConfig::default()),
            SelectionPolicy::HotCold(HotColdConfig::default()),
        ] {
            assert_eq!(NodeSelector::new(policy).unwrap().pick(&[], RequestKind::Query, 0.5), None);
        }
    }

    /// Returns the node whose sub-scores the tests of `limits` compute by hand.
    pub(super) fn example_node() -> NodeStats {
        NodeStats {
            running_http_session: 30,
            running_sql: 20,
            running_tx: 5,
            max_http_sessions: 120,
            max_open_conns: 100,
            max_transaction_conns: 50,
            open_conns: 30,
            idle_conns: 10,
            wait_conn_count: 1,
            // √2001 − 1, so that log1p of it is half of log1p(2000).
            p95_latency_ms: 43.732_538_492_690_08,
            latency_samples: 20,
            error_rate_1m: 0.01,
            timeouts_1m: 5,
            uptime_sec: 150,
            status: Status::Serving,
            in_flight: Cost(20),
            latency_estimate_ms: 40.0,
        }
    }

    pub(super) fn candidate(node: u32, stats: NodeStats) -> Candidate {
        Candidate { node: NodeId(node), weight: Weight::ONE, stats }
    }

    pub(super) fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }
}
