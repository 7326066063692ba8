//! Command line of the benchmark suite.

use std::path::PathBuf;

use clap::Parser;

use crate::measure::Effort;

/// Maximum number of rounds; more would not finish in a day.
const ROUNDS_MAX: i64 = 10_000;

const AFTER_HELP: &str = "\
The table goes to the standard output, progress to the standard error.

Examples:
  cargo xtask bench micro
  cargo xtask bench micro -- drr-pick --rounds 200
  cargo xtask bench micro -- --json target/micro.json";

/// Measure nanoseconds per decision
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "micro", bin_name = "cargo xtask bench micro --", after_help = AFTER_HELP)]
pub struct Args {
    /// Run only the groups whose name contains FILTER
    #[arg(default_value = "", hide_default_value = true)]
    pub filter: String,
    /// Run N rounds instead of 36 (or 3 with --quick); medians need 7 or more
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    rounds: Option<u32>,
    /// Run 3 short rounds: checks that everything runs, measures nothing
    #[arg(long)]
    quick: bool,
    /// Also write the results to FILE
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// List the names of the groups and run none
    #[arg(long)]
    pub list: bool,
}

impl Args {
    /// Returns the number and length of the rounds.
    pub fn effort(&self) -> Effort {
        let effort = if self.quick { Effort::QUICK } else { Effort::FULL };
        let rounds = self.rounds.map_or(effort.rounds, |rounds| rounds as usize);
        Effort { rounds, ..effort }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::error::ErrorKind;
    use std::path::Path;

    #[test]
    fn without_arguments_every_group_runs_in_full() {
        let args = parse("").unwrap();
        assert_eq!(
            (args.filter.as_str(), args.effort(), args.json, args.list),
            ("", Effort::FULL, None, false)
        );
    }

    #[test]
    fn options_and_filter_come_in_any_order() {
        let args = parse("drr --rounds 9 --quick --json out.json").unwrap();
        assert_eq!(parse("--quick --json out.json --rounds 9 drr").unwrap(), args);
        assert_eq!(args.filter, "drr");
        assert_eq!(args.effort(), Effort { rounds: 9, ..Effort::QUICK });
        assert_eq!(args.json.as_deref(), Some(Path::new("out.json")));
    }

    #[test]
    fn help_and_list_override_other_arguments() {
        for line in ["drr --help --nonsense", "-h"] {
            assert_eq!(parse(line).unwrap_err().kind(), ErrorKind::DisplayHelp);
        }
        assert!(parse("drr --list").unwrap().list);
    }

    #[test]
    fn a_wrong_argument_is_rejected() {
        for (line, kind) in [
            ("--fast", ErrorKind::UnknownArgument),
            ("drr swrr", ErrorKind::UnknownArgument),
            ("--rounds", ErrorKind::InvalidValue),
            ("--rounds 0", ErrorKind::ValueValidation),
            ("--rounds 10001", ErrorKind::ValueValidation),
            ("--rounds many", ErrorKind::ValueValidation),
            ("--json", ErrorKind::InvalidValue),
        ] {
            assert_eq!(parse(line).unwrap_err().kind(), kind, "{line}");
        }
    }

    fn parse(line: &str) -> clap::error::Result<Args> {
        Args::try_parse_from(std::iter::once("micro").chain(line.split_whitespace()))
    }
}
