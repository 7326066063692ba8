//! `cargo xtask test`: installs what the tests need, then runs all of them.

use crate::error::TaskError;
use crate::process::Cmd;
use crate::tools;
use evenkeel_test_postgres::{SHARED_SERVER_VARIABLE, TestServer};

/// Install what the tests need, then run every test and doctest
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask test          run every test, then every doctest
  cargo xtask test -- drr   run those whose name contains `drr`")]
pub(crate) struct TestArgs {
    /// Arguments of the test runner
    #[arg(last = true, value_name = "ARG")]
    pub(crate) runner_args: Vec<String>,
}

/// Environment variable with the seed of property tests. If it is not set, [`PROPERTY_SEED`] is used, so that a change
/// is tested with the same cases everywhere; `cargo xtask deep properties` draws new ones.
const PROPERTY_SEED_NAME: &str = "PROPTEST_RNG_SEED";
const PROPERTY_SEED: &str = "20261116";

pub(crate) fn run(args: &TestArgs) -> Result<(), TaskError> {
    run_tests(&args.runner_args)?;
    run_doc_tests(&args.runner_args)
}

/// Runs unit and integration tests of every crate, with all features and one PostgreSQL server for all of them.
pub(crate) fn run_tests(runner_args: &[String]) -> Result<(), TaskError> {
    tools::ensure(tools::FOR_TESTS)?;
    if let Err(unavailable) = evenkeel_test_network::check_available() {
        // The runner shows the output of failed tests only.
        println!("tests with network namespaces (`netns::`) are SKIPPED: {unavailable}");
    }
    let mut runner = if tools::has_subcommand("nextest") {
        Cmd::cargo("nextest run --workspace --all-features --locked")
    } else {
        println!("cargo nextest is not installed; running the tests with `cargo test`, which is slower");
        Cmd::cargo("test --workspace --all-features --locked --tests --no-fail-fast")
    };
    if std::env::var_os(PROPERTY_SEED_NAME).is_none() {
        runner = runner.env(PROPERTY_SEED_NAME, PROPERTY_SEED);
    }
    let postgres = start_postgres()?;
    if let Some(postgres) = &postgres {
        runner = runner.env(SHARED_SERVER_VARIABLE, postgres.url("postgres"));
    }
    with_runner_args(runner, runner_args).run()
}

/// Starts the server that the tests share, which ends when it is dropped; `None` if the environment names one.
fn start_postgres() -> Result<Option<TestServer>, TaskError> {
    if std::env::var_os(SHARED_SERVER_VARIABLE).is_some() {
        return Ok(None);
    }
    let server = TestServer::start();
    server
        .map(Some)
        .map_err(|error| TaskError::new(format!("cannot start PostgreSQL for the tests: {error}")))
}

/// Runs the doctests, which nextest does not support.
pub(crate) fn run_doc_tests(runner_args: &[String]) -> Result<(), TaskError> {
    with_runner_args(Cmd::cargo("test --workspace --all-features --locked --doc"), runner_args).run()
}

fn with_runner_args(runner: Cmd, runner_args: &[String]) -> Cmd {
    if runner_args.is_empty() {
        return runner;
    }
    runner.args(["--"]).args(runner_args)
}
