//! Weight: a key's share relative to the other keys.
//!
//! Guarantees: every weight lies in 0.01..=1000 and is exact in thousandths, so that shares computed from weights are
//! integer arithmetic and identical on every machine.

use core::fmt;

use crate::setting::{self, SettingOutOfRange};

/// Relative share, 0.01..=1000 in steps of 0.001.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// The smallest weight, 0.01.
    pub const MIN: Self = Self(10);
    /// Default weight of a key, 1.
    pub const ONE: Self = Self(1_000);
    /// The largest weight, 1000.
    pub const MAX: Self = Self(1_000_000);

    /// Creates a weight, rounded to the nearest thousandth.
    pub fn new(weight: f64) -> Result<Self, SettingOutOfRange> {
        setting::check("weight", weight, 0.01..=1000.0)?;
        // In range, so the cast neither truncates nor loses the sign.
        Ok(Self(libm::round(weight * 1_000.0) as u32))
    }

    /// Creates a weight of whole units, 1..=1000.
    pub fn whole(weight: u32) -> Result<Self, SettingOutOfRange> {
        Self::new(f64::from(weight))
    }

    /// Returns the weight in thousandths, 10..=1 000 000.
    pub const fn millis(self) -> u32 {
        self.0
    }

    /// Returns the weight as a floating-point number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.0) / 1_000.0
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn both_ends_of_the_range_are_weights() {
        assert_eq!(Weight::new(0.01), Ok(Weight::MIN));
        assert_eq!(Weight::new(1000.0), Ok(Weight::MAX));
        assert_eq!(Weight::whole(1), Ok(Weight::ONE));
        assert_eq!(Weight::default(), Weight::ONE);
    }

    #[test]
    fn a_weight_outside_the_range_is_rejected() {
        for bad in [0.0, 0.009, 1000.1, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Weight::new(bad).is_err(), "{bad} was accepted");
        }
        assert!(Weight::whole(0).is_err());
        let error = Weight::new(0.001).unwrap_err();
        assert_eq!(error.to_string(), "weight 0.001 is not between 0.01 and 1000");
    }

    #[test]
    fn a_weight_keeps_its_thousandths() {
        let weight = Weight::new(2.345).unwrap();
        assert_eq!(weight.millis(), 2_345);
        assert_eq!(weight.to_string(), "2.345");
    }
}
