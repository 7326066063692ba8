//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use bench_support::{UsageError, any_seed, list, number};

use crate::case::Case;
use crate::contender::{self, Contender};
use crate::engine::EngineCase;

const ROUNDS: usize = 5;
const ROUNDS_MAX: u64 = 1000;
const SECONDS_MAX: u64 = 3600;

const HELP: &str = "\
queue-bench: compares durable queues, in alternating rounds; everything confirmed is on disk

usage: cargo xtask bench queue [-- [OPTION]...]           Evenkeel's SQS door beside other queues
       cargo xtask bench queue -- engine [OPTION]...      the engine by itself: keys, turns, backlogs

options:
  --rounds N         how often everybody has a turn (5)
  --scale F          makes every turn longer or shorter (1)
  --seed N           repeats the order of another run
  --contenders LIST  names with commas between them (all); redis always runs, twice
  --cases LIST       names with commas between them (all)
  --json FILE        also write the figures to FILE, for `cargo xtask bench compare`
  --evenkeel FILE    the program to measure (target/release/evenkeel)
  --python FOLDER    where Python's programs are (target/python-bench/bin)
  --help             show this

for a profiler, alone:
  queue-bench load ADDR CASE [SECONDS]                    speaks SQS to whoever is there

Tables go to the standard output, progress to the standard error. Files are in target/queue-bench.
";

const EXAMPLES: &str = "
examples:
  cargo xtask bench queue -- --scale 0.05 --rounds 1                      does everything run?
  cargo xtask bench queue -- --contenders evenkeel --cases send1x16,take1 --rounds 21
  cargo xtask bench queue -- engine --scale 0.01 --rounds 1
";

/// EngineCaseKind to do.
#[derive(Debug)]
pub(crate) enum Request {
    Help,
    Rounds(Options),
    Engine(Options),
    EnginePart(EngineCase),
    Load(Load),
}

/// Which rounds to play, and where the figures go.
#[derive(Debug)]
pub(crate) struct Options {
    pub(crate) rounds: usize,
    contenders: Vec<&'static str>,
    pub(crate) cases: Vec<Case>,
    pub(crate) scale: f64,
    pub(crate) seed: u64,
    pub(crate) json: Option<PathBuf>,
    pub(crate) evenkeel: PathBuf,
    pub(crate) python: PathBuf,
}

impl Options {
    pub(crate) fn wants(&self, contender: &Contender) -> bool {
        contender.name == contender::ALL[0].name || self.contenders.contains(&contender.name)
    }
}

/// A load without rounds.
#[derive(Debug)]
pub(crate) struct Load {
    pub(crate) address: SocketAddr,
    pub(crate) case: Case,
    /// For how long messages are sent.
    pub(crate) span: Duration,
    /// How many messages are taken.
    pub(crate) messages: usize,
}

/// Reads the words after the program's name.
pub(crate) fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, UsageError> {
    let mut words = words.into_iter().peekable();
    match words.peek().map(String::as_str) {
        Some("load") => return parse_load(words.skip(1)).map(Request::Load),
        Some("engine-part") => return parse_part(words.skip(1)).map(Request::EnginePart),
        Some("engine") => {
            words.next();
            return Ok(match parse_options(words)? {
                Some(options) => Request::Engine(options),
                None => Request::Help,
            });
        }
        _ => {}
    }
    Ok(parse_options(words)?.map_or(Request::Help, Request::Rounds))
}

/// Reads options; `None` when help is wanted.
fn parse_options(mut words: impl Iterator<Item = String>) -> Result<Option<Options>, UsageError> {
    let mut options = Options {
        rounds: ROUNDS,
        contenders: contender::ALL.iter().map(|contender| contender.name).collect(),
        cases: Case::ALL.to_vec(),
        scale: 1.0,
        seed: any_seed(),
        json: None,
        evenkeel: "target/release/evenkeel".into(),
        python: "target/python-bench/bin".into(),
    };
    while let Some(word) = words.next() {
        let mut value = |wanted| words.next().ok_or_else(|| UsageError::bad(&word, "", wanted));
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--rounds" => options.rounds = number(&word, &value("a number")?, 1..=ROUNDS_MAX)? as usize,
            "--contenders" => {
                let known = |name: &str| contender::ALL.iter().map(|one| one.name).find(|own| *own == name);
                options.contenders = list("contender", &value("names")?, known)?;
            }
            "--cases" => options.cases = list("case", &value("names")?, case)?,
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
            _ => return Err(UsageError::UnknownWord { word }),
        }
    }
    Ok(Some(options))
}

fn parse_load(mut words: impl Iterator<Item = String>) -> Result<Load, UsageError> {
    let address = words.next().unwrap_or_default();
    let address: SocketAddr =
        address.parse().map_err(|_| UsageError::bad("load", &address, "an address like 127.0.0.1:7070"))?;
    let named = words.next().unwrap_or_default();
    let case = case(&named).ok_or(UsageError::UnknownName { noun: "case", given: named })?;
    let seconds = words.next().map_or(Ok(10), |given| number("load", &given, 1..=SECONDS_MAX))?;
    Ok(Load { address, case, span: Duration::from_secs(seconds), messages: seconds as usize * 5_000 })
}

fn parse_part(mut words: impl Iterator<Item = String>) -> Result<EngineCase, UsageError> {
    let name = words.next().unwrap_or_default();
    let mut next = || words.next().unwrap_or_default();
    let folder = PathBuf::from(next());
    let first = next();
    let second = next();
    let whole = |given: &str| number(&name, given, 0..=u64::MAX);
    EngineCase::of(&name, folder, whole(&first)? as usize, whole(&second)? as usize)
        .ok_or(UsageError::UnknownName { noun: "part", given: name })
}

fn case(name: &str) -> Option<Case> {
    Case::ALL.iter().copied().find(|case| case.name() == name)
}

/// Writes what `--help` shows.
pub(crate) fn help() -> String {
    let contenders: String =
        contender::ALL.iter().map(|one| format!("  {:17} {}\n", one.name, one.about)).collect();
    let cases: String =
        Case::ALL.iter().map(|one| format!("  {:17} {}\n", one.name(), one.about())).collect();
    format!("{HELP}\ncontenders:\n{contenders}\ncases:\n{cases}{EXAMPLES}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    #[test]
    fn without_words_everybody_does_everything_five_times() {
        let options = options("");
        assert_eq!((options.rounds, options.cases.len()), (5, 8));
        assert!(contender::ALL.iter().all(|contender| options.wants(contender)));
    }

    #[test]
    fn the_baseline_runs_whoever_is_named() {
        let options = options("--contenders evenkeel --cases send1x16,take10");
        let wanted: Vec<_> =
            contender::ALL.iter().filter(|one| options.wants(one)).map(|one| one.name).collect();
        assert_eq!(wanted, ["redis", "evenkeel"]);
        assert_eq!(options.cases, [Case::Send { batch: 1, producers: 16 }, Case::Take { batch: 10 }]);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("--fast", "nobody knows `--fast`; see --help"),
            ("--rounds 0", "--rounds takes a number from 1 to 1000, not `0`"),
            ("engine --rounds", "--rounds takes a number, not ``"),
            ("--contenders kafka", "no contender is called `kafka`; see --help"),
            ("--cases a", "no case is called `a`; see --help"),
            ("load here", "load takes an address like 127.0.0.1:7070, not `here`"),
            ("load 127.0.0.1:1 a", "no case is called `a`; see --help"),
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
