//! `cargo xtask bench llm`: what a request costs on its way through Evenkeel's LLM door, and through what one would
//! otherwise put there.
//!
//! Everybody stands between the same two nodes ([`backend`], a process of its own) and the same [`load`]; the nodes have
//! their answers ready. [`rounds`] gives each [`contender`] its turn in every round, takes its processes' time from
//! `/proc` ([`bench_support::Process`]), and compares it with the baseline of the same round.

mod args;
mod backend;
mod chat;
mod clock;
mod contender;
mod json;
mod load;
mod rounds;
mod score;
mod table;
mod workload;

use std::io::{self, Write};
use std::process::ExitCode;

use self::args::Request;
use self::load::ClientPool;

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let outcome = match args::parse(words) {
        Ok(Request::Help) => print(&args::help()),
        Ok(Request::Backend) => backend::main(),
        Ok(Request::Load(load)) => ask(&load),
        Ok(Request::Rounds(options)) => rounds::main(&options),
        Err(misuse) => {
            eprintln!("llm-bench: {misuse}");
            return ExitCode::from(MISUSED);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("llm-bench: {error}");
            ExitCode::from(FAILED)
        }
    }
}

/// Asks whoever is at an address, for a profiler that watches it.
fn ask(load: &args::Load) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let answered = runtime.block_on(async {
        let callers = ClientPool::open(&load.target, load.connections).await?;
        callers.ask(load.requests).await
    });
    let answered = answered.map_err(|unanswered| io::Error::other(unanswered.to_string()))?;
    let rate = answered.delays_ns.len() as f64 / answered.wall.as_secs_f64();
    print(&format!("{} answers, {rate:.0} a second\n", answered.delays_ns.len()))
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}
