//! Command line: which simulation to run, and how much to print.

use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use clap::builder::PossibleValuesParser;
use clap::{Parser, Subcommand, value_parser};
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::time::Duration;
use evenkeel_sim::choice::{self, ChoiceMode, choice_rows, run_choice};
use evenkeel_sim::fairness::{SchedulingPolicy, measure, workloads};
use evenkeel_sim::link::{LinkPlan, link_names, link_plan, run_link};
use evenkeel_sim::poison::{measure_poison_cell, poison_cells};
use evenkeel_sim::redirect::{RedirectPlan, RedirectRule, redirect_names, redirect_plan, run_redirect};
use evenkeel_sim::{
    AdmitPolicy, EngineShape, Scenario, ServiceOrder, SimError, by_name, demo, knee_cells, measure_knee_cell,
    names, run,
};

use crate::report;

const EXAMPLES: &str = "\
Examples:
  evenkeel-sim demo
  evenkeel-sim demo --seconds 10 --quiet
  evenkeel-sim run weights --seed 42
  evenkeel-sim run redirect-herding
  evenkeel-sim run link-failover
  evenkeel-sim fairness
  evenkeel-sim capacity
  evenkeel-sim choice
  evenkeel-sim poison";

/// Maximum simulated time; the events of a longer run would not fit into the memory of a small machine.
const SECONDS_MAX: u64 = 3_600;

/// Runs Evenkeel's scheduling on simulated traffic
#[derive(Clone, Debug, PartialEq, Eq, Parser)]
#[command(name = "evenkeel-sim", version, after_help = EXAMPLES, args_override_self = true)]
struct SimCli {
    #[command(subcommand)]
    command: Command,
    /// Simulated seconds, at most 3600; fairness always simulates 600, capacity 720 [default: 60]
    #[arg(long, global = true, value_name = "N", value_parser = value_parser!(u64).range(1..=SECONDS_MAX))]
    seconds: Option<u64>,
    /// Seed of the random numbers
    #[arg(long, global = true, value_name = "N", default_value_t = 7)]
    seed: u64,
    /// Print one line of results, for scripts
    #[arg(long, global = true, overrides_with = "events")]
    quiet: bool,
    /// Print every event, one line each; link scenarios print changes of path health, redirect scenarios their table
    #[arg(long, global = true, overrides_with = "quiet")]
    events: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
enum Command {
    /// Three tenants with unequal demand share three nodes, first come first served and by Evenkeel
    Demo,
    /// Run one scenario by name
    Run {
        #[arg(value_parser = PossibleValuesParser::new(names().chain(redirect_names()).chain(link_names())))]
        name: String,
    },
    /// Measure how far clients drift apart, compared with plain VTC and first come first served
    Fairness,
    /// Measure how an adaptive concurrency limit finds the knee of engines of several shapes
    Capacity,
    /// Measure how requests spread over nodes: beside a slow node, by weight, after a recovery, by conversation
    Choice,
    /// Measure what requests that nodes always fail or refuse do to others
    Poison,
    /// List the scenarios
    List,
}

/// Amount of output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detail {
    Table,
    OneLine,
    Events,
}

impl SimCli {
    fn detail(&self) -> Detail {
        match (self.events, self.quiet) {
            (true, _) => Detail::Events,
            (false, true) => Detail::OneLine,
            (false, false) => Detail::Table,
        }
    }
}

/// Runs the command; exits with 2 on a usage error, and returns failure if the simulation or its output fails.
pub(crate) fn main() -> ExitCode {
    let cli = SimCli::parse();
    let mut out = BufWriter::new(io::stdout().lock());
    match execute(&mut out, &cli).and_then(|()| Ok(out.flush()?)) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader closed the pipe, as `head` does.
        Err(CliError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("evenkeel-sim: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum CliError {
    #[error(transparent)]
    Simulation(#[from] SimError),
    #[error(transparent)]
    Settings(#[from] SettingOutOfRange),
    #[error("could not write the output: {0}")]
    Output(#[from] io::Error),
}

fn execute(out: &mut impl Write, cli: &SimCli) -> Result<(), CliError> {
    match &cli.command {
        Command::List => {
            for name in names().chain(redirect_names()).chain(link_names()) {
                writeln!(out, "{name}")?;
            }
        }
        Command::Demo => show_demo(out, cli)?,
        Command::Fairness => show_fairness(out, cli.seed)?,
        Command::Capacity => show_capacity(out, cli.seed)?,
        Command::Choice => show_choice(out, cli.seed)?,
        Command::Poison => show_poison(out, cli.seed)?,
        Command::Run { name } => {
            // The parser accepts only known names.
            if let Some(scenario) = by_name(name, cli.seed) {
                show(out, &with_duration(scenario, cli), cli.detail())?;
            } else if let Some(plan) = redirect_plan(name, cli.seed) {
                let duration = cli.seconds.map_or(plan.duration, Duration::from_secs);
                show_redirect(out, &RedirectPlan { duration, ..plan }, cli.detail())?;
            } else if let Some(plan) = link_plan(name, cli.seed) {
                let duration = cli.seconds.map_or(plan.duration, Duration::from_secs);
                let plan = LinkPlan { duration, ..plan };
                report::link(out, &plan, &run_link(&plan)?, cli.detail() == Detail::Events)?;
            }
        }
    }
    Ok(())
}

fn show(out: &mut impl Write, scenario: &Scenario, detail: Detail) -> Result<(), CliError> {
    let run = run(scenario)?;
    match detail {
        Detail::Table => report::table(out, scenario, &run)?,
        Detail::OneLine => report::line(out, scenario, &run)?,
        Detail::Events => report::events(out, &run)?,
    }
    Ok(())
}

/// Compares the rules; with one line, only the product's step runs.
fn show_redirect(out: &mut impl Write, plan: &RedirectPlan, detail: Detail) -> Result<(), CliError> {
    let rules = match detail {
        Detail::OneLine => &RedirectRule::ALL[..1],
        Detail::Table | Detail::Events => &RedirectRule::ALL[..],
    };
    let mut rows = vec![];
    for rule in rules {
        rows.push((*rule, run_redirect(plan, *rule)?));
    }
    Ok(report::redirect(out, plan, &rows)?)
}

fn show_demo(out: &mut impl Write, cli: &SimCli) -> Result<(), CliError> {
    let fair = with_duration(demo(cli.seed), cli);
    if cli.detail() != Detail::Table {
        return show(out, &fair, cli.detail());
    }
    let fifo = Scenario {
        order: ServiceOrder::Fifo,
        admit: AdmitPolicy::ByLoad(BackpressureConfig::default()),
        ..fair.clone()
    };
    let seconds = fair.duration.as_secs();
    writeln!(out, "{seconds} simulated seconds of three tenants on three nodes.")?;
    writeln!(out, "'greedy' alone sends more than all nodes can serve.")?;
    writeln!(out, "The same requests (seed {}), twice.\n", fair.seed)?;
    writeln!(out, "First come, first served; arrivals at a full queue are rejected:")?;
    show(out, &fifo, Detail::Table)?;
    writeln!(out, "\nEvenkeel; deficit round robin, admission by share:")?;
    show(out, &fair, Detail::Table)
}

fn show_fairness(out: &mut impl Write, seed: u64) -> Result<(), CliError> {
    let mut rows = vec![];
    for workload in workloads() {
        let run = |policy| measure(&workload, policy, seed);
        let ours = run(SchedulingPolicy::Evenkeel)?;
        let vtc = run(SchedulingPolicy::Vtc)?;
        let fifo = run(SchedulingPolicy::Fifo)?;
        rows.push((workload, [ours, vtc, fifo]));
    }
    Ok(report::fairness(out, seed, &rows)?)
}

fn show_capacity(out: &mut impl Write, seed: u64) -> Result<(), CliError> {
    for shape in [EngineShape::Slots, EngineShape::Shared, EngineShape::SharedDecode] {
        let mut rows = vec![];
        for cell in knee_cells(shape) {
            rows.push((cell, measure_knee_cell(&cell, seed)?));
        }
        report::capacity(out, shape, seed, &rows)?;
    }
    Ok(())
}

fn show_choice(out: &mut impl Write, seed: u64) -> Result<(), CliError> {
    let mut conversations = vec![];
    for mode in [ChoiceMode::Stream, ChoiceMode::Whole] {
        conversations.push((mode, run_choice(&choice::conversations(seed, mode))?));
    }
    Ok(report::choice(out, seed, &choice_rows(seed)?, &conversations)?)
}

fn show_poison(out: &mut impl Write, seed: u64) -> Result<(), CliError> {
    let mut rows = vec![];
    for cell in poison_cells() {
        rows.push((cell, measure_poison_cell(&cell, seed)?));
    }
    Ok(report::poison(out, seed, &rows)?)
}

fn with_duration(scenario: Scenario, cli: &SimCli) -> Scenario {
    let duration = cli.seconds.map_or(scenario.duration, Duration::from_secs);
    Scenario { duration, ..scenario }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_accepted_in_any_order() {
        let cli = parse("--seconds 5 demo --quiet --seed 3").unwrap();
        assert_eq!(
            cli,
            SimCli { command: Command::Demo, seconds: Some(5), seed: 3, quiet: true, events: false }
        );
        let cli = parse("run weights --events").unwrap();
        assert_eq!((&cli.command, cli.detail()), (&Command::Run { name: "weights".into() }, Detail::Events));
    }

    #[test]
    fn the_last_of_two_conflicting_options_wins() {
        assert_eq!(parse("demo --quiet --events").unwrap().detail(), Detail::Events);
        assert_eq!(parse("demo --events --quiet --seed 1 --seed 2").unwrap().detail(), Detail::OneLine);
    }

    #[test]
    fn a_usage_error_names_the_mistake() {
        for (line, part) in [
            ("", "Usage: evenkeel-sim"),
            ("dmeo", "'dmeo'"),
            ("demo list", "'list'"),
            ("run", "<NAME>"),
            ("run waits", "flood, weights"),
            ("demo --seconds", "value is required"),
            ("demo --seconds 0", "1..=3600"),
            ("demo --seconds 3601", "3601"),
            ("demo --seed minus", "'minus'"),
        ] {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(part), "{line:?}: {error:?}");
        }
    }

    fn parse(line: &str) -> Result<SimCli, clap::Error> {
        SimCli::try_parse_from(std::iter::once("evenkeel-sim").chain(line.split_whitespace()))
    }
}
