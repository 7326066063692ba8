//! `cargo xtask bench`: how fast things are, one suite at a time.

use crate::args::{Command, Rest, Wanted, Word, Words};
use crate::failure::Failure;
use crate::process::Call;

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    about: "measures how fast things are",
    words: Words::One {
        noun: "suite",
        list: || SUITES.iter().map(|suite| Word { name: suite.name, about: suite.about }).collect(),
    },
    rest: Rest::PassedTo("the suite"),
    examples: &[
        ("cargo xtask bench micro", "every decision of evenkeel-policy"),
        ("cargo xtask bench micro -- --help", "what the suite itself takes"),
    ],
    run,
};

/// A program that measures and prints; `name` is also its binary's in `evenkeel-bench`.
struct Suite {
    name: &'static str,
    about: &'static str,
}

const SUITES: &[Suite] = &[Suite { name: "micro", about: "nanoseconds per decision" }];

fn run(wanted: &Wanted) -> Result<(), Failure> {
    wanted.words.iter().try_for_each(|name| run_suite(name, &wanted.rest))
}

/// Runs one suite in release mode, on one build of everything it measures.
pub(crate) fn run_suite(name: &str, args: &[String]) -> Result<(), Failure> {
    Call::cargo("run --release --locked --package evenkeel-bench --bin").args([name, "--"]).args(args).run()
}
