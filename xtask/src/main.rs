//! Evenkeel's developer tasks: test, ci, tidy, deep, bench, qemu.
//!
//! One file per task, each with its arguments, a table (of stages, checks or suites) and the functions that the table
//! names. `stage` runs and times the stages of a table, `tools` installs missing tools.

mod bench;
mod ci;
mod deep;
mod error;
mod fuzz;
mod metadata;
mod process;
mod qemu;
mod stage;
mod test;
mod tidy;
mod tools;

use clap::{Parser, Subcommand};
use error::TaskError;
use std::path::Path;
use std::process::ExitCode;

/// Evenkeel's developer tasks
#[derive(Debug, Parser)]
#[command(
    name = "xtask",
    bin_name = "cargo xtask",
    subcommand_required = true,
    arg_required_else_help = true
)]
#[command(after_help = "\
Examples:
  cargo xtask test -- drr     run the tests whose name contains `drr`
  cargo xtask ci              run every check that a change must pass
  cargo xtask ci fmt clippy   run two of them
  cargo xtask bench micro     measure the decisions of evenkeel-policy

`cargo xtask <COMMAND> --help` describes a command.")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    Test(test::TestArgs),
    Ci(ci::CiArgs),
    Tidy(tidy::TidyArgs),
    Deep(deep::DeepArgs),
    Bench(bench::BenchArgs),
    Qemu(qemu::QemuArgs),
}

impl Task {
    fn run(&self) -> Result<(), TaskError> {
        match self {
            Self::Test(args) => test::run(args),
            Self::Ci(args) => ci::run(args),
            Self::Tidy(_) => tidy::check(),
            Self::Deep(args) => deep::run(args),
            Self::Bench(args) => bench::run(args),
            Self::Qemu(args) => qemu::run(args),
        }
    }
}

/// Runs a task; the exit code is 1 if it fails and 2 (from clap) if the command line is wrong.
fn main() -> ExitCode {
    let cli = Cli::parse();
    match enter_root().and_then(|()| cli.task.run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the repository's root the working directory, so that paths and commands do not depend on the directory in
/// which `cargo xtask` was typed.
fn enter_root() -> Result<(), TaskError> {
    let manifest =
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&manifest).join("..");
    std::env::set_current_dir(&root).map_err(|error| {
        TaskError::new(format!("cannot enter the repository at {}: {error}", root.display()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use clap::error::ErrorKind;

    #[test]
    fn clap_debug_assertions_pass() {
        Cli::command().debug_assert();
    }

    #[test]
    fn an_unknown_stage_or_command_is_rejected_with_a_suggestion() {
        let Task::Ci(args) = parse("ci fmt clippy") else { panic!("not ci") };
        assert_eq!(args.stages, ["fmt", "clippy"]);
        let error = error("ci clipy");
        assert!(error.contains("invalid value 'clipy'") && error.contains("'clippy'"), "{error}");
        assert!(self::error("tset").contains("'test'"));
        assert!(self::error("tidy now").contains("unexpected argument 'now'"));
    }

    #[test]
    fn help_lists_the_stages_with_their_descriptions_and_examples() {
        for line in ["ci --help", "help ci"] {
            let help = help(line);
            assert!(help.contains("cargo xtask ci [STAGE]..."), "{help}");
            assert!(help.contains("- clippy:"), "{help}");
            assert!(help.contains("cargo xtask ci fmt clippy"), "{help}");
        }
        assert!(help("qemu --help").contains("- microbit:"));
        assert!(help("--help").contains("cargo xtask <COMMAND>"));
    }

    #[test]
    fn without_a_command_the_help_is_printed_as_a_usage_error() {
        let error = Cli::try_parse_from(["xtask"]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn the_test_runner_gets_the_arguments_after_two_dashes_only() {
        let Task::Test(args) = parse("test -- drr --nocapture") else { panic!("not test") };
        assert_eq!(args.runner_args, ["drr", "--nocapture"]);
        let Task::Test(args) = parse("test -- --help") else { panic!("not test") };
        assert_eq!(args.runner_args, ["--help"]);
        assert!(error("test drr").contains("unexpected argument 'drr'"));
    }

    #[test]
    fn a_suite_gets_its_arguments_with_or_without_two_dashes() {
        for line in ["bench llm -- --rounds 3", "bench llm --rounds 3"] {
            assert_eq!(suite_args(line), ["--rounds", "3"], "{line}");
        }
        for line in [
            "bench llm -- engine --rounds 3",
            "bench llm engine --rounds 3",
            "bench llm engine -- --rounds 3",
        ] {
            assert_eq!(suite_args(line), ["engine", "--rounds", "3"], "{line}");
        }
        assert_eq!(suite_args("bench llm -- --help"), ["--help"]);
        assert!(help("bench llm --help").contains("cargo xtask bench llm"));
        assert!(error("bench").contains("compare"));
    }

    fn suite_args(line: &str) -> Vec<String> {
        let Task::Bench(bench::BenchArgs { suite: bench::Suite::Llm(args) }) = parse(line) else {
            panic!("not the suite llm: {line}")
        };
        args.suite_args()
    }

    fn parse(line: &str) -> Task {
        Cli::try_parse_from(args(line)).unwrap_or_else(|error| panic!("{line}: {error}")).task
    }

    fn error(line: &str) -> String {
        let error = Cli::try_parse_from(args(line)).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{line}");
        error.to_string()
    }

    fn help(line: &str) -> String {
        let error = Cli::try_parse_from(args(line)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::DisplayHelp, "{line}");
        error.to_string()
    }

    fn args(line: &str) -> impl Iterator<Item = &str> {
        ["xtask"].into_iter().chain(line.split_whitespace())
    }
}
