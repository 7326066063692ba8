//! Rules of keys and tenants: weight, concurrency limit, rate limit.

use core::num::NonZeroU32;
use core::ops::RangeInclusive;

use evenkeel_policy::weight::Weight;

/// Allowed rates, in messages per second.
const PER_SECOND: RangeInclusive<f64> = 0.001..=1_000_000.0;

/// The rule of a key, or of a tenant with all its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyRule {
    /// Scheduling weight; `None` leaves it to the messages.
    pub weight: Option<Weight>,
    /// Maximum number of messages in flight.
    pub concurrency_max: Option<NonZeroU32>,
    /// Maximum rate of deliveries.
    pub rate: Option<Rate>,
}

impl KeyRule {
    /// Creates a rule with a weight and no limits.
    pub fn with_weight(weight: Weight) -> Self {
        Self { weight: Some(weight), ..Self::default() }
    }

    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn has_limits(&self) -> bool {
        self.concurrency_max.is_some() || self.rate.is_some()
    }
}

/// A rate limit, as a token bucket: deliveries per second, and the burst allowed after a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Thousandths of a delivery per second.
    millis: NonZeroU32,
    burst: NonZeroU32,
}

impl Rate {
    /// Creates a rate; the burst defaults to one second's worth.
    pub fn new(per_second: f64, burst: Option<NonZeroU32>) -> Result<Self, BadRate> {
        if !PER_SECOND.contains(&per_second) {
            return Err(BadRate);
        }
        // The range check makes the casts exact.
        let millis = NonZeroU32::new((per_second * 1_000.0).round() as u32).ok_or(BadRate)?;
        let second = NonZeroU32::new(per_second.ceil() as u32).ok_or(BadRate)?;
        Ok(Self { millis, burst: burst.unwrap_or(second) })
    }

    /// Restores a stored rate; `None` if either part is zero.
    pub(crate) fn from_parts(millis: u32, burst: u32) -> Option<Self> {
        Some(Self { millis: NonZeroU32::new(millis)?, burst: NonZeroU32::new(burst)? })
    }

    pub fn per_second(self) -> f64 {
        f64::from(self.millis.get()) / 1_000.0
    }

    /// Returns thousandths of a delivery per second.
    pub(crate) const fn millis(self) -> u32 {
        self.millis.get()
    }

    pub const fn burst(self) -> NonZeroU32 {
        self.burst
    }

    /// Returns the time between two deliveries, in nanoseconds.
    pub(crate) const fn interval_ns(self) -> u64 {
        1_000_000_000_000 / self.millis.get() as u64
    }
}

/// Error of a rate out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a rate is between {} and {} per second", PER_SECOND.start(), PER_SECOND.end())]
pub struct BadRate;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_burst_defaults_to_one_seconds_worth() {
        let burst = |per_second| Rate::new(per_second, None).unwrap().burst().get();
        assert_eq!([0.001, 0.5, 1.0, 2.5, 1_000_000.0].map(burst), [1, 1, 1, 3, 1_000_000]);
    }

    #[test]
    fn a_rate_out_of_range_is_rejected() {
        for bad in [0.0, 0.0009, -1.0, 1_000_001.0, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::new(bad, None), Err(BadRate), "{bad} was accepted");
        }
    }
}
