//! Comparable nodes: those about as good as the best, among which weights and affinity keys may decide.
//!
//! Guarantees: the best open node is always comparable. A node that is not comparable gets a request only to measure it
//! again, one at a time, when its estimate is old. Limits: O(candidates), without allocation.

use alloc::vec::Vec;

use super::choice_reason::ChoiceReason;
use super::hot_cold::{self, LatencyEstimate};
use super::spread::{by_affinity, by_weight};
use super::sub_scores::RequestKind;
use super::{Candidate, Choice, ScoreConfig, SelectionPolicy, top_k};

/// State of a node's comparison with the others, for one kind of request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Comparison {
    /// Estimated time to the first token; `None` until measured.
    pub estimate: Option<LatencyEstimate>,
    /// State of the estimate's measurement.
    pub measurement: Measurement,
    /// State of the node at its last pick; a pick updates it.
    pub comparable: bool,
    /// Credit in the round robin by weight.
    pub credit: i64,
    /// Requests in flight, including those of other clients.
    pub load: u32,
    /// Requests of other clients.
    pub external: u32,
    /// Fixed number of requests that it serves at once; `None` if its limit adapts to the load.
    pub capacity: Option<u32>,
}

impl Comparison {
    /// Reports whether most of the node's load comes from other clients.
    pub(super) fn serves_mostly_others(&self) -> bool {
        self.load < self.external.saturating_mul(2)
    }
}

impl Default for Comparison {
    fn default() -> Self {
        Self {
            estimate: None,
            measurement: Measurement::Settled,
            comparable: true,
            credit: 0,
            load: 0,
            external: 0,
            capacity: None,
        }
    }
}

/// State of an estimate's measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Measurement {
    /// Nothing to do: other requests measure it, or it is recent.
    Settled,
    /// The estimate is old or missing, so one request should measure it.
    Due,
    /// A request that measures it is in flight.
    Pending,
}

/// Rule by which requests spread over the comparable nodes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Key shared by requests that should go to the same node; without one, weights decide.
    pub key: Option<u64>,
    /// Load up to which a node gets requests while others have less, as a multiple of its share of the load.
    pub load_max: f64,
}

/// Sets [`Comparison::comparable`] of every candidate; all of them are open.
pub(super) fn mark(
    policy: &SelectionPolicy,
    candidates: &mut [Candidate],
    request: RequestKind,
    scratch: &mut Vec<f64>,
) {
    match policy {
        SelectionPolicy::HotCold(config) => hot_cold::mark(config, candidates),
        SelectionPolicy::Score(config) => mark_by_score(config, candidates, request, scratch),
    }
}

fn mark_by_score(
    config: &ScoreConfig,
    candidates: &mut [Candidate],
    request: RequestKind,
    scratch: &mut Vec<f64>,
) {
    let latency = top_k::latency_basis(config, candidates, request, scratch);
    let score = |candidate: &Candidate| top_k::sub_scores(config, &candidate.stats, latency).score(request);
    let best = candidates.iter().map(score).fold(0.0, f64::max);
    for candidate in candidates {
        let ratio = if candidate.comparison.comparable { config.leave_ratio } else { config.join_ratio };
        candidate.comparison.comparable = ratio * best <= score(candidate);
    }
}

/// Chooses a node that is due to be measured, or else a comparable one by the affinity key or by weight.
pub(super) fn choose(candidates: &mut [Candidate], spread: Spread) -> Option<Choice> {
    if let Some(due) = find_due(candidates) {
        return Some(Choice { node: due.node, reason: ChoiceReason::Measure });
    }
    let nodes = candidates.iter().filter(|candidate| candidate.comparison.comparable).count();
    let preferred = spread.key.and_then(|key| by_affinity(candidates, key, spread.load_max));
    if let Some(index) = preferred {
        return Some(Choice { node: candidates[index].node, reason: ChoiceReason::Affinity { nodes } });
    }
    let chosen = &candidates[by_weight(candidates, spread.load_max)?];
    let latency_estimate_ms = chosen.comparison.estimate.map(|estimate| estimate.mean_ms);
    Some(Choice { node: chosen.node, reason: ChoiceReason::Weight { latency_estimate_ms, nodes } })
}

/// Returns a node that is due to be measured.
///
/// An old estimate of a comparable node is measured by the node's share of the requests. A node that mostly serves other
/// clients gets its first request when its share has room.
pub(super) fn find_due(candidates: &[Candidate]) -> Option<&Candidate> {
    let is_due = |candidate: &&Candidate| {
        let comparison = &candidate.comparison;
        let lacks_estimate = comparison.estimate.is_none() && !comparison.serves_mostly_others();
        comparison.measurement == Measurement::Due && (!comparison.comparable || lacks_estimate)
    };
    candidates.iter().filter(is_due).min_by_key(|candidate| candidate.node)
}
