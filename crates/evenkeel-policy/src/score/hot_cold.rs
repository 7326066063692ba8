//! The hot/cold chooser: away from the nodes with much in flight, then to the quickest.
//!
//! Bound: no hot node is chosen while an open one is cold; of the cold ones none has a lower latency
//! estimate, and when all are hot none has less in flight for its weight. O(candidates).

use alloc::vec::Vec;
use core::cmp::Ordering;

use super::because::Because;
use super::config::HotColdConfig;
use super::node::Status;
use super::parts::Request;
use super::{Candidate, Choice};

pub(super) fn choose(
    config: &HotColdConfig,
    candidates: &[Candidate],
    request: Request,
    scratch: &mut Vec<f64>,
) -> Option<Choice> {
    let load_max = cold_load_max(config, candidates, scratch)?;
    let (mut cold, mut hot) = (0, 0);
    let mut quickest: Option<&Candidate> = None;
    let mut coolest: Option<&Candidate> = None;
    for candidate in candidates {
        if config.limits.gate(&candidate.stats, request).is_err() {
            continue;
        }
        if load(candidate) <= load_max {
            cold += 1;
            quickest = Some(quickest.map_or(candidate, |held| first(held, candidate, by_latency)));
        } else {
            hot += 1;
            coolest = Some(coolest.map_or(candidate, |held| first(held, candidate, by_load)));
        }
    }
    if let Some(chosen) = quickest {
        let because = Because::Cold { latency_estimate_ms: latency_ms(chosen), cold };
        return Some(Choice { node: chosen.node, because });
    }
    let chosen = coolest?;
    Some(Choice { node: chosen.node, because: Because::AllHot { in_flight: chosen.stats.in_flight, hot } })
}

/// The largest load that is still cold: the quantile over all serving nodes, rounded down to one.
///
/// A serving node that this request cannot use still says how loaded the pool is; so all usable ones
/// may be hot. Rounding down keeps small pools honest: the fuller of two nodes is hot, where rounding up
/// would leave a pool of two or three without a hot node and latency alone to herd by.
fn cold_load_max(config: &HotColdConfig, candidates: &[Candidate], scratch: &mut Vec<f64>) -> Option<f64> {
    scratch.clear();
    let serving = candidates.iter().filter(|candidate| candidate.stats.status == Status::Serving);
    scratch.extend(serving.map(load));
    let last = scratch.len().checked_sub(1)?;
    // The quantile is below 1, so the truncated product is at most `last`.
    let place = (config.hot_quantile * last as f64) as usize;
    let (_, load_max, _) = scratch.select_nth_unstable_by(place, f64::total_cmp);
    Some(*load_max)
}

/// The work in flight, as a node of weight 1 would feel it.
fn load(candidate: &Candidate) -> f64 {
    candidate.stats.in_flight.0 as f64 / candidate.weight.as_f64()
}

/// The latency estimate; without a usable one the node counts as the slowest.
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

fn first<'a>(
    one: &'a Candidate,
    other: &'a Candidate,
    order: fn(&Candidate, &Candidate) -> Ordering,
) -> &'a Candidate {
    if order(other, one).is_lt() { other } else { one }
}
