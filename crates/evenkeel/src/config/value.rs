//! Types of configuration values: parsing from TOML and from text, and conversion to JSON.

use std::net::SocketAddr;
use std::path::PathBuf;

use evenkeel_llm::Concurrency;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_telemetry::Secret;
use serde_json::{Value as Json, json};
use toml::de::DeValue;

/// Replaces a secret in the effective configuration.
pub(super) const HIDDEN: &str = "[hidden]";

/// A type that a setting can have.
pub(super) trait ConfigValue: Sized {
    /// Describes valid values, to follow "must be" in an error.
    fn kind() -> String;

    /// Parses a value of the config file.
    fn from_toml(value: &DeValue<'_>) -> Option<Self>;

    /// Parses the text of an environment variable or a flag.
    fn from_text(text: &str) -> Option<Self>;

    /// Returns the value for display; secrets are replaced by [`HIDDEN`].
    fn to_json(&self) -> Json;
}

/// A whole number. It may be negative, so that the range check rejects it with the name of the setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Integer(pub(super) i64);

impl Integer {
    /// Saturates; the range is checked separately.
    pub(super) fn as_usize(self) -> usize {
        usize::try_from(self.0.max(0)).unwrap_or(usize::MAX)
    }

    /// Saturates; the range is checked separately.
    pub(super) fn as_u32(self) -> u32 {
        u32::try_from(self.0.max(0)).unwrap_or(u32::MAX)
    }

    /// Saturates; the range is checked separately.
    pub(super) fn as_u64(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }
}

impl ConfigValue for Integer {
    fn kind() -> String {
        "a whole number".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        let integer = value.as_integer()?;
        let number = i128::from_str_radix(integer.as_str(), integer.radix()).ok()?;
        Some(Self(i64::try_from(number).unwrap_or(if number < 0 { i64::MIN } else { i64::MAX })))
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    fn to_json(&self) -> Json {
        json!(self.0)
    }
}

/// A number with an optional fraction.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Float(pub(super) f64);

impl Float {
    /// Converts from seconds. Saturates; the range is checked separately.
    pub(super) fn as_secs(self) -> Duration {
        let saturated = if self.0 > 0.0 { Duration::MAX } else { Duration::ZERO };
        Duration::try_from_secs_f64(self.0).unwrap_or(saturated)
    }

    /// Converts from milliseconds. Saturates; the range is checked separately.
    pub(super) fn as_millis(self) -> Duration {
        Self(self.0 / 1_000.0).as_secs()
    }
}

impl ConfigValue for Float {
    fn kind() -> String {
        "a number".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value {
            // The TOML parser has already removed `_` between digits.
            DeValue::Float(float) => float.as_str().parse().ok().map(Self),
            DeValue::Integer(_) => Integer::from_toml(value).map(|whole| Self(whole.0 as f64)),
            DeValue::String(_)
            | DeValue::Boolean(_)
            | DeValue::Datetime(_)
            | DeValue::Array(_)
            | DeValue::Table(_) => None,
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok().map(Self)
    }

    fn to_json(&self) -> Json {
        // Prints 5 instead of 5.0 where the conversion to i64 is exact.
        if self.0.fract() == 0.0 && self.0.abs() < 1e15 { json!(self.0 as i64) } else { json!(self.0) }
    }
}

/// Value of `max_concurrency` that selects the adaptive concurrency limit.
const ADAPTIVE: &str = "adaptive";

impl ConfigValue for Concurrency {
    fn kind() -> String {
        format!("a whole number, or {ADAPTIVE:?}")
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value.as_str() {
            Some(text) => (text == ADAPTIVE).then_some(Self::Adaptive),
            None => Integer::from_toml(value).map(|slots| Self::Fixed(slots.as_u32())),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == ADAPTIVE {
            return Some(Self::Adaptive);
        }
        Integer::from_text(text).map(|slots| Self::Fixed(slots.as_u32()))
    }

    fn to_json(&self) -> Json {
        match self {
            Self::Fixed(slots) => json!(slots),
            Self::Adaptive => json!(ADAPTIVE),
        }
    }
}

impl ConfigValue for bool {
    fn kind() -> String {
        "true or false".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_bool()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn to_json(&self) -> Json {
        json!(self)
    }
}

impl ConfigValue for String {
    fn kind() -> String {
        "a string in quotes".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn to_json(&self) -> Json {
        json!(self)
    }
}

impl ConfigValue for Secret<String> {
    fn kind() -> String {
        String::kind()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        String::from_toml(value).map(Self::new)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::new(text.to_owned()))
    }

    fn to_json(&self) -> Json {
        json!(HIDDEN)
    }
}

impl ConfigValue for PathBuf {
    fn kind() -> String {
        "a path in quotes".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().map(Self::from)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(Self::from(text))
    }

    fn to_json(&self) -> Json {
        json!(self.to_string_lossy())
    }
}

impl ConfigValue for SocketAddr {
    fn kind() -> String {
        "an address and a port, such as \"127.0.0.1:7070\"".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().and_then(Self::from_text)
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn to_json(&self) -> Json {
        json!(self.to_string())
    }
}

impl ConfigValue for Weight {
    fn kind() -> String {
        "a number from 0.01 to 1000".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        Self::new(Float::from_toml(value)?.0).ok()
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::new(Float::from_text(text)?.0).ok()
    }

    fn to_json(&self) -> Json {
        Float(self.as_f64()).to_json()
    }
}

impl ConfigValue for KeyHash {
    fn kind() -> String {
        "`sha256:` and 64 hexadecimal digits, as printed by `evenkeel tenant key`".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().and_then(Self::from_text)
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn to_json(&self) -> Json {
        json!(fingerprint(self))
    }
}

/// A time such as `2027-01-31T12:00:00Z`; a date means its beginning in UTC.
impl ConfigValue for UnixSeconds {
    fn kind() -> String {
        "a date such as 2027-01-31 or a time such as 2027-01-31T12:00:00Z".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value {
            DeValue::Datetime(time) => Self::from_text(&time.to_string()),
            value => value.as_str().and_then(Self::from_text),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        Self::parse_rfc3339(text)
    }

    fn to_json(&self) -> Json {
        json!(self.to_rfc3339())
    }
}

/// Returns the first 8 digits of a hash, enough to distinguish keys.
pub fn fingerprint(hash: &KeyHash) -> String {
    let mut text = hash.to_string();
    text.truncate("sha256:".len() + 8);
    text + "…"
}

impl<T: ConfigValue> ConfigValue for Vec<T> {
    fn kind() -> String {
        format!("a list of values, each {}", T::kind())
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_array()?.iter().map(|item| T::from_toml(item.get_ref())).collect()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(T::from_text).collect()
    }

    fn to_json(&self) -> Json {
        self.iter().map(T::to_json).collect()
    }
}
