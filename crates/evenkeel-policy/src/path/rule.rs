//! The numbers of path health, and what follows from them without any history.

use core::ops::RangeInclusive;

use crate::estimate::{Gains, RecentLen};
use crate::setting::{SettingOutOfRange, check};
use crate::time::{Duration, scaled};

/// How many samples running a rule may ask for.
pub(super) const RUNS: RangeInclusive<f64> = 1.0..=1_000_000.0;

/// The seconds a span may last: a millisecond to a day.
pub(super) const SPANS: RangeInclusive<f64> = 0.001..=86_400.0;

/// The numbers of path health; [`PathRule::new`] checks them.
///
/// Runs are 1..=1 000 000 samples, losses 0.001..=1, `recover_slo_part` 0.01..=1, `slo_factor` 1..=1000,
/// spans a millisecond to a day.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PathConfig {
    /// Of the last `activate_probes`, this many answered make a probing path active: 3.
    pub activate_answers: u32,
    /// How many of the last probes count while probing, 32 at most: 4.
    pub activate_probes: u32,
    /// The loss above which a path is unwell: 0.08.
    pub degrade_loss: f64,
    /// How many samples running a path must be unwell to be degraded: 5.
    pub degrade_samples: u32,
    /// The part of the SLO below which p95 must be for a path to be well: 0.9.
    pub recover_slo_part: f64,
    /// The loss below which a path is well: 0.05.
    pub recover_loss: f64,
    /// How many samples running a degraded path must be well to recover: 3.
    pub recover_samples: u32,
    /// How many more samples running make a recovering path active: 2.
    pub settle_samples: u32,
    /// How many hard failures without an answer in between switch a path off: 2.
    pub failures_max: u32,
    /// How many losses without an answer in between are as bad as a hard failure: 3.
    ///
    /// A black hole refuses nothing, so without this it would never be switched off.
    pub losses_per_failure: u32,
    /// How long a path is left alone after its first outage; doubles with each that follows: 1 s.
    pub backoff_min: Duration,
    /// The longest a path is left alone: 30 s.
    pub backoff_max: Duration,
    /// How many times the best path's p95 the SLO is: 4.
    pub slo_factor: f64,
    /// The least the SLO is: 50 ms.
    pub slo_min: Duration,
    /// How many of the last round trips p95 is taken of: 20, of which one may be a spike.
    pub rtt_samples: RecentLen,
    /// How the average round trip follows its samples: 0.125, deviation 0.25.
    pub rtt_gains: Gains,
    /// How the loss follows its samples: 0.1.
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

/// A [`PathConfig`] that holds together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathRule {
    pub(super) config: PathConfig,
}

impl PathRule {
    /// Checks the numbers, and names the first that is out of range.
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

    /// The p95 a path may have, given that of the best usable path of its set.
    pub fn slo(&self, best_p95: Duration) -> Duration {
        scaled(best_p95, self.config.slo_factor).max(self.config.slo_min)
    }

    /// How long a path is left alone after its `outages`-th outage since it was last active.
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
    fn the_defaults_hold_together() {
        assert_eq!(PathRule::new(PathConfig::default()), Ok(PathRule::default()));
    }

    #[test]
    fn a_number_that_cannot_stand_is_refused_by_name() {
        let zero = Duration::ZERO;
        refuses("activate_answers", |c| c.activate_answers = 0);
        refuses("activate_answers", |c| c.activate_answers = 33);
        refuses("activate_probes", |c| c.activate_probes = 2);
        refuses("activate_probes", |c| c.activate_probes = 33);
        refuses("degrade_loss", |c| c.degrade_loss = f64::NAN);
        refuses("degrade_samples", |c| c.degrade_samples = 0);
        refuses("recover_slo_part", |c| c.recover_slo_part = 1.1);
        refuses("recover_loss", |c| c.recover_loss = 0.09);
        refuses("recover_loss", |c| c.recover_loss = 0.0);
        refuses("recover_samples", |c| c.recover_samples = 0);
        refuses("settle_samples", |c| c.settle_samples = 0);
        refuses("failures_max", |c| c.failures_max = 0);
        refuses("losses_per_failure", |c| c.losses_per_failure = 0);
        refuses("backoff_min", |c| c.backoff_min = zero);
        refuses("backoff_max", |c| c.backoff_max = zero);
        refuses("slo_factor", |c| c.slo_factor = 0.9);
        refuses("slo_factor", |c| c.slo_factor = f64::INFINITY);
        refuses("slo_min", |c| c.slo_min = zero);
    }

    #[test]
    fn a_limit_that_is_another_setting_is_named_by_its_number() {
        let config = PathConfig { backoff_max: Duration::from_millis(10), ..PathConfig::default() };
        let refused = PathRule::new(config).unwrap_err();
        assert_eq!(refused.to_string(), "backoff_min 1 is not between 0.001 and 0.01");
    }

    fn refuses(setting: &str, spoil: impl Fn(&mut PathConfig)) {
        let mut config = PathConfig::default();
        spoil(&mut config);
        assert_eq!(PathRule::new(config).unwrap_err().setting, setting);
    }
}
