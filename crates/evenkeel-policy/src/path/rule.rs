//! Settings of path health and the values derived from them.

use core::ops::RangeInclusive;

use crate::estimate::{Gains, RecentLen};
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, scaled};

/// Range of a number of consecutive samples.
pub(super) const RUNS: RangeInclusive<f64> = 1.0..=1_000_000.0;

/// Range of a time span in seconds: a millisecond to a day.
pub(super) const SPANS: RangeInclusive<f64> = 0.001..=86_400.0;

/// Settings of path health; [`PathRule::new`] validates them.
///
/// Numbers of samples are 1..=1 000 000, losses 0.001..=1, `recover_slo_part` 0.01..=1, `slo_factor` 1..=1000, time
/// spans a millisecond to a day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathConfig {
    /// Number of answers among the last `activate_probes` probes that activates a probing path (default 3).
    pub activate_answers: u32,
    /// Number of last probes that count while probing, at most 32 (default 4).
    pub activate_probes: u32,
    /// Loss above which a path is unhealthy (default 0.08).
    pub degrade_loss: f64,
    /// Number of consecutive unhealthy samples that degrade a path (default 5).
    pub degrade_samples: u32,
    /// Fraction of the SLO below which the p95 of a healthy path lies (default 0.9).
    pub recover_slo_part: f64,
    /// Loss below which a path is healthy (default 0.05).
    pub recover_loss: f64,
    /// Number of consecutive healthy samples after which a degraded path recovers (default 3).
    pub recover_samples: u32,
    /// Number of further consecutive healthy samples that activate a recovering path (default 2).
    pub settle_samples: u32,
    /// Number of hard failures since the last answer that deactivates a path (default 2).
    pub failures_max: u32,
    /// Number of losses since the last answer that counts as a hard failure (default 3).
    ///
    /// Without this rule a path that drops all packets silently would never be deactivated.
    pub losses_per_failure: u32,
    /// Backoff after the first outage; doubles with each consecutive one (default 1 s).
    pub backoff_min: Duration,
    /// Longest backoff (default 30 s).
    pub backoff_max: Duration,
    /// Factor by which the SLO exceeds the best path's p95 (default 4).
    pub slo_factor: f64,
    /// Smallest SLO (default 50 ms).
    pub slo_min: Duration,
    /// Number of round trips from which p95 is computed (default 20, so that it ignores one outlier).
    pub rtt_samples: RecentLen,
    /// Gains of the smoothed round trip (default 0.125, deviation 0.25).
    pub rtt_gains: Gains,
    /// Gains of the smoothed loss (default 0.1).
    pub loss_gains: Gains,
}

impl Default for PathConfig {
    fn default() -> Self {
        Self {
            activate_answers: 3,
            activate_probes: 4,
            degrade_loss: 0.08,
            degrade_samples: 5,
            recover_slo_part: 0.9,
            recover_loss: 0.05,
            recover_samples: 3,
            settle_samples: 2,
            failures_max: 2,
            losses_per_failure: 3,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            slo_factor: 4.0,
            slo_min: Duration::from_millis(50),
            rtt_samples: RecentLen::default(),
            rtt_gains: Gains::RTT,
            loss_gains: Gains::LOSS,
        }
    }
}

/// Validated [`PathConfig`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathRule {
    pub(super) config: PathConfig,
}

impl PathRule {
    /// Validates the settings; the error names the first one out of range.
    pub fn new(config: PathConfig) -> Result<Self, SettingOutOfRange> {
        let c = &config;
        check("activate_answers", c.activate_answers, 1.0..=u32::BITS.into())?;
        check("activate_probes", c.activate_probes, c.activate_answers.into()..=u32::BITS.into())?;
        check("degrade_samples", c.degrade_samples, RUNS)?;
        check("recover_samples", c.recover_samples, RUNS)?;
        check("settle_samples", c.settle_samples, RUNS)?;
        check("failures_max", c.failures_max, RUNS)?;
        check("losses_per_failure", c.losses_per_failure, RUNS)?;
        check("degrade_loss", c.degrade_loss, 0.001..=1.0)?;
        check("recover_loss", c.recover_loss, 0.001..=c.degrade_loss)?;
        check("recover_slo_part", c.recover_slo_part, 0.01..=1.0)?;
        check("slo_factor", c.slo_factor, 1.0..=1_000.0)?;
        check("slo_min", c.slo_min.as_secs_f64(), SPANS)?;
        check("backoff_max", c.backoff_max.as_secs_f64(), SPANS)?;
        check("backoff_min", c.backoff_min.as_secs_f64(), 0.001..=c.backoff_max.as_secs_f64())?;
        Ok(Self { config })
    }

    /// Returns the largest p95 allowed for a path, given that of the best usable path of its set.
    pub fn slo(&self, best_p95: Duration) -> Duration {
        scaled(best_p95, self.config.slo_factor).max(self.config.slo_min)
    }

    /// Returns the backoff after the `outages`-th outage since the path was last active.
    pub fn backoff(&self, outages: u32) -> Duration {
        let doubled = 1_u32.checked_shl(outages.saturating_sub(1)).unwrap_or(u32::MAX);
        self.config.backoff_min.saturating_mul(doubled).min(self.config.backoff_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_slo_is_four_times_the_best_p95_and_at_least_50_ms() {
        let rule = PathRule::default();
        assert_eq!(rule.slo(Duration::from_millis(20)), Duration::from_millis(80));
        assert_eq!(rule.slo(Duration::from_millis(5)), Duration::from_millis(50));
        assert_eq!(rule.slo(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn the_backoff_doubles_from_one_second_to_thirty() {
        let rule = PathRule::default();
        let secs = [1, 2, 3, 4, 5, 6, 7].map(|outages| rule.backoff(outages).as_secs());
        assert_eq!(secs, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(rule.backoff(u32::MAX).as_secs(), 30);
        assert_eq!(rule.backoff(0).as_secs(), 1);
    }

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(PathRule::new(PathConfig::default()), Ok(PathRule::default()));
    }

    #[test]
    fn an_invalid_setting_is_named_in_the_error() {
        let zero = Duration::ZERO;
        rejects("activate_answers", |c| c.activate_answers = 0);
        rejects("activate_answers", |c| c.activate_answers = 33);
        rejects("activate_probes", |c| c.activate_probes = 2);
        rejects("activate_probes", |c| c.activate_probes = 33);
        rejects("degrade_loss", |c| c.degrade_loss = f64::NAN);
        rejects("degrade_samples", |c| c.degrade_samples = 0);
        rejects("recover_slo_part", |c| c.recover_slo_part = 1.1);
        rejects("recover_loss", |c| c.recover_loss = 0.09);
        rejects("recover_loss", |c| c.recover_loss = 0.0);
        rejects("recover_samples", |c| c.recover_samples = 0);
        rejects("settle_samples", |c| c.settle_samples = 0);
        rejects("failures_max", |c| c.failures_max = 0);
        rejects("losses_per_failure", |c| c.losses_per_failure = 0);
        rejects("backoff_min", |c| c.backoff_min = zero);
        rejects("backoff_max", |c| c.backoff_max = zero);
        rejects("slo_factor", |c| c.slo_factor = 0.9);
        rejects("slo_factor", |c| c.slo_factor = f64::INFINITY);
        rejects("slo_min", |c| c.slo_min = zero);
    }

    #[test]
    fn a_limit_set_by_another_setting_is_shown_as_a_number() {
        let config = PathConfig { backoff_max: Duration::from_millis(10), ..PathConfig::default() };
        let error = PathRule::new(config).unwrap_err();
        assert_eq!(error.to_string(), "backoff_min 1 is not between 0.001 and 0.01");
    }

    fn rejects(setting: &str, change: impl Fn(&mut PathConfig)) {
        let mut config = PathConfig::default();
        change(&mut config);
        assert_eq!(PathRule::new(config).unwrap_err().setting, setting);
    }
}
