//! Range check of settings, with one error for all of them.
//!
//! Guarantees: a setting passes if and only if it lies within its inclusive range; NaN never does.

use core::ops::RangeInclusive;

/// Error for a setting outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{setting} {value} is not between {min} and {max}")]
pub struct SettingOutOfRange {
    /// Name of the setting.
    pub setting: &'static str,
    /// The rejected number; a time span in seconds.
    pub value: f64,
    /// Smallest allowed value, which may depend on another setting.
    pub min: f64,
    /// Largest allowed value, which may depend on another setting.
    pub max: f64,
}

/// Rejects a setting outside `range`.
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
    fn both_ends_of_a_range_are_allowed() {
        assert_eq!(check("top_k", 1_u32, 1.0..=16.0), Ok(()));
        assert_eq!(check("top_k", 16_u32, 1.0..=16.0), Ok(()));
    }

    #[test]
    fn a_value_outside_the_range_is_rejected() {
        for bad in [0.999, 16.001, -1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN] {
            assert!(check("top_k", bad, 1.0..=16.0).is_err(), "{bad} was accepted");
        }
        assert!(check("recover_loss", 0.5, 0.0..=f64::NAN).is_err(), "a range that ends at NaN is empty");
    }

    #[test]
    fn the_error_names_the_setting_and_the_range() {
        let error = check("ramp_start", 0.01, 0.05..=1.0).unwrap_err();
        assert_eq!(error, SettingOutOfRange { setting: "ramp_start", value: 0.01, min: 0.05, max: 1.0 });
        assert_eq!(error.to_string(), "ramp_start 0.01 is not between 0.05 and 1");
    }
}
