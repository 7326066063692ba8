//! `cargo xtask ci`: what must pass before a change is taken, in stages, within a time limit.

use crate::args::{Command, Rest, Wanted, Words};
use crate::error::TaskError;
use crate::metadata;
use crate::process::Call;
use crate::stage::{self, AfterFailure, Plan, Stage};
use crate::tools::{self, Tool};
use crate::{qemu, test, tidy};
use std::time::Duration;

pub(crate) const COMMAND: Command = Command {
    name: "ci",
    about: "what must pass before a change is taken",
    words: Words::Any { noun: "stage", list: || stage::words(STAGES) },
    rest: Rest::Refused,
    examples: &[
        ("cargo xtask ci", "every stage, up to the first that fails"),
        ("cargo xtask ci fmt clippy", "these two only"),
    ],
    run,
};

const TOTAL_MAX: Duration = Duration::from_secs(40 * 60);

/// Quick stages first; the tests last, so that a log ends with their runner's own summary.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", about: "every file is formatted", run: fmt },
    Stage { name: "tidy", about: "the house rules no compiler checks", run: tidy::check },
    Stage { name: "clippy", about: "no lint fires, in any target", run: clippy },
    Stage { name: "features", about: "each crate builds with each of its features", run: features },
    Stage { name: "no_std", about: "what claims to need no std builds and runs without one", run: no_std },
    Stage { name: "qemu", about: "the firmware runs on emulated machines", run: || qemu::run_machines(&[]) },
    Stage { name: "loom", about: "what threads share holds in every order, within bounds", run: loom },
    Stage { name: "docs", about: "documentation builds, links resolve", run: docs },
    Stage { name: "demo", about: "the README's first command does what it says", run: demo },
    Stage { name: "doctests", about: "examples in the documentation hold", run: || test::run_doc_tests(&[]) },
    Stage { name: "tests", about: "every test passes", run: || test::run_tests(&[]) },
];

/// Crates that need no std, each with one of the sets of features with which it needs none.
const NO_STD_CRATES: &[(&str, &str)] =
    &[("evenkeel-policy", ""), ("evenkeel-actor", ""), ("evenkeel-actor", "embassy")];
/// One without and one with atomic compare-and-swap; where there is none, the final program says how it
/// is made, and here we are the final program.
const NO_STD_TARGETS: &[(&str, &str)] = &[
    ("thumbv6m-none-eabi", "--cfg portable_atomic_unsafe_assume_single_core"),
    ("thumbv8m.main-none-eabi", ""),
];

/// Workspaces of their own; what they need is too much for everybody, or nothing for this machine.
const OTHER_WORKSPACES: &[&str] = &["bench", "firmware", "fuzz"];

const RUSTFMT: Tool = Tool::Component { name: "rustfmt", subcommand: "fmt" };
const CLIPPY: Tool = Tool::Component { name: "clippy", subcommand: "clippy" };

fn run(wanted: &Wanted) -> Result<(), TaskError> {
    let plan =
        Plan { command: "ci", stages: STAGES, after_failure: AfterFailure::Stop, total_max: Some(TOTAL_MAX) };
    plan.run(&wanted.words)
}

fn fmt() -> Result<(), TaskError> {
    tools::ensure(&[RUSTFMT])?;
    Call::cargo("fmt --all --check").run()?;
    for workspace in OTHER_WORKSPACES {
        Call::cargo("fmt --all --check --manifest-path").args([format!("{workspace}/Cargo.toml")]).run()?;
    }
    Ok(())
}

/// Runs the README's first command for as long as it takes to see whether it works.
fn demo() -> Result<(), TaskError> {
    Call::cargo("run --release --locked -- demo --seconds 10").run()
}

fn clippy() -> Result<(), TaskError> {
    tools::ensure(&[CLIPPY])?;
    Call::cargo("clippy --workspace --all-targets --all-features --locked -- -D warnings").run()
}

fn features() -> Result<(), TaskError> {
    for package in metadata::packages()? {
        for flags in feature_combinations(&package.features) {
            Call::cargo("check --locked --package").args([package.name.clone()]).args(flags).run()?;
        }
    }
    Ok(())
}

/// Lists the flags under which a crate must build: nothing on, each feature alone, everything on.
///
/// `default` counts as a feature like any other, so what users get by default is among them.
fn feature_combinations(features: &[String]) -> Vec<Vec<String>> {
    if features.is_empty() {
        return vec![Vec::new()];
    }
    let flags = |flags: &[&str]| flags.iter().map(|&flag| flag.to_owned()).collect::<Vec<_>>();
    let mut combinations = vec![flags(&["--no-default-features"])];
    combinations
        .extend(features.iter().map(|feature| flags(&["--no-default-features", "--features", feature])));
    combinations.push(flags(&["--all-features"]));
    combinations
}

/// Builds for machines without std, in a folder of its own because of the flags; then runs the core for
/// such machines on this one.
fn no_std() -> Result<(), TaskError> {
    tools::ensure(&[CLIPPY])?;
    for &(target, flags) in NO_STD_TARGETS {
        tools::ensure(&[Tool::Target(target)])?;
        for &(package, features) in NO_STD_CRATES {
            let of = |command| {
                Call::cargo(command)
                    .env("RUSTFLAGS", flags)
                    .args(["--locked", "--target-dir", "target/no_std", "--target", target])
                    .args(["--package", package, "--no-default-features", "--features", features])
            };
            of("check").run()?;
            of("clippy").args(["--", "-D", "warnings"]).run()?;
        }
        Call::cargo("clippy --release --locked --manifest-path firmware/Cargo.toml")
            .args(["--target-dir", "target/firmware", "--target", target, "--", "-D", "warnings"])
            .run()?;
    }
    Call::cargo(
        "test --locked --package evenkeel-actor --no-default-features --features embassy --test embassy",
    )
    .run()
}

/// The crates with models of what threads share.
pub(crate) const LOOM_CRATES: &[&str] = &["evenkeel-actor", "evenkeel-scheduler"];

/// Runs the models of one crate.
pub(crate) fn loom_of(package: &str) -> Call {
    Call::cargo("test --locked --release --no-default-features --lib")
        .args(["--package", package, "--target-dir", "target/loom"])
        .env("RUSTFLAGS", "--cfg loom")
        // Built once and run for seconds: nothing to gain from a slow linker.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

/// Runs the models of what threads share, each in every order with few preemptions.
fn loom() -> Result<(), TaskError> {
    for &package in LOOM_CRATES {
        loom_of(package).run()?;
    }
    Ok(())
}

/// Builds the documentation twice: private items for whoever works here, then, left in `target/doc`,
/// what users see, where a link to a private item is an error.
fn docs() -> Result<(), TaskError> {
    let doc =
        Call::cargo("doc --workspace --no-deps --all-features --locked").env("RUSTDOCFLAGS", "-D warnings");
    doc.clone().args(["--document-private-items"]).run()?;
    doc.run()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_without_features_is_checked_once() {
        assert_eq!(combinations(&[]), [""]);
    }

    #[test]
    fn every_feature_is_checked_alone_between_none_and_all() {
        assert_eq!(
            combinations(&["default", "std"]),
            [
                "--no-default-features",
                "--no-default-features --features default",
                "--no-default-features --features std",
                "--all-features"
            ]
        );
    }

    #[test]
    fn the_tests_are_the_last_stage() {
        assert_eq!(STAGES.last().map(|stage| stage.name), Some("tests"));
    }

    fn combinations(features: &[&str]) -> Vec<String> {
        let features: Vec<_> = features.iter().map(|&feature| feature.to_owned()).collect();
        feature_combinations(&features).iter().map(|flags| flags.join(" ")).collect()
    }
}
