//! Command line of `actor-rounds`.

use std::path::PathBuf;
use std::time::Duration;

use bench_support::time_seed;
use clap::Parser;

use super::score::{Entrant, RowSamples, Score};
use crate::settings::{self, SettingError, Settings};
use crate::workload::{Contender, Workload};
use crate::{cli, runtimes};

const EXAMPLES: &str = "\
Examples:
  cargo xtask bench actor -- --workloads tell1,ask --rounds 9
  cargo xtask bench actor -- --runtimes kameo,kameo@workers=1 --json target/actor.json
  cargo xtask bench actor -- --scale 0.02 --rounds 1 echo=on

Tables go to standard output, progress to standard error.";

/// Compares actor runtimes in alternating rounds; every run is a new process
#[derive(Debug, Parser)]
#[command(
    name = "actor-rounds",
    override_usage = "cargo xtask bench actor [-- [OPTIONS] [KEY=VALUE]...]",
    after_help = format!("{}\n{}\n{EXAMPLES}", cli::listing(), settings::HELP)
)]
pub(super) struct RoundsArgs {
    /// Number of rounds; each runtime runs each workload once per round
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Comma-separated runtimes [default: all]; the baseline always runs, twice; NAME@KEY=VALUE overrides a setting
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    runtimes: Vec<String>,
    /// Comma-separated workloads [default: all]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = Workload::parse)]
    workloads: Vec<Workload>,
    /// Same as the setting scale=F
    #[arg(long, value_name = "F")]
    scale: Option<String>,
    /// Time limit of a run; a process that exceeds it is killed
    #[arg(long, value_name = "SECS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    timeout: u64,
    /// Seed of the random order, to repeat an earlier run [default: from the clock]
    #[arg(long, value_name = "N", default_value_t = time_seed(), hide_default_value = true)]
    seed: u64,
    /// Also write the results to FILE, for `cargo xtask bench compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Settings of every run
    #[arg(value_name = "KEY=VALUE")]
    settings: Vec<String>,
}

pub(super) struct Options {
    pub(super) rounds: usize,
    pub(super) workloads: Vec<Workload>,
    pub(super) timeout: Duration,
    pub(super) seed: u64,
    pub(super) json: Option<PathBuf>,
    /// `key=value` arguments of every child process.
    pub(super) settings: Vec<String>,
    /// The baseline, the baseline again, then the selected runtimes.
    runtimes: Vec<Entrant>,
}

impl Options {
    /// Creates a score with a row for each contender of the workload and no samples.
    pub(super) fn score(&self, workload: Workload) -> Score {
        let entrants = match workload {
            Workload::Register => entrants(workload.contenders(), &[], &self.settings),
            _ => self.runtimes.clone(),
        };
        Score { workload, rows: entrants.into_iter().map(RowSamples::new).collect() }
    }
}

impl RoundsArgs {
    /// Looks up the names and checks the settings.
    pub(super) fn resolve(self) -> Result<Options, UsageError> {
        let mut settings = self.settings;
        settings.extend(self.scale.map(|scale| format!("scale={scale}")));
        check(&settings)?;
        Ok(Options {
            rounds: self.rounds.into(),
            workloads: resolve_workloads(&self.workloads)?,
            timeout: Duration::from_secs(self.timeout),
            seed: self.seed,
            json: self.json,
            runtimes: resolve_runtimes(&self.runtimes, &settings)?,
            settings,
        })
    }
}

fn resolve_workloads(named: &[Workload]) -> Result<Vec<Workload>, UsageError> {
    if named.is_empty() {
        return Ok(Workload::ALL.into());
    }
    let mut workloads = Vec::new();
    for workload in named {
        if workloads.contains(workload) {
            return Err(UsageError::NamedTwice { label: workload.name().to_owned() });
        }
        workloads.push(*workload);
    }
    Ok(workloads)
}

fn resolve_runtimes(labels: &[String], settings: &[String]) -> Result<Vec<Entrant>, UsageError> {
    if labels.is_empty() {
        return Ok(entrants(runtimes::ALL, &[], settings));
    }
    let baseline = &runtimes::ALL[..1];
    let mut named: Vec<Entrant> = Vec::new();
    for label in labels {
        let entrant = resolve_runtime(label, settings)?;
        if named.iter().any(|other| other.label == entrant.label) {
            return Err(UsageError::NamedTwice { label: entrant.label });
        }
        if entrant.label != baseline[0].name {
            named.push(entrant);
        }
    }
    Ok(entrants(baseline, &named, settings))
}

/// Resolves `NAME[@KEY=VALUE]...`; these settings override the common ones.
fn resolve_runtime(label: &str, settings: &[String]) -> Result<Entrant, UsageError> {
    let mut parts = label.split('@');
    let name = parts.next().unwrap_or_default();
    let found = runtimes::ALL.iter().find(|known| known.name == name);
    let contender = found.ok_or_else(|| UsageError::UnknownRuntime { given: name.to_owned() })?;
    let own: Vec<String> = parts.map(str::to_owned).collect();
    check(&own)?;
    let is_overridden = |setting: &&String| own.iter().any(|own| key(own) == key(setting));
    let mut settings: Vec<String> =
        settings.iter().filter(|setting| !is_overridden(setting)).cloned().collect();
    settings.extend(own);
    Ok(Entrant { label: label.to_owned(), contender, settings })
}

fn key(setting: &str) -> &str {
    setting.split('=').next().unwrap_or_default()
}

fn check(settings: &[String]) -> Result<(), SettingError> {
    Settings::parse(settings.iter().map(String::as_str)).map(drop)
}

/// Includes the first contender, the baseline, twice: the ratio of its two runs measures the noise of the machine.
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

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum UsageError {
    #[error("unknown runtime `{given}`")]
    UnknownRuntime { given: String },
    #[error("`{label}` is named twice")]
    NamedTwice { label: String },
    #[error(transparent)]
    Setting(#[from] SettingError),
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        RoundsArgs::command().debug_assert();
    }

    #[test]
    fn by_default_every_runtime_runs_every_workload_seven_times() {
        let options = options("");
        assert_eq!(options.rounds, 7);
        assert_eq!(options.workloads, Workload::ALL);
        let labels = labels(&options, Workload::Tell1);
        assert_eq!(labels[..3], ["tokio-mpsc", "tokio-mpsc (again)", "evenkeel"]);
        assert_eq!(labels.len(), runtimes::ALL.len() + 1);
    }

    #[test]
    fn the_baseline_runs_twice_whichever_runtimes_are_named() {
        let expected = ["tokio-mpsc", "tokio-mpsc (again)", "kameo"];
        assert_eq!(labels(&options("--runtimes kameo"), Workload::Ask), expected);
        assert_eq!(labels(&options("--runtimes kameo,tokio-mpsc"), Workload::Ask), expected);
        let sets = ["mutex-set", "mutex-set (again)", "dash-set", "flag"];
        assert_eq!(labels(&options("--runtimes kameo"), Workload::Register), sets);
    }

    #[test]
    fn a_runtimes_own_setting_overrides_the_common_one() {
        let options = options("--runtimes kameo@workers=1@echo=on workers=2 --scale 0.5");
        let kameo = &options.runtimes[2];
        assert_eq!(kameo.label, "kameo@workers=1@echo=on");
        assert_eq!(kameo.settings, ["scale=0.5", "workers=1", "echo=on"]);
        assert_eq!(options.runtimes[0].settings, ["workers=2", "scale=0.5"]);
    }

    #[test]
    fn usage_errors_name_the_bad_argument() {
        for (line, expected) in [
            ("--fast", "unexpected argument '--fast'"),
            ("--rounds", "a value is required for '--rounds <N>'"),
            ("--rounds 0", "'0' for '--rounds <N>': 0 is not in 1..=1000"),
            ("--timeout 86401", "'86401' for '--timeout <SECS>': 86401 is not in 1..=86400"),
            ("--seed x", "'x' for '--seed <N>'"),
            ("--json", "a value is required for '--json <FILE>'"),
            ("--workloads tell1,teleport", "'teleport' for '--workloads <LIST>': unknown workload"),
            ("--workloads ask,ask", "`ask` is named twice"),
            ("--runtimes rector", "unknown runtime `rector`"),
            ("--runtimes kameo,kameo", "`kameo` is named twice"),
            ("--runtimes kameo@speed=9", "unknown setting `speed`"),
            ("--scale 0", "scale must be a number from 0.001 to 100, not `0`"),
            ("fast", "`fast` is not of the form KEY=VALUE"),
        ] {
            let error = read(line).err().unwrap_or_default();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn help_wins_over_the_rest() {
        let help = read("--rounds 3 --help --fast").err().unwrap_or_default();
        assert!(help.contains("--runtimes <LIST>"), "{help}");
    }

    fn read(line: &str) -> Result<Options, String> {
        let cli = RoundsArgs::try_parse_from(std::iter::once("actor-rounds").chain(line.split_whitespace()));
        cli.map_err(|error| error.to_string())?.resolve().map_err(|error| error.to_string())
    }

    pub(in super::super) fn options(line: &str) -> Options {
        read(line).unwrap()
    }

    fn labels(options: &Options, workload: Workload) -> Vec<String> {
        options.score(workload).rows.iter().map(|row| row.entrant.label.clone()).collect()
    }
}
