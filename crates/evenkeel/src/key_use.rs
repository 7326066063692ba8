//! Last uses of tenants' keys, kept in the data directory across restarts, and the expiry of keys.
//!
//! Limits: the file has at most one line per key of a tenant, and is written at most once a minute.

use std::collections::BTreeMap;
use std::path::Path;

use evenkeel_server::api_key::KeyHash;
use evenkeel_server::unix_seconds::UnixSeconds;
use thiserror::Error;

use crate::data_dir::{DataDir, DataDirError};

const FILE: &str = "key-use.json";
const DAY: u64 = 86_400;
/// Longest life of a key that has an expiry, in days.
const DAYS_MAX: u64 = 36_500;

/// Seconds since 1970 of the last use of keys, by their hashes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyUses(BTreeMap<String, u64>);

impl KeyUses {
    pub fn new(uses: Vec<(KeyHash, UnixSeconds)>) -> Self {
        Self(uses.into_iter().map(|(hash, at)| (hash.to_string(), at.0)).collect())
    }

    /// Reads the file; empty if it does not exist.
    pub fn read(data_dir: &Path) -> Result<Self, KeyUseError> {
        let Some(text) = DataDir::read(data_dir, FILE)? else { return Ok(Self::default()) };
        serde_json::from_str(&text).map(Self).map_err(KeyUseError::Malformed)
    }

    pub(crate) fn write(&self, data_dir: &DataDir) -> Result<(), KeyUseError> {
        let text = serde_json::to_string_pretty(&self.0).map_err(KeyUseError::Malformed)?;
        Ok(data_dir.replace(FILE, &(text + "\n"))?)
    }

    pub fn get(&self, hash: &KeyHash) -> Option<UnixSeconds> {
        self.0.get(&hash.to_string()).copied().map(UnixSeconds)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyHash, UnixSeconds)> {
        self.0.iter().filter_map(|(hash, at)| Some((hash.parse().ok()?, UnixSeconds(*at))))
    }
}

#[derive(Debug, Error)]
pub enum KeyUseError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{FILE} is not valid: {0}")]
    Malformed(#[source] serde_json::Error),
}

/// Parses the expiry of a key: a number of days, hours or minutes such as `30d`, `12h` or `90m`, a date such as
/// `2027-01-31`, which means its beginning in UTC, or a time such as `2027-01-31T12:00:00Z`.
pub fn parse_expiry(text: &str, now: UnixSeconds) -> Result<UnixSeconds, String> {
    let relative = || {
        let unit = match text.chars().next_back()? {
            'd' => DAY,
            'h' => 3_600,
            'm' => 60,
            _ => return None,
        };
        let number: u64 = text.get(..text.len() - 1)?.parse().ok()?;
        number.checked_mul(unit).map(|seconds| UnixSeconds(now.0.saturating_add(seconds)))
    };
    let at = relative().or_else(|| UnixSeconds::parse_rfc3339(text)).ok_or_else(|| {
        format!("{text:?} is no expiry; write 30d, 12h, 90m, 2027-01-31 or 2027-01-31T12:00:00Z")
    })?;
    if at <= now || DAYS_MAX * DAY < at.0 - now.0 {
        return Err(format!("the expiry {text:?} must be in the future, within {DAYS_MAX} days"));
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expiry_is_a_duration_a_date_or_a_time_in_the_future() {
        let now = UnixSeconds(1_700_000_000);
        let parse = |text: &str| parse_expiry(text, now).ok().map(|at| at.0);
        assert_eq!(parse("30d"), Some(now.0 + 30 * DAY));
        assert_eq!(parse("12h"), Some(now.0 + 12 * 3_600));
        assert_eq!(parse("90m"), Some(now.0 + 90 * 60));
        assert_eq!(parse("2027-01-31"), Some(1_801_353_600));
        assert_eq!(parse("2027-01-31T12:00:00Z"), Some(1_801_396_800));
        for bad in [
            "",
            "d",
            "0d",
            "-1d",
            "1.5d",
            "30",
            "30s",
            "36501d",
            "99999999999999999d",
            "2020-01-01",
            "2027-02-30",
            "é",
        ] {
            assert_eq!(parse(bad), None, "{bad:?} was accepted");
        }
    }

    #[test]
    fn uses_are_read_back() {
        let uses = KeyUses::new(vec![(KeyHash::of("ek-1"), UnixSeconds(120))]);
        assert_eq!(uses.get(&KeyHash::of("ek-1")), Some(UnixSeconds(120)));
        assert_eq!(uses.get(&KeyHash::of("ek-2")), None);
        assert_eq!(uses.iter().count(), 1);
    }
}
