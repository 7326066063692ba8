//! Runs a list of stages: prints each stage's name and time, and a table of all at the end.

use crate::error::TaskError;
use clap::builder::{PossibleValue, PossibleValuesParser};
use std::time::{Duration, Instant};

/// A part of a long task that can also be run alone.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn() -> Result<(), TaskError>,
}

/// A list of stages and the rules for running it.
pub(crate) struct Plan {
    /// The subcommand of `cargo xtask` that runs a stage alone.
    pub(crate) command: &'static str,
    pub(crate) stages: &'static [Stage],
    pub(crate) after_failure: AfterFailure,
    pub(crate) total_max: Option<Duration>,
}

/// Policy after a failed stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    Stop,
    Continue,
}

/// The result and duration of one stage.
struct StageResult {
    name: &'static str,
    took: Duration,
    result: Result<(), TaskError>,
}

/// Accepts the names of the stages on the command line, and lists them in the help.
pub(crate) fn value_parser(stages: &[Stage]) -> PossibleValuesParser {
    stages.iter().map(|stage| PossibleValue::new(stage.name).help(stage.about)).collect::<Vec<_>>().into()
}

impl Plan {
    /// Runs the named stages, or all if none is named, in the order of the table.
    pub(crate) fn run(&self, names: &[String]) -> Result<(), TaskError> {
        let is_chosen = |stage: &&Stage| names.is_empty() || names.iter().any(|name| name == stage.name);
        let mut results = Vec::new();
        for stage in self.stages.iter().filter(is_chosen) {
            println!("\n==> {}: {}", stage.name, stage.about);
            let started = Instant::now();
            let result = (stage.run)();
            let took = started.elapsed();
            println!("<== {}: {}", stage.name, seconds(took));
            results.push(StageResult { name: stage.name, took, result });
            if self.after_failure == AfterFailure::Stop && self.check(&results).is_err() {
                break;
            }
        }
        println!("\n{}", table(&results));
        self.check(&results)
    }

    /// Fails if a stage failed or the total time is over the limit.
    fn check(&self, results: &[StageResult]) -> Result<(), TaskError> {
        let mut errors = Vec::new();
        for StageResult { name, result, .. } in results {
            if let Err(error) = result {
                let rerun = format!("cargo xtask {} {name}", self.command);
                errors.push(format!("stage {name} failed: {error}\nto run it alone: {rerun}"));
            }
        }
        let total = total(results);
        if let Some(max) = self.total_max.filter(|max| *max < total) {
            errors.push(format!("the stages took {}, the limit is {}", seconds(total), seconds(max)));
        }
        if errors.is_empty() { Ok(()) } else { Err(TaskError::new(errors.join("\n"))) }
    }
}

fn total(results: &[StageResult]) -> Duration {
    results.iter().map(|stage| stage.took).sum()
}

fn table(results: &[StageResult]) -> String {
    let row = |name: &str, took: Duration, note: &str| format!("{name:<12}{:>10}{note}", seconds(took));
    let mut rows: Vec<_> = results
        .iter()
        .map(|stage| row(stage.name, stage.took, if stage.result.is_err() { "  failed" } else { "" }))
        .collect();
    rows.push(row("total", total(results), ""));
    rows.join("\n")
}

fn seconds(took: Duration) -> String {
    format!("{:.1} s", took.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_total_at_the_limit_passes_and_past_it_fails() {
        let limit = Duration::from_secs(60);
        assert_eq!(check(Some(limit), &[passed("fmt", 20_000), passed("docs", 40_000)]), Ok(()));
        assert_eq!(
            check(Some(limit), &[passed("fmt", 20_000), passed("docs", 41_000)]),
            Err("the stages took 61.0 s, the limit is 60.0 s".to_owned())
        );
        assert_eq!(check(None, &[passed("soak", 9_000_000)]), Ok(()));
    }

    #[test]
    fn a_failed_stage_is_reported_with_the_command_that_runs_it_alone() {
        assert_eq!(
            check(None, &[passed("fmt", 1), failed("docs", 2)]),
            Err("stage docs failed: broken link\nto run it alone: cargo xtask ci docs".to_owned())
        );
    }

    #[test]
    fn the_table_ends_with_the_total() {
        assert_eq!(
            table(&[passed("fmt", 1_040), failed("docs", 62_000)]),
            "fmt              1.0 s\n\
             docs            62.0 s  failed\n\
             total           63.0 s"
        );
    }

    #[test]
    fn only_named_stages_run() {
        assert_eq!(plan(AfterFailure::Stop).run(&["good".to_owned()]), Ok(()));
    }

    #[test]
    fn a_failure_stops_later_stages_only_if_the_plan_requires_it() {
        let stopped = plan(AfterFailure::Stop).run(&[]).unwrap_err().to_string();
        assert!(stopped.contains("stage bad failed"));
        assert!(!stopped.contains("stage worse failed"));
        let continued = plan(AfterFailure::Continue).run(&[]).unwrap_err().to_string();
        assert!(continued.contains("stage bad failed"));
        assert!(continued.contains("stage worse failed"));
    }

    const STAGES: &[Stage] = &[
        Stage { name: "bad", about: "fails", run: || Err(TaskError::new("broken")) },
        Stage { name: "good", about: "passes", run: || Ok(()) },
        Stage { name: "worse", about: "fails too", run: || Err(TaskError::new("more broken")) },
    ];

    fn plan(after_failure: AfterFailure) -> Plan {
        Plan { command: "ci", stages: STAGES, after_failure, total_max: None }
    }

    fn check(total_max: Option<Duration>, results: &[StageResult]) -> Result<(), String> {
        let plan = Plan { total_max, ..plan(AfterFailure::Stop) };
        plan.check(results).map_err(|error| error.to_string())
    }

    fn passed(name: &'static str, millis: u64) -> StageResult {
        StageResult { name, took: Duration::from_millis(millis), result: Ok(()) }
    }

    fn failed(name: &'static str, millis: u64) -> StageResult {
        StageResult { result: Err(TaskError::new("broken link")), ..passed(name, millis) }
    }
}
