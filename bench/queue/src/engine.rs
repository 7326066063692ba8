//! The queue's engine by itself, without a door: what keys and turns cost, what a backlog costs, and what is left of one.
//!
//! Every part is a process of its own in an empty folder, so that memory and CPU time are its own; parts alternate in
//! rounds, and ratios are within a round.

mod case;
mod report;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use bench_support::{RowSamples, RunError, TurnSample};
use serde_json::Value;

use crate::args::Options;
use crate::disk;

pub(crate) use case::{EngineCase, run as part};

const FOLDER: &str = "target/queue-bench/engine";
/// How many messages are spread over how many keys; the first is a plain queue in order.
const KEYS: &[(&str, usize)] =
    &[("1 key", 1), ("1 key (again)", 1), ("16 keys", 16), ("1 000 keys", 1_000), ("100 000 keys", 100_000)];
const MESSAGES: f64 = 100_000.0;
const BOOK_MESSAGES: f64 = 1_000_000.0;
const PRODUCERS: usize = 16;
const PRODUCED: f64 = 20_000.0;
const BACKLOG: f64 = 1_000_000.0;
const BACKLOG_KEYS: usize = 1_000;

/// EngineCaseKind every part gave.
struct Outcome {
    /// EngineCaseKind a message costs with so many keys: sent, delivered and acknowledged; on disk.
    keys: Vec<RowSamples>,
    /// The same in the book alone: in memory, one thread.
    book: Vec<RowSamples>,
    /// One queue with many producers, and flushes one after the other on the same disk.
    producers: RowSamples,
    /// A large backlog: opened, emptied, opened once more, and a queue that never had one.
    backlog: Vec<RowSamples>,
    filesystem: String,
    load: String,
}

/// Runs every part, and prints what they gave.
pub(crate) fn main(options: &Options) -> io::Result<()> {
    let folder = PathBuf::from(FOLDER);
    fs::create_dir_all(&folder)?;
    let lines = || KEYS.iter().map(|(label, _)| RowSamples::new(label)).collect();
    let mut outcome = Outcome {
        keys: lines(),
        book: lines(),
        producers: RowSamples::new("16 producers"),
        backlog: Vec::new(),
        filesystem: disk::filesystem(&folder)?,
        load: disk::load_average(),
    };
    let scaled = |count: f64| ((count * options.scale) as usize).max(1).next_multiple_of(case::SENT_TOGETHER);
    for round in 1..=options.rounds {
        for (at, (label, keys)) in KEYS.iter().enumerate() {
            eprintln!("round {round}/{}: {label}", options.rounds);
            outcome.book[at].note(ask("book", &folder, *keys, scaled(BOOK_MESSAGES)));
            outcome.keys[at].note(ask("keys", &empty(&folder)?, *keys, scaled(MESSAGES)));
        }
        eprintln!("round {round}/{}: producers", options.rounds);
        let sync_us = disk::sync_us(&folder)?;
        let mut produced = ask("producers", &empty(&folder)?, PRODUCERS, scaled(PRODUCED));
        if let Ok(sample) = &mut produced {
            sample.push(("sync_us", sync_us));
        }
        outcome.producers.note(produced);
    }
    outcome.backlog = backlog(&folder, scaled(BACKLOG))?;
    crate::print(&report::all(&outcome, options))
}

/// Once, because it is long: a backlog is made, found again, worked off, and its empty queue found again.
fn backlog(folder: &Path, messages: usize) -> io::Result<Vec<RowSamples>> {
    eprintln!("a backlog of {messages}");
    let place = empty(folder)?;
    let mut lines = Vec::new();
    for (label, part) in [("filled", "fill"), ("opened and emptied", "drain"), ("opened empty", "open")] {
        let mut line = RowSamples::new(label);
        line.note(ask(part, &place, BACKLOG_KEYS, messages));
        lines.push(line);
    }
    let mut fresh = RowSamples::new("never had any");
    fresh.note(ask("open", &empty(folder)?, BACKLOG_KEYS, messages));
    lines.push(fresh);
    Ok(lines)
}

/// An empty folder for one part.
fn empty(folder: &Path) -> io::Result<PathBuf> {
    let place = folder.join("store");
    if place.exists() {
        fs::remove_dir_all(&place)?;
    }
    Ok(place)
}

/// Runs a part in a process of its own, and reads its figures.
fn ask(part: &str, folder: &Path, first: usize, second: usize) -> Result<TurnSample, RunError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["engine-part", part]).arg(folder).args([first.to_string(), second.to_string()]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let said: Option<Value> = serde_json::from_str(text.trim()).ok();
    let Some(Value::Object(figures)) = said.filter(|_| output.status.success()) else {
        let trouble = RunError(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        eprintln!("{part}: {}", trouble.0);
        return Err(trouble);
    };
    let known = |name: &str| case::FIGURES.iter().copied().find(|own| *own == name);
    Ok(figures.iter().filter_map(|(name, value)| Some((known(name)?, value.as_f64()?))).collect())
}
