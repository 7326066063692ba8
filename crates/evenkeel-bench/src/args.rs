//! The command line of a suite.

use std::fmt;
use std::path::PathBuf;

use crate::measure::Effort;

/// The most rounds that may be asked for; more would not finish in a day.
const ROUNDS_MAX: usize = 10_000;

/// What `--help` shows.
pub const HELP: &str = "\
micro: nanoseconds per decision

usage: cargo xtask bench micro [-- [FILTER] [OPTION]...]

Only groups whose name contains FILTER are run; all of them without one.

options:
  --rounds N   how often everybody has a turn (36; medians want 7 or more)
  --quick      3 short rounds: shows that everything runs, measures nothing
  --json FILE  also write the figures to FILE
  --list       show the groups' names and run none
  --help       show this

The table goes to the standard output, progress to the standard error.

examples:
  cargo xtask bench micro
  cargo xtask bench micro -- drr-pick --rounds 200
  cargo xtask bench micro -- --json target/micro.json
";

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Show [`HELP`].
    Help,
    /// Show the groups' names.
    List,
    /// Run groups.
    Run(Run),
}

/// Which groups to run, how long, and where the figures go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// What a group's name has to contain; empty for all.
    pub filter: String,
    /// How long to measure.
    pub effort: Effort,
    /// Where the figures are written besides the table.
    pub json: Option<PathBuf>,
}

/// Reads the words after the program's name.
pub fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, UsageError> {
    let mut words = words.into_iter();
    let mut filter = None;
    let mut rounds = None;
    let mut effort = Effort::FULL;
    let mut json = None;
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(Request::Help),
            "--list" => return Ok(Request::List),
            "--quick" => effort = Effort::QUICK,
            "--rounds" => rounds = Some(parse_rounds(words.next())?),
            "--json" => json = Some(words.next().ok_or(UsageError::FileMissing)?.into()),
            flag if flag.starts_with('-') => return Err(UsageError::UnknownFlag { flag: word }),
            _ if filter.is_some() => return Err(UsageError::SecondFilter { filter: word }),
            _ => filter = Some(word),
        }
    }
    if let Some(rounds) = rounds {
        effort.rounds = rounds;
    }
    Ok(Request::Run(Run { filter: filter.unwrap_or_default(), effort, json }))
}

fn parse_rounds(word: Option<String>) -> Result<usize, UsageError> {
    let word = word.unwrap_or_default();
    match word.parse() {
        Ok(rounds) if (1..=ROUNDS_MAX).contains(&rounds) => Ok(rounds),
        Ok(_) | Err(_) => Err(UsageError::BadRounds { given: word }),
    }
}

/// Why a command line makes no sense.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageError {
    /// Nobody knows this flag.
    UnknownFlag {
        /// The flag as given.
        flag: String,
    },
    /// A second filter was given.
    SecondFilter {
        /// The filter as given.
        filter: String,
    },
    /// What followed `--rounds` is no number of rounds.
    BadRounds {
        /// The word as given.
        given: String,
    },
    /// Nothing followed `--json`.
    FileMissing,
    /// No group's name contains the filter.
    NoSuchGroup {
        /// The filter as given.
        filter: String,
    },
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFlag { flag } => write!(f, "no flag is called `{flag}`; see --help"),
            Self::SecondFilter { filter } => write!(f, "`{filter}` is a second filter; one is taken"),
            Self::BadRounds { given } => {
                write!(f, "--rounds takes a number from 1 to {ROUNDS_MAX}, not `{given}`")
            }
            Self::FileMissing => f.write_str("--json takes the name of a file"),
            Self::NoSuchGroup { filter } => {
                write!(f, "no group's name contains `{filter}`; --list shows them")
            }
        }
    }
}

impl std::error::Error for UsageError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_words_everything_is_run_in_full() {
        assert_eq!(read(""), Ok(run("", Effort::FULL, None)));
    }

    #[test]
    fn options_and_filter_come_in_any_order() {
        let effort = Effort { rounds: 9, ..Effort::QUICK };
        let expected = Ok(run("drr", effort, Some("out.json")));
        assert_eq!(read("drr --rounds 9 --quick --json out.json"), expected);
        assert_eq!(read("--quick --json out.json --rounds 9 drr"), expected);
    }

    #[test]
    fn help_and_list_win_over_the_rest() {
        assert_eq!(read("drr --help --nonsense"), Ok(Request::Help));
        assert_eq!(read("-h"), Ok(Request::Help));
        assert_eq!(read("--list"), Ok(Request::List));
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("--fast", "no flag is called `--fast`; see --help"),
            ("drr swrr", "`swrr` is a second filter; one is taken"),
            ("--rounds", "--rounds takes a number from 1 to 10000, not ``"),
            ("--rounds 0", "--rounds takes a number from 1 to 10000, not `0`"),
            ("--rounds 10001", "--rounds takes a number from 1 to 10000, not `10001`"),
            ("--rounds many", "--rounds takes a number from 1 to 10000, not `many`"),
            ("--json", "--json takes the name of a file"),
        ] {
            assert_eq!(read(line).unwrap_err().to_string(), said);
        }
    }

    fn read(line: &str) -> Result<Request, UsageError> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    fn run(filter: &str, effort: Effort, json: Option<&str>) -> Request {
        Request::Run(Run { filter: filter.to_owned(), effort, json: json.map(PathBuf::from) })
    }
}
