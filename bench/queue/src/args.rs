//! Command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use bench_support::{parse_scale, time_seed};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::case::Case;
use crate::contender::{self, Contender};
use crate::engine::EngineCase;

const OUTPUT: &str =
    "Tables go to standard output, progress to standard error. Files are in target/queue-bench.";

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench queue -- --scale 0.05 --rounds 1        smoke test, takes seconds
  cargo xtask bench queue -- --contenders evenkeel --cases send1x16,take1 --rounds 21
  cargo xtask bench queue -- engine --scale 0.01 --rounds 1";

/// Compares durable queues in alternating rounds; every confirmed message is on disk
#[derive(Debug, Parser)]
#[command(
    name = "queue-bench",
    override_usage = "cargo xtask bench queue [-- [OPTIONS]]\n       cargo xtask bench queue -- engine [OPTIONS]\n       queue-bench load <ADDR> <CASE> [SECONDS]",
    after_help = after_help(),
    args_conflicts_with_subcommands = true
)]
pub(crate) struct QueueBenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Measure the queue engine alone: keys, producers, backlog
    Engine(Options),
    /// Run one engine measurement in this process and print its results as JSON
    #[command(hide = true)]
    EngineCase(EngineCase),
    /// Run only the load generator against an SQS server (for profiling)
    Load(LoadArgs),
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of rounds; each contender runs each case once per round
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Factor on the length of every turn, from 0.0001 to 1000
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = parse_scale)]
    pub(crate) scale: f64,
    /// Seed of the random order, to repeat an earlier run [default: from the clock]
    #[arg(long, value_name = "N", default_value_t = time_seed(), hide_default_value = true)]
    pub(crate) seed: u64,
    /// Comma-separated contenders [default: all]; redis always runs, twice
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = contender_names(), hide_possible_values = true)]
    contenders: Vec<String>,
    /// Comma-separated cases [default: all]
    #[arg(long = "cases", value_name = "LIST", value_delimiter = ',', value_parser = Case::parse)]
    named_cases: Vec<Case>,
    /// Also write the results to FILE, for `cargo xtask bench compare`
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The evenkeel binary to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/evenkeel")]
    pub(crate) evenkeel: PathBuf,
    /// Directory of the programs from Python packages
    #[arg(long, value_name = "DIR", default_value = "target/python-bench/bin")]
    pub(crate) python: PathBuf,
}

impl Options {
    pub(crate) fn includes(&self, contender: &Contender) -> bool {
        let is_baseline = contender.name == contender::ALL[0].name;
        is_baseline || self.contenders.is_empty() || self.contenders.iter().any(|name| name == contender.name)
    }

    pub(crate) fn cases(&self) -> &[Case] {
        if self.named_cases.is_empty() { Case::ALL } else { &self.named_cases }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Address of the SQS server, for example 127.0.0.1:7070
    #[arg(value_name = "ADDR")]
    pub(crate) address: SocketAddr,
    /// Case to run
    #[arg(value_parser = Case::parse)]
    pub(crate) case: Case,
    /// Duration of a send case; a take case receives 5000 messages per second of it
    #[arg(default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub(crate) seconds: u32,
}

fn contender_names() -> PossibleValuesParser {
    contender::ALL.iter().map(|contender| contender.name).collect::<Vec<_>>().into()
}

fn after_help() -> String {
    let contenders: String =
        contender::ALL.iter().map(|one| format!("  {:17} {}\n", one.name, one.about)).collect();
    let cases: String =
        Case::ALL.iter().map(|one| format!("  {:17} {}\n", one.name(), one.about())).collect();
    format!("Contenders:\n{contenders}\nCases:\n{cases}\n{EXAMPLES}\n\n{OUTPUT}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        QueueBenchArgs::command().debug_assert();
    }

    #[test]
    fn by_default_every_contender_runs_every_case_five_times() {
        let options = options("");
        assert_eq!((options.rounds, options.cases().len()), (5, 8));
        assert!(contender::ALL.iter().all(|contender| options.includes(contender)));
    }

    #[test]
    fn the_baseline_runs_whichever_contenders_are_named() {
        let options = options("--contenders evenkeel --cases send1x16,take10");
        let included: Vec<_> =
            contender::ALL.iter().filter(|one| options.includes(one)).map(|one| one.name).collect();
        assert_eq!(included, ["redis", "evenkeel"]);
        assert_eq!(options.cases(), [Case::Send { batch: 1, producers: 16 }, Case::Take { batch: 10 }]);
    }

    #[test]
    fn usage_errors_name_the_bad_argument() {
        for (line, expected) in [
            ("--fast", "unexpected argument '--fast'"),
            ("--rounds 0", "'0' for '--rounds <N>': 0 is not in 1..=1000"),
            ("engine --rounds", "a value is required for '--rounds <N>'"),
            ("--contenders kafka", "'kafka' for '--contenders <LIST>'"),
            ("--cases a", "'a' for '--cases <LIST>': unknown case"),
            ("load here", "'here' for '<ADDR>'"),
            ("load 127.0.0.1:1 a", "'a' for '<CASE>': unknown case"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    fn parse(line: &str) -> Result<QueueBenchArgs, clap::Error> {
        QueueBenchArgs::try_parse_from(std::iter::once("queue-bench").chain(line.split_whitespace()))
    }

    pub(crate) fn options(line: &str) -> Options {
        parse(line).unwrap().options
    }
}
