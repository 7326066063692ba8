//! `cargo xtask bench link`: measures one stream over one or several paths, sent by Evenkeel's link, by Linux MPTCP, by TCP
//! over one path, and by TCP through WireGuard.
//!
//! Every turn has an emulated network of its own (`evenkeel-test-network`). [`rounds`] runs each [`contender`] once per round and
//! [`case`](mod@case); [`turn`] sends a [`stream`] through it, measures a window; in fail-over cases it then turns one path
//! into a black hole. [`goals`] compares the results with the goals.

mod args;
mod case;
mod contender;
mod goals;
mod interrupt;
mod reorder;
mod rounds;
mod stream;
mod table;
mod turn;

use std::process::ExitCode;

use clap::Parser;

use self::args::LinkBenchOptions;

fn main() -> ExitCode {
    match rounds::main(&LinkBenchOptions::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("link-bench: {error}");
            ExitCode::FAILURE
        }
    }
}
