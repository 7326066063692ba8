//! Settings of path health and the values derived from them.

use core::ops::RangeInclusive;

use crate::estimate::{Gains, RecentLen};
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, scaled};

/// Range of a number of consecutive samples.
pub(super) const RUNS: RangeInclusive<f64> = 1.0..=1_000_000.0;

/// Range of a time span in seconds: a millisecond to a day.
pub(super) const SPANS: RangeInclusive<f64> = 0.001..=86_400.0;

/// Range of a factor by which a round trip may exceed another.
const FACTORS: RangeInclusive<f64> = 1.0..=1_000.0;

/// Settings of path health; [`PathRule::new`] validates them.
///
/// Numbers of samples are 1..=1 000 000 (of probes 1..=32), losses 0.001..=1, factors 1..=1000, time spans a millisecond to a day.
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
    /// Loss below which a path is healthy (default 0.05).
    pub recover_loss: f64,
    /// Number of consecutive healthy samples after which a degraded path recovers (default 3).
    pub recover_samples: u32,
    /// Number of further consecutive healthy samples that activate a recovering path (default 2).
    pub settle_samples: u32,
    /// Number of hard failures since the last answer that deactivates a path (default 2).
    pub failures_max: u32,
    /// Number of consecutive lost probes, fully lost intervals or reports of silence that counts as a hard failure
    /// (default 3).
    ///
    /// Without this rule a path that drops all packets silently would never be deactivated.
    pub losses_per_failure: u32,
    /// Backoff after the first outage; doubles with each consecutive one (default 1 s).
    pub backoff_min: Duration,
    /// Longest backoff (default 30 s).
    pub backoff_max: Duration,
    /// Shortest interval that a sample covers; for a path with a longer round trip it covers one round trip (default
    /// 100 ms).
    pub interval_min: Duration,
    /// Factor by which the p95 of a slow path exceeds the path's own baseline (default 4).
    pub slow_factor: f64,
    /// A p95 up to this is never slow (default 100 ms), so that neither jitter nor a full queue of 50 ms makes a short path
    /// unhealthy.
    pub slow_min: Duration,
    /// Window of the baseline, which is the lowest median in it (default 10 minutes).
    pub baseline_window: Duration,
    /// Factor by which the smoothed round trip of a path may exceed that of the best path (default 8).
    pub ceiling_factor: f64,
    /// A smoothed round trip up to this is allowed, whatever that of the best path (default 1 s).
    pub ceiling_min: Duration,
    /// Number of samples from which median and p95 are computed (default 20, so that p95 ignores one outlier).
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
            recover_loss: 0.05,
            recover_samples: 3,
            settle_samples: 2,
            failures_max: 2,
            losses_per_failure: 3,
            backoff_min: Duration::from_secs(1),
            backoff_max: Duration::from_secs(30),
            interval_min: Duration::from_millis(100),
            slow_factor: 4.0,
            slow_min: Duration::from_millis(100),
            baseline_window: Duration::from_secs(600),
            ceiling_factor: 8.0,
            ceiling_min: Duration::from_secs(1),
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
        check("interval_min", c.interval_min.as_secs_f64(), SPANS)?;
        check("slow_factor", c.slow_factor, FACTORS)?;
        check("slow_min", c.slow_min.as_secs_f64(), SPANS)?;
        check("baseline_window", c.baseline_window.as_secs_f64(), SPANS)?;
        check("ceiling_factor", c.ceiling_factor, FACTORS)?;
        check("ceiling_min", c.ceiling_min.as_secs_f64(), SPANS)?;
        check("backoff_max", c.backoff_max.as_secs_f64(), SPANS)?;
        check("backoff_min", c.backoff_min.as_secs_f64(), 0.001..=c.backoff_max.as_secs_f64())?;
        Ok(Self { config })
    }

    /// Returns the longest p95 of a path that is not slow, given its baseline.
    pub fn p95_max(&self, baseline: Duration) -> Duration {
        scaled(baseline, self.config.slow_factor).max(self.config.slow_min)
    }

    /// Returns the longest p95 that is never slow, whatever the baseline.
    pub const fn slow_min(&self) -> Duration {
        self.config.slow_min
    }

    /// Returns the time that the samples of a p95 cover, given the path's smoothed round trip.
    pub fn p95_span(&self, rtt: Duration) -> Duration {
        let samples = u32::try_from(self.config.rtt_samples.get()).unwrap_or(u32::MAX);
        rtt.max(self.config.interval_min).saturating_mul(samples)
    }

    /// Returns the longest smoothed round trip of a path that is not slow, given that of the best path of its set.
    pub fn ceiling(&self, best_rtt: Duration) -> Duration {
        scaled(best_rtt, self.config.ceiling_factor).max(self.config.ceiling_min)
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
    fn a_p95_may_be_four_times_the_baseline_and_at_least_100_ms() {
        let rule = PathRule::default();
        assert_eq!(rule.p95_max(Duration::from_millis(30)), Duration::from_millis(120));
        assert_eq!(rule.p95_max(Duration::from_millis(5)), Duration::from_millis(100));
        assert_eq!(rule.p95_max(Duration::MAX), Duration::MAX);
    }

    #[test]
    fn a_p95_covers_twenty_intervals_of_a_round_trip_and_at_least_100_ms() {
        let rule = PathRule::default();
        assert_eq!(rule.p95_span(Duration::from_millis(5)), Duration::from_secs(2));
        assert_eq!(rule.p95_span(Duration::from_millis(300)), Duration::from_secs(6));
        let config = PathConfig { interval_min: Duration::from_secs(1), ..PathConfig::default() };
        assert_eq!(PathRule::new(config).unwrap().p95_span(Duration::ZERO), Duration::from_secs(20));
    }

    #[test]
    fn the_ceiling_is_eight_times_the_best_round_trip_and_at_least_a_second() {
        let rule = PathRule::default();
        assert_eq!(rule.ceiling(Duration::from_millis(200)), Duration::from_millis(1_600));
        assert_eq!(rule.ceiling(Duration::from_millis(10)), Duration::from_secs(1));
        assert_eq!(rule.ceiling(Duration::MAX), Duration::MAX);
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
        rejects("recover_loss", |c| c.recover_loss = 0.09);
        rejects("recover_loss", |c| c.recover_loss = 0.0);
        rejects("recover_samples", |c| c.recover_samples = 0);
        rejects("settle_samples", |c| c.settle_samples = 0);
        rejects("failures_max", |c| c.failures_max = 0);
        rejects("losses_per_failure", |c| c.losses_per_failure = 0);
        rejects("backoff_min", |c| c.backoff_min = zero);
        rejects("backoff_max", |c| c.backoff_max = zero);
        rejects("interval_min", |c| c.interval_min = zero);
        rejects("slow_factor", |c| c.slow_factor = 0.9);
        rejects("slow_factor", |c| c.slow_factor = f64::INFINITY);
        rejects("slow_min", |c| c.slow_min = zero);
        rejects("baseline_window", |c| c.baseline_window = Duration::MAX);
        rejects("ceiling_factor", |c| c.ceiling_factor = f64::NAN);
        rejects("ceiling_min", |c| c.ceiling_min = zero);
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
