//! How many relays a path runs through.

use super::Loss;
use super::rule::SPANS;
use crate::setting::{SettingOutOfRange, check};
use crate::time::Duration;

/// Whether paths can run through relays at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Relays {
    /// There are none: every path is direct.
    None,
    /// Some are configured.
    Configured,
}

/// A number of hops, only ever made by a [`HopRule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HopCount(u8);

impl HopCount {
    /// The number itself.
    pub const fn get(self) -> u8 {
        self.0
    }
}

/// The numbers of the hop rule; [`HopRule::new`] checks them.
///
/// `longer_rtt` is a millisecond to a day, losses 0..=1, and nothing shorter exceeds what is longer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopConfig {
    /// The fewest hops, at least 1: 3.
    pub hops_min: u8,
    /// The most hops: 7.
    pub hops_max: u8,
    /// The hops a path starts with: 5.
    pub hops_start: u8,
    /// The loss above which a hop is added: 0.1.
    pub longer_loss: f64,
    /// The round trip above which a hop is added: 500 ms.
    pub longer_rtt: Duration,
    /// The loss below which a hop may be dropped: 0.01.
    pub shorter_loss: f64,
    /// The round trip below which a hop may be dropped: 100 ms.
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

/// A [`HopConfig`] that holds together, for paths that have relays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopRule {
    config: HopConfig,
}

impl HopRule {
    /// Checks the numbers; without relays there is no rule to follow.
    pub fn new(config: HopConfig, relays: Relays) -> Result<Option<Self>, SettingOutOfRange> {
        let c = &config;
        let longer_rtt = c.longer_rtt.as_secs_f64();
        check("hops_min", c.hops_min, 1.0..=u8::MAX.into())?;
        check("hops_max", c.hops_max, c.hops_min.into()..=u8::MAX.into())?;
        check("hops_start", c.hops_start, c.hops_min.into()..=c.hops_max.into())?;
        check("longer_loss", c.longer_loss, 0.0..=1.0)?;
        check("longer_rtt", longer_rtt, SPANS)?;
        // Or one sample could ask for a longer and a shorter path at once.
        check("shorter_loss", c.shorter_loss, 0.0..=c.longer_loss)?;
        check("shorter_rtt", c.shorter_rtt.as_secs_f64(), 0.0..=longer_rtt)?;
        Ok(match relays {
            Relays::None => None,
            Relays::Configured => Some(Self { config }),
        })
    }

    /// The hops a path starts with.
    pub const fn start(&self) -> HopCount {
        HopCount(self.config.hops_start)
    }

    /// Proposes how many hops a path with `hops` should have: one more when it does badly, one fewer
    /// when it does well.
    ///
    /// A count from a rule with another range is first brought into this one.
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
    fn the_limits_themselves_change_nothing() {
        assert_eq!(from_five(500, 0.1), 5);
        assert_eq!(from_five(100, 0.01), 5);
    }

    #[test]
    fn the_count_stops_at_both_ends() {
        let rule = rule(HopConfig::default());
        let walk = |rtt_ms, loss| {
            (0..9).fold(rule.start(), |hops, _| rule.step(hops, Duration::from_millis(rtt_ms), loss)).get()
        };
        assert_eq!(walk(900, Loss::NONE), 7);
        assert_eq!(walk(10, Loss::NONE), 3);
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
    fn a_number_that_cannot_stand_is_refused_by_name_even_without_relays() {
        refuses("hops_min", |c| c.hops_min = 0);
        refuses("hops_max", |c| c.hops_max = 2);
        refuses("hops_start", |c| c.hops_start = 8);
        refuses("longer_loss", |c| c.longer_loss = f64::NAN);
        refuses("longer_rtt", |c| c.longer_rtt = Duration::MAX);
        refuses("shorter_loss", |c| c.shorter_loss = 0.2);
        refuses("shorter_rtt", |c| c.shorter_rtt = Duration::from_secs(1));
    }

    fn rule(config: HopConfig) -> HopRule {
        HopRule::new(config, Relays::Configured).unwrap().unwrap()
    }

    fn from_five(rtt_ms: u64, loss: f64) -> u8 {
        let rule = rule(HopConfig::default());
        rule.step(rule.start(), Duration::from_millis(rtt_ms), Loss::new(loss).unwrap()).get()
    }

    fn refuses(setting: &str, spoil: impl Fn(&mut HopConfig)) {
        let mut config = HopConfig::default();
        spoil(&mut config);
        for relays in [Relays::None, Relays::Configured] {
            assert_eq!(HopRule::new(config, relays).unwrap_err().setting, setting);
        }
    }
}
