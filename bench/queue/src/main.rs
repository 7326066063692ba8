//! `cargo xtask bench queue`: what a durable message costs through Evenkeel's SQS door, and through other queues.
//!
//! Every [`contender`] is a server process of its own, started anew in an empty folder of the same disk for every
//! round; one thread of load speaks to each in its own protocol ([`client`]). [`rounds`] gives everybody a turn at every
//! [`case`] in every round, takes the servers' time from `/proc`, and compares with the baseline of the same round.
//! [`syncs`] counts that every server really flushes. [`engine`] measures the queue's engine by itself, in this process.

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

use self::args::Request;

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let outcome = match args::parse(words) {
        Ok(Request::Help) => print(&args::help()),
        Ok(Request::Rounds(options)) => rounds::main(&options),
        Ok(Request::Engine(options)) => engine::main(&options),
        Ok(Request::EnginePart(part)) => engine::part(&part),
        Ok(Request::Load(load)) => load::main(&load),
        Err(misuse) => {
            eprintln!("queue-bench: {misuse}");
            return ExitCode::from(MISUSED);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("queue-bench: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}
