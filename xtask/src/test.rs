//! `cargo xtask test`: gets what the tests need, then runs them all.

use crate::args::{Command, Rest, Wanted, Words};
use crate::error::TaskError;
use crate::process::Call;
use crate::tools;

pub(crate) const COMMAND: Command = Command {
    name: "test",
    about: "gets what the tests need, then runs them all",
    words: Words::None,
    rest: Rest::PassedTo("the test runner"),
    examples: &[
        ("cargo xtask test", "every test, then every doc test"),
        ("cargo xtask test -- drr", "those whose name contains `drr`"),
    ],
    run,
};

/// The seed of random cases, unless the caller set one: a change is judged by the same cases wherever it is
/// tested. `cargo xtask deep properties` draws new ones.
const PROPERTY_SEED: (&str, &str) = ("PROPTEST_RNG_SEED", "20261116");

fn run(wanted: &Wanted) -> Result<(), TaskError> {
    run_tests(&wanted.rest)?;
    run_doc_tests(&wanted.rest)
}

/// Runs unit and integration tests of every crate, with all features.
pub(crate) fn run_tests(runner_args: &[String]) -> Result<(), TaskError> {
    tools::ensure(tools::FOR_TESTS)?;
    let runner = if tools::has_subcommand("nextest") {
        Call::cargo("nextest run --workspace --all-features --locked")
    } else {
        println!("cargo nextest is not installed, so `cargo test` runs the tests; it does as well, slower");
        Call::cargo("test --workspace --all-features --locked --tests --no-fail-fast")
    };
    let (name, seed) = PROPERTY_SEED;
    let runner = if std::env::var_os(name).is_some() { runner } else { runner.env(name, seed) };
    passing(runner, runner_args).run()
}

/// Runs the examples in the documentation, which nextest does not know.
pub(crate) fn run_doc_tests(runner_args: &[String]) -> Result<(), TaskError> {
    passing(Call::cargo("test --workspace --all-features --locked --doc"), runner_args).run()
}

fn passing(runner: Call, runner_args: &[String]) -> Call {
    if runner_args.is_empty() {
        return runner;
    }
    runner.args(["--"]).args(runner_args)
}
