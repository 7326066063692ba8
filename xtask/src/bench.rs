//! `cargo xtask bench`: how fast things are, one suite at a time, and whether they became slower.

mod compare;
mod figures;

use crate::args::{Command, Rest, Wanted, Word, Words};
use crate::failure::Failure;
use crate::process::Call;
use crate::tools::{self, Tool};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    about: "measures how fast things are",
    words: Words::One {
        noun: "suite",
        list: || SUITES.iter().map(|suite| Word { name: suite.name, about: suite.about }).collect(),
    },
    rest: Rest::Following("the suite"),
    examples: &[
        ("cargo xtask bench micro", "every decision of evenkeel-policy"),
        ("cargo xtask bench micro -- --help", "what the suite itself takes"),
        ("cargo xtask bench actor -- --help", "what the suite itself takes"),
        ("cargo xtask bench compare BASE CURRENT --threshold 0.05", "fails if a row became 5 % worse"),
    ],
    run,
};

/// Something that measures and prints, or that reads what another printed.
struct Suite {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), Failure>,
}

const SUITES: &[Suite] = &[
    Suite { name: "micro", about: "nanoseconds per decision", run: run_micro },
    Suite { name: "actor", about: "actor runtimes beside each other", run: run_actor },
    Suite { name: "compare", about: "two files that --json wrote, row by row", run: compare::run },
];

fn run(wanted: &Wanted) -> Result<(), Failure> {
    let mut chosen = SUITES.iter().filter(|suite| wanted.words.contains(&suite.name));
    chosen.try_for_each(|suite| (suite.run)(&wanted.rest))
}

/// Runs the suite in release mode, on one build of everything it measures.
pub(crate) fn run_micro(args: &[String]) -> Result<(), Failure> {
    Call::cargo("run --release --locked --package evenkeel-bench --bin micro --").args(args).run()
}

const ERLANG: Tool = Tool::Debian { program: "erl", package: "erlang-base" };

/// Builds what compares the runtimes in a target folder of its own, then runs it.
///
/// Without Erlang the others still run.
fn run_actor(args: &[String]) -> Result<(), Failure> {
    if measures_beam(args)
        && let Err(failure) = tools::ensure(&[ERLANG])
    {
        println!("{failure}; the rows of `beam` will be empty");
    }
    let of =
        |command| Call::cargo(command).args(["--release", "--locked", "--manifest-path", "bench/Cargo.toml"]);
    // The rounds start the other two, which `run` alone would not build.
    of("build").args(["--bins"]).run()?;
    of("run").args(["--bin", "actor-rounds", "--"]).args(args).run()
}

/// Whether the suite's own arguments ask for Erlang's VM, which runs unless others are named.
fn measures_beam(args: &[String]) -> bool {
    if args.iter().any(|arg| matches!(arg.as_str(), "--help" | "-h")) {
        return false;
    }
    let named = args.iter().skip_while(|arg| *arg != "--runtimes").nth(1);
    named.is_none_or(|list| list.split(',').any(|label| label.split('@').next() == Some("beam")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erlang_is_wanted_unless_only_others_are_named() {
        for (line, wanted) in [
            ("", true),
            ("--rounds 3 workers=1", true),
            ("--runtimes kameo,beam", true),
            ("--runtimes beam@workers=1 --scale 0.1", true),
            ("--runtimes kameo --workloads ask", false),
            ("--runtimes beamer", false),
            ("--help", false),
        ] {
            let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(measures_beam(&args), wanted, "{line}");
        }
    }
}
