//! What is set for a key or a tenant: its weight, how many of its messages are out at once, how many per second.

use core::fmt;
use core::num::NonZeroU32;
use core::ops::RangeInclusive;

use evenkeel_policy::weight::Weight;

/// The slowest and the fastest rate, in messages per second.
const PER_SECOND: RangeInclusive<f64> = 0.001..=1_000_000.0;

/// What is set for a key, or for a tenant and all its keys together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRule {
    /// Its weight; as its messages wish when `None`.
    pub weight: Option<Weight>,
    /// How many of its messages may be in consumers' hands at once.
    pub concurrency_max: Option<NonZeroU32>,
    /// How many deliveries it may have per second.
    pub rate: Option<Rate>,
}

impl KeyRule {
    /// Sets a weight and nothing else.
    pub fn of_weight(weight: Weight) -> Self {
        Self { weight: Some(weight), ..Self::default() }
    }

    /// Tells whether it says nothing.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Tells whether it may hold messages back.
    pub(crate) fn has_limits(&self) -> bool {
        self.concurrency_max.is_some() || self.rate.is_some()
    }
}

/// A token bucket: so many deliveries per second, and so many at once after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Thousandths of a delivery per second.
    millis: NonZeroU32,
    burst: NonZeroU32,
}

impl Rate {
    /// Reads a rate as people write it; without a burst, a second's worth may come at once.
    pub fn new(per_second: f64, burst: Option<NonZeroU32>) -> Result<Self, BadRate> {
        if !PER_SECOND.contains(&per_second) {
            return Err(BadRate);
        }
        // In range, so the casts neither truncate nor lose the sign.
        let millis = NonZeroU32::new((per_second * 1_000.0).round() as u32).ok_or(BadRate)?;
        let second = NonZeroU32::new(per_second.ceil() as u32).ok_or(BadRate)?;
        Ok(Self { millis, burst: burst.unwrap_or(second) })
    }

    /// Reads one as it was written down; `None` when there was none.
    pub(crate) fn from_parts(millis: u32, burst: u32) -> Option<Self> {
        Some(Self { millis: NonZeroU32::new(millis)?, burst: NonZeroU32::new(burst)? })
    }

    /// How many deliveries per second.
    pub fn per_second(self) -> f64 {
        f64::from(self.millis.get()) / 1_000.0
    }

    /// The same in thousandths.
    pub(crate) const fn millis(self) -> u32 {
        self.millis.get()
    }

    /// How many at once after a pause.
    pub const fn burst(self) -> NonZeroU32 {
        self.burst
    }

    /// How long one delivery takes at this rate, in nanoseconds.
    pub(crate) const fn interval_ns(self) -> u64 {
        1_000_000_000_000 / self.millis.get() as u64
    }
}

/// A rate that is out of bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRate;

impl fmt::Display for BadRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a rate is between {} and {} per second", PER_SECOND.start(), PER_SECOND.end())
    }
}

impl core::error::Error for BadRate {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_a_burst_has_a_seconds_worth() {
        let burst = |per_second| Rate::new(per_second, None).unwrap().burst().get();
        assert_eq!([0.001, 0.5, 1.0, 2.5, 1_000_000.0].map(burst), [1, 1, 1, 3, 1_000_000]);
    }

    #[test]
    fn a_rate_out_of_bounds_is_refused() {
        for bad in [0.0, 0.0009, -1.0, 1_000_001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::new(bad, None), Err(BadRate), "{bad} was taken");
        }
    }
}
