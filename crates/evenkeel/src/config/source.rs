//! Sources of configuration values, and configuration errors.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Source of a value; variants are in ascending precedence.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueSource {
    /// The built-in default.
    Default,
    File {
        /// As given on the command line.
        path: Arc<str>,
        /// Counted from 1.
        line: usize,
    },
    /// An environment variable.
    Env(String),
    /// A command-line flag.
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

/// One error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
#[error("{}{message}", prefix(origin))]
pub struct ConfigError {
    pub origin: ValueSource,
    pub message: String,
}

fn prefix(origin: &ValueSource) -> String {
    match origin {
        ValueSource::Default => String::new(),
        ValueSource::File { .. } | ValueSource::Env(_) | ValueSource::Flag(_) => format!("{origin}: "),
    }
}

/// All errors in a configuration, ordered by line; never empty.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", one_per_line(.0))]
pub struct ConfigErrors(pub Vec<ConfigError>);

impl ConfigErrors {
    /// Creates a single error without a line or variable.
    pub fn without_origin(message: impl fmt::Display) -> Self {
        Self::at(ValueSource::Default, message)
    }

    /// Creates a single error.
    pub fn at(origin: ValueSource, message: impl fmt::Display) -> Self {
        Self(vec![ConfigError { origin, message: message.to_string() }])
    }
}

fn one_per_line(errors: &[ConfigError]) -> String {
    let lines: Vec<String> = errors.iter().map(ToString::to_string).collect();
    lines.join("\n")
}
