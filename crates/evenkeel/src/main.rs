//! `evenkeel`: the one binary; today the simulated model server, later the gateway.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
