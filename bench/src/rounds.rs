//! `actor-rounds`: every contender in a fresh process, alternating within rounds, compared round by round.
//!
//! Bound: a run takes at most rounds × contenders × workloads × the time limit of a child. A machine that is slow for
//! longer than a workload's turn in a round is slow for all its contenders, and drops out of the ratios.

mod args;
mod child;
mod json;
mod order;
mod quartiles;
mod score;
mod table;

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use self::args::{Options, Request};
use self::child::{Children, Trouble};
use self::order::Random;
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
fn play(options: &Options, run: impl Fn(&Entrant, Workload) -> Result<Sample, Trouble>) -> Vec<Score> {
    let mut random = Random::new(options.seed);
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
