//! The one refusal of a setting: it lies outside its range.
//!
//! Bound: a setting passes exactly if it is a number from the least to the most allowed, both included;
//! NaN never is.

use core::fmt;
use core::ops::RangeInclusive;

/// A setting that lies outside its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettingOutOfRange {
    /// The setting's name.
    pub setting: &'static str,
    /// The number as given; a span in seconds.
    pub value: f64,
    /// The least allowed, which may depend on another setting.
    pub min: f64,
    /// The most allowed, which may depend on another setting.
    pub max: f64,
}

impl fmt::Display for SettingOutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} is not between {} and {}", self.setting, self.value, self.min, self.max)
    }
}

impl core::error::Error for SettingOutOfRange {}

/// Refuses a setting outside `range`.
pub fn check(
    setting: &'static str,
    value: impl Into<f64>,
    range: RangeInclusive<f64>,
) -> Result<(), SettingOutOfRange> {
    let value = value.into();
    if range.contains(&value) {
        return Ok(());
    }
    let (min, max) = range.into_inner();
    Err(SettingOutOfRange { setting, value, min, max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn both_ends_of_a_range_are_in_it() {
        assert_eq!(check("top_k", 1_u32, 1.0..=16.0), Ok(()));
        assert_eq!(check("top_k", 16_u32, 1.0..=16.0), Ok(()));
    }

    #[test]
    fn what_is_not_in_the_range_is_refused() {
        for bad in [0.999, 16.001, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert!(check("top_k", bad, 1.0..=16.0).is_err(), "{bad} was let through");
        }
        assert!(check("recover_loss", 0.5, 0.0..=f64::NAN).is_err(), "a range up to nothing holds nothing");
    }

    #[test]
    fn a_refusal_names_the_setting_and_the_range() {
        let refused = check("ramp_start", 0.01, 0.05..=1.0).unwrap_err();
        assert_eq!(refused, SettingOutOfRange { setting: "ramp_start", value: 0.01, min: 0.05, max: 1.0 });
        assert_eq!(refused.to_string(), "ramp_start 0.01 is not between 0.05 and 1");
    }
}
