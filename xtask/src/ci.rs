//! `cargo xtask ci`: the checks that a change must pass, in stages, within a time limit.

use crate::error::TaskError;
use crate::metadata;
use crate::process::Cmd;
use crate::stage::{self, AfterFailure, Plan, Stage};
use crate::tools::{self, Tool};
use crate::{qemu, test, tidy};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

/// Run the checks that a change must pass
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask ci              run every stage, up to the first that fails
  cargo xtask ci fmt clippy   run two stages")]
pub(crate) struct CiArgs {
    /// Stages to run; all of them by default
    #[arg(value_name = "STAGE", value_parser = stage::value_parser(STAGES))]
    pub(crate) stages: Vec<String>,
}

/// Below the 90 minutes that CI has, with room for a slow machine; a run on an idle one should take half of that.
const TOTAL_MAX: Duration = Duration::from_secs(80 * 60);

/// Quick stages come first; the tests come last, so that a log ends with the summary of their runner.
const STAGES: &[Stage] = &[
    Stage { name: "fmt", about: "check that every file is formatted", run: fmt },
    Stage { name: "tidy", about: "check the house rules that no compiler checks", run: tidy::check },
    Stage { name: "clippy", about: "run clippy on every target, warnings are errors", run: clippy },
    Stage { name: "features", about: "build each crate with each of its features", run: features },
    Stage { name: "no_std", about: "build and run the no_std crates without std", run: no_std },
    Stage { name: "qemu", about: "run the firmware on emulated machines", run: || qemu::run_machines(&[]) },
    Stage { name: "loom", about: "model-check the concurrent code with few preemptions", run: loom },
    Stage { name: "docs", about: "build the documentation, broken links are errors", run: docs },
    Stage { name: "package", about: "package the crates that are published as libraries", run: package },
    Stage { name: "demo", about: "run the README's first command for ten seconds", run: demo },
    Stage {
        name: "doctests",
        about: "run the examples in the documentation",
        run: || test::run_doc_tests(&[]),
    },
    Stage { name: "tests", about: "run every unit and integration test", run: || test::run_tests(&[]) },
];

/// Crates that build without std, each with a set of features that does not need it.
const NO_STD_CRATES: &[(&str, &str)] =
    &[("evenkeel-policy", ""), ("evenkeel-actor", ""), ("evenkeel-actor", "embassy")];
/// Targets with their `RUSTFLAGS`. The first has no atomic compare-and-swap, so the flags select an emulation of it, as
/// the final program would.
const NO_STD_TARGETS: &[(&str, &str)] = &[
    ("thumbv6m-none-eabi", "--cfg portable_atomic_unsafe_assume_single_core"),
    ("thumbv8m.main-none-eabi", ""),
];

/// Separate workspaces, because they have many dependencies or another target.
const OTHER_WORKSPACES: &[&str] = &["bench", "firmware", "fuzz"];

const RUSTFMT: Tool = Tool::Component { name: "rustfmt", subcommand: "fmt" };
const CLIPPY: Tool = Tool::Component { name: "clippy", subcommand: "clippy" };

/// Libraries that are published, dependencies first.
const PUBLISHED_CRATES: &[&str] = &["evenkeel-policy", "evenkeel-pipeline", "evenkeel-actor"];

pub(crate) fn run(args: &CiArgs) -> Result<(), TaskError> {
    let plan =
        Plan { command: "ci", stages: STAGES, after_failure: AfterFailure::Stop, total_max: Some(TOTAL_MAX) };
    plan.run(&args.stages)
}

fn fmt() -> Result<(), TaskError> {
    tools::ensure(&[RUSTFMT])?;
    Cmd::cargo("fmt --all --check").run()?;
    for workspace in OTHER_WORKSPACES {
        Cmd::cargo("fmt --all --check --manifest-path").args([format!("{workspace}/Cargo.toml")]).run()?;
    }
    Ok(())
}

fn demo() -> Result<(), TaskError> {
    Cmd::cargo("run --release --locked -- demo --seconds 10").run()
}

fn clippy() -> Result<(), TaskError> {
    tools::ensure(&[CLIPPY])?;
    Cmd::cargo("clippy --workspace --all-targets --all-features --locked -- -D warnings").run()
}

fn features() -> Result<(), TaskError> {
    for package in metadata::packages()? {
        for flags in feature_combinations(&package.features) {
            Cmd::cargo("check --locked --package").args([package.name.clone()]).args(flags).run()?;
        }
    }
    Ok(())
}

/// Returns the feature flags with which a crate must build: no feature, each feature alone, all features.
///
/// `default` is a feature like any other, so the build that users get by default is included.
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

/// Builds for targets without std, in a separate target directory because the flags differ, then runs the tests of
/// the no_std configuration on this machine.
fn no_std() -> Result<(), TaskError> {
    tools::ensure(&[CLIPPY])?;
    for &(target, flags) in NO_STD_TARGETS {
        tools::ensure(&[Tool::Target(target)])?;
        for &(package, features) in NO_STD_CRATES {
            let cargo = |command| {
                Cmd::cargo(command)
                    .env("RUSTFLAGS", flags)
                    .args(["--locked", "--target-dir", "target/no_std", "--target", target])
                    .args(["--package", package, "--no-default-features", "--features", features])
            };
            cargo("check").run()?;
            cargo("clippy").args(["--", "-D", "warnings"]).run()?;
        }
        Cmd::cargo("clippy --release --locked --manifest-path firmware/Cargo.toml")
            .args(["--target-dir", "target/firmware", "--target", target, "--", "-D", "warnings"])
            .run()?;
    }
    Cmd::cargo(
        "test --locked --package evenkeel-actor --no-default-features --features embassy --test embassy",
    )
    .run()
}

/// Crates with loom models.
pub(crate) const LOOM_CRATES: &[&str] = &["evenkeel-actor", "evenkeel-scheduler"];

/// Runs the loom models of one crate.
pub(crate) fn loom_call(package: &str) -> Cmd {
    Cmd::cargo("test --locked --release --no-default-features --lib")
        .args(["--package", package, "--target-dir", "target/loom"])
        .env("RUSTFLAGS", "--cfg loom")
        // The models run for seconds, so link-time optimization would cost more than it gains.
        .env("CARGO_PROFILE_RELEASE_LTO", "off")
        .env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

fn loom() -> Result<(), TaskError> {
    for &package in LOOM_CRATES {
        loom_call(package).run()?;
    }
    Ok(())
}

/// Builds the documentation twice: with private items, then as users see it, where a link to a private item is an
/// error. `target/doc` keeps the latter.
fn docs() -> Result<(), TaskError> {
    let doc =
        Cmd::cargo("doc --workspace --no-deps --all-features --locked").env("RUSTDOCFLAGS", "-D warnings");
    doc.clone().args(["--document-private-items"]).run()?;
    doc.run()
}

/// Packages the published crates together, so that each finds the others in the same version, and builds the packages.
fn package() -> Result<(), TaskError> {
    // Downloads missing dependencies first, because `--offline` keeps `cargo package` from updating the index.
    Cmd::cargo("fetch --locked").run()?;
    remove_unpacked_packages();
    // Compiled packages are not compiled again either. The directory does not exist in the first run.
    let _ = fs::remove_dir_all("target/packages");
    let packages = PUBLISHED_CRATES.iter().flat_map(|name| ["--package", name]);
    Cmd::cargo("package --offline --locked --allow-dirty --target-dir target/packages").args(packages).run()
}

/// Removes the published crates that an earlier run left in Cargo's home.
///
/// Cargo unpacks the packages there to build those that depend on them, in a directory named after the target directory,
/// and does not unpack a package again while its version stays the same.
fn remove_unpacked_packages() {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".cargo")));
    let Some(registries) = home.and_then(|home| fs::read_dir(home.join("registry/src")).ok()) else { return };
    let packages = registries.flatten().filter_map(|registry| fs::read_dir(registry.path()).ok()).flatten();
    for package in packages.flatten() {
        let name = package.file_name();
        let is_ours = |published: &&str| {
            let version = name.to_str().and_then(|name| name.strip_prefix(*published));
            version.is_some_and(|version| version.starts_with('-'))
        };
        if PUBLISHED_CRATES.iter().any(is_ours) {
            // If it cannot be removed, the packages are built with an old one, which may fail.
            let _ = fs::remove_dir_all(package.path());
        }
    }
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
    fn tests_are_the_last_stage() {
        assert_eq!(STAGES.last().map(|stage| stage.name), Some("tests"));
    }

    fn combinations(features: &[&str]) -> Vec<String> {
        let features: Vec<_> = features.iter().map(|&feature| feature.to_owned()).collect();
        feature_combinations(&features).iter().map(|flags| flags.join(" ")).collect()
    }
}
