//! Kinds of values: how each is read from TOML and from a variable, and how it is shown.

use std::net::SocketAddr;
use std::path::PathBuf;

use evenkeel_llm::Concurrency;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_server::api_key::KeyHash;
use evenkeel_telemetry::Secret;
use serde_json::{Value as Json, json};
use toml::de::DeValue;

/// What is shown in place of a secret.
pub(super) const HIDDEN: &str = "[hidden]";

/// A value that a configuration can hold.
pub(super) trait ConfigValue: Sized {
    /// What it must be, in words.
    fn kind() -> String;

    /// Reads it from a file.
    fn from_toml(value: &DeValue<'_>) -> Option<Self>;

    /// Reads it from a variable or a flag.
    fn from_text(text: &str) -> Option<Self>;

    /// Shows it, unless it is a secret.
    fn show(&self) -> Json;
}

/// A whole number, negative ones included, so that a range can refuse them by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Integer(pub(super) i64);

impl Integer {
    /// Saturates, for ranges that are checked afterwards.
    pub(super) fn as_usize(self) -> usize {
        usize::try_from(self.0.max(0)).unwrap_or(usize::MAX)
    }

    /// Saturates, for ranges that are checked afterwards.
    pub(super) fn as_u32(self) -> u32 {
        u32::try_from(self.0.max(0)).unwrap_or(u32::MAX)
    }

    /// Saturates, for ranges that are checked afterwards.
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

    fn show(&self) -> Json {
        json!(self.0)
    }
}

/// A number with or without a fraction.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub(super) struct Float(pub(super) f64);

impl Float {
    /// Takes it for seconds; saturates, for ranges that are checked afterwards.
    pub(super) fn as_secs(self) -> Duration {
        let over = if 0.0 < self.0 { Duration::MAX } else { Duration::ZERO };
        Duration::try_from_secs_f64(self.0).unwrap_or(over)
    }

    /// Takes it for milliseconds; saturates, for ranges that are checked afterwards.
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
            // Digits of a float may be grouped by `_` in TOML; the parser has taken them out.
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

    fn show(&self) -> Json {
        // Whole up to here, a float is shown as people write it.
        if self.0.fract() == 0.0 && self.0.abs() < 1e15 { json!(self.0 as i64) } else { json!(self.0) }
    }
}

/// The word for a node that has as many requests as it turns out to be good for.
const ADAPTIVE: &str = "adaptive";

impl ConfigValue for Concurrency {
    fn kind() -> String {
        format!("a whole number, or {ADAPTIVE:?}")
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        match value.as_str() {
            Some(word) => (word == ADAPTIVE).then_some(Self::Adaptive),
            None => Integer::from_toml(value).map(|slots| Self::Fixed(slots.as_u32())),
        }
    }

    fn from_text(text: &str) -> Option<Self> {
        if text == ADAPTIVE {
            return Some(Self::Adaptive);
        }
        Integer::from_text(text).map(|slots| Self::Fixed(slots.as_u32()))
    }

    fn show(&self) -> Json {
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

    fn show(&self) -> Json {
        json!(self)
    }
}

impl ConfigValue for String {
    fn kind() -> String {
        "a text in quotes".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().map(str::to_owned)
    }

    fn from_text(text: &str) -> Option<Self> {
        Some(text.to_owned())
    }

    fn show(&self) -> Json {
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

    fn show(&self) -> Json {
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

    fn show(&self) -> Json {
        json!(self.to_string_lossy())
    }
}

impl ConfigValue for SocketAddr {
    fn kind() -> String {
        "an address and a port, like \"127.0.0.1:7070\"".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().and_then(Self::from_text)
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> Json {
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

    fn show(&self) -> Json {
        Float(self.as_f64()).show()
    }
}

impl ConfigValue for KeyHash {
    fn kind() -> String {
        "`sha256:` and 64 hexadecimal digits, as `evenkeel tenant key` prints them".to_owned()
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_str().and_then(Self::from_text)
    }

    fn from_text(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    fn show(&self) -> Json {
        json!(fingerprint(self))
    }
}

/// The first digits of a hash: enough to tell keys apart.
pub fn fingerprint(hash: &KeyHash) -> String {
    let mut text = hash.to_string();
    text.truncate("sha256:".len() + 8);
    text + "…"
}

impl<T: ConfigValue> ConfigValue for Vec<T> {
    fn kind() -> String {
        format!("a list, each of them {}", T::kind())
    }

    fn from_toml(value: &DeValue<'_>) -> Option<Self> {
        value.as_array()?.iter().map(|item| T::from_toml(item.get_ref())).collect()
    }

    fn from_text(text: &str) -> Option<Self> {
        text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(T::from_text).collect()
    }

    fn show(&self) -> Json {
        self.iter().map(T::show).collect()
    }
}
