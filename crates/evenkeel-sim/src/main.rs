//! `evenkeel-sim`: shows Evenkeel's scheduling on simulated traffic.

mod cli;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::main()
}
