//! `cargo xtask deep`: what takes too long for CI.

use crate::args::{Command, Rest, Wanted, Words};
use crate::ci::{LOOM_CRATES, loom_of};
use crate::error::TaskError;
use crate::process::Call;
use crate::stage::{self, AfterFailure, Plan, Stage};
use crate::tools::{self, Tool};
use crate::{bench, fuzz};

pub(crate) const COMMAND: Command = Command {
    name: "deep",
    about: "what takes too long for ci",
    words: Words::Any { noun: "stage", list: || stage::words(STAGES) },
    rest: Rest::Refused,
    examples: &[
        ("cargo xtask deep", "every stage, also after one fails"),
        ("cargo xtask deep miri mutants", "these two only"),
    ],
    run,
};

const STAGES: &[Stage] = &[
    Stage { name: "miri", about: "no undefined behaviour in the unit tests", run: miri },
    Stage { name: "loom", about: "the models hold with one preemption more", run: loom },
    Stage { name: "properties", about: "bounds hold for 20 000 random inputs each", run: properties },
    Stage { name: "fuzz", about: "no bytes are misread, a minute per target", run: fuzz::run_targets },
    Stage { name: "soak", about: "the simulator's claims hold for 200 seeds each", run: soak },
    Stage { name: "coverage", about: "how much of the actor runtime its tests run", run: coverage },
    Stage { name: "mutants", about: "a test notices every change of the code", run: mutants },
    Stage { name: "bench", about: "how fast the decisions are", run: || bench::run_micro(&[]) },
];

fn run(wanted: &Wanted) -> Result<(), TaskError> {
    let plan = Plan { command: "deep", stages: STAGES, after_failure: AfterFailure::GoOn, total_max: None };
    plan.run(&wanted.words)
}

fn miri() -> Result<(), TaskError> {
    let nextest = Tool::Subcommand { name: "nextest", package: "cargo-nextest" };
    tools::ensure(&[Tool::Nightly, Tool::Miri, nextest])?;
    Call::new("rustup", "run nightly cargo miri test --locked --package evenkeel-policy --lib").run()?;
    // A process per test, so that a long one holds up no other and each is told when it is done.
    let actor =
        "run nightly cargo miri nextest run --profile miri --locked --package evenkeel-actor --all-features";
    // A panic that a test wants would be told with a backtrace, which takes Miri minutes.
    let of =
        |flags| Call::new("rustup", actor).args(["--lib"]).env("RUST_BACKTRACE", "0").env("MIRIFLAGS", flags);
    // Queues of crossbeam leave their last blocks to the end of the program, and keep to Tree Borrows
    // only (crossbeam issue 545); what is unsafe here keeps to both.
    of("-Zmiri-disable-isolation -Zmiri-ignore-leaks -Zmiri-tree-borrows").run()?;
    of("-Zmiri-disable-isolation -Zmiri-ignore-leaks").args(["raw::", "mailbox::"]).run()
}

fn loom() -> Result<(), TaskError> {
    for &package in LOOM_CRATES {
        loom_of(package).env("LOOM_MAX_PREEMPTIONS", "4").run()?;
    }
    Ok(())
}

fn properties() -> Result<(), TaskError> {
    // Not in release: an overflow check is one more property.
    let of = |line| Call::cargo(line).env("PROPTEST_CASES", "20000");
    of("test --locked --package evenkeel-policy --package evenkeel-pipeline --test it").run()?;
    of("test --locked --package evenkeel-queue --test it -- history::").run()?;
    // Its other tests open sockets.
    of("test --locked --package evenkeel-llm --test it -- request:: sse::").run()
}

fn soak() -> Result<(), TaskError> {
    Call::cargo("test --locked --package evenkeel-sim --test it").env("EVENKEEL_SIM_SEEDS", "200").run()
}

/// Prints regions, functions, lines and branches by file.
fn coverage() -> Result<(), TaskError> {
    let llvm_cov = Tool::Subcommand { name: "llvm-cov", package: "cargo-llvm-cov" };
    // Branches are counted by nightly only.
    tools::ensure(&[Tool::Nightly, Tool::LlvmTools, llvm_cov])?;
    Call::new(
        "rustup",
        "run nightly cargo llvm-cov --locked --branch --package evenkeel-actor --all-features",
    )
    .args(["--lib", "--tests", "--summary-only"])
    .run()
}

fn mutants() -> Result<(), TaskError> {
    tools::ensure(&[Tool::Subcommand { name: "mutants", package: "cargo-mutants" }])?;
    Call::cargo("mutants --package evenkeel-policy").run()
}
