//! Where a value comes from, and what is wrong with one.

use std::fmt;
use std::sync::Arc;

/// Where a value comes from; whoever is further down wins.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueSource {
    /// Nobody set it.
    Default,
    /// A line of a file.
    File {
        /// The file, as it was named.
        path: Arc<str>,
        /// The line, from 1.
        line: usize,
    },
    /// A variable of the environment.
    Env(String),
    /// A flag.
    Flag(&'static str),
}

impl fmt::Display for ValueSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line } => write!(f, "{path}:{line}"),
            Self::Env(name) => f.write_str(name),
            Self::Flag(name) => f.write_str(name),
        }
    }
}

/// Something that is wrong with a configuration, and where.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigError {
    /// Where it is.
    pub origin: ValueSource,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { origin, what } = self;
        match origin {
            ValueSource::Default => f.write_str(what),
            ValueSource::File { .. } | ValueSource::Env(_) | ValueSource::Flag(_) => {
                write!(f, "{origin}: {what}")
            }
        }
    }
}

/// Everything that is wrong with a configuration, in the order of its lines; never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// Makes a mistake of something that has no place, or tells it itself.
    pub fn of(what: impl fmt::Display) -> Self {
        Self(vec![ConfigError { origin: ValueSource::Default, what: what.to_string() }])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, mistake) in self.0.iter().enumerate() {
            let between = if at == 0 { "" } else { "\n" };
            write!(f, "{between}{mistake}")?;
        }
        Ok(())
    }
}

impl std::error::Error for ConfigErrors {}
