//! Evenkeel's own chores: test, ci, tidy, deep, bench, qemu.
//!
//! One file per command, each a table (of stages, rules or suites) and the functions it names. `args`
//! reads the command line, `stage` runs and times what a table lists, `tools` gets what is missing.

mod args;
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

use args::{Command, Request};
use error::TaskError;
use std::path::Path;
use std::process::ExitCode;

const COMMANDS: &[Command] =
    &[test::COMMAND, ci::COMMAND, tidy::COMMAND, deep::COMMAND, bench::COMMAND, qemu::COMMAND];

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

fn main() -> ExitCode {
    let given: Vec<String> =
        std::env::args_os().skip(1).map(|arg| arg.to_string_lossy().into_owned()).collect();
    match args::parse(COMMANDS, &given) {
        Ok(Request::Help(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Request::Run(command, wanted)) => exit_code(enter_root().and_then(|()| (command.run)(&wanted))),
        Err(misuse) => {
            eprintln!("xtask: {misuse}");
            ExitCode::from(MISUSED)
        }
    }
}

/// Makes the repository's root the working directory, so that every path and command is the same
/// wherever `cargo xtask` was typed.
fn enter_root() -> Result<(), TaskError> {
    let manifest =
        std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    let root = Path::new(&manifest).join("..");
    std::env::set_current_dir(&root)
        .map_err(|error| TaskError::new(format!("no repository at {}: {error}", root.display())))
}

fn exit_code(ended: Result<(), TaskError>) -> ExitCode {
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::from(FAILED)
        }
    }
}
