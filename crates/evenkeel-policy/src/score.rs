//! Node choice: which node can do this request, and which of those should.
//!
//! A [`Picker`] puts one function, [`Picker::pick`], in front of two choosers. [`Chooser::Score`] adds
//! up nine sub-scores per node and draws one of the best few; [`Chooser::HotCold`] avoids nodes with
//! much in flight and takes the quickest of the rest. Both obey the same gates ([`Limits::gate`]).
//!
//! Bound: every score lies in 0..=1 and no better figure lowers it (a larger `max_open_conns` apart,
//! which makes the same idle connections a smaller part); a gated node is never chosen, and `None`
//! means that every node is gated; the score chooser's draws follow `score^power × weight` among the
//! `top_k` nodes of the highest `score × weight`; hot/cold takes no hot node while an open one is cold;
//! the order of the candidates decides nothing. A pick is O(candidates) and allocates only while its
//! scratch grows to the longest list met.

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
mod sub_scores;
mod top_k;

pub use choice_reason::{ChoiceReason, LatencyBasis, ScoreBreakdown};
pub use config::{HotColdConfig, LimitsConfig, ScoreConfig, TOP_K_MAX};
pub use gate::Gate;
pub use limits::{Limits, relative_latency};
pub use node::{NodeStats, Status};
pub use sub_scores::{RequestKind, SubScores, clamp01};

/// A node that may be chosen, with its latest figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The node.
    pub node: NodeId,
    /// How much of the work it should get, relative to the others.
    ///
    /// The score chooser multiplies scores by it, hot/cold divides the work in flight by it.
    pub weight: Weight,
    /// What the node last said of itself.
    pub stats: NodeStats,
}

/// A chosen node and the reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// The node to use.
    pub node: NodeId,
    /// Why this one; its `Display` is what a dashboard shows.
    pub reason: ChoiceReason,
}

/// How a pool chooses among its open nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SelectionPolicy {
    /// Draws one of the nodes with the best scores.
    Score(ScoreConfig),
    /// Takes the quickest node that has not too much in flight.
    HotCold(HotColdConfig),
}

/// A chooser with valid settings, and the scratch space its picks share.
#[derive(Clone, Debug)]
pub struct NodeSelector {
    chooser: SelectionPolicy,
    scratch: Vec<f64>,
}

impl NodeSelector {
    /// Makes a picker, unless a setting of the chooser is out of range.
    pub fn new(chooser: SelectionPolicy) -> Result<Self, SettingOutOfRange> {
        match &chooser {
            SelectionPolicy::Score(config) => config.check()?,
            SelectionPolicy::HotCold(config) => config.check()?,
        }
        Ok(Self { chooser, scratch: Vec::new() })
    }

    /// Chooses a node for the request, or none when every candidate is gated.
    ///
    /// `random` is a fresh number in 0..1 for the draw among the best scores; hot/cold needs none. One
    /// outside the range counts as the nearer end, and one that is no number as 0.
    pub fn pick(&mut self, candidates: &[Candidate], request: RequestKind, random: f64) -> Option<Choice> {
        match &self.chooser {
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
    fn a_picker_is_not_made_of_bad_settings() {
        let score = SelectionPolicy::Score(ScoreConfig { top_k: 0, ..ScoreConfig::default() });
        let hot_cold =
            SelectionPolicy::HotCold(HotColdConfig { hot_quantile: 0.9, ..HotColdConfig::default() });
        assert!(NodeSelector::new(score).is_err());
        assert!(NodeSelector::new(hot_cold).is_err());
    }

    #[test]
    fn a_warm_picker_allocates_nothing() {
        for chooser in [
            SelectionPolicy::Score(ScoreConfig::default()),
            SelectionPolicy::HotCold(HotColdConfig::default()),
        ] {
            let mut picker = NodeSelector::new(chooser).unwrap();
            let candidates: Vec<_> = (0..100).map(|node| candidate(node, worked_node())).collect();
            assert!(picker.pick(&candidates, RequestKind::Infer, 0.5).is_some());
            let warm = picker.scratch.capacity();
            assert!(warm >= 100, "{chooser:?} does not use the scratch this test watches");
            for count in [100, 3, 57] {
                assert!(picker.pick(&candidates[..count], RequestKind::Infer, 0.5).is_some());
                assert_eq!(picker.scratch.capacity(), warm);
            }
        }
    }

    #[test]
    fn no_candidates_no_choice() {
        for chooser in [
            SelectionPolicy::Score(ScoreConfig::default()),
            SelectionPolicy::HotCold(HotColdConfig::default()),
        ] {
            assert_eq!(NodeSelector::new(chooser).unwrap().pick(&[], RequestKind::Query, 0.5), None);
        }
    }

    /// The node of the worked examples; its sub-scores are in `limits`.
    pub(super) fn worked_node() -> NodeStats {
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
