//! `actor-rounds`: every contender in a new process, alternating within rounds, compared round by round.
//!
//! Limits: a benchmark takes at most rounds × contenders × workloads × the time limit of a child process. If the
//! machine is slow for a workload's whole part of a round, all contenders are slowed down alike, which cancels out in
//! the ratios.

mod args;
mod child;
mod json;
mod score;
mod table;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use bench_support::SplitMix64;
use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use self::args::{Options, RoundsArgs};
use self::child::{ChildError, Children};
use self::score::{Entrant, Score};
use crate::sample::Sample;
use crate::workload::Workload;

/// Runs the rounds, prints a table per workload, and writes the JSON results if requested.
pub fn main() -> ExitCode {
    let resolved = RoundsArgs::parse().resolve();
    let options = resolved
        .unwrap_or_else(|error| RoundsArgs::command().error(ErrorKind::ValueValidation, error).exit());
    match run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("actor-rounds: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let children = Children::beside_this_program(options.timeout)?;
    // Fails before the first round if the file cannot be written.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let scores = run_rounds(options, |entrant, workload| children.run(entrant, workload));
    print(&table::all(&scores, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&scores, options)),
        None => Ok(()),
    }
}

/// Runs all rounds.
///
/// The order of workloads within a round is random, and so is the order of contenders within a workload. Contenders run
/// directly after each other, so that the machine is in the same state for all of them.
fn run_rounds(
    options: &Options,
    run: impl Fn(&Entrant, Workload) -> Result<Sample, ChildError>,
) -> Vec<Score> {
    let mut random = SplitMix64::new(options.seed);
    let mut scores: Vec<_> = options.workloads.iter().map(|workload| options.score(*workload)).collect();
    let mut order: Vec<_> = (0..scores.len()).collect();
    for round in 1..=options.rounds {
        random.shuffle(&mut order);
        for index in &order {
            let score = &mut scores[*index];
            let mut row_order: Vec<_> = (0..score.rows.len()).collect();
            random.shuffle(&mut row_order);
            for row_index in row_order {
                let row = &score.rows[row_index];
                if row.is_unsupported() {
                    continue;
                }
                let outcome = run(&row.entrant, score.workload);
                let progress = score.describe(row_index, &outcome);
                eprintln!("round {round}/{}: {progress}", options.rounds);
                score.rows[row_index].record(round, outcome);
            }
        }
    }
    scores
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::write(path, text).map_err(with_path)
}

fn print(text: &str) -> io::Result<()> {
    io::stdout().lock().write_all(text.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::args::tests::options;
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn contenders_of_a_workload_run_right_after_each_other_in_every_round() {
        let turns =
            turns("--seed 3 --rounds 4 --runtimes kameo,xtra --workloads ask,tell1,wake", |_, _| true);
        assert_eq!(turns.len(), 4 * 3 * 4);
        for block in turns.chunks(4) {
            assert!(block.iter().all(|(workload, _)| *workload == block[0].0), "{block:?}");
            let mut labels: Vec<_> = block.iter().map(|(_, label)| label.as_str()).collect();
            labels.sort_unstable();
            assert_eq!(labels, ["kameo", "tokio-mpsc", "tokio-mpsc (again)", "xtra"]);
        }
        for round in turns.chunks(12) {
            let mut workloads: Vec<_> = round.chunks(4).map(|block| block[0].0).collect();
            workloads.sort_unstable();
            assert_eq!(workloads, ["ask", "tell1", "wake"]);
        }
        assert_ne!(turns[..12], turns[12..24], "another round, another order");
    }

    #[test]
    fn an_unsupported_contender_runs_once() {
        let args = "--rounds 5 --runtimes kameo --workloads ask";
        let turns = turns(args, |label, _| label != "kameo");
        assert_eq!(turns.iter().filter(|(_, label)| label == "kameo").count(), 1);
        assert_eq!(turns.len(), 5 * 2 + 1);
    }

    /// Runs the rounds with fake children, which only report whether they support the workload.
    fn turns(args: &str, supports: impl Fn(&str, Workload) -> bool) -> Vec<(&'static str, String)> {
        let turns = RefCell::new(Vec::new());
        run_rounds(&options(args), |entrant, workload| {
            turns.borrow_mut().push((workload.name(), entrant.label.clone()));
            if supports(&entrant.label, workload) {
                return Ok(Sample::default().with(workload.metric().name, 1.0));
            }
            Err(ChildError::Unsupported("unsupported".to_owned()))
        });
        turns.into_inner()
    }
}
