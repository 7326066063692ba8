//! Command line.

use std::path::PathBuf;

use bench_support::time_seed;
use clap::Parser;
use clap::builder::PossibleValuesParser;

use crate::case::LinkCase;
use crate::contender::LinkContender;

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench link -- --cases A --rounds 1 --seconds 2         smoke test, takes a minute
  cargo xtask bench link -- --cases loss,bursts,reordering,policer   lossy paths
  cargo xtask bench link -- --contenders evenkeel,mptcp-bbr --cases C

Needs root. Tables go to standard output, progress to standard error. Files are in target/link-bench.";

/// Compares the goodput of one stream over several emulated paths, its CPU time and its fail-over
#[derive(Debug, Parser)]
#[command(
    name = "link-bench",
    override_usage = "cargo xtask bench link [-- [OPTIONS]]",
    after_help = after_help()
)]
pub(crate) struct LinkBenchOptions {
    /// Number of rounds; single paths of A to H, WireGuard, shared-* and flapping run in the first only
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) rounds: u32,
    /// Measured seconds of each turn
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
    /// Comma-separated contenders [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = contender_names(), hide_possible_values = true)]
    contenders: Vec<String>,
    /// Comma-separated cases [default: all]
    #[arg(long = "cases", value_name = "LIST", value_delimiter = ',', value_parser = LinkCase::parse)]
    named_cases: Vec<LinkCase>,
    /// Seed of the order and of everything random, to repeat an earlier run [default: from the clock]
    #[arg(long, value_name = "N", default_value_t = time_seed(), hide_default_value = true)]
    pub(crate) seed: u64,
    /// The evenkeel binary to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/evenkeel")]
    pub(crate) evenkeel: PathBuf,
}

impl LinkBenchOptions {
    pub(crate) fn includes(&self, contender: LinkContender) -> bool {
        self.contenders.is_empty() || self.contenders.iter().any(|name| name == contender.name())
    }

    pub(crate) fn cases(&self) -> &[LinkCase] {
        if self.named_cases.is_empty() { LinkCase::ALL } else { &self.named_cases }
    }
}

fn contender_names() -> PossibleValuesParser {
    LinkContender::ALL.iter().map(|contender| contender.name()).collect::<Vec<_>>().into()
}

fn after_help() -> String {
    let contenders: String =
        LinkContender::ALL.iter().map(|one| format!("  {:12} {}\n", one.name(), one.about())).collect();
    let cases: String =
        LinkCase::ALL.iter().map(|one| format!("  {:12} {}\n", one.name, one.about())).collect();
    format!("Contenders:\n{contenders}\nCases (Mbit/s and ms of one direction):\n{cases}\n{EXAMPLES}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        LinkBenchOptions::command().debug_assert();
    }

    #[test]
    fn by_default_every_contender_runs_every_case_twice() {
        let options = parse("").unwrap();
        assert_eq!((options.rounds, options.cases()), (2, LinkCase::ALL));
        assert!(LinkContender::ALL.iter().all(|contender| options.includes(*contender)));
    }

    #[test]
    fn usage_errors_name_the_bad_argument() {
        for (line, expected) in [
            ("--rounds 0", "'0' for '--rounds <N>': 0 is not in 1..=100"),
            ("--contenders sctp", "'sctp' for '--contenders <LIST>'"),
            ("--cases Z", "'Z' for '--cases <LIST>': unknown case"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    fn parse(line: &str) -> Result<LinkBenchOptions, clap::Error> {
        LinkBenchOptions::try_parse_from(std::iter::once("link-bench").chain(line.split_whitespace()))
    }
}
