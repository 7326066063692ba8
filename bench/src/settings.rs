//! Settings of a run: `key=value` pairs, each key at most once, each value within its limits.

use std::num::NonZeroUsize;

const WORKERS_MAX: usize = 64;
const MAILBOX_MAX: usize = 1 << 24;
/// Range of `scale`: a thousandth of the messages is enough for a smoke test; a hundred times as many take minutes.
const SCALE: std::ops::RangeInclusive<f64> = 0.001..=100.0;

/// Help text of the settings.
pub const HELP: &str = "\
Settings, each at most once:
  workers=N          worker threads of the runtime [default: 2]
  mailbox=N          mailbox capacity, or `unbounded` [default: unbounded]
  scale=F            factor on the number of messages, from 0.001 to 100 [default: 1]
  metrics=on|off     metrics of the runtime, if it can switch them [default: on]
  echo=on|off        run an HTTP echo server on the same runtime and measure its latency [default: off]
  colocate=on|off    asker and actor on the same thread, if the runtime pins both [default: off]
";

/// Parameters of a run besides its runtime and workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    pub workers: NonZeroUsize,
    pub mailbox: Mailbox,
    /// Factor on the number of messages.
    pub scale: f64,
    /// Ignored by runtimes without metrics.
    pub metrics: Switch,
    /// HTTP echo server on the same runtime.
    pub echo: Switch,
    /// Runs asker and actor on the same thread if the runtime cannot move them between threads.
    pub colocate: Switch,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mailbox {
    Unbounded,
    /// The sender waits while the mailbox is full.
    Bounded(NonZeroUsize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Switch {
    On,
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
    /// Parses `key=value` pairs.
    pub fn parse<'a>(pairs: impl IntoIterator<Item = &'a str>) -> Result<Self, SettingError> {
        let mut settings = Self::default();
        let mut given = Vec::new();
        for pair in pairs {
            let Some((key, value)) = pair.split_once('=') else {
                return Err(SettingError::NoPair { given: pair.to_owned() });
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

    /// Multiplies a count by the scale; the result is at least one.
    pub fn scaled(&self, count: u64) -> u64 {
        ((count as f64 * self.scale) as u64).max(1)
    }
}

fn count(key: &str, value: &str, max: usize) -> Result<NonZeroUsize, SettingError> {
    let expected = || format!("a number from 1 to {max}");
    let count = value.parse().ok().filter(|count: &NonZeroUsize| count.get() <= max);
    count.ok_or_else(|| SettingError::bad_value(key, value, expected()))
}

fn scale(value: &str) -> Result<f64, SettingError> {
    let expected = || format!("a number from {} to {}", SCALE.start(), SCALE.end());
    let scale = value.parse().ok().filter(|scale| SCALE.contains(scale));
    scale.ok_or_else(|| SettingError::bad_value("scale", value, expected()))
}

fn switch(key: &str, value: &str) -> Result<Switch, SettingError> {
    match value {
        "on" => Ok(Switch::On),
        "off" => Ok(Switch::Off),
        _ => Err(SettingError::bad_value(key, value, "`on` or `off`".to_owned())),
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    #[error("`{given}` is not of the form KEY=VALUE")]
    NoPair { given: String },
    #[error("unknown setting `{key}`")]
    UnknownKey { key: String },
    #[error("setting `{key}` is given twice")]
    Twice { key: String },
    #[error("{key} must be {expected}, not `{value}`")]
    BadValue { key: String, value: String, expected: String },
}

impl SettingError {
    fn bad_value(key: &str, value: &str, expected: String) -> Self {
        Self::BadValue { key: key.to_owned(), value: value.to_owned(), expected }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_settings_the_defaults_apply() {
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
    fn errors_name_the_bad_setting() {
        for (line, expected) in [
            ("fast", "`fast` is not of the form KEY=VALUE"),
            ("speed=9", "unknown setting `speed`"),
            ("echo=on echo=off", "setting `echo` is given twice"),
            ("echo=yes", "echo must be `on` or `off`, not `yes`"),
            ("workers=0", "workers must be a number from 1 to 64, not `0`"),
            ("workers=65", "workers must be a number from 1 to 64, not `65`"),
            ("mailbox=-1", "mailbox must be a number from 1 to 16777216, not `-1`"),
            ("scale=0", "scale must be a number from 0.001 to 100, not `0`"),
            ("scale=NaN", "scale must be a number from 0.001 to 100, not `NaN`"),
        ] {
            assert_eq!(read(line).unwrap_err().to_string(), expected);
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
