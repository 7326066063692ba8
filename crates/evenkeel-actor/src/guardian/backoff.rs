//! How long to wait before a restart.
//!
//! Bound: without jitter the n-th delay in a row is `min × factorⁿ`, and `max` from there on; jitter
//! takes away `jitter_percent` of it at most and adds nothing.

use core::fmt;
use core::time::Duration;

use evenkeel_policy::time::Instant;

/// Delays that grow with every restart in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    min: Duration,
    max: Duration,
    factor: u32,
    jitter_percent: u8,
}

impl Backoff {
    /// Restarts at once, every time.
    pub const NONE: Self = Self { min: Duration::ZERO, max: Duration::ZERO, factor: 1, jitter_percent: 0 };

    /// Waits 10 ms, then twice as long every time, 10 s at most, less up to a fifth at random.
    ///
    /// The first wait outlasts a hiccup and is no outage yet; ten waits in a row take 8 to 10.3 s, so
    /// that an actor that cannot start uses up the ten restarts that the default supervision allows it
    /// in a minute.
    pub const DOUBLING: Self =
        Self { min: Duration::from_millis(10), max: Duration::from_secs(10), factor: 2, jitter_percent: 20 };

    /// Makes a backoff from `min` up to `max`, each delay `factor` times the one before, less up to
    /// `jitter_percent` of it at random.
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

    /// Says how long to wait before a restart that follows `before` others in a row.
    ///
    /// `random` picks from the jitter evenly; 0 leaves the delay whole.
    pub fn delay(self, before: u32, random: u32) -> Duration {
        let whole = self.whole_nanos(before);
        let cut_max = u128::from(whole) * u128::from(self.jitter_percent) / 100;
        // At most `whole`, which is a u64.
        let cut = ((cut_max * u128::from(random)) >> u32::BITS) as u64;
        Duration::from_nanos(whole - cut)
    }

    fn whole_nanos(self, before: u32) -> u64 {
        let max = nanos(self.max);
        let grown =
            u64::from(self.factor).checked_pow(before).and_then(|times| nanos(self.min).checked_mul(times));
        grown.unwrap_or(max).min(max)
    }
}

fn nanos(span: Duration) -> u64 {
    (Instant::ORIGIN + span).as_nanos()
}

/// The rule a backoff breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidBackoff {
    /// The first delay is nothing, so no factor makes it grow; [`Backoff::NONE`] says that.
    MinZero,
    /// The longest delay is shorter than the first.
    MaxBelowMin {
        /// The first delay.
        min: Duration,
        /// The longest.
        max: Duration,
    },
    /// Delays would shrink to nothing.
    FactorZero,
    /// More than all of a delay cannot be taken away.
    JitterAbove100 {
        /// The jitter as given.
        jitter_percent: u8,
    },
}

impl fmt::Display for InvalidBackoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MinZero => f.write_str("a backoff from 0 never grows"),
            Self::MaxBelowMin { min, max } => {
                write!(f, "a backoff from {min:?} cannot end at {max:?}")
            }
            Self::FactorZero => f.write_str("a backoff cannot grow by a factor of 0"),
            Self::JitterAbove100 { jitter_percent } => {
                write!(f, "a jitter of {jitter_percent} percent is more than the delay")
            }
        }
    }
}

impl core::error::Error for InvalidBackoff {}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::string::ToString;
    use alloc::vec::Vec;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn delays_grow_by_the_factor_up_to_the_max() {
        let backoff = backoff(10 * MS, 1_000 * MS, 3, 0).unwrap();
        let delays: Vec<_> = (0..7).map(|before| backoff.delay(before, 0).as_millis()).collect();
        assert_eq!(delays, [10, 30, 90, 270, 810, 1_000, 1_000]);
        assert_eq!(backoff.delay(u32::MAX, 0), 1_000 * MS);
    }

    #[test]
    fn a_factor_of_1_waits_the_same_every_time() {
        let backoff = backoff(10 * MS, 1_000 * MS, 1, 0).unwrap();
        assert_eq!([0, 1, u32::MAX].map(|before| backoff.delay(before, 0)), [10 * MS; 3]);
    }

    #[test]
    fn the_longest_spans_do_not_overflow() {
        let backoff = backoff(Duration::from_nanos(1), Duration::MAX, u32::MAX, 100).unwrap();
        assert_eq!(backoff.delay(u32::MAX, 0), Duration::from_nanos(u64::MAX));
        assert!(backoff.delay(u32::MAX, u32::MAX) < Duration::from_secs(5));
    }

    #[test]
    fn jitter_only_shortens_and_by_its_percentage_at_most() {
        let backoff = backoff(100 * MS, 100 * MS, 2, 25).unwrap();
        assert_eq!(backoff.delay(0, 0), 100 * MS);
        assert_eq!(backoff.delay(0, 1 << 31), 87 * MS + 500_000 * Duration::from_nanos(1));
        let shortest = backoff.delay(0, u32::MAX);
        assert!(75 * MS <= shortest && shortest < 76 * MS, "{shortest:?}");
    }

    #[test]
    fn none_never_waits() {
        assert_eq!([0, 1, 100].map(|before| Backoff::NONE.delay(before, 12_345)), [Duration::ZERO; 3]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refusals = [
            (backoff(Duration::ZERO, MS, 2, 0), "a backoff from 0 never grows"),
            (backoff(2 * MS, MS, 2, 0), "a backoff from 2ms cannot end at 1ms"),
            (backoff(MS, MS, 0, 0), "a backoff cannot grow by a factor of 0"),
            (backoff(MS, MS, 2, 101), "a jitter of 101 percent is more than the delay"),
        ];
        for (refused, message) in refusals {
            assert_eq!(refused.unwrap_err().to_string(), message);
        }
        assert!(backoff(MS, MS, 1, 100).is_ok());
    }

    fn backoff(min: Duration, max: Duration, factor: u32, jitter: u8) -> Result<Backoff, InvalidBackoff> {
        Backoff::new(min, max, factor, jitter)
    }
}
