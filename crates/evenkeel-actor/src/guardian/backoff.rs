//! Exponential backoff with jitter: the delay before a restart.
//!
//! Limits: without jitter, the n-th delay in a row is `min × factorⁿ`, at most `max`; jitter shortens it by at most
//! `jitter_percent` and never lengthens it.

use core::time::Duration;

use evenkeel_policy::time::Instant;

/// Exponential backoff: delays that grow with every restart in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    factor: u32,
    jitter_percent: u8,
}

impl Backoff {
    /// No delay.
    pub const NONE: Self = Self { min: Duration::ZERO, max: Duration::ZERO, factor: 1, jitter_percent: 0 };

    /// Delays from 10 ms, doubled each time, to 10 s, with 20 % jitter.
    ///
    /// The first delay outlasts a brief fault but is too short to be noticed as an outage. Ten delays in a row take 8
    /// to 10.3 s, so an actor that cannot start reaches the default supervision's limit of ten restarts per minute.
    pub const DOUBLING: Self =
        Self { min: Duration::from_millis(10), max: Duration::from_secs(10), factor: 2, jitter_percent: 20 };

    /// Returns a backoff from `min` to `max`, each delay `factor` times the previous one, shortened at random by up to
    /// `jitter_percent`.
    pub const fn new(
        min: Duration,
        max: Duration,
        factor: u32,
        jitter_percent: u8,
    ) -> Result<Self, InvalidBackoff> {
        if min.is_zero() {
            return Err(InvalidBackoff::MinZero);
        }
        if max.as_nanos() < min.as_nanos() {
            return Err(InvalidBackoff::MaxBelowMin { min, max });
        }
        if factor == 0 {
            return Err(InvalidBackoff::FactorZero);
        }
        if jitter_percent > 100 {
            return Err(InvalidBackoff::JitterAbove100 { jitter_percent });
        }
        Ok(Self { min, max, factor, jitter_percent })
    }

    /// Returns the delay before a restart that follows `previous` others in a row.
    ///
    /// `random` selects the jitter uniformly; 0 means no jitter.
    pub fn delay(self, previous: u32, random: u32) -> Duration {
        let full = self.full_nanos(previous);
        let jitter_max = u128::from(full) * u128::from(self.jitter_percent) / 100;
        // At most `full`, which is a u64.
        let jitter = ((jitter_max * u128::from(random)) >> u32::BITS) as u64;
        Duration::from_nanos(full - jitter)
    }

    fn full_nanos(self, previous: u32) -> u64 {
        let max = nanos(self.max);
        let grown =
            u64::from(self.factor).checked_pow(previous).and_then(|times| nanos(self.min).checked_mul(times));
        grown.unwrap_or(max).min(max)
    }
}

fn nanos(duration: Duration) -> u64 {
    (Instant::ORIGIN + duration).as_nanos()
}

/// Reason a [`Backoff`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidBackoff {
    /// The first delay is zero and would never grow; use [`Backoff::NONE`].
    #[error("backoff min is 0; use Backoff::NONE for no delay")]
    MinZero,
    /// The maximum is below the first delay.
    #[error("backoff max is {max:?}, below min {min:?}")]
    MaxBelowMin {
        /// The first delay.
        min: Duration,
        /// The maximum.
        max: Duration,
    },
    /// The factor is zero.
    #[error("backoff factor is 0")]
    FactorZero,
    /// The jitter is above 100 percent.
    #[error("backoff jitter is {jitter_percent} percent, above 100")]
    JitterAbove100 {
        /// The configured jitter.
        jitter_percent: u8,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn delays_grow_by_the_factor_up_to_the_max() {
        let backoff = backoff(10 * MS, 1_000 * MS, 3, 0).unwrap();
        let delays: Vec<_> = (0..7).map(|previous| backoff.delay(previous, 0).as_millis()).collect();
        assert_eq!(delays, [10, 30, 90, 270, 810, 1_000, 1_000]);
        assert_eq!(backoff.delay(u32::MAX, 0), 1_000 * MS);
    }

    #[test]
    fn with_a_factor_of_1_every_delay_is_the_same() {
        let backoff = backoff(10 * MS, 1_000 * MS, 1, 0).unwrap();
        assert_eq!([0, 1, u32::MAX].map(|previous| backoff.delay(previous, 0)), [10 * MS; 3]);
    }

    #[test]
    fn the_longest_delays_do_not_overflow() {
        let backoff = backoff(Duration::from_nanos(1), Duration::MAX, u32::MAX, 100).unwrap();
        assert_eq!(backoff.delay(u32::MAX, 0), Duration::from_nanos(u64::MAX));
        assert!(backoff.delay(u32::MAX, u32::MAX) < Duration::from_secs(5));
    }

    #[test]
    fn jitter_shortens_a_delay_by_at_most_its_percentage() {
        let backoff = backoff(100 * MS, 100 * MS, 2, 25).unwrap();
        assert_eq!(backoff.delay(0, 0), 100 * MS);
        assert_eq!(backoff.delay(0, 1 << 31), 87 * MS + 500_000 * Duration::from_nanos(1));
        let shortest = backoff.delay(0, u32::MAX);
        assert!(75 * MS <= shortest && shortest < 76 * MS, "{shortest:?}");
    }

    #[test]
    fn none_never_waits() {
        assert_eq!([0, 1, 100].map(|previous| Backoff::NONE.delay(previous, 12_345)), [Duration::ZERO; 3]);
    }

    #[test]
    fn invalid_options_are_rejected() {
        let invalid = [
            (backoff(Duration::ZERO, MS, 2, 0), "backoff min is 0; use Backoff::NONE for no delay"),
            (backoff(2 * MS, MS, 2, 0), "backoff max is 1ms, below min 2ms"),
            (backoff(MS, MS, 0, 0), "backoff factor is 0"),
            (backoff(MS, MS, 2, 101), "backoff jitter is 101 percent, above 100"),
        ];
        for (result, message) in invalid {
            assert_eq!(result.unwrap_err().to_string(), message);
        }
        assert!(backoff(MS, MS, 1, 100).is_ok());
    }

    fn backoff(min: Duration, max: Duration, factor: u32, jitter: u8) -> Result<Backoff, InvalidBackoff> {
        Backoff::new(min, max, factor, jitter)
    }
}
