//! Timestamps in the format of SigV4.

use core::fmt;
use std::time::SystemTime;

/// Seconds since 1970, formatted as `20150830T123600Z`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct UnixSeconds(pub(super) u64);

impl UnixSeconds {
    /// Reads the system clock.
    pub(super) fn now() -> Self {
        Self(SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_secs())
    }

    /// Parses `20150830T123600Z`.
    pub(super) fn parse(text: &str) -> Option<Self> {
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
        exists.then(|| Self(days_since_1970(year, month, day) * 86_400 + hour * 3_600 + minute * 60 + second))
    }
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let days = self.0 / 86_400;
        let second = self.0 % 86_400;
        // Years are counted from March, so that a leap day is the last of its year; 146 097 days are four centuries.
        let days = days + 719_468;
        let era = days / 146_097;
        let day = days % 146_097;
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day_of_year = day - (365 * year + year / 4 - year / 100);
        let shifted_month = (5 * day_of_year + 2) / 153;
        let day_of_month = day_of_year - (153 * shifted_month + 2) / 5 + 1;
        let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
        let year = era * 400 + year + u64::from(month <= 2);
        let hour = second / 3_600;
        let minute = second / 60 % 60;
        let second = second % 60;
        write!(f, "{year:04}{month:02}{day_of_month:02}T{hour:02}{minute:02}{second:02}Z")
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

    proptest! {
        #[test]
        fn parsing_reverses_formatting(seconds in 0_u64..250_000_000_000) {
            let text = UnixSeconds(seconds).to_string();
            prop_assert_eq!(UnixSeconds::parse(&text), Some(UnixSeconds(seconds)));
        }
    }
}
