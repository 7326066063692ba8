//! Alternating rounds: in each round every contender is started in an empty directory and runs every case once, in
//! random order.
//!
//! Limits: a benchmark takes at most rounds × contenders × cases × the time limit of a turn. If the machine is slow for
//! a case's whole part of a round, all contenders are slowed down alike, which cancels out in the ratios.

use std::fs;
use std::io;
use std::path::Path;

use bench_support::{Quartiles, RowSamples, SplitMix64};

use crate::args::Options;
use crate::case::Case;
use crate::contender::{self, Contender, Server, Setup};
use crate::syncs::{self, FsyncCounts};
use crate::{disk, json, load, table};

/// Directory of the contenders' files.
const DIRECTORY: &str = "target/queue-bench";

pub(crate) struct Outcome {
    pub(crate) scores: Vec<Score>,
    /// Labels with their fsync counts.
    pub(crate) syncs: Vec<(String, FsyncCounts)>,
    /// Labels of contenders that could not be started, with the reason.
    pub(crate) missing: Vec<(String, String)>,
    pub(crate) filesystem: String,
    /// Median fsync latency, by round.
    pub(crate) sync_us: Vec<f64>,
    /// Load average before each round.
    pub(crate) loads: Vec<String>,
}

/// All rounds of one case.
pub(crate) struct Score {
    pub(crate) case: Case,
    pub(crate) rows: Vec<RowSamples>,
}

impl Score {
    /// Returns the ratio to the baseline, which is the first row.
    pub(crate) fn ratio(&self, row: &RowSamples, metric: &str) -> Option<Quartiles> {
        row.ratio(self.rows.first()?, metric)
    }
}

/// Runs the rounds, prints the tables, and writes the JSON results if requested.
pub(crate) fn main(options: &Options) -> io::Result<()> {
    // Fails before the first round if the file cannot be written.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    let setup = Setup {
        directory: DIRECTORY.into(),
        // Contenders run in their own directories.
        evenkeel: std::path::absolute(&options.evenkeel)?,
        python: std::path::absolute(&options.python)?,
    };
    fs::create_dir_all(&setup.directory)?;
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run_rounds(options, &setup))?;
    crate::print(&table::all(&outcome, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&outcome, options)),
        None => Ok(()),
    }
}

/// A contender with the label of its row.
struct Entrant {
    label: String,
    contender: &'static Contender,
}

async fn run_rounds(options: &Options, setup: &Setup) -> io::Result<Outcome> {
    let (entrants, missing) = try_all(options, setup).await;
    if entrants.is_empty() {
        return Err(io::Error::other("no contender could be started"));
    }
    let row = |entrant: &Entrant| RowSamples::new(&entrant.label);
    let score = |case: &Case| Score { case: *case, rows: entrants.iter().map(row).collect() };
    let mut outcome = Outcome {
        scores: options.cases().iter().map(score).collect(),
        syncs: Vec::new(),
        missing,
        filesystem: disk::filesystem(&setup.directory)?,
        sync_us: Vec::new(),
        loads: Vec::new(),
    };
    let mut random = SplitMix64::new(options.seed);
    for round in 1..=options.rounds {
        outcome.loads.push(disk::load_average());
        outcome.sync_us.push(disk::sync_us(&setup.directory)?);
        let mut servers = Vec::new();
        for Entrant { label, contender } in &entrants {
            servers.push(contender.start(label, setup).await?);
        }
        if round == 1 {
            outcome.syncs = count_syncs(&entrants, &servers, &setup.directory).await;
        }
        let mut order: Vec<_> = (0..outcome.scores.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let score = &mut outcome.scores[index];
            eprintln!("round {round}/{}: {}", options.rounds, score.case.name());
            run_case(score, &servers, &mut random, options.scale).await;
        }
    }
    Ok(outcome)
}

/// Runs the contenders directly after each other, so that the machine is in the same state for all of them.
async fn run_case(score: &mut Score, servers: &[Server], random: &mut SplitMix64, scale: f64) {
    let mut order: Vec<_> = (0..servers.len()).collect();
    random.shuffle(&mut order);
    for index in order {
        let row = &mut score.rows[index];
        let outcome = load::turn(score.case, &servers[index], &score.case.name(), scale).await;
        if let Err(error) = &outcome {
            eprintln!("{}: {error}", row.label);
        }
        row.record(outcome);
    }
}

/// Finds the contenders that can be started; the baseline is included twice.
async fn try_all(options: &Options, setup: &Setup) -> (Vec<Entrant>, Vec<(String, String)>) {
    let mut entrants = Vec::new();
    let mut missing = Vec::new();
    for contender in contender::ALL.iter().filter(|contender| options.includes(contender)) {
        let label = contender.name.to_owned();
        match contender.start(&label, setup).await {
            Ok(_) => {
                let again = entrants.is_empty().then(|| format!("{label} (again)"));
                let labels = std::iter::once(label).chain(again);
                entrants.extend(labels.map(|label| Entrant { label, contender }));
            }
            Err(error) => {
                eprintln!("skipping {label}: {error}");
                missing.push((label, error.to_string()));
            }
        }
    }
    (entrants, missing)
}

async fn count_syncs(
    entrants: &[Entrant],
    servers: &[Server],
    directory: &Path,
) -> Vec<(String, FsyncCounts)> {
    let mut counted = Vec::new();
    for (entrant, server) in entrants.iter().zip(servers) {
        match syncs::count(server, directory).await {
            Ok(syncs) => counted.push((entrant.label.clone(), syncs)),
            Err(error) => eprintln!("could not count the fsync calls of {}: {error}", entrant.label),
        }
    }
    counted
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::write(path, text).map_err(with_path)
}
