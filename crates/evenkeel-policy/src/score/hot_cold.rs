//! Hot/cold selection: finds the nodes that are about as fast as the fastest one.
//!
//! A cold node answers about as soon as the fastest candidate; a hot one takes markedly longer. Cold nodes are
//! comparable: latency comes before weight, and weight before affinity.
//!
//! Guarantees: the fastest measured candidate is always comparable. A comparable node stays so until its estimate is
//! above `leave_factor` times the best, another node joins at `join_factor` times the best. A node without an estimate
//! is comparable while no request measures it, or if nobody has an estimate. Limits: O(candidates).

use super::config::HotColdConfig;
use super::{Candidate, Measurement};

/// Part of the mean deviation by which an estimate may be too high.
///
/// The standard error of an average with a gain of 1/8 is about a quarter of a sample's deviation; this is three times that.
/// Without it, noise moves requests between equal nodes whose responses differ in length.
const NOISE: f64 = 0.75;

/// Estimated time to the first token, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyEstimate {
    /// Mean.
    pub mean_ms: f64,
    /// Mean deviation.
    pub deviation_ms: f64,
}

impl LatencyEstimate {
    /// Returns the lowest latency that the samples may stand for.
    fn lower_ms(&self) -> f64 {
        self.mean_ms - NOISE * self.deviation_ms
    }
}

/// Sets [`Comparison::comparable`](super::Comparison::comparable) of every candidate.
pub(super) fn mark(config: &HotColdConfig, candidates: &mut [Candidate]) {
    let means = candidates.iter().filter_map(|candidate| candidate.comparison.estimate).map(|it| it.mean_ms);
    let best_ms = means.min_by(f64::total_cmp);
    for candidate in candidates {
        let comparison = &mut candidate.comparison;
        let factor = if comparison.comparable { config.leave_factor } else { config.join_factor };
        comparison.comparable = match (comparison.estimate, best_ms) {
            (Some(estimate), Some(best_ms)) => estimate.lower_ms() <= factor * best_ms + config.slack_ms,
            (None, Some(_)) => comparison.measurement != Measurement::Pending,
            (_, None) => true,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::tests::{candidate, example_node};
    use alloc::vec::Vec;

    #[test]
    fn a_node_joins_at_one_and_a_half_times_the_best_and_leaves_at_twice() {
        // 100 ms is the best: the thresholds are 170 and 220 ms.
        for (mean_ms, was, is) in
            [(170.0, false, true), (171.0, false, false), (220.0, true, true), (221.0, true, false)]
        {
            let mut nodes = [measured(0, 100.0), measured(1, mean_ms)];
            nodes[1].comparison.comparable = was;
            assert_eq!(comparable(&mut nodes), [true, is], "{mean_ms} ms");
        }
    }

    #[test]
    fn a_few_milliseconds_do_not_make_a_node_slow() {
        assert_eq!(comparable(&mut [measured(0, 1.0), measured(1, 20.0)]), [true, true]);
        assert_eq!(comparable(&mut [measured(0, 25.0), measured(1, 822.0)]), [true, false]);
    }

    #[test]
    fn noise_does_not_make_a_node_slow() {
        let mut nodes = [measured(0, 1_000.0), measured(1, 2_400.0)];
        assert_eq!(comparable(&mut nodes), [true, false]);
        nodes[1].comparison.estimate = Some(LatencyEstimate { mean_ms: 2_400.0, deviation_ms: 1_800.0 });
        assert_eq!(comparable(&mut nodes), [true, true]);
    }

    #[test]
    fn a_node_without_an_estimate_is_measured_by_one_request_at_a_time() {
        let mut nodes = [measured(0, 25.0), unmeasured(1)];
        assert_eq!(comparable(&mut nodes), [true, true]);
        nodes[1].comparison.measurement = Measurement::Pending;
        assert_eq!(comparable(&mut nodes), [true, false]);
        nodes[0] = nodes[1];
        assert_eq!(comparable(&mut nodes), [true, true], "nothing is known of either");
    }

    fn comparable(nodes: &mut [Candidate]) -> Vec<bool> {
        mark(&HotColdConfig::default(), nodes);
        nodes.iter().map(|node| node.comparison.comparable).collect()
    }

    fn measured(node: u32, mean_ms: f64) -> Candidate {
        let mut measured = unmeasured(node);
        measured.comparison.comparable = false;
        measured.comparison.estimate = Some(LatencyEstimate { mean_ms, deviation_ms: 0.0 });
        measured
    }

    fn unmeasured(node: u32) -> Candidate {
        candidate(node, example_node())
    }
}
