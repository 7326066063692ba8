//! Words of a command line: numbers within bounds, lists of names, and why they make no sense.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Reads a number within bounds.
pub fn number(flag: &str, given: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, UsageError> {
    let wanted = format!("a number from {} to {}", range.start(), range.end());
    let number = given.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| UsageError::bad(flag, given, &wanted))
}

/// Reads names with commas between them.
pub fn list<T>(
    noun: &'static str,
    given: &str,
    known: impl Fn(&str) -> Option<T>,
) -> Result<Vec<T>, UsageError> {
    let find =
        |name: &str| known(name).ok_or_else(|| UsageError::UnknownName { noun, given: name.to_owned() });
    given.split(',').map(find).collect()
}

/// Reads some number of the world, for a run that nobody wants to repeat.
pub fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 % 1_000_000_000)
}

/// Why a command line makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub enum UsageError {
    /// A word that means nothing.
    UnknownWord {
        /// The word.
        word: String,
    },
    /// A flag's value that it cannot have.
    BadValue {
        /// The flag.
        flag: String,
        /// What was given.
        given: String,
        /// What it takes.
        wanted: String,
    },
    /// A name that nobody has.
    UnknownName {
        /// Whose name it would be.
        noun: &'static str,
        /// What was given.
        given: String,
    },
}

impl UsageError {
    /// Says that a flag takes something else.
    pub fn bad(flag: &str, given: &str, wanted: &str) -> Self {
        Self::BadValue { flag: flag.to_owned(), given: given.to_owned(), wanted: wanted.to_owned() }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownWord { word } => write!(f, "nobody knows `{word}`; see --help"),
            Self::BadValue { flag, given, wanted } => write!(f, "{flag} takes {wanted}, not `{given}`"),
            Self::UnknownName { noun, given } => write!(f, "no {noun} is called `{given}`; see --help"),
        }
    }
}
