//! Score selection: a top-k weighted random choice among the open nodes.
//!
//! Guarantees: the best `top_k` nodes by `score × weight` take part in the draw, each with a probability proportional
//! to `score^power × weight`; ties are broken by the lower id. Limits: O(candidates × top_k), without allocation.

use alloc::vec::Vec;
use core::mem;

use super::choice_reason::{ChoiceReason, LatencyBasis, ScoreBreakdown};
use super::config::{ScoreConfig, TOP_K_MAX};
use super::limits::relative_latency;
use super::node::NodeStats;
use super::sub_scores::{RequestKind, SubScores, clamp01};
use super::{Candidate, Choice};

pub(super) fn choose(
    config: &ScoreConfig,
    candidates: &[Candidate],
    request: RequestKind,
    random: f64,
    scratch: &mut Vec<f64>,
) -> Option<Choice> {
    let latency = latency_basis(config, candidates, request, scratch);
    let mut best = TopK::new(config.top_k);
    let mut open = 0;
    for candidate in open_nodes(config, candidates, request) {
        open += 1;
        let score = sub_scores(config, &candidate.stats, latency).score(request);
        best.insert(Ranked { candidate, id: candidate.node.0, weight: candidate.weight.as_f64(), score });
    }
    let drawn = best.draw(config.power, random)?;
    let breakdown = ScoreBreakdown {
        request,
        score: drawn.ranked.score,
        sub_scores: sub_scores(config, &drawn.ranked.candidate.stats, latency),
        latency,
        position: drawn.position,
        open,
        drawn_from: open.min(config.top_k),
        chance: drawn.chance,
    };
    Some(Choice { node: drawn.ranked.candidate.node, reason: ChoiceReason::Score(breakdown) })
}

/// Selects the latency that all nodes are compared with.
///
/// Relative and absolute scores of one latency differ widely, so within a pick every node is scored the same way: one
/// open node with too few samples, or without a valid latency, makes the score absolute for all.
pub(super) fn latency_basis(
    config: &ScoreConfig,
    candidates: &[Candidate],
    request: RequestKind,
    scratch: &mut Vec<f64>,
) -> LatencyBasis {
    scratch.clear();
    for candidate in open_nodes(config, candidates, request) {
        let p95_ms = candidate.stats.p95_latency_ms;
        let measured = (0.0..f64::INFINITY).contains(&p95_ms);
        if !measured || candidate.stats.latency_samples < config.relative_samples_min {
            return LatencyBasis::Absolute;
        }
        scratch.push(p95_ms);
    }
    if scratch.len() < 2 {
        return LatencyBasis::Absolute;
    }
    LatencyBasis::Relative { median_ms: median(scratch) }
}

fn open_nodes<'a>(
    config: &ScoreConfig,
    candidates: &'a [Candidate],
    request: RequestKind,
) -> impl Iterator<Item = &'a Candidate> {
    candidates.iter().filter(move |candidate| config.limits.gate(&candidate.stats, request).is_ok())
}

/// Returns the median of at least one finite number; reorders the slice.
pub(super) fn median(values: &mut [f64]) -> f64 {
    let middle = values.len() / 2;
    let even = values.len().is_multiple_of(2);
    let (below, upper, _) = values.select_nth_unstable_by(middle, f64::total_cmp);
    if even {
        let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Halved before adding, so that two huge values do not overflow.
        lower / 2.0 + *upper / 2.0
    } else {
        *upper
    }
}

pub(super) fn sub_scores(config: &ScoreConfig, stats: &NodeStats, latency: LatencyBasis) -> SubScores {
    match latency {
        LatencyBasis::Absolute => config.limits.sub_scores(stats),
        LatencyBasis::Relative { median_ms } => {
            let lat = relative_latency(stats.p95_latency_ms, median_ms, config.relative_k);
            config.limits.sub_scores_with_latency(stats, lat)
        }
    }
}

/// A scored node or peer.
#[derive(Clone, Copy)]
pub(super) struct Ranked<'a, T> {
    pub(super) candidate: &'a T,
    pub(super) id: u32,
    pub(super) weight: f64,
    pub(super) score: f64,
}

impl<T> Ranked<'_, T> {
    fn is_before(&self, other: &Self) -> bool {
        let by_rank = (other.score * other.weight).total_cmp(&(self.score * self.weight));
        by_rank.then(self.id.cmp(&other.id)).is_lt()
    }
}

pub(super) struct DrawResult<'a, T> {
    pub(super) ranked: Ranked<'a, T>,
    pub(super) position: usize,
    pub(super) chance: f64,
}

/// The best candidates seen so far, in order.
pub(super) struct TopK<'a, T> {
    entries: [Option<Ranked<'a, T>>; TOP_K_MAX],
    top_k: usize,
}

impl<'a, T: Copy> TopK<'a, T> {
    pub(super) fn new(top_k: usize) -> Self {
        Self { entries: [None; TOP_K_MAX], top_k }
    }

    pub(super) fn insert(&mut self, mut node: Ranked<'a, T>) {
        // In a large pool most nodes rank below the last entry: one comparison rejects them.
        if let Some(Some(last)) = self.entries.get(self.top_k.saturating_sub(1))
            && last.is_before(&node)
        {
            return;
        }
        for entry in self.entries.iter_mut().take(self.top_k) {
            match entry {
                Some(better) if better.is_before(&node) => {}
                Some(worse) => mem::swap(worse, &mut node),
                None => {
                    *entry = Some(node);
                    return;
                }
            }
        }
    }

    pub(super) fn draw(&self, power: u32, random: f64) -> Option<DrawResult<'a, T>> {
        let mut shares = [0.0; TOP_K_MAX];
        for (share, ranked) in shares.iter_mut().zip(self.ranked()) {
            *share = (0..power).fold(ranked.weight, |share, _| share * ranked.score);
        }
        let total: f64 = shares.iter().sum();
        let mut remaining = clamp01(random) * total;
        let mut drawn = None;
        for (index, (share, ranked)) in shares.into_iter().zip(self.ranked()).enumerate() {
            // The last entry is drawn when rounding, or a random number of 1, leaves a remainder.
            drawn = Some(DrawResult { ranked, position: index + 1, chance: share / total });
            if remaining < share {
                break;
            }
            remaining -= share;
        }
        drawn
    }

    fn ranked(&self) -> impl Iterator<Item = Ranked<'a, T>> {
        self.entries.iter().flatten().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::NodeId;
    use crate::score::tests::{BY_WEIGHT, candidate, close, example_node};
    use crate::score::{NodeSelector, SelectionPolicy};
    use crate::weight::Weight;

    /// The example node at 100 ms among 50 ms and 25 ms: the median is 50, so its latency scores
    /// 1/(1 + (2 − 1)·2) = 1/3 and the others' 1. A query scores 0.623 without latency, so the scores are
    /// 0.823, 0.823 and 0.623 + 0.2/3 = 0.689667; drawn by the fourth power,
    /// 0.823⁴ = 0.458775, 0.689667⁴ = 0.226233, the chances are 40.11 %, 40.11 % and 19.78 %.
    #[test]
    fn a_draw_among_three_nodes_matches_the_calculation_by_hand() {
        let nodes = [at_ms(0, 100.0), at_ms(1, 50.0), at_ms(2, 25.0)];
        for (random, node, position, score, chance) in [
            (0.0, 1, 1, 0.823, 0.4011),
            (0.4010, 1, 1, 0.823, 0.4011),
            (0.4012, 2, 2, 0.823, 0.4011),
            (0.8021, 2, 2, 0.823, 0.4011),
            (0.8023, 0, 3, 0.623 + 0.2 / 3.0, 0.1978),
            (0.9999, 0, 3, 0.623 + 0.2 / 3.0, 0.1978),
        ] {
            let (chosen, scored) = choose_one(ScoreConfig::default(), &nodes, random);
            assert_eq!((chosen, scored.position), (NodeId(node), position), "at {random}");
            assert_eq!((scored.open, scored.drawn_from), (3, 3));
            assert!(close(scored.score, score), "{} is not {score}", scored.score);
            assert!((scored.chance - chance).abs() < 5e-5, "{} is not {chance}", scored.chance);
            assert_eq!(scored.latency, LatencyBasis::Relative { median_ms: 50.0 });
        }
    }

    #[test]
    fn by_plain_score_the_worst_node_is_drawn_nearly_as_often_as_the_best() {
        let nodes = [with_http(0, 0), with_http(1, 60), with_http(2, 119)];
        let best_over_worst = |power| {
            let config = ScoreConfig { power, ..ScoreConfig::default() };
            let (best, chosen) = choose_one(config, &nodes, 0.0);
            let (worst, other) = choose_one(config, &nodes, 1.0);
            assert_eq!((best, worst), (NodeId(0), NodeId(2)));
            chosen.chance / other.chance
        };
        assert!(best_over_worst(1) < 1.3, "about a third each, full or empty");
        assert!(best_over_worst(4) > 2.4);
    }

    #[test]
    fn a_random_number_on_the_boundary_draws_the_next_node() {
        let equal_nodes = [0, 1].map(|node| candidate(node, example_node()));
        let just_below = 0.5 - f64::EPSILON;
        assert_eq!(choose_one(ScoreConfig::default(), &equal_nodes, just_below).0, NodeId(0));
        assert_eq!(choose_one(ScoreConfig::default(), &equal_nodes, 0.5).0, NodeId(1));
    }

    #[test]
    fn the_configured_steepness_is_used() {
        let nodes = [at_ms(0, 100.0), at_ms(1, 50.0), at_ms(2, 25.0)];
        for (relative_k, lat) in [(1.5, 0.4), (3.0, 0.25)] {
            let config = ScoreConfig { relative_k, ..ScoreConfig::default() };
            assert!(close(choose_one(config, &nodes, 1.0).1.sub_scores.lat, lat));
        }
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert!(close(median(&mut [9.0, 1.0, 4.0, 2.0]), 3.0));
        assert!(close(median(&mut [9.0, 1.0, 4.0]), 4.0));
        assert!(close(median(&mut [5.0]), 5.0));
        assert!(median(&mut [f64::MAX, f64::MAX]) >= f64::MAX);
    }

    #[test]
    fn latency_is_relative_only_when_every_open_node_has_enough_samples() {
        let basis = |nodes: &[Candidate]| choose_one(ScoreConfig::default(), nodes, 0.0).1.latency;
        let relative = LatencyBasis::Relative { median_ms: 50.0 };
        assert_eq!(basis(&[at_ms(0, 40.0), at_ms(1, 60.0)]), relative);
        assert_eq!(basis(&[at_ms(0, 40.0)]), LatencyBasis::Absolute);

        let mut new_node = at_ms(2, 50.0);
        new_node.stats.latency_samples = 19;
        assert_eq!(basis(&[at_ms(0, 40.0), at_ms(1, 60.0), new_node]), LatencyBasis::Absolute);

        let mut gated = new_node;
        gated.stats.error_rate_1m = 1.0;
        assert_eq!(basis(&[at_ms(0, 40.0), at_ms(1, 60.0), gated]), relative);
    }

    #[test]
    fn an_invalid_latency_does_not_move_the_median() {
        let config = ScoreConfig::default();
        for bad in [f64::NAN, f64::INFINITY, -1.0] {
            let nodes = [at_ms(0, 40.0), at_ms(1, 60.0), at_ms(2, bad)];
            let choice = choose(&config, &nodes, RequestKind::BeginTx, 0.0, &mut Vec::new()).unwrap();
            let ChoiceReason::Score(scored) = choice.reason else { panic!("{choice:?}") };
            assert_eq!(scored.latency, LatencyBasis::Absolute);
            assert_eq!(choice.node, NodeId(0));
        }
    }

    #[test]
    fn a_node_slower_than_the_limit_is_gated_however_slow_the_others_are() {
        let nodes = [at_ms(0, 1999.0), at_ms(1, 2000.0)];
        for random in [0.0, 0.5, 0.99] {
            let (chosen, scored) = choose_one(ScoreConfig::default(), &nodes, random);
            assert_eq!((chosen, scored.open), (NodeId(0), 1));
        }
    }

    #[test]
    fn the_weight_counts_in_the_ranking_and_in_the_draw() {
        let config = ScoreConfig { top_k: 2, ..ScoreConfig::default() };
        let mut nodes = [with_http(0, 0), with_http(1, 60), with_http(2, 60)];
        assert_eq!(choose_one(config, &nodes, 1.0).0, NodeId(1));
        nodes[2].weight = Weight::whole(3).unwrap();
        let (chosen, heavy) = choose_one(config, &nodes, 0.0);
        assert_eq!((chosen, heavy.position), (NodeId(2), 1));
        let (chosen, light) = choose_one(config, &nodes, 1.0);
        assert_eq!((chosen, light.position), (NodeId(0), 2));
        // Three times the weight, times the fourth power of the ratio of the scores.
        let ratio = 3.0 * libm::pow(heavy.score / light.score, 4.0);
        assert!(close(heavy.chance / light.chance, ratio));
    }

    #[test]
    fn a_weight_multiplies_the_score_rather_than_adding_to_it() {
        let mut nodes = [with_http(0, 0), with_http(1, 119)];
        let [good, poor] =
            [0.0, 1.0].map(|random| choose_one(ScoreConfig::default(), &nodes, random).1.score);
        for (weight, first) in [(good / poor - 0.01, 0), (good / poor + 0.01, 1)] {
            nodes[1].weight = Weight::new(weight).unwrap();
            assert_eq!(choose_one(ScoreConfig::default(), &nodes, 0.0).0, NodeId(first), "at {weight}");
        }
    }

    #[test]
    fn only_the_best_nodes_take_part_and_ties_are_broken_by_id() {
        let nodes = [5, 3, 9, 1, 7].map(|node| candidate(node, example_node()));
        for (top_k, last) in [(1, 1), (2, 3), (3, 5), (4, 7), (5, 9), (16, 9)] {
            let config = ScoreConfig { top_k, ..ScoreConfig::default() };
            assert_eq!(choose_one(config, &nodes, 0.0).0, NodeId(1));
            let (chosen, scored) = choose_one(config, &nodes, 1.0);
            assert_eq!(chosen, NodeId(last));
            assert_eq!(scored.drawn_from, top_k.min(5));
        }
    }

    #[test]
    fn a_random_number_out_of_range_counts_as_the_nearer_end() {
        let nodes = [0, 1, 2].map(|node| candidate(node, example_node()));
        for (random, node) in
            [(-1.0, 0), (f64::NAN, 0), (f64::NEG_INFINITY, 0), (1.0, 2), (7.0, 2), (f64::INFINITY, 2)]
        {
            assert_eq!(choose_one(ScoreConfig::default(), &nodes, random).0, NodeId(node), "at {random}");
        }
    }

    /// Picks a node for a query and returns its score breakdown.
    fn choose_one(config: ScoreConfig, nodes: &[Candidate], random: f64) -> (NodeId, ScoreBreakdown) {
        let mut selector = NodeSelector::new(SelectionPolicy::Score(config)).unwrap();
        let choice = selector.pick(&mut nodes.to_vec(), RequestKind::Query, BY_WEIGHT, random).unwrap();
        let ChoiceReason::Score(scored) = choice.reason else { panic!("{choice:?}") };
        (choice.node, scored)
    }

    fn at_ms(node: u32, p95_latency_ms: f64) -> Candidate {
        candidate(node, NodeStats { p95_latency_ms, ..example_node() })
    }

    fn with_http(node: u32, running_http_session: u32) -> Candidate {
        candidate(node, NodeStats { running_http_session, ..example_node() })
    }
}
