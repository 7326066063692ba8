//! `cargo xtask deep`: the checks that take too long for CI.

use crate::ci::{LOOM_CRATES, loom_call};
use crate::error::TaskError;
use crate::process::Cmd;
use crate::stage::{self, AfterFailure, Plan, Stage};
use crate::tools::{self, Tool};
use crate::{bench, fuzz};

/// Run the checks that take too long for ci
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask deep                run every stage, even after one fails
  cargo xtask deep miri mutants   run two stages

EVENKEEL_FUZZ_SECS sets for how long each fuzz target runs; the default is 60.")]
pub(crate) struct DeepArgs {
    /// Stages to run; all of them by default
    #[arg(value_name = "STAGE", value_parser = stage::value_parser(STAGES))]
    pub(crate) stages: Vec<String>,
}

const STAGES: &[Stage] = &[
    Stage { name: "miri", about: "run unit tests under Miri to find undefined behaviour", run: miri },
    Stage { name: "loom", about: "run the loom models with one more preemption than ci", run: loom },
    Stage { name: "properties", about: "run each property test with 20 000 random cases", run: properties },
    Stage { name: "fuzz", about: "fuzz every parser, a minute per target", run: fuzz::run_targets },
    Stage { name: "soak", about: "run the simulator's tests with 200 seeds each", run: soak },
    Stage { name: "coverage", about: "measure the test coverage of the actor runtime", run: coverage },
    Stage { name: "mutants", about: "mutate evenkeel-policy and check that a test fails", run: mutants },
    Stage {
        name: "actor",
        about: "count instructions per message and bytes per actor, at most 5 % above the baseline",
        run: bench::run_actor_costs,
    },
    Stage { name: "bench", about: "measure the decisions of evenkeel-policy", run: || bench::run_micro(&[]) },
];

pub(crate) fn run(args: &DeepArgs) -> Result<(), TaskError> {
    let plan =
        Plan { command: "deep", stages: STAGES, after_failure: AfterFailure::Continue, total_max: None };
    plan.run(&args.stages)
}

fn miri() -> Result<(), TaskError> {
    let nextest = Tool::CargoInstall { subcommand: "nextest", package: "cargo-nextest" };
    tools::ensure(&[Tool::Nightly, Tool::Miri, nextest])?;
    Cmd::new("rustup", "run nightly cargo miri test --locked --package evenkeel-policy --lib").run()?;
    // nextest runs tests in parallel processes, so that a long test does not delay others, and reports each as it ends.
    let actor =
        "run nightly cargo miri nextest run --profile miri --locked --package evenkeel-actor --all-features";
    // Without this, an expected panic prints a backtrace, which takes Miri minutes.
    let miri =
        |flags| Cmd::new("rustup", actor).args(["--lib"]).env("RUST_BACKTRACE", "0").env("MIRIFLAGS", flags);
    // crossbeam's queues leak their last blocks at exit and satisfy Tree Borrows only (crossbeam issue 545); our own
    // unsafe code satisfies both models.
    miri("-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-tree-borrows").run()?;
    miri("-Zmiri-disable-isolation -Zmiri-ignore-leaks").args(["raw::", "mailbox::"]).run()
}

fn loom() -> Result<(), TaskError> {
    for &package in LOOM_CRATES {
        loom_call(package).env("LOOM_MAX_PREEMPTIONS", "4").run()?;
    }
    Ok(())
}

fn properties() -> Result<(), TaskError> {
    // Not in release mode, so that overflow checks stay on.
    let cargo = |line| Cmd::cargo(line).env("PROPTEST_CASES", "20000");
    cargo("test --locked --package evenkeel-policy --package evenkeel-pipeline --test it").run()?;
    cargo("test --locked --package evenkeel-queue --test it -- history::").run()?;
    // The other tests of this crate open sockets.
    cargo("test --locked --package evenkeel-llm --test it -- request:: sse::").run()
}

fn soak() -> Result<(), TaskError> {
    Cmd::cargo("test --locked --package evenkeel-sim --test it").env("EVENKEEL_SIM_SEEDS", "200").run()
}

/// Prints the coverage of regions, functions, lines and branches by file.
fn coverage() -> Result<(), TaskError> {
    let llvm_cov = Tool::CargoInstall { subcommand: "llvm-cov", package: "cargo-llvm-cov" };
    // Only nightly counts branches.
    tools::ensure(&[Tool::Nightly, Tool::LlvmTools, llvm_cov])?;
    Cmd::new("rustup", "run nightly cargo llvm-cov --locked --branch --package evenkeel-actor --all-features")
        .args(["--lib", "--tests", "--summary-only"])
        .run()
}

fn mutants() -> Result<(), TaskError> {
    tools::ensure(&[Tool::CargoInstall { subcommand: "mutants", package: "cargo-mutants" }])?;
    Cmd::cargo("mutants --package evenkeel-policy").run()
}
