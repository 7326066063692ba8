//! The score chooser: ranks the open nodes, keeps the best few, draws one of them.
//!
//! Bound: the best `top_k` by `score × weight` take part, each with a chance proportional to
//! `score^power × weight`; equal ranks are settled by the lower id. O(candidates × top_k), in place.

use alloc::vec::Vec;
use core::mem;

use super::because::{Because, LatencyBasis, Scored};
use super::config::{ScoreConfig, TOP_K_MAX};
use super::limits::relative_latency;
use super::node::NodeStats;
use super::parts::{Parts, Request, clamp01};
use super::{Candidate, Choice};

pub(super) fn choose(
    config: &ScoreConfig,
    candidates: &[Candidate],
    request: Request,
    random: f64,
    scratch: &mut Vec<f64>,
) -> Option<Choice> {
    let latency = latency_basis(config, candidates, request, scratch);
    let mut best = Best::of(config.top_k);
    let mut open = 0;
    for candidate in open_nodes(config, candidates, request) {
        open += 1;
        let score = parts(config, &candidate.stats, latency).score(request);
        best.offer(Ranked { candidate, score, rank: score * candidate.weight.as_f64() });
    }
    let drawn = best.draw(config.power, random)?;
    let scored = Scored {
        request,
        score: drawn.ranked.score,
        parts: parts(config, &drawn.ranked.candidate.stats, latency),
        latency,
        place: drawn.place,
        open,
        drawn_from: open.min(config.top_k),
        chance: drawn.chance,
    };
    Some(Choice { node: drawn.ranked.candidate.node, because: Because::Score(scored) })
}

/// Decides what latencies are compared with, for all nodes alike.
///
/// Relative and absolute scores of one latency differ widely, so within a pick every node is scored the
/// same way: one open node with too few samples, or without a usable figure, makes it absolute for all.
fn latency_basis(
    config: &ScoreConfig,
    candidates: &[Candidate],
    request: Request,
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
    request: Request,
) -> impl Iterator<Item = &'a Candidate> {
    candidates.iter().filter(move |candidate| config.limits.gate(&candidate.stats, request).is_ok())
}

/// The median of at least one finite number; reorders them.
fn median(figures: &mut [f64]) -> f64 {
    let middle = figures.len() / 2;
    let even = figures.len().is_multiple_of(2);
    let (below, upper, _) = figures.select_nth_unstable_by(middle, f64::total_cmp);
    if even {
        let lower = below.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        // Halved before adding, so that two huge figures do not overflow.
        lower / 2.0 + *upper / 2.0
    } else {
        *upper
    }
}

fn parts(config: &ScoreConfig, stats: &NodeStats, latency: LatencyBasis) -> Parts {
    match latency {
        LatencyBasis::Absolute => config.limits.parts(stats),
        LatencyBasis::Relative { median_ms } => {
            let lat = relative_latency(stats.p95_latency_ms, median_ms, config.relative_k);
            config.limits.parts_with_latency(stats, lat)
        }
    }
}

/// A node with its rank.
#[derive(Clone, Copy)]
struct Ranked<'a> {
    candidate: &'a Candidate,
    score: f64,
    rank: f64,
}

impl Ranked<'_> {
    fn is_before(&self, other: &Self) -> bool {
        let by_rank = other.rank.total_cmp(&self.rank);
        by_rank.then(self.candidate.node.cmp(&other.candidate.node)).is_lt()
    }
}

/// A node as it was drawn.
struct Drawn<'a> {
    ranked: Ranked<'a>,
    place: usize,
    chance: f64,
}

/// The best nodes met so far, in order.
struct Best<'a> {
    places: [Option<Ranked<'a>>; TOP_K_MAX],
    top_k: usize,
}

impl<'a> Best<'a> {
    fn of(top_k: usize) -> Self {
        Self { places: [None; TOP_K_MAX], top_k }
    }

    fn offer(&mut self, mut offered: Ranked<'a>) {
        for place in self.places.iter_mut().take(self.top_k) {
            match place {
                Some(held) if held.is_before(&offered) => {}
                Some(held) => mem::swap(held, &mut offered),
                None => {
                    *place = Some(offered);
                    return;
                }
            }
        }
    }

    fn draw(&self, power: f64, random: f64) -> Option<Drawn<'a>> {
        let mut shares = [0.0; TOP_K_MAX];
        for (share, ranked) in shares.iter_mut().zip(self.ranked()) {
            *share = libm::pow(ranked.score, power) * ranked.candidate.weight.as_f64();
        }
        let total: f64 = shares.iter().sum();
        let mut left = clamp01(random) * total;
        let mut drawn = None;
        for (index, (share, ranked)) in shares.into_iter().zip(self.ranked()).enumerate() {
            // The last place stands when rounding, or a random number of 1, leaves a rest.
            drawn = Some(Drawn { ranked, place: index + 1, chance: share / total });
            if left < share {
                break;
            }
            left -= share;
        }
        drawn
    }

    fn ranked(&self) -> impl Iterator<Item = Ranked<'a>> {
        self.places.iter().flatten().copied()
    }
}
