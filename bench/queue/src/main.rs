//! `cargo xtask bench queue`: measures the cost of a durable message in Evenkeel's SQS API, compared with other queues.
//!
//! Every [`contender`] is a separate server process, started in an empty directory of the same disk for every round.
//! One load-generator thread speaks each server's own protocol ([`client`]). [`rounds`] runs each contender once per
//! round and [`case`], reads its CPU time from `/proc`, and compares it with the baseline of the same round. [`syncs`]
//! checks that every server calls fsync. [`engine`] measures the queue engine without a server.

mod args;
mod case;
mod client;
mod contender;
mod disk;
mod engine;
mod json;
mod load;
mod rounds;
mod syncs;
mod table;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;

use self::args::{Command, QueueBenchArgs};

fn main() -> ExitCode {
    let cli = QueueBenchArgs::parse();
    let result = match &cli.command {
        Some(Command::Engine(options)) => engine::main(options),
        Some(Command::EngineCase(case)) => engine::run_case(case),
        Some(Command::Load(args)) => load::main(args),
        None => rounds::main(&cli.options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}
