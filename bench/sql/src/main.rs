//! `cargo xtask bench sql`: measures the overhead of Evenkeel's SQL API per query, compared with PgBouncer and with
//! direct connections to PostgreSQL.
//!
//! All contenders use one private PostgreSQL server ([`database`]). [`rounds`] runs each [`contender`] once per round and
//! [`case`](mod@case): [`pgbench`] loads PostgreSQL and PgBouncer, [`http_load`] loads Evenkeel and sqld. Only the process in the
//! middle is measured: its CPU time is read from `/proc` ([`bench_support::Process`]) at both ends of the same window in
//! which queries are counted. [`overload`] compares three nodes with one.

mod args;
mod case;
mod contender;
mod database;
mod http_load;
mod json;
mod overload;
mod pgbench;
mod query_api;
mod resets;
mod rounds;
mod score;
mod table;
mod turn;

use std::io::{self, Read, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;

use self::args::{SqlBenchArgs, SqlBenchCommand, SqlLoadArgs};
use self::database::BenchDatabase;
use self::http_load::HttpTarget;
use self::query_api::QueryApi;

fn main() -> ExitCode {
    let cli = SqlBenchArgs::parse();
    let result = match &cli.command {
        Some(SqlBenchCommand::Overload(options)) => overload::main(options),
        Some(SqlBenchCommand::Database) => serve_database(),
        Some(SqlBenchCommand::Load(args)) => run_load(args),
        None => rounds::main(&cli.options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sql-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the database until standard input is closed.
fn serve_database() -> io::Result<()> {
    let database = BenchDatabase::start()?;
    print(&format!("{}\n", database.url()))?;
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

/// Sends load to one gateway, for profiling it.
fn run_load(args: &SqlLoadArgs) -> io::Result<()> {
    let target = HttpTarget { address: args.address, keys: args.keys.clone(), api: QueryApi::Postgres };
    let window = Duration::from_secs(args.seconds.into());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let turn = runtime.block_on(http_load::run(&target, args.case, window, &|| Ok(Duration::ZERO)));
    let turn = turn.map_err(io::Error::other)?;
    let queries = turn.latencies_ns.len();
    print(&format!("{queries} queries, {:.0} per second\n", queries as f64 / turn.wall.as_secs_f64()))
}

fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}
