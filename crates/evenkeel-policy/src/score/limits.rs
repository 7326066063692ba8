//! From figures to sub-scores: what counts as good, what as bad.
//!
//! Bound: each sub-score lies in 0..=1 and never falls as its figure improves; a figure that is no
//! number or negative scores 0.

use super::config::{LimitsConfig, SettingOutOfRange};
use super::gate::Gate;
use super::node::NodeStats;
use super::parts::{Parts, Request, clamp01};

/// Valid limits: where each figure counts as bad, and where the gates close.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    config: LimitsConfig,
    lat_bad_log: f64,
}

impl Limits {
    /// Makes limits, unless a setting is out of range.
    pub fn new(config: LimitsConfig) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self::of(config))
    }

    fn of(config: LimitsConfig) -> Self {
        Self { config, lat_bad_log: libm::log1p(config.lat_bad_ms) }
    }

    /// The settings these limits were made of.
    pub const fn config(&self) -> &LimitsConfig {
        &self.config
    }

    /// Scores a node on its own, without others to compare it with, unless a gate is closed.
    ///
    /// This is how a node judges itself: latency counts by its absolute score.
    pub fn assess(&self, stats: &NodeStats, request: Request) -> Result<f64, Gate> {
        self.gate(stats, request)?;
        Ok(self.parts(stats).score(request))
    }

    /// The sub-scores of a node, latency by its absolute score; gates are not asked.
    pub fn parts(&self, stats: &NodeStats) -> Parts {
        self.parts_with_latency(stats, self.absolute_latency(stats.p95_latency_ms))
    }

    /// The sub-scores of a node whose latency score is known; saves a logarithm per node.
    pub(super) fn parts_with_latency(&self, stats: &NodeStats, lat: f64) -> Parts {
        Parts {
            db_free: stats.db_free(),
            http_free: stats.http_free(),
            tx_free: stats.tx_free(),
            lat,
            err: falling(stats.error_rate_1m, self.config.err_bad),
            to: falling(f64::from(stats.timeouts_1m), f64::from(self.config.to_bad)),
            wait: falling(f64::from(stats.wait_conn_count), f64::from(self.config.wait_bad)),
            idle: stats.idle(),
            uptime: clamp01(stats.uptime_sec as f64 / f64::from(self.config.uptime_ok_sec)),
        }
    }

    /// Scores a latency against `lat_bad_ms` on a logarithmic scale: 0 ms is 1.
    pub fn absolute_latency(&self, p95_ms: f64) -> f64 {
        falling(libm::log1p(p95_ms), self.lat_bad_log)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::of(LimitsConfig::default())
    }
}

/// Scores a latency against the median of the nodes it competes with, `k` being the steepness.
///
/// At or below the median it is 1, and so it is when the median is 0. Without that floor the formula
/// divides by zero at a ratio of `1 − 1/k` and turns negative below: the quickest node would lose.
pub fn relative_latency(p95_ms: f64, median_ms: f64, k: f64) -> f64 {
    if !(0.0..f64::INFINITY).contains(&p95_ms) {
        return 0.0;
    }
    if median_ms <= 0.0 || p95_ms <= median_ms {
        return 1.0;
    }
    clamp01(1.0 / (1.0 + (p95_ms / median_ms - 1.0) * k))
}

/// Scores a figure that should be small: 1 at zero, 0 from `bad` on.
fn falling(figure: f64, bad: f64) -> f64 {
    if figure >= 0.0 { 1.0 - clamp01(figure / bad) } else { 0.0 }
}

impl NodeStats {
    /// The part of the connections nobody uses.
    ///
    /// An idle connection is as good as one not opened yet: counting it as load would close a node
    /// whose pool is warm and idle.
    pub(super) fn db_free(&self) -> f64 {
        free(self.open_conns.saturating_sub(self.idle_conns), self.max_open_conns)
    }

    pub(super) fn http_free(&self) -> f64 {
        free(self.running_http_session, self.max_http_sessions)
    }

    pub(super) fn tx_free(&self) -> f64 {
        free(self.running_tx, self.max_transaction_conns)
    }

    fn idle(&self) -> f64 {
        if self.max_open_conns <= 0 {
            return 0.0;
        }
        clamp01(f64::from(self.idle_conns) / f64::from(self.max_open_conns))
    }
}

/// The part of `max` that is not used.
///
/// `(max − used) / max` rounds once where `1 − used / max` rounds twice and would put 1 of 10 below 0.1.
fn free(used: u32, max: i32) -> f64 {
    if max <= 0 {
        return 0.0;
    }
    clamp01((f64::from(max) - f64::from(used)) / f64::from(max))
}
