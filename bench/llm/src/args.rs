//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;

use bench_support::{UsageError, any_seed, list, number};

use crate::contender::{self, Contender};
use crate::load::Target;
use crate::workload::LlmWorkload;

const ROUNDS: usize = 7;
const ROUNDS_MAX: u64 = 1000;
const CONNECTIONS_MAX: u64 = 10_000;
const REQUESTS_MAX: u64 = 1_000_000_000;

const HELP: &str = "\
llm-bench: compares what stands in front of model servers, in alternating rounds

usage: cargo xtask bench llm [-- [OPTION]...]

options:
  --rounds N         how often everybody has a turn (7)
  --contenders LIST  names with commas between them (all); direct and haproxy always run, haproxy twice
  --workloads LIST   names with commas between them (all)
  --scale F          makes every turn longer or shorter (1)
  --seed N           repeats the order of another run
  --json FILE        also write the figures to FILE, for `cargo xtask bench compare`
  --evenkeel FILE    the program to measure (target/release/evenkeel)
  --python FOLDER    where Python's programs are (target/python-bench/bin)
  --litellm FILE     LiteLLM's program (target/python-litellm/bin/litellm)
  --help             show this

for a profiler, alone:
  llm-bench backend                                     two nodes; prints their addresses
  llm-bench load ADDR [CONNECTIONS [REQUESTS [KEY]]]    asks whoever is there

Tables go to the standard output, progress to the standard error.
";

const EXAMPLES: &str = "
examples:
  cargo xtask bench llm -- --scale 0.02 --rounds 1                       does everything run?
  cargo xtask bench llm -- --contenders evenkeel,nginx --workloads load --rounds 21
  cargo xtask bench llm -- --json target/llm.json
";

/// What to do.
#[derive(Debug)]
pub(crate) enum Request {
    Help,
    Backend,
    Load(Load),
    Rounds(Options),
}

/// Which rounds to play, and where the figures go.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    contenders: Vec<&'static str>,
    pub(crate) workloads: Vec<LlmWorkload>,
    pub(crate) scale: f64,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    pub(crate) evenkeel: PathBuf,
    pub(crate) python: PathBuf,
    pub(crate) litellm: PathBuf,
}

impl Options {
    pub(crate) fn wants(&self, contender: &Contender) -> bool {
        let always = contender::ALL.iter().take(2).any(|first| first.name == contender.name);
        always || self.contenders.contains(&contender.name)
    }
}

/// A load without rounds.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) target: Target,
    pub(crate) connections: usize,
    pub(crate) requests: usize,
}

/// Reads the words after the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, UsageError> {
    let mut words = words.into_iter().peekable();
    match words.peek().map(String::as_str) {
        Some("backend") => return Ok(Request::Backend),
        Some("load") => return parse_load(words.skip(1)).map(Request::Load),
        _ => {}
    }
    let mut options = Options {
        rounds: ROUNDS,
        contenders: contender::ALL.iter().map(|contender| contender.name).collect(),
        workloads: LlmWorkload::ALL.to_vec(),
        scale: 1.0,
        seed: any_seed(),
        json: None,
        evenkeel: "target/release/evenkeel".into(),
        python: "target/python-bench/bin".into(),
        litellm: "target/python-litellm/bin/litellm".into(),
    };
    while let Some(word) = words.next() {
        let mut value = |wanted| words.next().ok_or_else(|| UsageError::bad(&word, "", wanted));
        match word.as_str() {
            "--help" | "-h" => return Ok(Request::Help),
            "--rounds" => options.rounds = number(&word, &value("a number")?, 1..=ROUNDS_MAX)? as usize,
            "--contenders" => {
                let known = |name: &str| contender::ALL.iter().map(|one| one.name).find(|own| *own == name);
                options.contenders = list("contender", &value("names")?, known)?;
            }
            "--workloads" => {
                let known = |name: &str| LlmWorkload::ALL.iter().copied().find(|own| own.name() == name);
                options.workloads = list("workload", &value("names")?, known)?;
            }
            "--scale" => {
                let given = value("a number")?;
                let scale = given.parse().ok().filter(|scale| (0.0001..=1000.0).contains(scale));
                options.scale =
                    scale.ok_or_else(|| UsageError::bad(&word, &given, "a number from 0.0001 to 1000"))?;
            }
            "--seed" => options.seed = number(&word, &value("a number")?, 0..=u64::MAX)?,
            "--json" => options.json = Some(value("the name of a file")?.into()),
            "--evenkeel" => options.evenkeel = value("the name of a file")?.into(),
            "--python" => options.python = value("the name of a folder")?.into(),
            "--litellm" => options.litellm = value("the name of a file")?.into(),
            _ => return Err(UsageError::UnknownWord { word }),
        }
    }
    Ok(Request::Rounds(options))
}

fn parse_load(mut words: impl Iterator<Item = String>) -> Result<Load, UsageError> {
    let address = words.next().unwrap_or_default();
    let address: SocketAddr =
        address.parse().map_err(|_| UsageError::bad("load", &address, "an address like 127.0.0.1:7070"))?;
    let mut count = |usual: usize, max| {
        words.next().map_or(Ok(usual), |given| Ok(number("load", &given, 1..=max)? as usize))
    };
    let connections = count(16, CONNECTIONS_MAX)?;
    let requests = count(20_000, REQUESTS_MAX)?;
    let key = words.next().unwrap_or_else(|| "sk-none".to_owned());
    Ok(Load { target: Target { addresses: vec![address], keys: vec![key] }, connections, requests })
}

/// Writes what `--help` shows.
pub(crate) fn help() -> String {
    let contenders: String =
        contender::ALL.iter().map(|one| format!("  {:17} {}\n", one.name, one.about)).collect();
    let workloads: String =
        LlmWorkload::ALL.iter().map(|one| format!("  {:17} {}\n", one.name(), one.about())).collect();
    format!("{HELP}\ncontenders:\n{contenders}\nworkloads:\n{workloads}{EXAMPLES}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn without_words_everybody_does_everything_seven_times() {
        let options = options("");
        assert_eq!((options.rounds, options.workloads.len()), (7, 3));
        assert!(contender::ALL.iter().all(|contender| options.wants(contender)));
    }

    #[test]
    fn the_baseline_runs_whoever_is_named() {
        let options = options("--contenders nginx");
        let wanted: Vec<_> =
            contender::ALL.iter().filter(|one| options.wants(one)).map(|one| one.name).collect();
        assert_eq!(wanted, ["direct", "haproxy", "nginx"]);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("--fast", "nobody knows `--fast`; see --help"),
            ("--rounds 0", "--rounds takes a number from 1 to 1000, not `0`"),
            ("--rounds", "--rounds takes a number, not ``"),
            ("--scale 0", "--scale takes a number from 0.0001 to 1000, not `0`"),
            ("--contenders traefik", "no contender is called `traefik`; see --help"),
            ("--workloads a", "no workload is called `a`; see --help"),
            ("load here", "load takes an address like 127.0.0.1:7070, not `here`"),
        ] {
            let misuse = parse(line.split_whitespace().map(str::to_owned)).unwrap_err();
            assert_eq!(misuse.to_string(), said, "{line}");
        }
    }

    pub(crate) fn options(line: &str) -> Options {
        match parse(line.split_whitespace().map(str::to_owned)) {
            Ok(Request::Rounds(options)) => options,
            other => unreachable!("{line}: {other:?}"),
        }
    }
}
