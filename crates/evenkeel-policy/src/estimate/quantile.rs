//! Quantiles by nearest rank.

use crate::setting::{SettingOutOfRange, check};

/// Quantile, 0..=1 in steps of a millionth.
///
/// Of `n` sorted samples it selects the one at rank `⌈quantile × n⌉`, counted from 1 (nearest rank).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Quantile(u32);

impl Quantile {
    /// The median.
    pub const P50: Self = Self(500_000);
    /// Value that 95 of 100 samples do not exceed.
    pub const P95: Self = Self(950_000);
    /// Value that 99 of 100 samples do not exceed.
    pub const P99: Self = Self(990_000);

    /// Creates a quantile from a fraction, rounded to the nearest millionth.
    pub fn new(quantile: f64) -> Result<Self, SettingOutOfRange> {
        check("quantile", quantile, 0.0..=1.0)?;
        Ok(Self(libm::round(quantile * 1_000_000.0) as u32))
    }

    /// Returns the rank of the selected sample among `samples`, counted from 1; `None` if there are none.
    pub(super) fn rank(self, samples: u64) -> Option<u64> {
        if samples == 0 {
            return None;
        }
        // Whole millions and the remainder are multiplied separately, so that no product exceeds 64 bits.
        let millions = samples / 1_000_000;
        let rest = samples % 1_000_000;
        let millionths = u64::from(self.0);
        let rank = millions * millionths + (rest * millionths).div_ceil(1_000_000);
        Some(rank.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn the_rank_is_exact_where_floating_point_would_round_up() {
        assert_eq!(rank(0.07, 100), Some(7));
        assert_eq!(rank(0.95, 20), Some(19));
        assert_eq!(rank(0.95, 21), Some(20));
    }

    #[test]
    fn the_ends_select_the_smallest_and_the_largest_sample() {
        assert_eq!(rank(0.0, 10), Some(1));
        assert_eq!(rank(1.0, 10), Some(10));
        assert_eq!(rank(1.0, u64::MAX), Some(u64::MAX));
        assert_eq!(rank(0.5, 3_000_001), Some(1_500_001));
        assert_eq!(rank(0.5, 0), None);
    }

    #[test]
    fn a_number_outside_0_to_1_is_rejected() {
        for bad in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert!(Quantile::new(bad).is_err(), "{bad} was accepted");
        }
        assert_eq!(Quantile::new(1.5).unwrap_err().to_string(), "quantile 1.5 is not between 0 and 1");
        assert_eq!(Quantile::new(0.99), Ok(Quantile::P99));
    }

    fn rank(quantile: f64, samples: u64) -> Option<u64> {
        Quantile::new(quantile).unwrap().rank(samples)
    }
}
