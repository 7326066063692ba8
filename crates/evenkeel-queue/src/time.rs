//! Wall-clock times, which keep their meaning across restarts.

use core::fmt;
use core::ops::Add;
use core::time::Duration;
use std::time::{Instant, SystemTime};

const DAY_SECS: u64 = 86_400;

/// A time in milliseconds since 1970.
///
/// The queue uses wall-clock time because stored times must keep their meaning across restarts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixMillis(pub u64);

impl UnixMillis {
    /// Returns the time since `earlier`; zero if that is in the future.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    const fn secs(self) -> u64 {
        self.0 / 1_000
    }
}

impl Add<Duration> for UnixMillis {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }
}

/// Shows date and time of day, as in `2026-11-16 20:31:16 UTC`.
impl fmt::Display for UnixMillis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.secs() / DAY_SECS);
        write!(f, "{year:04}-{month:02}-{day:02} {}", TimeOfDay(*self))
    }
}

/// A time relative to now, as in `in 29 s (20:31:16 UTC)`; with the date if it is not within a day.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeUntil {
    pub(crate) at: UnixMillis,
    pub(crate) now: UnixMillis,
}

impl fmt::Display for TimeUntil {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.at.since(self.now).as_secs();
        match secs {
            0 => f.write_str("now")?,
            1..120 => write!(f, "in {secs} s")?,
            120..7_200 => write!(f, "in {} min", secs / 60)?,
            7_200..172_800 => write!(f, "in {} h", secs / 3_600)?,
            _ => write!(f, "in {} days", secs / DAY_SECS)?,
        }
        if secs < DAY_SECS { write!(f, " ({})", TimeOfDay(self.at)) } else { write!(f, " ({})", self.at) }
    }
}

struct TimeOfDay(UnixMillis);

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let secs = self.0.secs() % DAY_SECS;
        write!(f, "{:02}:{:02}:{:02} UTC", secs / 3_600, secs / 60 % 60, secs % 60)
    }
}

/// Returns year, month and day of the proleptic Gregorian calendar, from days since 1970-01-01.
fn date(days: u64) -> (u64, u64, u64) {
    // Counted in eras of 400 years that start on 1 March, so that leap days come last.
    let days = days + 719_468;
    let of_era = days % 146_097;
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = days / 146_097 * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

/// A wall clock that never runs backwards within a process.
///
/// It reads the system's wall clock once and adds the monotonic clock from there on, so an operator who sets the
/// clock back neither extends nor ends leases.
#[derive(Clone, Copy, Debug)]
pub struct WallClock {
    started: Instant,
    at: UnixMillis,
}

impl WallClock {
    /// Starts from the system's wall clock.
    pub fn start() -> Self {
        let since_1970 = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self { started: Instant::now(), at: UnixMillis::default() + since_1970 }
    }

    pub fn now(&self) -> UnixMillis {
        self.at + self.started.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_shown_as_date_and_time_of_day() {
        for (ms, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399_999, "2000-02-28 23:59:59 UTC"),
            (951_782_400_000, "2000-02-29 00:00:00 UTC"),
            (951_868_800_000, "2000-03-01 00:00:00 UTC"),
            (1_794_857_876_477, "2026-11-16 19:37:56 UTC"),
            (4_107_542_399_000, "2100-02-28 23:59:59 UTC"),
            (4_107_542_400_000, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(UnixMillis(ms).to_string(), text);
        }
    }

    #[test]
    fn a_time_ahead_is_shown_relative_to_now() {
        let now = UnixMillis(1_794_857_876_477);
        let until = |secs| TimeUntil { at: now + Duration::from_secs(secs), now }.to_string();
        assert_eq!(until(0), "now (19:37:56 UTC)");
        assert_eq!(until(29), "in 29 s (19:38:25 UTC)");
        assert_eq!(until(150), "in 2 min (19:40:26 UTC)");
        assert_eq!(until(3 * 3_600), "in 3 h (22:37:56 UTC)");
        assert_eq!(until(4 * DAY_SECS), "in 4 days (2026-11-20 19:37:56 UTC)");
    }
}
