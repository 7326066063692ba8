//! Number of relays on a path.

use super::Loss;
use super::rule::SPANS;
use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// Availability of relays on the paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relays {
    /// No relays: every path is direct.
    None,
    /// Relays are configured.
    Configured,
}

/// Number of hops, created only by a [`HopRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopCount(u8);

impl HopCount {
    /// Returns the number.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// Settings of the hop rule; [`HopRule::new`] validates them.
///
/// `longer_rtt` is a millisecond to a day, losses are 0..=1, and no `shorter_` value exceeds its `longer_` one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopConfig {
    /// Smallest number of hops, at least 1 (default 3).
    pub hops_min: u8,
    /// Largest number of hops (default 7).
    pub hops_max: u8,
    /// Initial number of hops (default 5).
    pub hops_start: u8,
    /// Loss above which a hop is added (default 0.1).
    pub longer_loss: f64,
    /// Round trip above which a hop is added (default 500 ms).
    pub longer_rtt: Duration,
    /// Loss below which a hop may be dropped (default 0.01).
    pub shorter_loss: f64,
    /// Round trip below which a hop may be dropped (default 100 ms).
    pub shorter_rtt: Duration,
}

impl Default for HopConfig {
    fn default() -> Self {
        Self {
            hops_min: 3,
            hops_max: 7,
            hops_start: 5,
            longer_loss: 0.1,
            longer_rtt: Duration::from_millis(500),
            shorter_loss: 0.01,
            shorter_rtt: Duration::from_millis(100),
        }
    }
}

/// Validated [`HopConfig`], for paths that have relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopRule {
    config: HopConfig,
}

impl HopRule {
    /// Validates the settings; returns `None` if there are no relays.
    pub fn new(config: HopConfig, relays: Relays) -> Result<Option<Self>, SettingOutOfRange> {
        let c = &config;
        let longer_rtt = c.longer_rtt.as_secs_f64();
        check("hops_min", c.hops_min, 1.0..=u8::MAX.into())?;
        check("hops_max", c.hops_max, c.hops_min.into()..=u8::MAX.into())?;
        check("hops_start", c.hops_start, c.hops_min.into()..=c.hops_max.into())?;
        check("longer_loss", c.longer_loss, 0.0..=1.0)?;
        check("longer_rtt", longer_rtt, SPANS)?;
        // Otherwise one sample could call for a longer and a shorter path at once.
        check("shorter_loss", c.shorter_loss, 0.0..=c.longer_loss)?;
        check("shorter_rtt", c.shorter_rtt.as_secs_f64(), 0.0..=longer_rtt)?;
        Ok(match relays {
            Relays::None => None,
            Relays::Configured => Some(Self { config }),
        })
    }

    /// Returns the initial number of hops.
    pub const fn start(&self) -> HopCount {
        HopCount(self.config.hops_start)
    }

    /// Returns the number of hops of a route; one outside the range is clamped to it.
    pub fn count(&self, hops: usize) -> HopCount {
        let hops = u8::try_from(hops).unwrap_or(u8::MAX);
        HopCount(hops.clamp(self.config.hops_min, self.config.hops_max))
    }

    /// Proposes a number of hops for a path with `hops`: one more when it performs badly, one fewer when it performs
    /// well.
    ///
    /// A count from a rule with another range is first clamped to this one.
    pub fn step(&self, hops: HopCount, rtt: Duration, loss: Loss) -> HopCount {
        let c = &self.config;
        let loss = loss.as_f64();
        let proposed = if loss > c.longer_loss || rtt > c.longer_rtt {
            hops.0.saturating_add(1)
        } else if loss < c.shorter_loss && rtt < c.shorter_rtt {
            hops.0.saturating_sub(1)
        } else {
            hops.0
        };
        HopCount(proposed.clamp(c.hops_min, c.hops_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_starts_with_five_hops() {
        assert_eq!(rule(HopConfig::default()).start().get(), 5);
    }

    #[test]
    fn loss_or_delay_adds_a_hop() {
        assert_eq!(from_five(10, 0.101), 6);
        assert_eq!(from_five(501, 0.0), 6);
        assert_eq!(from_five(501, 0.5), 6);
    }

    #[test]
    fn only_low_loss_with_low_delay_drops_a_hop() {
        assert_eq!(from_five(99, 0.009), 4);
        assert_eq!(from_five(99, 0.01), 5);
        assert_eq!(from_five(100, 0.0), 5);
    }

    #[test]
    fn values_equal_to_the_limits_change_nothing() {
        assert_eq!(from_five(500, 0.1), 5);
        assert_eq!(from_five(100, 0.01), 5);
    }

    #[test]
    fn the_count_stops_at_its_minimum_and_maximum() {
        let rule = rule(HopConfig::default());
        let repeat = |rtt_ms, loss| {
            (0..9).fold(rule.start(), |hops, _| rule.step(hops, Duration::from_millis(rtt_ms), loss)).get()
        };
        assert_eq!(repeat(900, Loss::NONE), 7);
        assert_eq!(repeat(10, Loss::NONE), 3);
    }

    #[test]
    fn a_single_hop_is_allowed_by_config() {
        let rule = rule(HopConfig { hops_min: 1, hops_start: 1, ..HopConfig::default() });
        assert_eq!(rule.step(rule.start(), Duration::from_millis(10), Loss::NONE).get(), 1);
    }

    #[test]
    fn without_relays_the_rule_is_off() {
        assert_eq!(HopRule::new(HopConfig::default(), Relays::None), Ok(None));
    }

    #[test]
    fn an_invalid_setting_is_named_in_the_error_even_without_relays() {
        rejects("hops_min", |c| c.hops_min = 0);
        rejects("hops_max", |c| c.hops_max = 2);
        rejects("hops_start", |c| c.hops_start = 8);
        rejects("longer_loss", |c| c.longer_loss = f64::NAN);
        rejects("longer_rtt", |c| c.longer_rtt = Duration::MAX);
        rejects("shorter_loss", |c| c.shorter_loss = 0.2);
        rejects("shorter_rtt", |c| c.shorter_rtt = Duration::from_secs(1));
    }

    fn rule(config: HopConfig) -> HopRule {
        HopRule::new(config, Relays::Configured).unwrap().unwrap()
    }

    fn from_five(rtt_ms: u64, loss: f64) -> u8 {
        let rule = rule(HopConfig::default());
        rule.step(rule.start(), Duration::from_millis(rtt_ms), Loss::new(loss).unwrap()).get()
    }

    fn rejects(setting: &str, change: impl Fn(&mut HopConfig)) {
        let mut config = HopConfig::default();
        change(&mut config);
        for relays in [Relays::None, Relays::Configured] {
            assert_eq!(HopRule::new(config, relays).unwrap_err().setting, setting);
        }
    }
}
