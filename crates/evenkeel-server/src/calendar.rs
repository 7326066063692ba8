//! Calendar days and months in UTC.

use core::fmt;

use crate::unix_seconds::{DAY_SECS, UnixSeconds};

/// 9999-12-31, the last day with a year of four digits.
const LAST: u32 = 2_932_896;

/// A day in UTC, as the number of days since 1970; formatted as `2026-11-18`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Day(u32);

impl Day {
    pub fn of(at: UnixSeconds) -> Self {
        Self((at.0 / DAY_SECS).min(u64::from(LAST)) as u32)
    }

    /// Parses `2026-11-18`.
    pub fn parse(text: &str) -> Option<Self> {
        UnixSeconds::parse_rfc3339(text).filter(|_| text.len() == 10).map(Self::of)
    }

    /// Parses `2026-11` as the first day of the month.
    pub fn parse_month(text: &str) -> Option<Self> {
        Self::parse(&format!("{text}-01"))
    }

    /// Returns the time at which the day begins.
    pub fn start(self) -> UnixSeconds {
        UnixSeconds(u64::from(self.0) * DAY_SECS)
    }

    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }

    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the number of days from an earlier day to this one; 0 if it is not earlier.
    pub fn since(self, earlier: Self) -> u32 {
        self.0.saturating_sub(earlier.0)
    }

    pub fn first_of_month(self) -> Self {
        Self(self.0 + 1 - self.start().day_of_month() as u32)
    }

    pub fn first_of_next_month(self) -> Self {
        // No month has more days.
        Self(self.first_of_month().0 + 31).first_of_month()
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.start().to_rfc3339()[..10])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_day_ends_at_midnight_utc() {
        let day = |text: &str| Day::of(UnixSeconds::parse_rfc3339(text).unwrap()).to_string();
        assert_eq!(day("2026-11-18T23:59:59Z"), "2026-11-18");
        assert_eq!(day("2026-11-19T00:00:00Z"), "2026-11-19");
        assert_eq!(Day::of(UnixSeconds(u64::MAX)).to_string(), "9999-12-31");
    }

    #[test]
    fn months_begin_on_their_first_day_whatever_their_length() {
        for (day, first, next) in [
            ("2026-01-31", "2026-01-01", "2026-02-01"),
            ("2026-02-01", "2026-02-01", "2026-03-01"),
            ("2028-02-29", "2028-02-01", "2028-03-01"),
            ("2026-12-31", "2026-12-01", "2027-01-01"),
        ] {
            let parsed = Day::parse(day).unwrap();
            assert_eq!(parsed.first_of_month().to_string(), first, "{day}");
            assert_eq!(parsed.first_of_next_month().to_string(), next, "{day}");
        }
    }

    #[test]
    fn only_days_and_months_that_exist_are_parsed() {
        assert_eq!(Day::parse_month("2026-11"), Day::parse("2026-11-01"));
        for bad in ["", "2026-02-29", "2026-11-18T00:00:00Z", "2026-1-1", "26-11-18"] {
            assert_eq!(Day::parse(bad), None, "{bad:?}");
        }
        for bad in ["", "2026-13", "2026", "2026-11-18", "2026-1"] {
            assert_eq!(Day::parse_month(bad), None, "{bad:?}");
        }
    }
}
