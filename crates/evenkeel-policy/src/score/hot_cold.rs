//! Hot/cold selection: avoids the nodes with much work in flight, then takes the fastest.
//!
//! Guarantees: no hot node is chosen while an open one is cold. The chosen node has the lowest latency estimate of the
//! cold nodes or, if all are hot, the least in flight for its weight. Limits: O(candidates).

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::choice_reason::ChoiceReason;
use super::config::HotColdConfig;
use super::node::Status;
use super::sub_scores::RequestKind;
use super::{Candidate, Choice};

pub(super) fn choose(
    config: &HotColdConfig,
    candidates: &[Candidate],
    request: RequestKind,
    scratch: &mut Vec<f64>,
) -> Option<Choice> {
    let load_max = cold_load_max(config, candidates, scratch)?;
    let mut cold = 0;
    let mut hot = 0;
    let mut fastest: Option<&Candidate> = None;
    let mut least_loaded: Option<&Candidate> = None;
    for candidate in candidates {
        if config.limits.gate(&candidate.stats, request).is_err() {
            continue;
        }
        if load(candidate) <= load_max {
            cold += 1;
            fastest = Some(fastest.map_or(candidate, |best| smaller(best, candidate, by_latency)));
        } else {
            hot += 1;
            least_loaded = Some(least_loaded.map_or(candidate, |best| smaller(best, candidate, by_load)));
        }
    }
    if let Some(chosen) = fastest {
        let reason = ChoiceReason::Cold { latency_estimate_ms: latency_ms(chosen), cold };
        return Some(Choice { node: chosen.node, reason });
    }
    let chosen = least_loaded?;
    Some(Choice {
        node: chosen.node,
        reason: ChoiceReason::AllHot { in_flight: chosen.stats.in_flight, hot },
    })
}

/// Returns the largest load of a cold node: the quantile over all serving nodes, rounded down to the load of one of
/// them.
///
/// Serving nodes that this request cannot use are included, because they show how loaded the pool is; so all usable
/// nodes may be hot. Rounding down makes the fuller of two nodes hot. Rounding up would leave a pool of two or three
/// nodes without a hot one, and all requests would go to the node with the lowest latency.
fn cold_load_max(config: &HotColdConfig, candidates: &[Candidate], scratch: &mut Vec<f64>) -> Option<f64> {
    scratch.clear();
    let serving = candidates.iter().filter(|candidate| candidate.stats.status == Status::Serving);
    scratch.extend(serving.map(load));
    let last = scratch.len().checked_sub(1)?;
    // The quantile is below 1, so the truncated product is at most `last`.
    let index = (config.hot_quantile * last as f64) as usize;
    let (_, load_max, _) = scratch.select_nth_unstable_by(index, f64::total_cmp);
    Some(*load_max)
}

/// Returns the work in flight, divided by the node's weight.
fn load(candidate: &Candidate) -> f64 {
    candidate.stats.in_flight.0 as f64 / candidate.weight.as_f64()
}

/// Returns the latency estimate; a node without a valid one counts as the slowest.
fn latency_ms(candidate: &Candidate) -> f64 {
    let estimate = candidate.stats.latency_estimate_ms;
    if estimate >= 0.0 { estimate } else { f64::INFINITY }
}

fn by_latency(one: &Candidate, other: &Candidate) -> Ordering {
    let latency = latency_ms(one).total_cmp(&latency_ms(other));
    latency.then(load(one).total_cmp(&load(other))).then(one.node.cmp(&other.node))
}

fn by_load(one: &Candidate, other: &Candidate) -> Ordering {
    let load = load(one).total_cmp(&load(other));
    load.then(latency_ms(one).total_cmp(&latency_ms(other))).then(one.node.cmp(&other.node))
}

fn smaller<'a>(
    one: &'a Candidate,
    other: &'a Candidate,
    order: fn(&Candidate, &Candidate) -> Ordering,
) -> &'a Candidate {
    if order(other, one).is_lt() { other } else { one }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::Cost;
    use crate::id::NodeId;
    use crate::score::tests::{candidate, example_node};
    use crate::score::{NodeSelector, NodeStats, SelectionPolicy};
    use crate::weight::Weight;

    #[test]
    fn the_fastest_node_is_avoided_while_it_is_hot() {
        let nodes = [node(0, 90, 5.0), node(1, 10, 41.0), node(2, 20, 60.0)];
        assert_eq!(choose_one(&nodes), cold(1, 41.0, 2));
    }

    #[test]
    fn of_two_nodes_the_fuller_one_is_hot() {
        assert_eq!(choose_one(&[node(0, 2, 5.0), node(1, 1, 500.0)]), cold(1, 500.0, 1));
        assert_eq!(choose_one(&[node(0, 1, 5.0), node(1, 1, 500.0)]), cold(0, 5.0, 2));
        assert_eq!(choose_one(&[node(3, 1, 5.0)]), cold(3, 5.0, 1));
    }

    #[test]
    fn the_quantile_decides_how_many_are_hot() {
        // Fuller nodes are faster, so the fullest cold node wins.
        let nodes: Vec<_> = (0..11).map(|id| node(id, u64::from(id), 100.0 - f64::from(id))).collect();
        for (hot_quantile, fullest_cold) in [(0.6, 6), (0.7, 7), (0.84, 8)] {
            let config = HotColdConfig { hot_quantile, ..HotColdConfig::default() };
            let choice = choose(&config, &nodes, RequestKind::Infer, &mut Vec::new()).unwrap();
            assert_eq!(choice.node, NodeId(fullest_cold), "at {hot_quantile}");
        }
    }

    #[test]
    fn when_all_usable_nodes_are_hot_the_one_with_the_least_in_flight_wins() {
        let mut nodes: Vec<_> = (10..30).map(full).collect();
        nodes.extend([node(2, 9, 1.0), node(3, 7, 99.0)]);
        assert_eq!(choose_one(&nodes), Choice { node: NodeId(3), reason: all_hot(7, 2) });
    }

    #[test]
    fn equally_fast_nodes_are_ordered_by_load_then_by_id() {
        let tied = [node(4, 3, 5.0), node(2, 3, 5.0), node(9, 1, 5.0), node(1, 8, 5.0)];
        assert_eq!(choose_one(&tied), cold(9, 5.0, 3));
        let tied = [node(4, 3, 5.0), node(2, 3, 5.0), node(9, 3, 5.0)];
        assert_eq!(choose_one(&tied), cold(2, 5.0, 3));
    }

    #[test]
    fn equally_loaded_hot_nodes_are_ordered_by_latency_then_by_id() {
        let mut nodes: Vec<_> = (10..30).map(full).collect();
        nodes.extend([node(4, 3, 5.0), node(2, 3, 4.0), node(1, 3, 4.0)]);
        assert_eq!(choose_one(&nodes), Choice { node: NodeId(1), reason: all_hot(3, 3) });
    }

    #[test]
    fn a_heavier_node_carries_more_before_it_is_hot() {
        let mut nodes = [node(0, 30, 5.0), node(1, 20, 9.0)];
        assert_eq!(choose_one(&nodes).node, NodeId(1));
        nodes[0].weight = Weight::whole(2).unwrap();
        assert_eq!(choose_one(&nodes).node, NodeId(0));
    }

    #[test]
    fn an_invalid_estimate_never_wins() {
        for bad in [f64::NAN, -1.0, f64::NEG_INFINITY] {
            assert_eq!(choose_one(&[node(0, 1, bad), node(1, 1, 900.0)]).node, NodeId(1));
            assert_eq!(choose_one(&[node(0, 1, bad)]), cold(0, f64::INFINITY, 1));
        }
    }

    #[test]
    fn a_node_that_does_not_serve_does_not_count_in_the_quantile() {
        let mut draining = node(2, 0, 1.0);
        draining.stats.status = Status::Draining;
        let nodes = [node(0, 5, 10.0), node(1, 5, 20.0), draining, draining, draining];
        assert_eq!(choose_one(&nodes), cold(0, 10.0, 2));
    }

    fn choose_one(nodes: &[Candidate]) -> Choice {
        let mut selector = NodeSelector::new(SelectionPolicy::HotCold(HotColdConfig::default())).unwrap();
        selector.pick(nodes, RequestKind::Infer, 0.5).unwrap()
    }

    fn node(id: u32, in_flight: u64, latency_estimate_ms: f64) -> Candidate {
        candidate(id, NodeStats { in_flight: Cost(in_flight), latency_estimate_ms, ..example_node() })
    }

    /// Returns a serving node without a free slot but with little cost in flight, as with short requests.
    fn full(id: u32) -> Candidate {
        candidate(id, NodeStats { in_flight: Cost(1), running_http_session: 120, ..example_node() })
    }

    fn cold(node: u32, latency_estimate_ms: f64, cold: usize) -> Choice {
        Choice { node: NodeId(node), reason: ChoiceReason::Cold { latency_estimate_ms, cold } }
    }

    fn all_hot(in_flight: u64, hot: usize) -> ChoiceReason {
        ChoiceReason::AllHot { in_flight: Cost(in_flight), hot }
    }
}
