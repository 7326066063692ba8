//! `evenkeel-sim`: watch Evenkeel's decisions on simulated traffic.

mod cli;
mod report;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run_with(std::env::args().skip(1))
}
