//! The command line: what to simulate, and how much to say about it.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::time::Duration;
use evenkeel_sim::fairness::{SchedulingPolicy, measure, workloads};
use evenkeel_sim::{AdmitPolicy, Scenario, ServiceOrder, SimError, by_name, demo, names, run};

use crate::report;

const HELP: &str = "\
evenkeel-sim: Evenkeel's decisions on simulated traffic

Usage: evenkeel-sim <COMMAND> [OPTIONS]

Commands:
  demo         three tenants of unequal appetite share three nodes, first come first served and by Evenkeel
  run <NAME>   one scenario by name
  fairness     how far clients drift apart, beside plain VTC and first come first served
  list         the scenarios there are
  help         this text

Options:
  --seconds N  how many simulated seconds [default: 60, at most 3600; of fairness always 600]
  --seed N     what the random numbers start from [default: 7]
  --quiet      one line of result, for scripts
  --events     every event, one line each
  -h, --help   this text
  --version    the version

Examples:
  evenkeel-sim demo
  evenkeel-sim demo --seconds 10 --quiet
  evenkeel-sim run weights --seed 42
  evenkeel-sim fairness
";

/// The most simulated time; beyond it the list of events no longer fits a small machine.
const SECONDS_MAX: u64 = 3_600;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    Table,
    OneLine,
    Events,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Command {
    Demo,
    Run(String),
    Fairness,
    List,
    Help,
    Version,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Options {
    command: Command,
    seconds: Option<u64>,
    seed: u64,
    detail: Detail,
}

/// Does what the arguments say: 0 when it was done, 1 when it was not, 2 when they cannot be understood.
pub(crate) fn run_with(args: impl Iterator<Item = String>) -> ExitCode {
    let options = match parse(args) {
        Ok(options) => options,
        Err(misuse) => {
            eprintln!("evenkeel-sim: {misuse}\nTry 'evenkeel-sim help'.");
            return ExitCode::from(2);
        }
    };
    let mut out = BufWriter::new(io::stdout().lock());
    match execute(&mut out, &options).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads has seen enough, as `head` does.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("evenkeel-sim: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Why nothing, or not everything, was shown.
enum CliError {
    Simulation(SimError),
    Output(io::Error),
}

impl From<SimError> for CliError {
    fn from(error: SimError) -> Self {
        Self::Simulation(error)
    }
}

impl From<io::Error> for CliError {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Simulation(error) => error.fmt(f),
            Self::Output(error) => write!(f, "output: {error}"),
        }
    }
}

fn execute(out: &mut impl Write, options: &Options) -> Result<(), CliError> {
    match &options.command {
        Command::Help => write!(out, "{HELP}")?,
        Command::Version => writeln!(out, "evenkeel-sim {}", env!("CARGO_PKG_VERSION"))?,
        Command::List => {
            for name in names() {
                writeln!(out, "{name}")?;
            }
        }
        Command::Demo => show_demo(out, options)?,
        Command::Fairness => show_fairness(out, options.seed)?,
        Command::Run(name) => {
            // The name was checked when the arguments were read.
            if let Some(scenario) = by_name(name, options.seed) {
                show(out, &limited(scenario, options), options.detail)?;
            }
        }
    }
    Ok(())
}

fn show(out: &mut impl Write, scenario: &Scenario, detail: Detail) -> Result<(), CliError> {
    let done = run(scenario)?;
    match detail {
        Detail::Table => report::table(out, scenario, &done)?,
        Detail::OneLine => report::line(out, scenario, &done)?,
        Detail::Events => report::events(out, &done)?,
    }
    Ok(())
}

fn show_demo(out: &mut impl Write, options: &Options) -> Result<(), CliError> {
    let fair = limited(demo(options.seed), options);
    if options.detail != Detail::Table {
        return show(out, &fair, options.detail);
    }
    let plain = Scenario {
        order: ServiceOrder::Fifo,
        admit: AdmitPolicy::ByLoad(BackpressureConfig::default()),
        ..fair.clone()
    };
    let seconds = fair.duration.as_secs();
    writeln!(out, "{seconds} simulated seconds of three tenants on three nodes.")?;
    writeln!(out, "'greedy' alone asks for more than all nodes can do.")?;
    writeln!(out, "The same requests (seed {}), twice.\n", fair.seed)?;
    writeln!(out, "First come, first served; whoever arrives at a full queue is turned away:")?;
    show(out, &plain, Detail::Table)?;
    writeln!(out, "\nEvenkeel; turns by deficit round robin, admission by share:")?;
    show(out, &fair, Detail::Table)
}

fn show_fairness(out: &mut impl Write, seed: u64) -> Result<(), CliError> {
    let mut rows = vec![];
    for workload in workloads() {
        let run = |turns| measure(&workload, turns, seed);
        let ours = run(SchedulingPolicy::Evenkeel)?;
        let vtc = run(SchedulingPolicy::Vtc)?;
        let fifo = run(SchedulingPolicy::Fifo)?;
        rows.push((workload, [ours, vtc, fifo]));
    }
    Ok(report::fairness(out, seed, &rows)?)
}

fn limited(scenario: Scenario, options: &Options) -> Scenario {
    let duration = options.seconds.map_or(scenario.duration, Duration::from_secs);
    Scenario { duration, ..scenario }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
    let mut command = None;
    let mut seconds = None;
    let mut seed = 7;
    let mut detail = Detail::Table;
    while let Some(arg) = args.next() {
        let named = match arg.as_str() {
            "-h" | "--help" | "help" => Command::Help,
            "--version" => Command::Version,
            "demo" => Command::Demo,
            "fairness" => Command::Fairness,
            "list" => Command::List,
            "run" => Command::Run(scenario_name(args.next())?),
            "--seconds" => {
                seconds = Some(number(&arg, args.next(), 1, SECONDS_MAX)?);
                continue;
            }
            "--seed" => {
                seed = number(&arg, args.next(), 0, u64::MAX)?;
                continue;
            }
            "--quiet" => {
                detail = Detail::OneLine;
                continue;
            }
            "--events" => {
                detail = Detail::Events;
                continue;
            }
            unknown => return Err(format!("unknown argument '{unknown}'")),
        };
        if command.replace(named).is_some() {
            return Err(format!("'{arg}' is a second command"));
        }
    }
    let command = command.ok_or("no command given")?;
    Ok(Options { command, seconds, seed, detail })
}

fn scenario_name(name: Option<String>) -> Result<String, String> {
    let known = || names().collect::<Vec<_>>().join(", ");
    let name = name.ok_or_else(|| format!("'run' needs a scenario: {}", known()))?;
    if names().any(|other| other == name) {
        return Ok(name);
    }
    Err(format!("no scenario '{name}'; there are {}", known()))
}

fn number(option: &str, value: Option<String>, least: u64, most: u64) -> Result<u64, String> {
    let value = value.ok_or_else(|| format!("'{option}' needs a number"))?;
    match value.parse() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        _ => Err(format!("'{option}' takes a number from {least} to {most}, not '{value}'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_read_in_any_order() {
        let options = read("--seconds 5 demo --quiet --seed 3").unwrap();
        assert_eq!(
            options,
            Options { command: Command::Demo, seconds: Some(5), seed: 3, detail: Detail::OneLine }
        );
        assert_eq!(read("run weights --events").unwrap().command, Command::Run("weights".into()));
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        for (line, part) in [
            ("", "no command"),
            ("dmeo", "'dmeo'"),
            ("demo list", "second command"),
            ("run", "flood, weights"),
            ("run waits", "'waits'"),
            ("demo --seconds", "needs a number"),
            ("demo --seconds 0", "from 1 to 3600"),
            ("demo --seconds 3601", "3601"),
            ("demo --seed minus", "'minus'"),
        ] {
            let misuse = read(line).unwrap_err();
            assert!(misuse.contains(part), "{line:?} says {misuse:?}");
        }
    }

    fn read(line: &str) -> Result<Options, String> {
        parse(line.split_whitespace().map(String::from))
    }
}
