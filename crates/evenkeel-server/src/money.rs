//! Amounts of money as integers, so that sums are exact.

use core::fmt;

const NANOS_PER_UNIT: u64 = 1_000_000_000;

/// An amount of money in billionths of the currency's unit: a millionth is too coarse for one short embedding. Sums
/// saturate at 18 billion units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Money(u64);

impl Money {
    pub const ZERO: Self = Self(0);
    /// Largest amount that [`Money::from_units`] accepts, in units.
    pub const UNITS_MAX: f64 = 1e9;

    /// Rounds to the nearest billionth; `None` for NaN, negative amounts and those over [`Money::UNITS_MAX`].
    pub fn from_units(units: f64) -> Option<Self> {
        let is_valid = (0.0..=Self::UNITS_MAX).contains(&units);
        is_valid.then(|| Self((units * NANOS_PER_UNIT as f64).round() as u64))
    }

    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    pub fn as_units(self) -> f64 {
        self.0 as f64 / NANOS_PER_UNIT as f64
    }

    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    pub fn saturating_add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

/// Exact, with at least two decimals: `0.10`, `12.000000001`.
impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let decimals = format!("{:09}", self.0 % NANOS_PER_UNIT);
        let significant = decimals.trim_end_matches('0').len().max(2);
        write!(f, "{}.{}", self.0 / NANOS_PER_UNIT, &decimals[..significant])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_printed_exactly() {
        for (units, text) in
            [(0.0, "0.00"), (0.1, "0.10"), (12.0, "12.00"), (1.255, "1.255"), (1e9, "1000000000.00")]
        {
            assert_eq!(Money::from_units(units).unwrap().to_string(), text);
        }
        assert_eq!(Money::from_nanos(12_000_000_001).to_string(), "12.000000001");
    }

    #[test]
    fn an_amount_is_a_number_from_zero_to_a_billion() {
        for bad in [-0.01, f64::NAN, f64::INFINITY, 1e9 + 1.0] {
            assert_eq!(Money::from_units(bad), None, "{bad}");
        }
    }
}
