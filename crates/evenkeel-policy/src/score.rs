//! Node selection: filters out the nodes that cannot serve a request and chooses one of the rest.
//!
//! A database request goes, by [`SelectionPolicy::Score`], to one of the nodes with the best scores, drawn by score and
//! weight. Any other request goes to one of the *comparable* nodes: those about as good as the best, by their scores or,
//! with [`SelectionPolicy::HotCold`], by their times to the first token. Among them an affinity key decides, or the
//! weights. So latency comes before weight, and weight before affinity. Both policies apply the same gates
//! ([`Limits::gate`]); a node that passes them is open. [`PeerSelector`] chooses another gateway, from figures that have
//! an age.
//!
//! Guarantees: every score lies in 0..=1, and an improving metric never lowers it (except that a larger
//! `max_open_conns` makes the same idle connections a smaller fraction). A gated node is never chosen, and `None` means
//! that every node is gated. The draw is in proportion to `score^power × weight` among the `top_k` nodes of the highest
//! `score × weight`. The order of the candidates has no influence.
//!
//! Limits: a pick is O(candidates) and allocates only while its buffer grows to the longest list seen.

use alloc::vec::Vec;

use crate::id::NodeId;
use crate::setting::SettingOutOfRange;
use crate::weight::Weight;

mod choice_reason;
mod comparable;
mod config;
mod gate;
mod hot_cold;
mod limits;
mod node;
mod peer_choice;
mod peers;
mod spread;
mod sub_scores;
mod top_k;
mod transactions;

pub use choice_reason::{ChoiceReason, LatencyBasis, ScoreBreakdown};
pub use comparable::{Comparison, Measurement, Spread};
pub use config::{HotColdConfig, LimitsConfig, ScoreConfig, TOP_K_MAX};
pub use gate::{Gate, GateRule};
pub use hot_cold::LatencyEstimate;
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
    pub weight: Weight,
    /// Metrics that the node last reported.
    pub stats: NodeStats,
    /// State of the comparison with the other nodes, which a pick updates.
    pub comparison: Comparison,
}

/// A chosen node and the reason for choosing it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The node to use.
    pub node: NodeId,
    /// Reason for this choice; dashboards show its `Display`.
    pub reason: ChoiceReason,
}

/// Policy by which a pool finds the best of its open nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SelectionPolicy {
    /// By score.
    Score(ScoreConfig),
    /// By the time to the first token.
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

    /// Returns the values at which gates close.
    pub fn limits(&self) -> &Limits {
        match &self.policy {
            SelectionPolicy::Score(config) => &config.limits,
            SelectionPolicy::HotCold(config) => &config.limits,
        }
    }

    /// Chooses a node for the request; `None` if every candidate is gated.
    ///
    /// Removes gated candidates and updates the comparison of the others. `random` is a fresh number in 0..1 for the
    /// draw by score; a number outside the range counts as the nearer end, NaN as 0.
    pub fn pick(
        &mut self,
        candidates: &mut Vec<Candidate>,
        request: RequestKind,
        spread: Spread,
        random: f64,
    ) -> Option<Choice> {
        self.keep_open(candidates, request);
        match &self.policy {
            SelectionPolicy::Score(config) if request != RequestKind::Infer => {
                top_k::choose(config, candidates, request, random, &mut self.scratch)
            }
            SelectionPolicy::Score(_) | SelectionPolicy::HotCold(_) => {
                comparable::mark(&self.policy, candidates, request, &mut self.scratch);
                comparable::choose(candidates, spread)
            }
        }
    }

    /// Reports whether a node that is warm for the request's affinity key should serve it.
    ///
    /// It should if it is open, comparable, and within its share of the load, unless another node is due to be
    /// measured. Only the comparison of `warm` may be by warm requests. The comparisons of the candidates serve as
    /// input only: discard them.
    pub fn keeps(
        &mut self,
        candidates: &mut Vec<Candidate>,
        request: RequestKind,
        warm: NodeId,
        load_max: f64,
    ) -> bool {
        self.keep_open(candidates, request);
        let Some(index) = candidates.iter().position(|candidate| candidate.node == warm) else {
            return false;
        };
        if comparable::find_due(candidates).is_some() {
            return false;
        }
        candidates[index].comparison.comparable = true;
        let has_share = spread::PoolLoad::of(candidates).has_share_for(&candidates[index], load_max);
        comparable::mark(&self.policy, candidates, request, &mut self.scratch);
        has_share && candidates[index].comparison.comparable
    }

    fn keep_open(&self, candidates: &mut Vec<Candidate>, request: RequestKind) {
        let limits = self.limits();
        candidates.retain(|candidate| limits.gate(&candidate.stats, request).is_ok());
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
            SelectionPolicy::HotCold(HotColdConfig { join_factor: 0.9, ..HotColdConfig::default() });
        assert!(NodeSelector::new(score).is_err());
        assert!(NodeSelector::new(hot_cold).is_err());
    }

    #[test]
    fn a_selector_with_a_grown_buffer_allocates_nothing() {
        for request in [RequestKind::Query, RequestKind::Infer] {
            let mut selector = NodeSelector::new(SelectionPolicy::Score(ScoreConfig::default())).unwrap();
            let mut candidates: Vec<_> = (0..100).map(|node| candidate(node, example_node())).collect();
            assert!(selector.pick(&mut candidates, request, BY_WEIGHT, 0.5).is_some());
            let grown = selector.scratch.capacity();
            assert!(grown >= 100, "a pick does not use the buffer that this test observes");
            for count in [100, 57, 3] {
                candidates.truncate(count);
                assert!(selector.pick(&mut candidates, request, BY_WEIGHT, 0.5).is_some());
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
            let mut selector = NodeSelector::new(policy).unwrap();
            assert_eq!(selector.pick(&mut Vec::new(), RequestKind::Query, BY_WEIGHT, 0.5), None);
            assert_eq!(selector.pick(&mut Vec::new(), RequestKind::Infer, BY_WEIGHT, 0.5), None);
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

    pub(super) const BY_WEIGHT: Spread = Spread { key: None, load_max: 1.25 };

    pub(super) fn candidate(node: u32, stats: NodeStats) -> Candidate {
        Candidate { node: NodeId(node), weight: Weight::ONE, stats, comparison: Comparison::default() }
    }

    pub(super) fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }
}
