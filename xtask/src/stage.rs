//! Running a list of stages: each is named as it starts, timed as it ends, and all are tabled last.

use crate::args::Word;
use crate::error::TaskError;
use std::time::{Duration, Instant};

/// One part of a long chore that can also be run alone.
pub(crate) struct Stage {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn() -> Result<(), TaskError>,
}

/// How a list of stages is run.
pub(crate) struct Plan {
    /// The command that runs a stage alone when its name follows.
    pub(crate) command: &'static str,
    pub(crate) stages: &'static [Stage],
    pub(crate) after_failure: AfterFailure,
    pub(crate) total_max: Option<Duration>,
}

/// What a failed stage means for those after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterFailure {
    Stop,
    GoOn,
}

/// A stage that was run.
struct StageResult {
    name: &'static str,
    took: Duration,
    result: Result<(), TaskError>,
}

/// Lists the stages as words of the command line.
pub(crate) fn words(stages: &[Stage]) -> Vec<Word> {
    stages.iter().map(|stage| Word { name: stage.name, about: stage.about }).collect()
}

impl Plan {
    /// Runs the stages that were named, or all if none was, in the order of the table.
    pub(crate) fn run(&self, named: &[&str]) -> Result<(), TaskError> {
        let mut ended = Vec::new();
        for stage in self.stages.iter().filter(|stage| named.is_empty() || named.contains(&stage.name)) {
            println!("\n==> {}: {}", stage.name, stage.about);
            let started = Instant::now();
            let result = (stage.run)();
            let took = started.elapsed();
            println!("<== {}: {}", stage.name, seconds(took));
            ended.push(StageResult { name: stage.name, took, result });
            if self.after_failure == AfterFailure::Stop && self.verdict(&ended).is_err() {
                break;
            }
        }
        println!("\n{}", table(&ended));
        self.verdict(&ended)
    }

    fn verdict(&self, ended: &[StageResult]) -> Result<(), TaskError> {
        let mut wrong = Vec::new();
        for StageResult { name, result, .. } in ended {
            if let Err(failure) = result {
                let again = format!("cargo xtask {} {name}", self.command);
                wrong.push(format!("stage {name} failed: {failure}\nto repeat it alone: {again}"));
            }
        }
        let total = total(ended);
        if let Some(max) = self.total_max.filter(|max| *max < total) {
            wrong.push(format!("the stages took {}; they may take {}", seconds(total), seconds(max)));
        }
        if wrong.is_empty() { Ok(()) } else { Err(TaskError::new(wrong.join("\n"))) }
    }
}

fn total(ended: &[StageResult]) -> Duration {
    ended.iter().map(|stage| stage.took).sum()
}

fn table(ended: &[StageResult]) -> String {
    let row = |name: &str, took: Duration, note: &str| format!("{name:<12}{:>10}{note}", seconds(took));
    let mut rows: Vec<_> = ended
        .iter()
        .map(|stage| row(stage.name, stage.took, if stage.result.is_err() { "  failed" } else { "" }))
        .collect();
    rows.push(row("total", total(ended), ""));
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
        assert_eq!(verdict(Some(limit), &[fine("fmt", 20_000), fine("docs", 40_000)]), Ok(()));
        assert_eq!(
            verdict(Some(limit), &[fine("fmt", 20_000), fine("docs", 41_000)]),
            Err("the stages took 61.0 s; they may take 60.0 s".to_owned())
        );
        assert_eq!(verdict(None, &[fine("soak", 9_000_000)]), Ok(()));
    }

    #[test]
    fn a_failed_stage_is_named_with_the_command_that_repeats_it() {
        assert_eq!(
            verdict(None, &[fine("fmt", 1), failed("docs", 2)]),
            Err("stage docs failed: broken link\nto repeat it alone: cargo xtask ci docs".to_owned())
        );
    }

    #[test]
    fn the_table_ends_with_the_total() {
        assert_eq!(
            table(&[fine("fmt", 1_040), failed("docs", 62_000)]),
            "fmt              1.0 s\n\
             docs            62.0 s  failed\n\
             total           63.0 s"
        );
    }

    #[test]
    fn only_named_stages_run() {
        assert_eq!(plan(AfterFailure::Stop).run(&["good"]), Ok(()));
    }

    #[test]
    fn the_first_failure_stops_what_may_stop_and_nothing_else() {
        let stopped = plan(AfterFailure::Stop).run(&[]).unwrap_err().to_string();
        assert!(stopped.contains("stage bad failed"));
        assert!(!stopped.contains("stage worse failed"));
        let went_on = plan(AfterFailure::GoOn).run(&[]).unwrap_err().to_string();
        assert!(went_on.contains("stage bad failed"));
        assert!(went_on.contains("stage worse failed"));
    }

    const STAGES: &[Stage] = &[
        Stage { name: "bad", about: "fails", run: || Err(TaskError::new("broken")) },
        Stage { name: "good", about: "passes", run: || Ok(()) },
        Stage { name: "worse", about: "fails too", run: || Err(TaskError::new("more broken")) },
    ];

    fn plan(after_failure: AfterFailure) -> Plan {
        Plan { command: "ci", stages: STAGES, after_failure, total_max: None }
    }

    fn verdict(total_max: Option<Duration>, ended: &[StageResult]) -> Result<(), String> {
        let plan = Plan { total_max, ..plan(AfterFailure::Stop) };
        plan.verdict(ended).map_err(|failure| failure.to_string())
    }

    fn fine(name: &'static str, millis: u64) -> StageResult {
        StageResult { name, took: Duration::from_millis(millis), result: Ok(()) }
    }

    fn failed(name: &'static str, millis: u64) -> StageResult {
        StageResult { result: Err(TaskError::new("broken link")), ..fine(name, millis) }
    }
}
