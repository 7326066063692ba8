//! The queue engine without a server: cost per key and per scheduling decision, group commit, and a large backlog.
//!
//! Every engine case runs in a separate process and an empty directory, so that its memory and CPU time can be
//! measured. Cases alternate in rounds, and ratios are taken within a round.

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

pub(crate) use case::{EngineCase, run as run_case};

const DIRECTORY: &str = "target/queue-bench/engine";
/// Rows by number of keys; one key is a plain FIFO queue.
const KEYS: &[(&str, usize)] =
    &[("1 key", 1), ("1 key (again)", 1), ("16 keys", 16), ("1 000 keys", 1_000), ("100 000 keys", 100_000)];
const MESSAGES: f64 = 100_000.0;
const STATE_MESSAGES: f64 = 1_000_000.0;
const PRODUCERS: usize = 16;
const PRODUCED: f64 = 20_000.0;
const BACKLOG: f64 = 1_000_000.0;
const BACKLOG_KEYS: usize = 1_000;

struct Outcome {
    /// Cost of a durable message by number of keys: sent, delivered and acknowledged.
    keys: Vec<RowSamples>,
    /// The same for the queue state alone: in memory, one thread.
    state: Vec<RowSamples>,
    /// One queue with many producers, and the fsync latency of the same disk.
    producers: RowSamples,
    /// A large backlog: reopened, drained, reopened empty, and a new queue for comparison.
    backlog: Vec<RowSamples>,
    filesystem: String,
    load: String,
}

/// Runs every engine case and prints the results.
pub(crate) fn main(options: &Options) -> io::Result<()> {
    let directory = PathBuf::from(DIRECTORY);
    fs::create_dir_all(&directory)?;
    let rows = || KEYS.iter().map(|(label, _)| RowSamples::new(label)).collect();
    let mut outcome = Outcome {
        keys: rows(),
        state: rows(),
        producers: RowSamples::new("16 producers"),
        backlog: Vec::new(),
        filesystem: disk::filesystem(&directory)?,
        load: disk::load_average(),
    };
    let scaled = |count: f64| ((count * options.scale) as usize).max(1).next_multiple_of(case::SENT_TOGETHER);
    for round in 1..=options.rounds {
        for (index, (label, keys)) in KEYS.iter().enumerate() {
            eprintln!("round {round}/{}: {label}", options.rounds);
            outcome.state[index].record(run_child("state", &directory, *keys, scaled(STATE_MESSAGES)));
            outcome.keys[index].record(run_child("keys", &empty_store(&directory)?, *keys, scaled(MESSAGES)));
        }
        eprintln!("round {round}/{}: producers", options.rounds);
        let sync_us = disk::sync_us(&directory)?;
        let mut produced = run_child("producers", &empty_store(&directory)?, PRODUCERS, scaled(PRODUCED));
        if let Ok(sample) = &mut produced {
            sample.push(("sync_us", sync_us));
        }
        outcome.producers.record(produced);
    }
    outcome.backlog = run_backlog(&directory, scaled(BACKLOG))?;
    crate::print(&report::all(&outcome, options))
}

/// Fills a backlog, reopens and drains it, and reopens the empty queue. Runs once because it is slow.
fn run_backlog(directory: &Path, messages: usize) -> io::Result<Vec<RowSamples>> {
    eprintln!("backlog of {messages} messages");
    let store = empty_store(directory)?;
    let mut rows = Vec::new();
    for (label, case) in [("filled", "fill"), ("reopened and drained", "drain"), ("reopened empty", "open")] {
        let mut row = RowSamples::new(label);
        row.record(run_child(case, &store, BACKLOG_KEYS, messages));
        rows.push(row);
    }
    let mut fresh = RowSamples::new("new, never filled");
    fresh.record(run_child("open", &empty_store(directory)?, BACKLOG_KEYS, messages));
    rows.push(fresh);
    Ok(rows)
}

/// Returns the path of the store after deleting what an earlier case left there.
fn empty_store(directory: &Path) -> io::Result<PathBuf> {
    let store = directory.join("store");
    if store.exists() {
        fs::remove_dir_all(&store)?;
    }
    Ok(store)
}

/// Runs an engine case in a child process and reads its metrics.
fn run_child(case: &str, directory: &Path, width: usize, messages: usize) -> Result<TurnSample, RunError> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["engine-case", case]).arg(directory).args([width.to_string(), messages.to_string()]);
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let parsed: Option<Value> = serde_json::from_str(text.trim()).ok();
    let Some(Value::Object(metrics)) = parsed.filter(|_| output.status.success()) else {
        let error = RunError(String::from_utf8_lossy(&output.stderr).trim().to_owned());
        eprintln!("{case}: {error}");
        return Err(error);
    };
    let known = |name: &str| case::METRICS.iter().copied().find(|known| *known == name);
    Ok(metrics.iter().filter_map(|(name, value)| Some((known(name)?, value.as_f64()?))).collect())
}
