//! Instants and durations as values.
//!
//! `core` has no clock, and this crate must not read one: an [`Instant`] counts nanoseconds since an origin that the
//! caller chooses (process start, simulation start). Arithmetic saturates instead of overflowing, so a clock that steps
//! back reads as "no time has passed".

pub use core::time::Duration;

use core::ops::{Add, AddAssign};

/// Point in time: nanoseconds since an origin that the caller chooses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ORIGIN: Self = Self(0);
    /// The last representable instant, some 584 years after the origin.
    pub const FAR_FUTURE: Self = Self(u64::MAX);

    /// Returns the instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the instant `millis` milliseconds after the origin.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Returns the instant `secs` seconds after the origin.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is in the future.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

/// Returns the nanoseconds of a span, saturating at the range of an [`Instant`].
pub(crate) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Multiplies a span by a factor of at least 0, to the nearest nanosecond and at most [`Duration::MAX`].
///
/// Limits must be compared as spans: as floating-point seconds, 90 ms is less than 0.9 × 100 ms.
pub(crate) fn scaled(span: Duration, factor: f64) -> Duration {
    Duration::try_from_secs_f64(span.as_secs_f64() * factor).unwrap_or(Duration::MAX)
}

/// Returns a span of fractional milliseconds, at least 0.
pub(crate) fn fractional_millis(millis: f64) -> Duration {
    scaled(Duration::from_millis(1), millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_steps_back_reads_as_no_time_passed() {
        assert_eq!(Instant::from_secs(1).since(Instant::from_secs(2)), Duration::ZERO);
        assert_eq!(Instant::from_secs(2).since(Instant::from_millis(500)), Duration::from_millis(1500));
    }

    #[test]
    fn a_scaled_span_is_exact_to_the_nanosecond() {
        assert_eq!(scaled(Duration::from_millis(100), 0.9), Duration::from_millis(90));
        assert_eq!(scaled(Duration::MAX, 2.0), Duration::MAX);
    }

    #[test]
    fn adding_saturates_at_the_far_future() {
        assert_eq!(Instant::from_secs(1) + Duration::MAX, Instant::FAR_FUTURE);
        assert_eq!(Instant::from_secs(u64::MAX), Instant::FAR_FUTURE);
        let mut now = Instant::ORIGIN;
        now += Duration::from_micros(3);
        assert_eq!(now.as_nanos(), 3_000);
        assert_eq!(Instant::from_nanos(3_000), now);
    }
}
