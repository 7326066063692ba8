//! The command line of `actor-rounds`.

use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::score::{Entrant, RowSamples, Score};
use crate::settings::{self, SettingError, Settings};
use crate::workload::{Contender, Workload};
use crate::{cli, runtimes};

const ROUNDS: usize = 7;
const ROUNDS_MAX: usize = 1000;
const TIMEOUT_SECS: u64 = 300;
const TIMEOUT_SECS_MAX: u64 = 24 * 3600;

const HELP: &str = "\
actor-rounds: compares actor runtimes in alternating rounds of fresh processes

usage: cargo xtask bench actor [-- [OPTION]... [KEY=VALUE]...]

options:
  --rounds N        how often everybody has a turn (7)
  --runtimes LIST   names with commas between them (all); the baseline always runs, twice;
                    NAME@KEY=VALUE is NAME under another setting, as a row of its own
  --workloads LIST  names with commas between them (all)
  --scale F         the same as the setting scale=F
  --timeout SECS    how long a child may take before it is killed (300)
  --seed N          repeats the order of another run
  --json FILE       also write the figures to FILE, for `cargo xtask bench compare`
  --help            show this

Tables go to the standard output, progress to the standard error.
";

const EXAMPLES: &str = "
examples:
  cargo xtask bench actor -- --workloads tell1,ask --rounds 9
  cargo xtask bench actor -- --runtimes kameo,kameo@workers=1 --json target/actor.json
  cargo xtask bench actor -- --scale 0.02 --rounds 1 echo=on
";

/// What to do.
pub(super) enum Request {
    Help,
    Run(Options),
}

/// Which rounds to play, and where the figures go.
pub(super) struct Options {
    pub(super) rounds: usize,
    pub(super) workloads: Vec<Workload>,
    pub(super) timeout: Duration,
    pub(super) seed: u64,
    pub(super) json: Option<PathBuf>,
    /// `key=value` words for every child.
    pub(super) settings: Vec<String>,
    /// The baseline, the baseline again, then whoever was named.
    runtimes: Vec<Entrant>,
}

impl Options {
    /// Lists who contends in a workload, without any figures yet.
    pub(super) fn score(&self, workload: Workload) -> Score {
        let entrants = match workload {
            Workload::Register => entrants(workload.contenders(), &[], &self.settings),
            _ => self.runtimes.clone(),
        };
        Score { workload, lines: entrants.into_iter().map(RowSamples::new).collect() }
    }
}

/// Reads the words after the program's name.
pub(super) fn parse(words: impl IntoIterator<Item = String>) -> Result<Request, UsageError> {
    let mut words = words.into_iter();
    let mut rounds = ROUNDS;
    let mut timeout = TIMEOUT_SECS;
    let mut seed = None;
    let mut json = None;
    let mut runtimes = String::new();
    let mut workloads = String::new();
    let mut settings = Vec::new();
    while let Some(word) = words.next() {
        let mut value = |wanted| words.next().ok_or_else(|| UsageError::bad(&word, "", wanted));
        match word.as_str() {
            "--help" | "-h" => return Ok(Request::Help),
            "--rounds" => rounds = number(&word, &value("a number")?, 1..=ROUNDS_MAX as u64)? as usize,
            "--timeout" => timeout = number(&word, &value("a number")?, 1..=TIMEOUT_SECS_MAX)?,
            "--seed" => seed = Some(number(&word, &value("a number")?, 0..=u64::MAX)?),
            "--runtimes" => runtimes = value("names")?,
            "--workloads" => workloads = value("names")?,
            "--scale" => settings.push(format!("scale={}", value("a number")?)),
            "--json" => json = Some(value("the name of a file")?.into()),
            flag if flag.starts_with('-') => return Err(UsageError::UnknownFlag { flag: word }),
            _ => settings.push(word),
        }
    }
    check(&settings)?;
    Ok(Request::Run(Options {
        rounds,
        workloads: parse_workloads(&workloads)?,
        timeout: Duration::from_secs(timeout),
        seed: seed.unwrap_or_else(any_seed),
        json,
        runtimes: parse_runtimes(&runtimes, &settings)?,
        settings,
    }))
}

fn number(flag: &str, given: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, UsageError> {
    let wanted = format!("a number from {} to {}", range.start(), range.end());
    let number = given.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| UsageError::bad(flag, given, &wanted))
}

/// Reads some number of the world, for a run that nobody wants to repeat.
fn any_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64 % 1_000_000_000)
}

fn parse_workloads(list: &str) -> Result<Vec<Workload>, UsageError> {
    if list.is_empty() {
        return Ok(Workload::ALL.into());
    }
    let find = |name: &str| {
        Workload::find(name).ok_or_else(|| UsageError::UnknownWorkload { given: name.to_owned() })
    };
    let mut workloads = Vec::new();
    for name in list.split(',') {
        let workload = find(name)?;
        if workloads.contains(&workload) {
            return Err(UsageError::TwiceNamed { label: name.to_owned() });
        }
        workloads.push(workload);
    }
    Ok(workloads)
}

fn parse_runtimes(list: &str, settings: &[String]) -> Result<Vec<Entrant>, UsageError> {
    if list.is_empty() {
        return Ok(entrants(runtimes::ALL, &[], settings));
    }
    let baseline = &runtimes::ALL[..1];
    let mut named: Vec<Entrant> = Vec::new();
    for label in list.split(',') {
        let entrant = parse_runtime(label, settings)?;
        if named.iter().any(|other| other.label == entrant.label) {
            return Err(UsageError::TwiceNamed { label: entrant.label });
        }
        if entrant.label != baseline[0].name {
            named.push(entrant);
        }
    }
    Ok(entrants(baseline, &named, settings))
}

/// Reads `NAME[@KEY=VALUE]...`; what is set there wins over what is set for everybody.
fn parse_runtime(label: &str, settings: &[String]) -> Result<Entrant, UsageError> {
    let mut parts = label.split('@');
    let name = parts.next().unwrap_or_default();
    let found = runtimes::ALL.iter().find(|known| known.name == name);
    let contender = found.ok_or_else(|| UsageError::UnknownRuntime { given: name.to_owned() })?;
    let own: Vec<String> = parts.map(str::to_owned).collect();
    check(&own)?;
    let overridden = |word: &&String| own.iter().any(|own| key(own) == key(word));
    let mut settings: Vec<String> = settings.iter().filter(|word| !overridden(word)).cloned().collect();
    settings.extend(own);
    Ok(Entrant { label: label.to_owned(), contender, settings })
}

fn key(word: &str) -> &str {
    word.split('=').next().unwrap_or_default()
}

fn check(settings: &[String]) -> Result<(), UsageError> {
    Settings::parse(settings.iter().map(String::as_str)).map(drop).map_err(UsageError::SettingError)
}

/// Puts the first contender, the baseline, in twice: how far it is from itself is the noise of the machine.
fn entrants(contenders: &'static [Contender], named: &[Entrant], settings: &[String]) -> Vec<Entrant> {
    let entrant = |contender: &'static Contender, label: String| Entrant {
        label,
        contender,
        settings: settings.to_vec(),
    };
    let mut all: Vec<_> =
        contenders.iter().map(|contender| entrant(contender, contender.name.to_owned())).collect();
    all.insert(1, entrant(&contenders[0], format!("{} (again)", contenders[0].name)));
    all.extend_from_slice(named);
    all
}

/// Writes what `--help` shows.
pub(super) fn help() -> String {
    format!("{HELP}{}\n{}{EXAMPLES}", cli::listing(), settings::HELP)
}

/// Why a command line makes no sense.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum UsageError {
    UnknownFlag { flag: String },
    BadValue { flag: String, given: String, wanted: String },
    UnknownWorkload { given: String },
    UnknownRuntime { given: String },
    TwiceNamed { label: String },
    SettingError(SettingError),
}

impl UsageError {
    fn bad(flag: &str, given: &str, wanted: &str) -> Self {
        Self::BadValue { flag: flag.to_owned(), given: given.to_owned(), wanted: wanted.to_owned() }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownFlag { flag } => write!(f, "no flag is called `{flag}`; see --help"),
            Self::BadValue { flag, given, wanted } => write!(f, "{flag} takes {wanted}, not `{given}`"),
            Self::UnknownWorkload { given } => write!(f, "no workload is called `{given}`; see --help"),
            Self::UnknownRuntime { given } => write!(f, "no runtime is called `{given}`; see --help"),
            Self::TwiceNamed { label } => write!(f, "`{label}` is named twice"),
            Self::SettingError(bad) => bad.fmt(f),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    #[test]
    fn without_words_everybody_runs_everything_seven_times() {
        let options = options("");
        assert_eq!(options.rounds, 7);
        assert_eq!(options.workloads, Workload::ALL);
        let labels = labels(&options, Workload::Tell1);
        assert_eq!(labels[..3], ["tokio-mpsc", "tokio-mpsc (again)", "evenkeel"]);
        assert_eq!(labels.len(), runtimes::ALL.len() + 1);
    }

    #[test]
    fn the_baseline_runs_twice_whoever_is_named() {
        let expected = ["tokio-mpsc", "tokio-mpsc (again)", "kameo"];
        assert_eq!(labels(&options("--runtimes kameo"), Workload::Ask), expected);
        assert_eq!(labels(&options("--runtimes kameo,tokio-mpsc"), Workload::Ask), expected);
        let sets = ["mutex-set", "mutex-set (again)", "dash-set", "flag"];
        assert_eq!(labels(&options("--runtimes kameo"), Workload::Register), sets);
    }

    #[test]
    fn a_runtimes_own_setting_wins_over_everybodys() {
        let options = options("--runtimes kameo@workers=1@echo=on workers=2 --scale 0.5");
        let kameo = &options.runtimes[2];
        assert_eq!(kameo.label, "kameo@workers=1@echo=on");
        assert_eq!(kameo.settings, ["scale=0.5", "workers=1", "echo=on"]);
        assert_eq!(options.runtimes[0].settings, ["workers=2", "scale=0.5"]);
    }

    #[test]
    fn what_makes_no_sense_is_said() {
        for (line, said) in [
            ("--fast", "no flag is called `--fast`; see --help"),
            ("--rounds", "--rounds takes a number, not ``"),
            ("--rounds 0", "--rounds takes a number from 1 to 1000, not `0`"),
            ("--timeout 86401", "--timeout takes a number from 1 to 86400, not `86401`"),
            ("--seed x", "--seed takes a number from 0 to 18446744073709551615, not `x`"),
            ("--json", "--json takes the name of a file, not ``"),
            ("--workloads tell1,teleport", "no workload is called `teleport`; see --help"),
            ("--workloads ask,ask", "`ask` is named twice"),
            ("--runtimes rector", "no runtime is called `rector`; see --help"),
            ("--runtimes kameo,kameo", "`kameo` is named twice"),
            ("--runtimes kameo@speed=9", "no setting is called `speed`; see --help"),
            ("--scale 0", "scale takes a number from 0.001 to 100, not `0`"),
            ("fast", "`fast` is no setting of the form key=value; see --help"),
        ] {
            assert_eq!(read(line).err().map(|misuse| misuse.to_string()).as_deref(), Some(said), "{line}");
        }
    }

    #[test]
    fn help_wins_over_the_rest() {
        assert!(matches!(read("--rounds 3 --help --fast"), Ok(Request::Help)));
        assert!(help().contains("--runtimes LIST"));
    }

    fn read(line: &str) -> Result<Request, UsageError> {
        parse(line.split_whitespace().map(str::to_owned))
    }

    pub(in super::super) fn options(line: &str) -> Options {
        match read(line) {
            Ok(Request::Run(options)) => options,
            Ok(Request::Help) => panic!("got help instead"),
            Err(misuse) => panic!("{misuse}"),
        }
    }

    fn labels(options: &Options, workload: Workload) -> Vec<String> {
        options.score(workload).lines.iter().map(|line| line.entrant.label.clone()).collect()
    }
}
