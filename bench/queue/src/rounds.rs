//! In every round everybody is started in an empty folder and has a turn at every case, in random order.
//!
//! Bound: a run takes at most rounds × contenders × cases × the limit of a turn. What is slow for longer than a case's
//! part of a round is slow for all, and drops out of the ratios.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bench_support::{Quartiles, RowSamples, RunError, SplitMix64};

use crate::args::Options;
use crate::case::Case;
use crate::contender::{self, Contender, Server, Setup};
use crate::syncs::{self, FsyncCounts};
use crate::{disk, json, load, table};

/// Where contenders have their files.
const FOLDER: &str = "target/queue-bench";

/// Everything that a run gave.
pub(crate) struct Outcome {
    pub(crate) scores: Vec<Score>,
    /// Labels with how often each flushes.
    pub(crate) syncs: Vec<(String, FsyncCounts)>,
    /// Labels with the reason why there is no row.
    pub(crate) missing: Vec<(String, String)>,
    /// The disk, and how long a flush takes, round by round.
    pub(crate) filesystem: String,
    pub(crate) sync_us: Vec<f64>,
    /// How busy the machine was before each round.
    pub(crate) loads: Vec<String>,
}

/// All rounds of one case.
pub(crate) struct Score {
    pub(crate) case: Case,
    pub(crate) lines: Vec<RowSamples>,
}

impl Score {
    /// Compares with the baseline, which is the first line.
    pub(crate) fn ratio(&self, line: &RowSamples, figure: &str) -> Option<Quartiles> {
        line.ratio(self.lines.first()?, figure)
    }
}

/// Runs what the options ask for, prints tables, and writes the figures where they are wanted.
pub(crate) fn main(options: &Options) -> io::Result<()> {
    // Tried before the first round: nobody should wait to hear that a folder is missing.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    let place = Setup {
        folder: FOLDER.into(),
        // Contenders start in folders of their own.
        evenkeel: std::path::absolute(&options.evenkeel)?,
        python: std::path::absolute(&options.python)?,
    };
    fs::create_dir_all(&place.folder)?;
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(play(options, &place))?;
    crate::print(&table::all(&outcome, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&outcome, options)),
        None => Ok(()),
    }
}

/// A contender with its row's label.
struct Entrant {
    label: String,
    contender: &'static Contender,
}

async fn play(options: &Options, place: &Setup) -> io::Result<Outcome> {
    let (entrants, missing) = try_all(options, place).await;
    if entrants.is_empty() {
        return Err(io::Error::other("nobody could be started"));
    }
    let line = |entrant: &Entrant| RowSamples::new(&entrant.label);
    let score = |case: &Case| Score { case: *case, lines: entrants.iter().map(line).collect() };
    let mut outcome = Outcome {
        scores: options.cases.iter().map(score).collect(),
        syncs: Vec::new(),
        missing,
        filesystem: disk::filesystem(&place.folder)?,
        sync_us: Vec::new(),
        loads: Vec::new(),
    };
    let mut random = SplitMix64::new(options.seed);
    for round in 1..=options.rounds {
        outcome.loads.push(disk::load_average());
        outcome.sync_us.push(disk::sync_us(&place.folder)?);
        let mut servers = Vec::new();
        for Entrant { label, contender } in &entrants {
            servers.push(contender.start(label, place).await?);
        }
        if round == 1 {
            outcome.syncs = count_syncs(&entrants, &servers, &place.folder).await;
        }
        let mut order: Vec<_> = (0..outcome.scores.len()).collect();
        random.shuffle(&mut order);
        for at in order {
            let score = &mut outcome.scores[at];
            eprintln!("round {round}/{}: {}", options.rounds, score.case.name());
            play_case(score, &servers, &mut random, options.scale).await;
        }
    }
    Ok(outcome)
}

/// Gives everybody a turn, one right after the other, so that they share whatever the machine goes through.
async fn play_case(score: &mut Score, servers: &[Server], random: &mut SplitMix64, scale: f64) {
    let mut places: Vec<_> = (0..servers.len()).collect();
    random.shuffle(&mut places);
    for place in places {
        let line = &mut score.lines[place];
        let outcome = load::turn(score.case, &servers[place], &score.case.name(), scale).await;
        if let Err(RunError(what)) = &outcome {
            eprintln!("{}: {what}", line.label);
        }
        line.note(outcome);
    }
}

/// Finds out who can be started; the baseline is there twice.
async fn try_all(options: &Options, place: &Setup) -> (Vec<Entrant>, Vec<(String, String)>) {
    let mut entrants = Vec::new();
    let mut missing = Vec::new();
    for contender in contender::ALL.iter().filter(|contender| options.wants(contender)) {
        let label = contender.name.to_owned();
        match contender.start(&label, place).await {
            Ok(_) => {
                let again = entrants.is_empty().then(|| format!("{label} (again)"));
                let labels = std::iter::once(label).chain(again);
                entrants.extend(labels.map(|label| Entrant { label, contender }));
            }
            Err(error) => {
                eprintln!("{label} is left out: {error}");
                missing.push((label, error.to_string()));
            }
        }
    }
    (entrants, missing)
}

async fn count_syncs(entrants: &[Entrant], servers: &[Server], folder: &Path) -> Vec<(String, FsyncCounts)> {
    let folder: PathBuf = folder.to_owned();
    let mut counted = Vec::new();
    for (entrant, server) in entrants.iter().zip(servers) {
        match syncs::count(server, &folder).await {
            Ok(syncs) => counted.push((entrant.label.clone(), syncs)),
            Err(error) => eprintln!("how often {} flushes was not counted: {error}", entrant.label),
        }
    }
    counted
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::write(path, text).map_err(named)
}
