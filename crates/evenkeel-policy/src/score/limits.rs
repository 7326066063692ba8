//! Sub-scores of a node from its metrics.
//!
//! Guarantees: each sub-score lies in 0..=1 and never falls as its metric improves; NaN and negative metrics score 0.

use super::config::LimitsConfig;
use super::gate::Gate;
use super::node::NodeStats;
use super::sub_scores::{RequestKind, SubScores, clamp01};
use crate::setting::SettingOutOfRange;

/// Valid limits: values at which each metric counts as bad, and thresholds of the gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    config: LimitsConfig,
    lat_bad_log: f64,
}

impl Limits {
    /// Creates limits; rejects settings out of range.
    pub fn new(config: LimitsConfig) -> Result<Self, SettingOutOfRange> {
        config.check()?;
        Ok(Self::from_valid(config))
    }

    fn from_valid(config: LimitsConfig) -> Self {
        Self { config, lat_bad_log: libm::log1p(config.lat_bad_ms) }
    }

    /// Returns the settings.
    pub const fn config(&self) -> &LimitsConfig {
        &self.config
    }

    /// Scores a node without comparing it with others; fails with the first closed gate.
    ///
    /// Latency counts by its absolute score.
    pub fn assess(&self, stats: &NodeStats, request: RequestKind) -> Result<f64, Gate> {
        self.gate(stats, request)?;
        Ok(self.sub_scores(stats).score(request))
    }

    /// Returns the sub-scores of a node, with the absolute score of its latency, without applying the gates.
    pub fn sub_scores(&self, stats: &NodeStats) -> SubScores {
        self.sub_scores_with_latency(stats, self.absolute_latency(stats.p95_latency_ms))
    }

    /// Returns the sub-scores of a node with a given latency score, which saves a logarithm per node.
    #[inline]
    pub(super) fn sub_scores_with_latency(&self, stats: &NodeStats, lat: f64) -> SubScores {
        SubScores {
            db_free: stats.db_free(),
            http_free: stats.http_free(),
            tx_free: stats.tx_free(),
            lat,
            err: score_lower_better(stats.error_rate_1m, self.config.err_bad),
            to: score_lower_better(f64::from(stats.timeouts_1m), f64::from(self.config.to_bad)),
            wait: score_lower_better(f64::from(stats.wait_conn_count), f64::from(self.config.wait_bad)),
            idle: stats.idle(),
            uptime: clamp01(stats.uptime_sec as f64 / f64::from(self.config.uptime_ok_sec)),
        }
    }

    /// Scores a latency against `lat_bad_ms` on a logarithmic scale: 0 ms scores 1.
    pub fn absolute_latency(&self, p95_ms: f64) -> f64 {
        score_lower_better(libm::log1p(p95_ms), self.lat_bad_log)
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::from_valid(LimitsConfig::default())
    }
}

/// Scores a latency against the median of the competing nodes; `k` is the steepness.
///
/// A latency at or below the median, or any latency if the median is 0, scores 1. Without this rule the formula would
/// divide by zero at a ratio of `1 − 1/k` and be negative below it, so that the fastest node would score worst.
pub fn relative_latency(p95_ms: f64, median_ms: f64, k: f64) -> f64 {
    if !(0.0..f64::INFINITY).contains(&p95_ms) {
        return 0.0;
    }
    if median_ms <= 0.0 || p95_ms <= median_ms {
        return 1.0;
    }
    clamp01(1.0 / (1.0 + (p95_ms / median_ms - 1.0) * k))
}

/// Scores a metric that should be small: 1 at zero, 0 from `bad` on.
fn score_lower_better(value: f64, bad: f64) -> f64 {
    if value >= 0.0 { 1.0 - clamp01(value / bad) } else { 0.0 }
}

impl NodeStats {
    /// Returns the fraction of the connections that is not in use.
    ///
    /// An idle connection counts as free, like one that is not open yet; otherwise a node whose connections are all
    /// open and idle would be gated.
    pub(super) fn db_free(&self) -> f64 {
        free_fraction(self.open_conns.saturating_sub(self.idle_conns), self.max_open_conns)
    }

    pub(super) fn http_free(&self) -> f64 {
        free_fraction(self.running_http_session, self.max_http_sessions)
    }

    pub(super) fn tx_free(&self) -> f64 {
        free_fraction(self.running_tx, self.max_transaction_conns)
    }

    fn idle(&self) -> f64 {
        if self.max_open_conns <= 0 {
            return 0.0;
        }
        clamp01(f64::from(self.idle_conns) / f64::from(self.max_open_conns))
    }
}

/// Returns the unused fraction of `max`.
///
/// `(max − used) / max` rounds once; `1 − used / max` rounds twice and gives less than 0.1 for 1 free of 10.
fn free_fraction(used: u32, max: i32) -> f64 {
    if max <= 0 {
        return 0.0;
    }
    clamp01((f64::from(max) - f64::from(used)) / f64::from(max))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::score::tests::{close, example_node};

    /// db 1 − (30 − 10)/100 = 0.8, http 1 − 30/120 = 0.75, tx 1 − 5/50 = 0.9, latency
    /// 1 − ln(√2001)/ln(2001) = 0.5, errors 1 − 0.01/0.05 = 0.8, timeouts 1 − 5/20 = 0.75,
    /// waiting 1 − 1/10 = 0.9, idle 10/100 = 0.1, uptime 150/300 = 0.5.
    #[test]
    fn sub_scores_match_the_calculation_by_hand() {
        let sub_scores =
            Limits::default().sub_scores(&example_node()).named().map(|(_, sub_score)| sub_score);
        for (sub_score, by_hand) in
            sub_scores.into_iter().zip([0.8, 0.75, 0.9, 0.5, 0.8, 0.75, 0.9, 0.1, 0.5])
        {
            assert!(close(sub_score, by_hand), "{sub_score} is not {by_hand}");
        }
    }

    /// 0.22·0.8 + 0.18·0.75 + 0.10·0.9 + 0.20·0.5 + 0.12·0.8 + 0.08·0.75 + 0.06·0.9 + 0.02·0.1 + 0.02·0.5
    /// = 0.176 + 0.135 + 0.09 + 0.1 + 0.096 + 0.06 + 0.054 + 0.002 + 0.01 = 0.723
    #[test]
    fn the_score_for_a_query_matches_the_calculation_by_hand() {
        assert!(close(score(RequestKind::Query), 0.723));
    }

    /// 0.30·0.8 + 0.14·0.75 + 0.08·0.9 + 0.14·0.5 + 0.14·0.8 + 0.10·0.75 + 0.08·0.9 + 0.02·0.1
    /// = 0.24 + 0.105 + 0.072 + 0.07 + 0.112 + 0.075 + 0.072 + 0.002 = 0.748
    #[test]
    fn the_score_for_an_execute_matches_the_calculation_by_hand() {
        assert!(close(score(RequestKind::Execute), 0.748));
    }

    /// 0.42·0.9 + 0.22·0.8 + 0.08·0.75 + 0.10·0.8 + 0.06·0.75 + 0.06·0.9 + 0.04·0.5 + 0.02·0.1
    /// = 0.378 + 0.176 + 0.06 + 0.08 + 0.045 + 0.054 + 0.02 + 0.002 = 0.815
    #[test]
    fn the_score_for_a_begin_matches_the_calculation_by_hand() {
        assert!(close(score(RequestKind::BeginTx), 0.815));
    }

    /// (0.18·0.75 + 0.20·0.5 + 0.12·0.8 + 0.08·0.75 + 0.02·0.5) / 0.6
    /// = (0.135 + 0.1 + 0.096 + 0.06 + 0.01) / 0.6 = 0.401 / 0.6
    #[test]
    fn the_score_for_an_inference_matches_the_calculation_by_hand() {
        assert!(close(score(RequestKind::Infer), 0.401 / 0.6));
    }

    #[test]
    fn each_limit_affects_its_own_sub_score() {
        let limits = Limits::new(LimitsConfig {
            // 2001 · √2001 − 1, so that log1p of the example latency is a third of log1p of this.
            lat_bad_ms: 89_508.809_523_872_86,
            err_bad: 0.1,
            to_bad: 10,
            wait_bad: 2,
            uptime_ok_sec: 600,
            ..LimitsConfig::default()
        })
        .unwrap();
        let sub_scores = limits.sub_scores(&example_node());
        let changed = [sub_scores.lat, sub_scores.err, sub_scores.to, sub_scores.wait, sub_scores.uptime];
        for (sub_score, by_hand) in changed.into_iter().zip([2.0 / 3.0, 0.9, 0.5, 0.5, 0.25]) {
            assert!(close(sub_score, by_hand), "{sub_score} is not {by_hand}");
        }
        assert!(Limits::new(LimitsConfig { wait_bad: 0, ..LimitsConfig::default() }).is_err());
    }

    #[test]
    fn an_invalid_metric_scores_0() {
        for bad in [f64::NAN, -0.5, -1.0, -2.0, f64::INFINITY, f64::NEG_INFINITY] {
            let stats = NodeStats { p95_latency_ms: bad, error_rate_1m: bad, ..example_node() };
            let sub_scores = Limits::default().sub_scores(&stats);
            assert!(sub_scores.lat <= 0.0 && sub_scores.err <= 0.0, "{bad} scored {sub_scores:?}");
            assert!(relative_latency(bad, 10.0, 2.0) <= 0.0, "{bad} scored against a median");
        }
    }

    #[test]
    fn a_node_without_configured_capacity_has_nothing_free() {
        for max in [0, -1, i32::MIN] {
            let stats = NodeStats {
                max_http_sessions: max,
                max_open_conns: max,
                max_transaction_conns: max,
                ..example_node()
            };
            let sub_scores = Limits::default().sub_scores(&stats);
            assert!(sub_scores.db_free + sub_scores.http_free + sub_scores.tx_free + sub_scores.idle <= 0.0);
        }
    }

    #[test]
    fn a_latency_twice_the_median_scores_a_third() {
        assert!(close(relative_latency(100.0, 50.0, 2.0), 1.0 / 3.0));
        assert!(close(relative_latency(75.0, 50.0, 2.0), 0.5));
        assert!(close(relative_latency(100.0, 50.0, 3.0), 0.25));
        assert!(close(relative_latency(50.0, 50.0, 2.0), 1.0));
        assert!(close(relative_latency(700.0, 0.0, 2.0), 1.0));
    }

    #[test]
    fn a_latency_far_below_the_median_scores_1_where_the_bare_formula_has_a_pole() {
        let bare = |p95_ms: f64| 1.0 / (1.0 + (p95_ms / 100.0 - 1.0) * 2.0);
        assert!(bare(50.0).is_infinite());
        assert!(bare(25.0) < 0.0, "a node four times as fast as the median would score worst");
        for p95_ms in [0.0, 25.0, 50.0, 75.0, 100.0] {
            assert!(close(relative_latency(p95_ms, 100.0, 2.0), 1.0));
        }
    }

    #[test]
    fn the_free_fraction_is_rounded_once() {
        let one_of_ten = NodeStats { running_tx: 9, max_transaction_conns: 10, ..example_node() };
        let usage = f64::from(one_of_ten.running_tx) / f64::from(one_of_ten.max_transaction_conns);
        assert!(1.0 - usage < 0.1, "rounded twice, a tenth becomes less than 0.1");
        assert!(one_of_ten.tx_free() >= 0.1);
    }

    fn score(request: RequestKind) -> f64 {
        Limits::default().assess(&example_node(), request).unwrap()
    }
}
