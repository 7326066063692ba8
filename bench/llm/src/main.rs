//! `cargo xtask bench llm`: measures the overhead of Evenkeel's LLM API per request, compared with other gateways and
//! proxies.
//!
//! Every contender stands between the same two model servers ([`backend`], a separate process with canned responses)
//! and the same [`load`]. [`rounds`] runs each [`contender`] once per round and workload, reads its CPU time and memory
//! from `/proc` ([`bench_support::Process`]), and compares it with the baseline of the same round.

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

use clap::Parser;

use self::args::{Command, LlmBenchArgs, LoadArgs};
use self::load::{ClientPool, Target};

fn main() -> ExitCode {
    let cli = LlmBenchArgs::parse();
    let result = match &cli.command {
        Some(Command::Backend) => backend::main(),
        Some(Command::Load(args)) => run_load(args),
        None => rounds::main(&cli.options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("llm-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Sends load to one gateway, for profiling it.
fn run_load(args: &LoadArgs) -> io::Result<()> {
    let target = Target { addresses: vec![args.address], keys: vec![args.key.clone()] };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let result = runtime.block_on(async {
        let clients = ClientPool::open(&target, args.connections as usize).await?;
        clients.send(args.requests as usize).await
    });
    let result = result.map_err(io::Error::other)?;
    let rate = result.latencies_ns.len() as f64 / result.wall.as_secs_f64();
    print(&format!("{} responses, {rate:.0} per second\n", result.latencies_ns.len()))
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}
