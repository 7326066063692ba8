//! Timestamps in whole seconds, in the formats of SigV4 and of RFC 3339.

use core::fmt;
use std::time::SystemTime;

pub(crate) const DAY_SECS: u64 = 86_400;

/// Seconds since 1970, formatted as `20150830T123600Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct UnixSeconds(pub u64);

/// Date and time of day in UTC.
struct CivilTime {
    year: u64,
    month: u64,
    day: u64,
    hour: u64,
    minute: u64,
    second: u64,
}

impl UnixSeconds {
    /// Reads the system clock.
    pub fn now() -> Self {
        Self(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs())
    }

    /// Parses `20150830T123600Z`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let bytes = text.as_bytes();
        if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
            return None;
        }
        let number = |from: usize, to: usize| {
            let digits = &text.get(from..to)?;
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse::<u64>().ok())?
        };
        let year = number(0, 4)?;
        let month = number(4, 6)?;
        let day = number(6, 8)?;
        let hour = number(9, 11)?;
        let minute = number(11, 13)?;
        let second = number(13, 15)?;
        let exists = (1970..=9999).contains(&year)
            && (1..=12).contains(&month)
            && (1..=31).contains(&day)
            && hour < 24
            && minute < 60
            && second < 61;
        exists
            .then(|| Self(days_since_1970(year, month, day) * DAY_SECS + hour * 3_600 + minute * 60 + second))
    }

    /// Parses a date such as `2027-01-31`, which means the beginning of the day in UTC, or `2027-01-31T12:00:00Z`.
    pub fn parse_rfc3339(text: &str) -> Option<Self> {
        let (date, time) = match text.split_once('T') {
            Some((date, time)) => (date, time.to_owned()),
            None => (text, "00:00:00Z".to_owned()),
        };
        let has_separators = |text: &str, separator: u8, positions: [usize; 2]| {
            positions.iter().all(|position| text.as_bytes().get(*position) == Some(&separator))
        };
        if !has_separators(date, b'-', [4, 7]) || !has_separators(&time, b':', [2, 5]) {
            return None;
        }
        let parsed = Self::parse(&format!("{}T{}", date.replace('-', ""), time.replace(':', "")))?;
        // A day that its month does not have would be one of the next.
        parsed.to_rfc3339().starts_with(date).then_some(parsed)
    }

    /// Formats as `2027-01-31T12:00:00Z`.
    pub fn to_rfc3339(self) -> String {
        let CivilTime { year, month, day, hour, minute, second } = self.civil();
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
    }

    /// Returns the day of the month, from 1.
    pub(crate) fn day_of_month(self) -> u64 {
        self.civil().day
    }

    fn civil(self) -> CivilTime {
        let days = self.0 / DAY_SECS;
        let second = self.0 % DAY_SECS;
        // Years are counted from March, so that a leap day is the last of its year; 146 097 days are four centuries.
        let days = days + 719_468;
        let era = days / 146_097;
        let day = days % 146_097;
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year + year / 4 - year / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        CivilTime {
            year: era * 400 + year + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * shifted_month + 2) / 5 + 1,
            hour: second / 3_600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CivilTime { year, month, day, hour, minute, second } = self.civil();
        write!(f, "{year:04}{month:02}{day:02}T{hour:02}{minute:02}{second:02}Z")
    }
}

fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let year = year - u64::from(month <= 2);
    let era = year / 400;
    let year_of_era = year % 400;
    let shifted_month = if 2 < month { month - 3 } else { month + 9 };
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_timestamps_are_parsed_and_formatted() {
        for (text, seconds) in
            [("19700101T000000Z", 0), ("20150830T123600Z", 1_440_938_160), ("20000229T235959Z", 951_868_799)]
        {
            assert_eq!(UnixSeconds::parse(text), Some(UnixSeconds(seconds)));
            assert_eq!(UnixSeconds(seconds).to_string(), text);
        }
    }

    #[test]
    fn invalid_timestamps_are_rejected() {
        for bad in [
            "",
            "2015-08-30T12:36",
            "20151330T123600Z",
            "20150830T243600Z",
            "20150830 123600Z",
            "2015083+T123600Z",
        ] {
            assert_eq!(UnixSeconds::parse(bad), None, "{bad:?} was accepted");
        }
    }

    #[test]
    fn dates_and_times_of_rfc_3339_are_parsed_and_formatted() {
        let parse = |text: &str| UnixSeconds::parse_rfc3339(text).map(UnixSeconds::to_rfc3339);
        assert_eq!(parse("2028-02-29").as_deref(), Some("2028-02-29T00:00:00Z"));
        assert_eq!(parse("2027-01-31T12:34:56Z").as_deref(), Some("2027-01-31T12:34:56Z"));
        for bad in [
            "",
            "2027-02-29",
            "2027-1-31",
            "20270131",
            "2027-01-31T12:00Z",
            "2027-01-31 12:00:00Z",
            "1969-01-01",
        ] {
            assert_eq!(parse(bad), None, "{bad:?} was accepted");
        }
    }

    proptest! {
        #[test]
        fn parsing_reverses_formatting(seconds in 0_u64..250_000_000_000) {
            let text = UnixSeconds(seconds).to_string();
            prop_assert_eq!(UnixSeconds::parse(&text), Some(UnixSeconds(seconds)));
        }
    }
}
