//! What a run can be told: `key=value` words, each key at most once, each value within its limits.

use std::fmt;
use std::num::NonZeroUsize;

const WORKERS_MAX: usize = 64;
const MAILBOX_MAX: usize = 1 << 24;
/// A thousandth of the messages shows that everything runs; a hundred times take minutes.
const SCALE: std::ops::RangeInclusive<f64> = 0.001..=100.0;

/// The keys with their values, as `--help` shows them.
pub const HELP: &str = "\
settings, each at most once:
  workers=N          threads of the runtime (2)
  mailbox=N          places in a mailbox, or `unbounded` (unbounded)
  scale=F            how many times the usual number of messages (1)
  metrics=on|off     where a runtime can switch its metrics (on)
  echo=on|off        an HTTP echo server on the same runtime, and its delays (off)
  colocate=on|off    asker and actor on the same thread, where a runtime pins both (off)
";

/// Everything about a run but its runtime and workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Threads of the runtime.
    pub workers: NonZeroUsize,
    /// What mailbox an actor gets.
    pub mailbox: Mailbox,
    /// How many times the usual number of messages.
    pub scale: f64,
    /// Whether a runtime that has metrics keeps them.
    pub metrics: Switch,
    /// Whether an HTTP echo server runs beside.
    pub echo: Switch,
    /// Whether asker and actor share a thread where a runtime cannot move them by itself.
    pub colocate: Switch,
}

/// What mailbox an actor gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mailbox {
    /// One that takes any number of messages.
    Unbounded,
    /// One whose sender waits while it is full.
    Bounded(NonZeroUsize),
}

/// Something that is on or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    /// It is on.
    On,
    /// It is off.
    Off,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            workers: NonZeroUsize::MIN.saturating_add(1),
            mailbox: Mailbox::Unbounded,
            scale: 1.0,
            metrics: Switch::On,
            echo: Switch::Off,
            colocate: Switch::Off,
        }
    }
}

impl Settings {
    /// Reads `key=value` words.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        let mut given = Vec::new();
        for word in words {
            let Some((key, value)) = word.split_once('=') else {
                return Err(SettingError::NoPair { word: word.to_owned() });
            };
            if given.contains(&key) {
                return Err(SettingError::Twice { key: key.to_owned() });
            }
            given.push(key);
            settings.set(key, value)?;
        }
        Ok(settings)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), SettingError> {
        match key {
            "workers" => self.workers = count(key, value, WORKERS_MAX)?,
            "mailbox" if value == "unbounded" => self.mailbox = Mailbox::Unbounded,
            "mailbox" => self.mailbox = Mailbox::Bounded(count(key, value, MAILBOX_MAX)?),
            "scale" => self.scale = scale(value)?,
            "metrics" => self.metrics = switch(key, value)?,
            "echo" => self.echo = switch(key, value)?,
            "colocate" => self.colocate = switch(key, value)?,
            _ => return Err(SettingError::UnknownKey { key: key.to_owned() }),
        }
        Ok(())
    }

    /// Scales a number of messages, actors or turns; at least one is left.
    pub fn scaled(&self, count: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(1)
    }
}

fn count(key: &str, value: &str, max: usize) -> Result<NonZeroUsize, SettingError> {
    let wanted = || format!("a number from 1 to {max}");
    let count = value.parse().ok().filter(|count: &NonZeroUsize| count.get() <= max);
    count.ok_or_else(|| SettingError::bad_value(key, value, wanted()))
}

fn scale(value: &str) -> Result<f64, SettingError> {
    let wanted = || format!("a number from {} to {}", SCALE.start(), SCALE.end());
    let scale = value.parse().ok().filter(|scale| SCALE.contains(scale));
    scale.ok_or_else(|| SettingError::bad_value("scale", value, wanted()))
}

fn switch(key: &str, value: &str) -> Result<Switch, SettingError> {
    match value {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err(SettingError::bad_value(key, value, "`on` or `off`".to_owned())),
    }
}

/// Why a setting makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettingError {
    /// A word without `=`.
    NoPair {
        /// The word as given.
        word: String,
    },
    /// Nobody knows this key.
    UnknownKey {
        /// The key as given.
        key: String,
    },
    /// A key came a second time.
    Twice {
        /// The key as given.
        key: String,
    },
    /// The key does not take this value.
    BadValue {
        /// The key as given.
        key: String,
        /// The value as given.
        value: String,
        /// What the key takes.
        wanted: String,
    },
}

impl SettingError {
    fn bad_value(key: &str, value: &str, wanted: String) -> Self {
        Self::BadValue { key: key.to_owned(), value: value.to_owned(), wanted }
    }
}

impl fmt::Display for SettingError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoPair { word } => write!(f, "`{word}` is no setting of the form key=value; see --help"),
            Self::UnknownKey { key } => write!(f, "no setting is called `{key}`; see --help"),
            Self::Twice { key } => write!(f, "the setting `{key}` is given twice"),
            Self::BadValue { key, value, wanted } => write!(f, "{key} takes {wanted}, not `{value}`"),
        }
    }
}

impl std::error::Error for SettingError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_words_everything_is_as_usual() {
        assert_eq!(read(""), Ok(Settings::default()));
        assert_eq!(Settings::default().workers.get(), 2);
    }

    #[test]
    fn every_key_sets_its_own_field() {
        let settings = read("workers=1 mailbox=64 scale=0.5 metrics=off echo=on colocate=on").unwrap();
        let one = NonZeroUsize::MIN;
        assert_eq!(
            settings,
            Settings {
                workers: one,
                mailbox: Mailbox::Bounded(one.saturating_add(63)),
                scale: 0.5,
                metrics: Switch::Off,
                echo: Switch::On,
                colocate: Switch::On,
            }
        );
        assert_eq!(read("mailbox=unbounded").unwrap().mailbox, Mailbox::Unbounded);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("fast", "`fast` is no setting of the form key=value; see --help"),
            ("speed=9", "no setting is called `speed`; see --help"),
            ("echo=on echo=off", "the setting `echo` is given twice"),
            ("echo=yes", "echo takes `on` or `off`, not `yes`"),
            ("workers=0", "workers takes a number from 1 to 64, not `0`"),
            ("workers=65", "workers takes a number from 1 to 64, not `65`"),
            ("mailbox=-1", "mailbox takes a number from 1 to 16777216, not `-1`"),
            ("scale=0", "scale takes a number from 0.001 to 100, not `0`"),
            ("scale=NaN", "scale takes a number from 0.001 to 100, not `NaN`"),
        ] {
            assert_eq!(read(line).unwrap_err().to_string(), said);
        }
    }

    #[test]
    fn scaling_leaves_at_least_one() {
        let settings = read("scale=0.02").unwrap();
        assert_eq!(settings.scaled(1000), 20);
        assert_eq!(settings.scaled(10), 1);
    }

    fn read(line: &str) -> Result<Settings, SettingError> {
        Settings::parse(line.split_whitespace())
    }
}
