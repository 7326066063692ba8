//! Alternating rounds: every contender is started once; in each round it runs every case once, in random order.
//!
//! Limits: a benchmark takes at most rounds × contenders × cases × the time limit of a turn. If the machine is slow for
//! a case's whole part of a round, all contenders are slowed down alike, which cancels out in the ratios.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use bench_support::{Quartiles, RowSamples, SplitMix64};

use crate::args::SqlBenchOptions;
use crate::case::SqlCase;
use crate::contender::{self, BASELINE, RunningMiddle, SqlContender, SqlSetup};
use crate::database::BenchDatabase;
use crate::{json, resets, table};

/// Directory of the contenders' files.
const DIRECTORY: &str = "target/sql-bench";
/// Contender whose resets are counted.
const WITH_RESETS: &str = "evenkeel-tenants";

pub(crate) struct SqlOutcome {
    pub(crate) scores: Vec<CaseScore>,
    /// Labels of contenders that could not be started, with the reason.
    pub(crate) missing: Vec<(String, String)>,
    /// Load average before each round.
    pub(crate) loads: Vec<String>,
    /// Resets of a connection per query with tenants, by case.
    pub(crate) resets: Vec<(String, f64)>,
    /// Labels with their resident memory in bytes after the last round.
    pub(crate) rss: Vec<(String, u64)>,
}

/// All rounds of one case.
pub(crate) struct CaseScore {
    pub(crate) case: SqlCase,
    pub(crate) rows: Vec<RowSamples>,
}

impl CaseScore {
    /// Returns the ratio to the baseline.
    pub(crate) fn ratio(&self, row: &RowSamples, metric: &str) -> Option<Quartiles> {
        row.ratio(self.rows.iter().find(|row| row.label == BASELINE)?, metric)
    }
}

/// Runs the rounds, prints the tables, and writes the JSON results if requested.
pub(crate) fn main(options: &SqlBenchOptions) -> io::Result<()> {
    // Fails before the first round if the file cannot be written.
    if let Some(path) = &options.json {
        write(path, "")?;
    }
    eprintln!("seed {}; repeat the order with --seed {}", options.seed, options.seed);
    eprintln!("starting PostgreSQL and filling its tables");
    let database = BenchDatabase::start()?;
    let setup = SqlSetup {
        directory: DIRECTORY.into(),
        // Contenders run in their own directories.
        evenkeel: std::path::absolute(&options.evenkeel)?,
        database_port: database.port(),
        database_url: database.url(),
        result_bytes: database.result_bytes,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run_rounds(options, &setup, &database))?;
    crate::print(&table::all(&outcome, options))?;
    match &options.json {
        Some(path) => write(path, &json::all(&outcome, options)),
        None => Ok(()),
    }
}

/// A running contender with the label of its row.
struct SqlEntrant {
    label: String,
    contender: &'static SqlContender,
    running: RunningMiddle,
}

async fn run_rounds(
    options: &SqlBenchOptions,
    setup: &SqlSetup,
    database: &BenchDatabase,
) -> io::Result<SqlOutcome> {
    let (entrants, missing) = start_all(options, setup).await;
    if !entrants.iter().any(|entrant| entrant.label == BASELINE) {
        let reasons: Vec<_> = missing.iter().map(|(label, reason)| format!("{label}: {reason}")).collect();
        return Err(io::Error::other(format!("the baseline could not be started; {}", reasons.join("; "))));
    }
    let score = |case: &SqlCase| {
        let supports = |entrant: &&SqlEntrant| entrant.contender.supports(*case);
        let rows = entrants.iter().filter(supports).map(|entrant| RowSamples::new(&entrant.label));
        CaseScore { case: *case, rows: rows.collect() }
    };
    let mut scores: Vec<_> = options.cases().iter().map(score).collect();
    let resets = count_resets(options, &entrants, database).await;
    let mut loads = Vec::new();
    let mut random = SplitMix64::new(options.seed);
    let window = Duration::from_secs(options.seconds.into());
    for round in 1..=options.rounds {
        loads.push(load_average());
        let mut order: Vec<_> = (0..scores.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let score = &mut scores[index];
            eprintln!("round {round}/{}: {}", options.rounds, score.case.name());
            run_case(score, &entrants, &mut random, window).await;
        }
    }
    let rss = entrants.iter().filter_map(|entrant| {
        let rss = entrant.running.rss().ok().flatten()?;
        Some((entrant.label.clone(), rss))
    });
    let rss = rss.collect();
    Ok(SqlOutcome { scores, missing, loads, resets, rss })
}

/// Runs the contenders directly after each other, so that the machine is in the same state for all of them.
async fn run_case(score: &mut CaseScore, entrants: &[SqlEntrant], random: &mut SplitMix64, window: Duration) {
    let mut order: Vec<_> = (0..score.rows.len()).collect();
    random.shuffle(&mut order);
    for index in order {
        let row = &mut score.rows[index];
        let Some(entrant) = entrants.iter().find(|entrant| entrant.label == row.label) else { continue };
        let outcome = entrant.running.measure(score.case, window).await;
        if let Err(error) = &outcome {
            eprintln!("{}: {error}", row.label);
        }
        row.record(outcome);
    }
}

/// Counts resets in the lookup cases, outside of the rounds.
async fn count_resets(
    options: &SqlBenchOptions,
    entrants: &[SqlEntrant],
    database: &BenchDatabase,
) -> Vec<(String, f64)> {
    let mut counted = Vec::new();
    let Some(entrant) = entrants.iter().find(|entrant| entrant.label == WITH_RESETS) else {
        return counted;
    };
    for case in options.cases().iter().filter(|case| entrant.contender.supports(**case)) {
        match resets::count(database, &entrant.running, *case).await {
            Ok(resets) => counted.push((case.name(), resets)),
            Err(error) => eprintln!("could not count the resets in {}: {error}", case.name()),
        }
    }
    counted
}

/// Starts all selected contenders, the baseline twice; returns those that could not be started with the reason.
async fn start_all(options: &SqlBenchOptions, setup: &SqlSetup) -> (Vec<SqlEntrant>, Vec<(String, String)>) {
    let mut entrants = Vec::new();
    let mut missing = Vec::new();
    for contender in contender::ALL.iter().filter(|contender| options.includes(contender)) {
        let again = (contender.name == BASELINE).then(|| format!("{BASELINE} (again)"));
        for label in std::iter::once(contender.name.to_owned()).chain(again) {
            eprintln!("starting {label}");
            match contender.start(&label, setup).await {
                Ok(running) => entrants.push(SqlEntrant { label, contender, running }),
                Err(error) => {
                    eprintln!("skipping {label}: {error}");
                    missing.push((label, error.to_string()));
                    break;
                }
            }
        }
    }
    (entrants, missing)
}

/// Returns the load average of the last minute.
fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn write(path: &Path, text: &str) -> io::Result<()> {
    let with_path = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    fs::write(path, text).map_err(with_path)
}
