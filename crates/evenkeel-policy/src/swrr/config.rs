//! Settings of the scheduler and the validated rules made from them.
//!
//! Guarantees: with any [`SwrrRules`], credits fit in an `i64`, and the cap on unhealthy weights is large enough for
//! [`PATHS_MAX`] unhealthy paths even beside the smallest healthy weight.

use core::ops::RangeInclusive;

use crate::estimate::Gains;
use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// Largest weight of a path, and the default of [`SwrrConfig::weight_cap`].
pub const WEIGHT_CAP: u32 = 10_000;

/// Maximum number of paths of one scheduler; a pick visits each of them.
pub const PATHS_MAX: usize = 128;

/// Denominator of `unhealthy_parts`.
const PARTS: i64 = 1_000_000;

/// Settings of a [`SwrrScheduler`](super::SwrrScheduler).
#[derive(Clone, Debug, PartialEq)]
pub struct SwrrConfig {
    /// Weight of a lossless path with an RTT of 1 ms; a path with 10 ms gets a tenth of it.
    pub weight_scale: f64,
    /// Largest weight, at most [`WEIGHT_CAP`].
    pub weight_cap: u32,
    /// Smallest fraction of its weight that a lossy path keeps.
    pub loss_floor: f64,
    /// Gain of the smoothed RTT.
    pub rtt_alpha: f64,
    /// Gain of the smoothed RTT deviation.
    pub deviation_beta: f64,
    /// Gain of the smoothed loss rate.
    pub loss_alpha: f64,
    /// Relative change of a measured weight below which it is ignored.
    pub change_min: f64,
    /// Largest factor by which a weight increases per interval.
    pub raise_max: f64,
    /// Shortest interval between two increases; for a path with a longer RTT the interval is one RTT.
    pub raise_interval_min: Duration,
    /// Fraction of its weight with which a newly activated path starts.
    pub ramp_start: f64,
    /// Fraction of its weight that a degraded path keeps.
    pub degraded_factor: f64,
    /// Fraction of its weight that a recovering path keeps.
    pub recovery_factor: f64,
    /// Fraction of the sum of all weights below which the unhealthy paths together stay.
    pub unhealthy_share_max: f64,
    /// Picks per observation window.
    pub window_picks: u32,
    /// Maximum number of paths, at most [`PATHS_MAX`].
    pub paths_max: usize,
}

impl Default for SwrrConfig {
    fn default() -> Self {
        Self {
            weight_scale: 1_000.0,
            weight_cap: WEIGHT_CAP,
            loss_floor: 0.05,
            rtt_alpha: 0.125,
            deviation_beta: 0.25,
            loss_alpha: 0.1,
            change_min: 0.05,
            raise_max: 1.25,
            raise_interval_min: Duration::from_millis(100),
            ramp_start: 0.10,
            degraded_factor: 0.4,
            recovery_factor: 0.7,
            unhealthy_share_max: 0.10,
            window_picks: 1_600,
            paths_max: PATHS_MAX,
        }
    }
}

/// Validated [`SwrrConfig`], with the factors that apply to weights in fixed point.
#[derive(Clone, Debug, PartialEq)]
pub struct SwrrRules {
    pub(super) weight_scale: f64,
    pub(super) weight_cap: u32,
    pub(super) loss_floor: f64,
    pub(super) rtt_gains: Gains,
    pub(super) loss_gains: Gains,
    pub(super) change_min: Ratio,
    pub(super) raise_max: Ratio,
    pub(super) raise_interval_min: Duration,
    pub(super) ramp_start: Ratio,
    pub(super) degraded_factor: Ratio,
    pub(super) recovery_factor: Ratio,
    unhealthy_parts: i64,
    pub(super) window_picks: u32,
    pub(super) paths_max: usize,
}

impl SwrrRules {
    /// Validates the settings; the error names the first one out of range.
    pub fn new(config: &SwrrConfig) -> Result<Self, SettingOutOfRange> {
        check("weight_cap", config.weight_cap, 1.0..=WEIGHT_CAP.into())?;
        check("window_picks", config.window_picks, 1.0..=u32::MAX.into())?;
        check("paths_max", config.paths_max as f64, 1.0..=PATHS_MAX as f64)?;
        // With an interval of more than an hour, weights would hardly ever rise.
        check("raise_interval_min", config.raise_interval_min.as_secs_f64(), 0.0..=3_600.0)?;
        check("weight_scale", config.weight_scale, 1.0..=1e6)?;
        check("loss_floor", config.loss_floor, 0.0..=1.0)?;
        // With at least 0.05, the cap leaves room for 128 unhealthy paths beside one healthy path of weight 1 at the
        // start of its ramp.
        check("unhealthy_share_max", config.unhealthy_share_max, 0.05..=0.95)?;
        let rtt_gains =
            Gains::checked("rtt_alpha", config.rtt_alpha, "deviation_beta", config.deviation_beta)?;
        let loss_gains = Gains::checked("loss_alpha", config.loss_alpha, "loss_alpha", config.loss_alpha)?;
        Ok(Self {
            weight_scale: config.weight_scale,
            weight_cap: config.weight_cap,
            loss_floor: config.loss_floor,
            rtt_gains,
            loss_gains,
            change_min: Ratio::new("change_min", config.change_min, 0.0..=1.0)?,
            raise_max: Ratio::new("raise_max", config.raise_max, 1.01..=100_000.0)?,
            raise_interval_min: config.raise_interval_min,
            ramp_start: Ratio::new("ramp_start", config.ramp_start, 0.05..=1.0)?,
            degraded_factor: Ratio::new("degraded_factor", config.degraded_factor, 0.01..=1.0)?,
            recovery_factor: Ratio::new("recovery_factor", config.recovery_factor, 0.01..=1.0)?,
            unhealthy_parts: libm::round(config.unhealthy_share_max * PARTS as f64) as i64,
            window_picks: config.window_picks,
            paths_max: config.paths_max,
        })
    }

    /// Returns the largest sum of unhealthy weights that is strictly below `unhealthy_share_max` of the total if the
    /// healthy weights sum to `healthy`.
    pub(super) fn unhealthy_sum_max(&self, healthy: i64) -> i64 {
        (healthy * self.unhealthy_parts - 1) / (PARTS - self.unhealthy_parts)
    }
}

impl Default for SwrrRules {
    fn default() -> Self {
        // A test checks that the defaults lie in their ranges.
        Self::new(&SwrrConfig::default()).expect("the default configuration is valid")
    }
}

/// Ratio in fixed point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ratio(i64);

impl Ratio {
    const FRACTION_BITS: u32 = 16;

    fn new(setting: &'static str, value: f64, range: RangeInclusive<f64>) -> Result<Self, SettingOutOfRange> {
        check(setting, value, range)?;
        Ok(Self(libm::round(value * f64::from(1 << Self::FRACTION_BITS)) as i64))
    }

    /// Returns this fraction of `whole`, rounded to nearest.
    pub(super) fn scale(self, whole: i64) -> i64 {
        (whole * self.0 + (1 << (Self::FRACTION_BITS - 1))) >> Self::FRACTION_BITS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rejected_setting(change: impl Fn(&mut SwrrConfig)) -> &'static str {
        let mut config = SwrrConfig::default();
        change(&mut config);
        SwrrRules::new(&config).unwrap_err().setting
    }

    #[test]
    fn the_default_settings_are_valid() {
        assert_eq!(SwrrRules::new(&SwrrConfig::default()), Ok(SwrrRules::default()));
    }

    #[test]
    fn a_setting_out_of_range_is_named_in_the_error() {
        assert_eq!(rejected_setting(|config| config.weight_scale = f64::NAN), "weight_scale");
        assert_eq!(rejected_setting(|config| config.weight_cap = WEIGHT_CAP + 1), "weight_cap");
        assert_eq!(rejected_setting(|config| config.weight_cap = 0), "weight_cap");
        assert_eq!(rejected_setting(|config| config.loss_floor = -0.1), "loss_floor");
        assert_eq!(rejected_setting(|config| config.rtt_alpha = 0.0), "rtt_alpha");
        assert_eq!(rejected_setting(|config| config.deviation_beta = 1.1), "deviation_beta");
        assert_eq!(rejected_setting(|config| config.loss_alpha = f64::INFINITY), "loss_alpha");
        assert_eq!(rejected_setting(|config| config.change_min = -0.01), "change_min");
        assert_eq!(rejected_setting(|config| config.raise_max = 1.0), "raise_max");
        assert_eq!(
            rejected_setting(|config| config.raise_interval_min = Duration::MAX),
            "raise_interval_min"
        );
        assert_eq!(rejected_setting(|config| config.ramp_start = 0.0), "ramp_start");
        assert_eq!(rejected_setting(|config| config.degraded_factor = 0.0), "degraded_factor");
        assert_eq!(rejected_setting(|config| config.recovery_factor = 2.0), "recovery_factor");
        assert_eq!(rejected_setting(|config| config.unhealthy_share_max = 1.0), "unhealthy_share_max");
        assert_eq!(rejected_setting(|config| config.window_picks = 0), "window_picks");
        assert_eq!(rejected_setting(|config| config.paths_max = PATHS_MAX + 1), "paths_max");
    }

    #[test]
    fn scaling_rounds_to_nearest_and_half_up() {
        let half = Ratio::new("half", 0.5, 0.0..=1.0).unwrap();
        assert_eq!([2, 3, 4, 5].map(|whole| half.scale(whole)), [1, 2, 2, 3]);
        let third = Ratio::new("third", 1.0 / 3.0, 0.0..=1.0).unwrap();
        assert_eq!([3, 4, 5, 6].map(|whole| third.scale(whole)), [1, 1, 2, 2]);
    }

    #[test]
    fn the_unhealthy_cap_has_room_for_the_maximum_number_of_paths() {
        let config = SwrrConfig { ramp_start: 0.05, unhealthy_share_max: 0.05, ..SwrrConfig::default() };
        let rules = SwrrRules::new(&config).unwrap();
        let least = rules.ramp_start.scale(super::super::weight::UNIT);
        assert!(rules.unhealthy_sum_max(least) >= PATHS_MAX as i64);
    }

    #[test]
    fn the_largest_unhealthy_sum_is_strictly_below_its_share() {
        let rules = SwrrRules::default();
        // If `healthy` is a multiple of nine, a ninth of it would be exactly a tenth of the total.
        for healthy in [1_000, 6_554, 9 * 1_000, 65_536, 9 * 65_536, 1_000_000_007] {
            let unhealthy = rules.unhealthy_sum_max(healthy);
            assert!(unhealthy * 10 < unhealthy + healthy, "{unhealthy} beside {healthy}");
            assert!((unhealthy + 1) * 10 >= unhealthy + 1 + healthy, "{unhealthy} is not the largest");
        }
    }
}
