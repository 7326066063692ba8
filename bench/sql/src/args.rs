//! Command line.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bench_support::time_seed;
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::case::SqlCase;
use crate::contender::{self, BASELINE, SqlContender};

const OUTPUT: &str =
    "Tables go to standard output, progress to standard error. Files are in target/sql-bench.";

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench sql -- --seconds 1 --rounds 1           smoke test, takes about a minute
  cargo xtask bench sql -- --contenders evenkeel --cases lookup16 --rounds 21
  cargo xtask bench sql -- --json target/sql.json
  cargo xtask bench sql -- overload                         three nodes under overload";

/// Compares the CPU time and latency of queries through PgBouncer and Evenkeel in alternating rounds
#[derive(Debug, Parser)]
#[command(
    name = "sql-bench",
    override_usage = "cargo xtask bench sql [-- [OPTIONS]]\n       cargo xtask bench sql -- overload [OPTIONS]\n       sql-bench <COMMAND>",
    after_help = after_help(),
    args_conflicts_with_subcommands = true
)]
pub(crate) struct SqlBenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<SqlBenchCommand>,
    #[command(flatten)]
    pub(crate) options: SqlBenchOptions,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SqlBenchCommand {
    /// Compare three nodes under overload with one large node and with HAProxy; takes less than three minutes
    Overload(OverloadOptions),
    /// Run only the database, print its URL, and stop when standard input is closed (for profiling)
    Database,
    /// Run only the load generator against a gateway with the database as its default (for profiling)
    Load(SqlLoadArgs),
}

#[derive(Debug, Args)]
pub(crate) struct SqlBenchOptions {
    /// Number of rounds; each contender runs each case once per round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Measured seconds of each turn
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Comma-separated contenders [default: all]; pgbouncer always runs, twice
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = contender_names(), hide_possible_values = true)]
    contenders: Vec<String>,
    /// Comma-separated cases [default: all]
    #[arg(long = "cases", value_name = "LIST", value_delimiter = ',', value_parser = SqlCase::parse)]
    named_cases: Vec<SqlCase>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

#[derive(Debug, Args)]
pub(crate) struct OverloadOptions {
    /// Number of rounds; each contender runs each case once per round
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Seconds in which the queries of a turn arrive
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=60))]
    pub(crate) seconds: u32,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// Options of every benchmark.
#[derive(Debug, Args)]
pub(crate) struct RunOptions {
    /// Seed of everything random, to repeat an earlier run [default: from the clock]
    #[arg(long, value_name = "N", default_value_t = time_seed(), hide_default_value = true)]
    pub(crate) seed: u64,
    /// Also write the results to FILE, for `cargo xtask bench compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The evenkeel binary to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/evenkeel")]
    pub(crate) evenkeel: PathBuf,
}

impl RunOptions {
    /// Prints the seed, and fails before the first round if the results could not be written.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        eprintln!("seed {}; repeat the order with --seed {}", self.seed, self.seed);
        self.write_json(String::new)
    }

    /// Writes the results, if requested.
    pub(crate) fn write_json(&self, results: impl FnOnce() -> String) -> io::Result<()> {
        let Some(path) = &self.json else { return Ok(()) };
        let with_path =
            |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        fs::write(path, results()).map_err(with_path)
    }
}

impl SqlBenchOptions {
    pub(crate) fn includes(&self, contender: &SqlContender) -> bool {
        let is_named = self.contenders.iter().any(|name| name == contender.name);
        contender.name == BASELINE || self.contenders.is_empty() || is_named
    }

    pub(crate) fn cases(&self) -> &[SqlCase] {
        if self.named_cases.is_empty() { SqlCase::ALL } else { &self.named_cases }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SqlLoadArgs {
    /// Address of the gateway, for example 127.0.0.1:7070
    #[arg(value_name = "ADDR")]
    pub(crate) address: SocketAddr,
    /// Case to run
    #[arg(value_parser = SqlCase::parse)]
    pub(crate) case: SqlCase,
    /// Seconds to run
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
    /// Comma-separated API keys; every connection uses the next key for its next query
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) keys: Vec<String>,
}

fn contender_names() -> PossibleValuesParser {
    contender::ALL.iter().map(|contender| contender.name).collect::<Vec<_>>().into()
}

fn after_help() -> String {
    let contenders: String =
        contender::ALL.iter().map(|one| format!("  {:19} {}\n", one.name, one.about)).collect();
    let cases: String =
        SqlCase::ALL.iter().map(|one| format!("  {:19} {}\n", one.name(), one.about())).collect();
    format!("Contenders:\n{contenders}\nCases:\n{cases}\n{EXAMPLES}\n\n{OUTPUT}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        SqlBenchArgs::command().debug_assert();
    }

    #[test]
    fn by_default_every_contender_runs_every_case_five_times() {
        let options = options("");
        assert_eq!((options.rounds, options.cases().len()), (5, SqlCase::ALL.len()));
        assert!(contender::ALL.iter().all(|contender| options.includes(contender)));
    }

    #[test]
    fn the_baseline_runs_whichever_contenders_are_named() {
        let options = options("--contenders evenkeel,direct --cases rows,lookup64");
        let included: Vec<_> =
            contender::ALL.iter().filter(|one| options.includes(one)).map(|one| one.name).collect();
        assert_eq!(included, ["direct", "pgbouncer", "evenkeel"]);
        assert_eq!(options.cases(), [SqlCase::Rows, SqlCase::Lookup { connections: 64 }]);
    }

    #[test]
    fn usage_errors_name_the_bad_argument() {
        for (line, expected) in [
            ("--fast", "unexpected argument '--fast'"),
            ("--rounds 0", "'0' for '--rounds <N>': 0 is not in 1..=1000"),
            ("--seconds 601", "'601' for '--seconds <N>': 601 is not in 1..=600"),
            ("--contenders odyssey", "'odyssey' for '--contenders <LIST>'"),
            ("--cases lookup2", "'lookup2' for '--cases <LIST>': unknown case"),
            ("load here lookup1", "'here' for '<ADDR>'"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    fn parse(line: &str) -> Result<SqlBenchArgs, clap::Error> {
        SqlBenchArgs::try_parse_from(std::iter::once("sql-bench").chain(line.split_whitespace()))
    }

    pub(crate) fn options(line: &str) -> SqlBenchOptions {
        parse(line).unwrap().options
    }
}
