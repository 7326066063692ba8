//! Peer selection: chooses another gateway for a request that this one has no room for.
//!
//! The figures of a peer have an age. All gates apply to fresh figures. Once they are older than `stale_after`, the
//! capacity gates stay open, and with age the sub-scores of capacity move towards 0.5, or towards those of this gateway
//! if they are higher: a full pool has probably changed since. Once they are older than `down_after`, the peer counts as
//! DOWN.
//!
//! Guarantees: a gated peer is never chosen. While this gateway serves, a chosen peer scores better than it. Latencies
//! are compared with the median of this gateway and the open peers that have enough samples. A latency with too few
//! samples scores like the median and passes the latency gate. While fewer than two nodes have enough samples, every
//! latency scores 1, but a node with enough samples still meets the absolute latency gate. A peer that started recently
//! has a smaller weight in ranking and draw, but is chosen if it is the only candidate. The order of the peers has no
//! influence.
//!
//! Limits: a pick is O(peers) and allocates only while its buffer grows to the longest list seen.

use alloc::vec::Vec;
use core::time::Duration;

use super::choice_reason::{LatencyBasis, ScoreBreakdown};
use super::config::ScoreConfig;
use super::gate::Gate;
use super::node::{NodeStats, Status};
use super::peer_choice::{NoPeerReason, PeerGate};
use super::sub_scores::{RequestKind, SubScores, clamp01};
use super::top_k::{Ranked, TopK, median, sub_scores};
use crate::id::PeerId;
use crate::setting::{SettingOutOfRange, check};
use crate::weight::Weight;

/// Value towards which the capacity sub-scores of stale figures move, unless those of this gateway are higher.
///
/// So an unknown capacity does not count against a peer, and counts for it while this gateway is full.
const CAPACITY_NEUTRAL: f64 = 0.5;

/// Part of its weight that a peer has right after its start.
const SLOW_START_MIN: f64 = 0.1;

/// Settings by which peers are compared.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerConfig {
    /// Gates, scores and draw.
    pub score: ScoreConfig,
    /// Age above which figures are stale, 10 ms to an hour.
    pub stale_after: Duration,
    /// Age above which a peer counts as DOWN, at least `stale_after` and at most an hour.
    pub down_after: Duration,
}

impl PeerConfig {
    fn check(&self) -> Result<(), SettingOutOfRange> {
        self.score.check()?;
        let stale_after = self.stale_after.as_secs_f64();
        check("stale_after", stale_after, 0.01..=3_600.0)?;
        check("down_after", self.down_after.as_secs_f64(), stale_after..=3_600.0)
    }

    /// Returns 0 up to `stale_after`, rising linearly to 1 at `down_after`.
    fn staleness(&self, age: Duration) -> f64 {
        let span = (self.down_after - self.stale_after).as_secs_f64();
        clamp01(age.saturating_sub(self.stale_after).as_secs_f64() / span)
    }
}

impl Default for PeerConfig {
    fn default() -> Self {
        Self {
            score: ScoreConfig::default(),
            stale_after: Duration::from_secs(1),
            down_after: Duration::from_secs(3),
        }
    }
}

/// Peer that may be chosen, with its figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerCandidate {
    /// The peer.
    pub peer: PeerId,
    /// Relative share of the requests that it should get.
    pub weight: Weight,
    /// Its figures as reported.
    pub stats: NodeStats,
    /// Estimated change of its load since then.
    pub handed_over: HandedOver,
    /// Time since the figures were measured.
    pub age: Duration,
}

/// Estimated change of a peer's load since its figures were measured, the load from other gateways included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Change of the number of requests that hold a connection or wait for one.
    pub requests: i32,
    /// Begins that this gateway handed over since, minus those that ended.
    pub begins: i32,
}

impl HandedOver {
    /// Adds the change to a peer's figures; requests beyond its connections wait for one.
    pub fn add_to(self, stats: &NodeStats) -> NodeStats {
        let running = NodeStats {
            running_http_session: stats.running_http_session.saturating_add_signed(self.requests),
            running_tx: stats.running_tx.saturating_add_signed(self.begins),
            ..*stats
        };
        let count = self.requests.unsigned_abs();
        if self.requests < 0 {
            let stopped_waiting = count.min(stats.wait_conn_count);
            let idle_conns = stats.idle_conns.saturating_add(count - stopped_waiting).min(stats.open_conns);
            return NodeStats {
                wait_conn_count: stats.wait_conn_count - stopped_waiting,
                idle_conns: idle_conns.max(stats.idle_conns),
                ..running
            };
        }
        let idle_taken = count.min(stats.idle_conns);
        let open_max = u32::try_from(stats.max_open_conns).unwrap_or(0).max(stats.open_conns);
        let opened = (count - idle_taken).min(open_max - stats.open_conns);
        NodeStats {
            idle_conns: stats.idle_conns - idle_taken,
            open_conns: stats.open_conns + opened,
            wait_conn_count: stats.wait_conn_count.saturating_add(count - idle_taken - opened),
            ..running
        }
    }
}

/// Peers that a pick may choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeersAllowed {
    /// Every open peer.
    Open,
    /// Open peers with fresh figures that are not full by estimate.
    WithRoom,
}

/// A chosen peer and the scores that decided.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PeerChoice {
    /// The peer.
    pub peer: PeerId,
    /// Its score and its result in the draw.
    pub breakdown: ScoreBreakdown,
    /// Score of this gateway.
    pub own_score: f64,
    /// Age of the peer's figures.
    pub age: Duration,
    /// `false` if its figures are stale, or it is full by estimate.
    pub has_room: bool,
}

/// Valid settings of peer selection, and a buffer that its picks share.
#[derive(Clone, Debug)]
pub struct PeerSelector {
    config: PeerConfig,
    latencies: Vec<f64>,
}

impl PeerSelector {
    /// Creates a selector; rejects settings out of range.
    pub fn new(config: PeerConfig) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self { config, latencies: Vec::new() })
    }

    /// Chooses a peer that is better than this gateway, or returns the reason why there is none.
    ///
    /// While this gateway does not serve, every open peer is better. `random` is a fresh number in 0..1 for the draw
    /// among the best.
    pub fn pick(
        &mut self,
        own: &NodeStats,
        peers: &[PeerCandidate],
        allowed: PeersAllowed,
        request: RequestKind,
        random: f64,
    ) -> Result<PeerChoice, NoPeerReason> {
        if peers.is_empty() {
            return Err(NoPeerReason::NoPeer);
        }
        let latency = latency_basis(&self.config, own, peers, request, &mut self.latencies);
        let own = OwnScore::new(&self.config, own, latency, request);
        let mut better = TopK::new(self.config.score.top_k);
        let mut better_count = 0;
        let mut best_score: Option<f64> = None;
        let mut is_refused = false;
        for peer in open_peers(&self.config, peers, request) {
            let score = self.sub_scores(peer, &own).score(request);
            best_score = Some(best_score.map_or(score, |best| best.max(score)));
            if own.status == Status::Serving && score <= own.score {
                continue;
            }
            if allowed == PeersAllowed::WithRoom && !has_room(&self.config, peer, request) {
                is_refused = true;
                continue;
            }
            better_count += 1;
            let weight = peer.weight.as_f64() * self.slow_start_factor(&peer.stats);
            better.insert(Ranked { candidate: peer, id: peer.peer.0, weight, score });
        }
        let Some(drawn) = better.draw(self.config.score.power, random) else {
            return Err(match best_score {
                None => NoPeerReason::AllGated { peers: peers.len() },
                Some(_) if is_refused => NoPeerReason::BudgetSpent,
                Some(best_score) => NoPeerReason::NoneBetter { own_score: own.score, best_score },
            });
        };
        let peer = drawn.ranked.candidate;
        let breakdown = ScoreBreakdown {
            request,
            score: drawn.ranked.score,
            sub_scores: self.sub_scores(peer, &own),
            latency,
            position: drawn.position,
            open: better_count,
            drawn_from: better_count.min(self.config.score.top_k),
            chance: drawn.chance,
        };
        Ok(PeerChoice {
            peer: peer.peer,
            breakdown,
            own_score: own.score,
            age: peer.age,
            has_room: has_room(&self.config, peer, request),
        })
    }

    /// Returns the score of each peer, or its closed gate, in the order of `peers`.
    pub fn assess(
        &self,
        own: &NodeStats,
        peers: &[PeerCandidate],
        request: RequestKind,
    ) -> Vec<Result<f64, PeerGate>> {
        let latency = latency_basis(&self.config, own, peers, request, &mut Vec::new());
        let own = OwnScore::new(&self.config, own, latency, request);
        let assess_one = |peer: &PeerCandidate| {
            gate(&self.config, peer, request)?;
            Ok(self.sub_scores(peer, &own).score(request))
        };
        peers.iter().map(assess_one).collect()
    }

    /// Returns the score of this gateway beside its peers, without applying the gates.
    pub fn own_score(&self, own: &NodeStats, peers: &[PeerCandidate], request: RequestKind) -> f64 {
        let latency = latency_basis(&self.config, own, peers, request, &mut Vec::new());
        OwnScore::new(&self.config, own, latency, request).score
    }

    fn sub_scores(&self, peer: &PeerCandidate, own: &OwnScore) -> SubScores {
        let corrected = peer.handed_over.add_to(&peer.stats);
        let measured = measured_sub_scores(&self.config.score, &corrected, own.latency);
        let staleness = self.config.staleness(peer.age);
        let blend =
            |sub_score: f64, own: f64| sub_score + (own.max(CAPACITY_NEUTRAL) - sub_score) * staleness;
        SubScores {
            db_free: blend(measured.db_free, own.sub_scores.db_free),
            http_free: blend(measured.http_free, own.sub_scores.http_free),
            tx_free: blend(measured.tx_free, own.sub_scores.tx_free),
            wait: blend(measured.wait, own.sub_scores.wait),
            idle: blend(measured.idle, own.sub_scores.idle),
            ..measured
        }
    }

    /// Returns the factor of a peer's weight, which grows to 1 with the time since its start.
    fn slow_start_factor(&self, stats: &NodeStats) -> f64 {
        let uptime_ok_sec = f64::from(self.config.score.limits.config().uptime_ok_sec);
        (stats.uptime_sec as f64 / uptime_ok_sec).clamp(SLOW_START_MIN, 1.0)
    }
}

/// Score of this gateway, with which the peers are compared.
struct OwnScore {
    status: Status,
    latency: LatencyBasis,
    sub_scores: SubScores,
    score: f64,
}

impl OwnScore {
    fn new(config: &PeerConfig, own: &NodeStats, latency: LatencyBasis, request: RequestKind) -> Self {
        let sub_scores = measured_sub_scores(&config.score, own, latency);
        Self { status: own.status, latency, sub_scores, score: sub_scores.score(request) }
    }
}

fn open_peers<'a>(
    config: &PeerConfig,
    peers: &'a [PeerCandidate],
    request: RequestKind,
) -> impl Iterator<Item = &'a PeerCandidate> {
    peers.iter().filter(move |peer| gate(config, peer, request).is_ok())
}

/// Returns the first closed gate of a peer.
///
/// The estimated change may open a gate, but never closes one: a peer that is full by estimate is limited by the budget
/// instead.
fn gate(config: &PeerConfig, peer: &PeerCandidate, request: RequestKind) -> Result<(), PeerGate> {
    if config.down_after < peer.age {
        return Err(PeerGate::Silent { age: peer.age });
    }
    if config.stale_after < peer.age {
        // Without load, no capacity gate closes; those for status, settings and quality still do.
        let unloaded = NodeStats {
            running_http_session: 0,
            open_conns: 0,
            running_tx: 0,
            wait_conn_count: 0,
            ..peer.stats
        };
        return Ok(gate_stats(config, unloaded, request)?);
    }
    if has_room(config, peer, request) {
        return Ok(());
    }
    Ok(gate_stats(config, peer.stats, request)?)
}

/// Reports whether the figures are fresh and, with the estimated change, pass the gates.
fn has_room(config: &PeerConfig, peer: &PeerCandidate, request: RequestKind) -> bool {
    let corrected = peer.handed_over.add_to(&peer.stats);
    peer.age <= config.stale_after && gate_stats(config, corrected, request).is_ok()
}

fn gate_stats(config: &PeerConfig, mut stats: NodeStats, request: RequestKind) -> Result<(), Gate> {
    if stats.latency_samples < config.score.relative_samples_min {
        stats.p95_latency_ms = 0.0;
    }
    config.score.limits.gate(&stats, request)
}

/// Returns the median latency of this gateway and the open peers, or 0 if fewer than two have enough samples.
///
/// Every latency scores 1 against a median of 0.
fn latency_basis(
    config: &PeerConfig,
    own: &NodeStats,
    peers: &[PeerCandidate],
    request: RequestKind,
    latencies: &mut Vec<f64>,
) -> LatencyBasis {
    latencies.clear();
    let open = open_peers(config, peers, request).map(|peer| &peer.stats);
    let measured = open.chain(core::iter::once(own)).filter(|stats| {
        config.score.relative_samples_min <= stats.latency_samples
            && (0.0..f64::INFINITY).contains(&stats.p95_latency_ms)
    });
    latencies.extend(measured.map(|stats| stats.p95_latency_ms));
    let median_ms = if latencies.len() < 2 { 0.0 } else { median(latencies) };
    LatencyBasis::Relative { median_ms }
}

/// Returns sub-scores in which a latency with too few samples counts as the median.
fn measured_sub_scores(config: &ScoreConfig, stats: &NodeStats, latency: LatencyBasis) -> SubScores {
    let mut stats = *stats;
    if let LatencyBasis::Relative { median_ms } = latency
        && stats.latency_samples < config.relative_samples_min
    {
        stats.p95_latency_ms = median_ms;
    }
    sub_scores(config, &stats, latency)
}
