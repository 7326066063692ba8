//! Settings of node selection and their ranges.
//!
//! Guarantees: after [`Limits::new`] and [`NodeSelector::new`](super::NodeSelector::new) have accepted the settings,
//! each is a finite number within the range that its field documents.

use super::gate::GateRule;
use super::limits::Limits;
use crate::setting::{SettingOutOfRange, check};

/// Maximum [`ScoreConfig::top_k`], so that the best nodes fit in a fixed-size array.
pub const TOP_K_MAX: usize = 16;

/// Values at which each metric counts as bad, and thresholds of the gates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitsConfig {
    /// Metrics that close gates.
    pub gates: GateRule,
    /// 95th percentile latency at and above which the quality gate is closed, 1..=3 600 000; it scores 0 unless
    /// latencies are compared with their median.
    pub lat_bad_ms: f64,
    /// Error rate at and above which the score is 0 and the quality gate is closed, 0.0001..=1.
    pub err_bad: f64,
    /// Timeouts per minute that score 0, 1..=1 000 000.
    pub to_bad: u32,
    /// Number of waiting requests that scores 0, 1..=1 000 000.
    pub wait_bad: u32,
    /// Uptime, in seconds, at and above which the uptime scores 1, 1..=1 000 000.
    pub uptime_ok_sec: u32,
    /// Free fraction of the transaction connections below which new transactions are rejected, 0..=1.
    pub tx_free_min: f64,
    /// Number of waiting requests at and above which new transactions are rejected, 1..=1 000 000.
    pub tx_wait_max: u32,
}

impl LimitsConfig {
    pub(super) fn check(&self) -> Result<(), SettingOutOfRange> {
        check("lat_bad_ms", self.lat_bad_ms, 1.0..=3_600_000.0)?;
        check("err_bad", self.err_bad, 0.0001..=1.0)?;
        check("to_bad", self.to_bad, 1.0..=1_000_000.0)?;
        check("wait_bad", self.wait_bad, 1.0..=1_000_000.0)?;
        check("uptime_ok_sec", self.uptime_ok_sec, 1.0..=1_000_000.0)?;
        check("tx_free_min", self.tx_free_min, 0.0..=1.0)?;
        check("tx_wait_max", self.tx_wait_max, 1.0..=1_000_000.0)
    }
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            gates: GateRule::Quality,
            lat_bad_ms: 2_000.0,
            err_bad: 0.05,
            to_bad: 20,
            wait_bad: 10,
            uptime_ok_sec: 300,
            tx_free_min: 0.05,
            tx_wait_max: 20,
        }
    }
}

/// Settings of the score policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScoreConfig {
    /// Values at which metrics count as bad and gates close.
    pub limits: Limits,
    /// Number of the best nodes that take part in the draw, 1..=16.
    pub top_k: usize,
    /// Exponent of the score in the draw, 1..=16.
    ///
    /// Scores lie close together: with an exponent of 1 the best node is hardly preferred. The exponent is an integer
    /// because `powf` takes half of the time of a pick among three nodes.
    pub power: u32,
    /// Steepness `k` with which the score falls for latencies above the median, 1.5..=3:
    /// `1 / (1 + (latency / median - 1) * k)`.
    pub relative_k: f64,
    /// Number of samples that every open node must have before latencies are compared with their median, 1..=1 000 000.
    pub relative_samples_min: u32,
    /// Fraction of the best score from which a node becomes comparable, 0.1..=1.
    pub join_ratio: f64,
    /// Fraction of the best score from which a comparable node stays so, 0.1..=`join_ratio`.
    pub leave_ratio: f64,
}

impl ScoreConfig {
    pub(super) fn check(&self) -> Result<(), SettingOutOfRange> {
        check("top_k", self.top_k as f64, 1.0..=TOP_K_MAX as f64)?;
        check("power", self.power, 1.0..=16.0)?;
        check("relative_k", self.relative_k, 1.5..=3.0)?;
        check("relative_samples_min", self.relative_samples_min, 1.0..=1_000_000.0)?;
        check("join_ratio", self.join_ratio, 0.1..=1.0)?;
        check("leave_ratio", self.leave_ratio, 0.1..=self.join_ratio)
    }
}

impl Default for ScoreConfig {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            top_k: 3,
            power: 4,
            relative_k: 2.0,
            relative_samples_min: 20,
            join_ratio: 0.9,
            leave_ratio: 0.85,
        }
    }
}

/// Settings of the hot/cold policy.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HotColdConfig {
    /// Thresholds of the gates.
    pub limits: Limits,
    /// Multiple of the best estimate up to which a node becomes comparable, 1..=10.
    pub join_factor: f64,
    /// Multiple of the best estimate up to which a comparable node stays so, `join_factor`..=20.
    pub leave_factor: f64,
    /// Difference from these multiples that does not count, in milliseconds, 0..=10 000.
    pub slack_ms: f64,
}

impl HotColdConfig {
    pub(super) fn check(&self) -> Result<(), SettingOutOfRange> {
        check("join_factor", self.join_factor, 1.0..=10.0)?;
        check("leave_factor", self.leave_factor, self.join_factor..=20.0)?;
        check("slack_ms", self.slack_ms, 0.0..=10_000.0)
    }
}

impl Default for HotColdConfig {
    fn default() -> Self {
        Self { limits: Limits::default(), join_factor: 1.5, leave_factor: 2.0, slack_ms: 20.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_defaults_match_the_specification_and_are_valid() {
        let limits = LimitsConfig::default();
        assert_eq!((limits.lat_bad_ms, limits.err_bad, limits.tx_free_min), (2_000.0, 0.05, 0.05));
        let counts = [limits.to_bad, limits.wait_bad, limits.uptime_ok_sec, limits.tx_wait_max];
        assert_eq!(counts, [20, 10, 300, 20]);
        assert_eq!(limits.check(), Ok(()));
        let score = ScoreConfig::default();
        assert_eq!((score.top_k, score.power, score.relative_samples_min), (3, 4, 20));
        assert_eq!(score.relative_k.to_string(), "2");
        assert_eq!(score.check(), Ok(()));
        assert_eq!(HotColdConfig::default().check(), Ok(()));
    }

    #[test]
    fn a_setting_out_of_range_is_named_in_the_error() {
        let limits = LimitsConfig::default();
        let score = ScoreConfig::default();
        let hot_cold = HotColdConfig::default();
        let rejected = [
            LimitsConfig { lat_bad_ms: f64::NAN, ..limits }.check(),
            LimitsConfig { err_bad: 0.0, ..limits }.check(),
            LimitsConfig { to_bad: 0, ..limits }.check(),
            LimitsConfig { wait_bad: 0, ..limits }.check(),
            LimitsConfig { uptime_ok_sec: 0, ..limits }.check(),
            LimitsConfig { tx_free_min: 1.5, ..limits }.check(),
            LimitsConfig { tx_wait_max: 0, ..limits }.check(),
            ScoreConfig { top_k: 17, ..score }.check(),
            ScoreConfig { power: 17, ..score }.check(),
            ScoreConfig { relative_k: 3.5, ..score }.check(),
            ScoreConfig { relative_samples_min: 0, ..score }.check(),
            ScoreConfig { leave_ratio: 0.95, ..score }.check(),
            HotColdConfig { leave_factor: 1.4, ..hot_cold }.check(),
        ];
        let messages = rejected.map(|check| check.unwrap_err().to_string());
        assert_eq!(
            messages,
            [
                "lat_bad_ms NaN is not between 1 and 3600000",
                "err_bad 0 is not between 0.0001 and 1",
                "to_bad 0 is not between 1 and 1000000",
                "wait_bad 0 is not between 1 and 1000000",
                "uptime_ok_sec 0 is not between 1 and 1000000",
                "tx_free_min 1.5 is not between 0 and 1",
                "tx_wait_max 0 is not between 1 and 1000000",
                "top_k 17 is not between 1 and 16",
                "power 17 is not between 1 and 16",
                "relative_k 3.5 is not between 1.5 and 3",
                "relative_samples_min 0 is not between 1 and 1000000",
                "leave_ratio 0.95 is not between 0.1 and 0.9",
                "leave_factor 1.4 is not between 1.5 and 20",
            ]
        );
    }
}
