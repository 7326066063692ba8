//! Command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use bench_support::{parse_scale, time_seed};
use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand};

use crate::contender::{self, Contender};
use crate::workload::LlmWorkload;

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench llm -- --scale 0.02 --rounds 1          smoke test, takes seconds
  cargo xtask bench llm -- --contenders evenkeel,nginx --workloads load --rounds 21
  cargo xtask bench llm -- --json target/llm.json";

/// Compares the CPU time, latency and memory of LLM gateways and proxies in alternating rounds
#[derive(Debug, Parser)]
#[command(
    name = "llm-bench",
    override_usage = "cargo xtask bench llm [-- [OPTIONS]]\n       llm-bench <COMMAND>",
    after_help = after_help(),
    args_conflicts_with_subcommands = true
)]
pub(crate) struct LlmBenchArgs {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) options: Options,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run only the two model servers and print their addresses (for profiling)
    Backend,
    /// Run only the load generator against a gateway (for profiling)
    Load(LoadArgs),
}

#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Number of rounds; each contender runs each workload once per round
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: u32,
    /// Comma-separated contenders [default: all]; direct and haproxy always run, haproxy twice
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = contender_names(), hide_possible_values = true)]
    contenders: Vec<String>,
    /// Comma-separated workloads [default: all]
    #[arg(long = "workloads", value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    named_workloads: Vec<LlmWorkload>,
    /// Factor on the length of every turn, from 0.0001 to 1000
    #[arg(long, value_name = "F", default_value_t = 1.0, value_parser = parse_scale)]
    pub(crate) scale: f64,
    /// Seed of the random order, to repeat an earlier run [default: from the clock]
    #[arg(long, value_name = "N", default_value_t = time_seed(), hide_default_value = true)]
    pub(crate) seed: u64,
    /// Also write the results to FILE, for `cargo xtask bench compare`
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// The evenkeel binary to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/evenkeel")]
    pub(crate) evenkeel: PathBuf,
    /// Directory of the programs from Python packages
    #[arg(long, value_name = "DIR", default_value = "target/python-bench/bin")]
    pub(crate) python: PathBuf,
    /// The litellm program
    #[arg(long, value_name = "FILE", default_value = "target/python-litellm/bin/litellm")]
    pub(crate) litellm: PathBuf,
}

impl Options {
    pub(crate) fn includes(&self, contender: &Contender) -> bool {
        let is_baseline = contender::ALL.iter().take(2).any(|first| first.name == contender.name);
        is_baseline || self.contenders.is_empty() || self.contenders.iter().any(|name| name == contender.name)
    }

    pub(crate) fn workloads(&self) -> &[LlmWorkload] {
        if self.named_workloads.is_empty() { LlmWorkload::ALL } else { &self.named_workloads }
    }
}

#[derive(Debug, Args)]
pub(crate) struct LoadArgs {
    /// Address of the gateway, for example 127.0.0.1:7070
    #[arg(value_name = "ADDR")]
    pub(crate) address: SocketAddr,
    /// Number of connections
    #[arg(default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) connections: u32,
    /// Total number of requests
    #[arg(default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000_000))]
    pub(crate) requests: u32,
    /// API key sent with every request
    #[arg(default_value = "sk-none")]
    pub(crate) key: String,
}

fn contender_names() -> PossibleValuesParser {
    contender::ALL.iter().map(|contender| contender.name).collect::<Vec<_>>().into()
}

fn after_help() -> String {
    let contenders: String =
        contender::ALL.iter().map(|one| format!("  {:17} {}\n", one.name, one.about)).collect();
    let workloads: String =
        LlmWorkload::ALL.iter().map(|one| format!("  {:17} {}\n", one.name(), one.about())).collect();
    format!(
        "Contenders:\n{contenders}\nWorkloads:\n{workloads}\n{EXAMPLES}\n\nTables go to standard output, progress to standard error."
    )
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        LlmBenchArgs::command().debug_assert();
    }

    #[test]
    fn by_default_every_contender_runs_every_workload_seven_times() {
        let options = options("");
        assert_eq!((options.rounds, options.workloads().len()), (7, 3));
        assert!(contender::ALL.iter().all(|contender| options.includes(contender)));
    }

    #[test]
    fn the_baseline_runs_whichever_contenders_are_named() {
        let options = options("--contenders nginx");
        let included: Vec<_> =
            contender::ALL.iter().filter(|one| options.includes(one)).map(|one| one.name).collect();
        assert_eq!(included, ["direct", "haproxy", "nginx"]);
    }

    #[test]
    fn lists_are_separated_by_commas() {
        let options = options("--workloads one,stream --contenders smg,envoy");
        assert_eq!(options.workloads(), [LlmWorkload::One, LlmWorkload::Stream]);
        assert_eq!(options.contenders, ["smg", "envoy"]);
    }

    #[test]
    fn usage_errors_name_the_bad_argument() {
        for (line, expected) in [
            ("--fast", "unexpected argument '--fast'"),
            ("--rounds 0", "'0' for '--rounds <N>': 0 is not in 1..=1000"),
            ("--rounds", "a value is required for '--rounds <N>'"),
            ("--scale 0", "'0' for '--scale <F>': expected a number from 0.0001 to 1000"),
            ("--contenders traefik", "'traefik' for '--contenders <LIST>'"),
            ("--workloads a", "'a' for '--workloads <LIST>'"),
            ("load here", "'here' for '<ADDR>'"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    fn parse(line: &str) -> Result<LlmBenchArgs, clap::Error> {
        LlmBenchArgs::try_parse_from(std::iter::once("llm-bench").chain(line.split_whitespace()))
    }

    pub(crate) fn options(line: &str) -> Options {
        parse(line).unwrap().options
    }
}
