//! `actor-rounds`: every contender in a fresh process, alternating within rounds, compared round by round.
//!
//! Bound: a run takes at most rounds × contenders × workloads × the time limit of a child. A machine that is slow for
//! longer than a workload's turn in a round is slow for all its contenders, and drops out of the ratios.

mod args;
mod child;
mod json;
mod score;
mod table;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use bench_support::SplitMix64;

use self::args::{Options, Request};
use self::child::{ChildError, Children};
use self::score::{Entrant, Score};
use crate::sample::Sample;
use crate::workload::Workload;

const FAILED: u8 = 1;
const MISUSED: u8 = 2;

/// Runs what the command line asks for, prints a table per workload, and writes the figures where they are wanted.
pub fn main() -> ExitCode {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    let outcome = match args::parse(words) {
        Ok(Request::Help) => print(&args::help()),
        Ok(Request::Run(options)) => run(&options),
        Err(misuse) => {
            eprintln!("actor-rounds: {misuse}");
            return ExitCode::from(MISUSED);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("actor-rounds: {error}");
            ExitCode::from(FAILED)
        }
    }
}

fn run(options: &Options) -> io::Result<()> {
    let children = Children::beside_this_program(options.timeout)?;
    // Tried before the first round: nobody should wait an hour to hear that a folder is missing.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let scores = play(options, |entrant, workload| children.run(entrant, workload));
    print(&table::all(&scores, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&scores, options)),
        None => Ok(()),
    }
}

/// Plays all rounds.
///
/// Within a round the workloads come in random order, and within a workload its contenders do, one right after the
/// other, so that they share whatever the machine goes through.
fn play(options: &Options, run: impl Fn(&Entrant, Workload) -> Result<Sample, ChildError>) -> Vec<Score> {
    let mut random = SplitMix64::new(options.seed);
    let mut scores: Vec<_> = options.workloads.iter().map(|workload| options.score(*workload)).collect();
    let mut turns: Vec<_> = (0..scores.len()).collect();
    for round in 1..=options.rounds {
        random.shuffle(&mut turns);
        for turn in &turns {
            let score = &mut scores[*turn];
            let mut places: Vec<_> = (0..score.lines.len()).collect();
            random.shuffle(&mut places);
            for place in places {
                let line = &score.lines[place];
                if line.never_again() {
                    continue;
                }
                let outcome = run(&line.entrant, score.workload);
                let told = score.tell(place, &outcome);
                eprintln!("round {round}/{}: {told}", options.rounds);
                score.lines[place].note(round, outcome);
            }
        }
    }
    scores
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::write(path, text).map_err(named)
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
    fn contenders_of_a_workload_take_turns_right_after_each_other_in_every_round() {
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
    fn whoever_cannot_do_it_is_asked_once() {
        let line = "--rounds 5 --runtimes kameo --workloads ask";
        let turns = turns(line, |label, _| label != "kameo");
        assert_eq!(turns.iter().filter(|(_, label)| label == "kameo").count(), 1);
        assert_eq!(turns.len(), 5 * 2 + 1);
    }

    /// Plays the rounds a command line asks for, with children that only say whether they can do it.
    fn turns(line: &str, can: impl Fn(&str, Workload) -> bool) -> Vec<(&'static str, String)> {
        let turns = RefCell::new(Vec::new());
        play(&options(line), |entrant, workload| {
            turns.borrow_mut().push((workload.name(), entrant.label.clone()));
            if can(&entrant.label, workload) {
                return Ok(Sample::default().with(workload.figure().name, 1.0));
            }
            Err(ChildError::Unsupported("unsupported".to_owned()))
        });
        turns.into_inner()
    }
}
