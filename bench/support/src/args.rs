//! Command-line values that several suites take.

use std::time::{SystemTime, UNIX_EPOCH};

const SCALE_MIN: f64 = 0.0001;
const SCALE_MAX: f64 = 1000.0;

/// Parses the value of `--scale`.
pub fn parse_scale(value: &str) -> Result<f64, String> {
    let scale = value.parse().ok().filter(|scale| (SCALE_MIN..=SCALE_MAX).contains(scale));
    scale.ok_or_else(|| format!("expected a number from {SCALE_MIN} to {SCALE_MAX}"))
}

/// Returns a seed from the clock, for runs without `--seed`.
pub fn time_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 % 1_000_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_outside_its_range_is_rejected() {
        assert_eq!(parse_scale("0.02"), Ok(0.02));
        for value in ["0", "-1", "1001", "NaN", "fast"] {
            assert_eq!(parse_scale(value).unwrap_err(), "expected a number from 0.0001 to 1000", "{value}");
        }
    }
}
