//! Alternating rounds: every contender is started once; in each round it runs every case once, in random order.
//!
//! Limits: a benchmark takes at most rounds × contenders × cases × the time limit of a turn. If the machine is slow for
//! a case's whole part of a round, all contenders are slowed down alike, which cancels out in the ratios.

use std::fs;
use std::io;
use std::time::Duration;

use bench_support::{RowSamples, SplitMix64};

use crate::args::SqlBenchOptions;
use crate::case::SqlCase;
use crate::contender::{self, BASELINE, Instances, RunningMiddle, SqlContender, SqlSetup};
use crate::database::BenchDatabase;
use crate::score::CaseScore;
use crate::{json, resets, table};

/// Directory of the contenders' files.
pub(crate) const DIRECTORY: &str = "target/sql-bench";
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
    /// Names of processes with their resident memory in bytes after the last round.
    pub(crate) rss: Vec<(String, u64)>,
}

/// Runs the rounds, prints the tables, and writes the JSON results if requested.
pub(crate) fn main(options: &SqlBenchOptions) -> io::Result<()> {
    options.run.prepare()?;
    eprintln!("starting PostgreSQL and filling its tables");
    let database = BenchDatabase::start()?;
    let setup = SqlSetup {
        directory: DIRECTORY.into(),
        // Contenders run in their own directories.
        evenkeel: std::path::absolute(&options.run.evenkeel)?,
        database_port: database.port(),
        database_url: database.url(),
        result_bytes: database.result_bytes,
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run_rounds(options, &setup, &database))?;
    crate::print(&table::all(&outcome, options))?;
    options.run.write_json(|| json::all(&outcome, options))
}

/// A running contender with the label of its row.
struct SqlEntrant {
    label: String,
    /// The label, and the case if there is a process for each.
    process: String,
    contender: &'static SqlContender,
    /// The only case that it runs; `None` if it runs all that the contender supports.
    only_case: Option<SqlCase>,
    running: RunningMiddle,
}

impl SqlEntrant {
    fn runs(&self, case: SqlCase) -> bool {
        self.contender.supports(case) && self.only_case.is_none_or(|only| only == case)
    }
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
        let runs = |entrant: &&SqlEntrant| entrant.runs(*case);
        let rows = entrants.iter().filter(runs).map(|entrant| RowSamples::new(&entrant.label));
        CaseScore::new(*case, rows.collect())
    };
    let mut scores: Vec<_> = options.cases().iter().map(score).collect();
    let mut loads = Vec::new();
    let mut random = SplitMix64::new(options.run.seed);
    let window = Duration::from_secs(options.seconds.into());
    for round in 1..=options.rounds {
        loads.push(load_average());
        let mut order: Vec<_> = (0..scores.len()).collect();
        random.shuffle(&mut order);
        for index in order {
            let case = options.cases()[index];
            eprintln!("round {round}/{}: {}", options.rounds, case.name());
            run_case(case, &mut scores[index], &entrants, &mut random, window).await;
        }
    }
    let resets = count_resets(options.cases(), &entrants, database).await;
    let rss = entrants.iter().filter_map(|entrant| {
        let rss = entrant.running.rss().ok().flatten()?;
        Some((entrant.process.clone(), rss))
    });
    let rss = rss.collect();
    Ok(SqlOutcome { scores, missing, loads, resets, rss })
}

/// Runs the contenders directly after each other, so that the machine is in the same state for all of them.
async fn run_case(
    case: SqlCase,
    score: &mut CaseScore,
    entrants: &[SqlEntrant],
    random: &mut SplitMix64,
    window: Duration,
) {
    let mut order: Vec<_> = (0..score.rows.len()).collect();
    random.shuffle(&mut order);
    for index in order {
        let row = &mut score.rows[index];
        let Some(entrant) = find(entrants, &row.label, case) else { continue };
        let outcome = entrant.running.measure(case, window).await;
        if let Err(error) = &outcome {
            eprintln!("{}: {error}", row.label);
        }
        row.record(outcome);
    }
}

fn find<'a>(entrants: &'a [SqlEntrant], label: &str, case: SqlCase) -> Option<&'a SqlEntrant> {
    entrants.iter().find(|entrant| entrant.label == label && entrant.runs(case))
}

/// Counts resets in each case after the rounds, with the connections that the rounds have opened.
async fn count_resets(
    cases: &[SqlCase],
    entrants: &[SqlEntrant],
    database: &BenchDatabase,
) -> Vec<(String, f64)> {
    let mut counted = Vec::new();
    for case in cases.iter().copied() {
        let Some(entrant) = find(entrants, WITH_RESETS, case) else { continue };
        match resets::count(database, &entrant.running, case).await {
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
        for (label, only_case) in processes(contender, options.cases()) {
            let process = only_case.map_or(label.clone(), |case| format!("{label} {}", case.name()));
            eprintln!("starting {process}");
            match contender.start(&process, setup).await {
                Ok(running) => entrants.push(SqlEntrant { label, process, contender, only_case, running }),
                Err(error) => {
                    eprintln!("skipping {process}: {error}");
                    missing.push((process, error.to_string()));
                    break;
                }
            }
        }
    }
    (entrants, missing)
}

/// Returns the processes of a contender: the label of each one's row, and the only case that it runs, if any.
fn processes(contender: &SqlContender, cases: &[SqlCase]) -> Vec<(String, Option<SqlCase>)> {
    let label = contender.name.to_owned();
    match contender.instances {
        Instances::One if contender.name == BASELINE => {
            vec![(label, None), (format!("{BASELINE} (again)"), None)]
        }
        Instances::One => vec![(label, None)],
        Instances::PerCase => {
            let supported = cases.iter().filter(|case| contender.supports(**case));
            supported.map(|case| (label.clone(), Some(*case))).collect()
        }
    }
}

/// Returns the load average of the last minute.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_baseline_has_two_processes_and_tenants_one_per_lookup() {
        let labels = |name: &str| {
            let contender = contender::ALL.iter().find(|one| one.name == name).unwrap();
            let processes = processes(contender, SqlCase::ALL).into_iter();
            processes.map(|(label, case)| (label, case.map(SqlCase::name))).collect::<Vec<_>>()
        };
        assert_eq!(labels(BASELINE), [(BASELINE.to_owned(), None), (format!("{BASELINE} (again)"), None)]);
        let tenants = labels(WITH_RESETS).into_iter().map(|(_, case)| case.unwrap());
        assert_eq!(tenants.collect::<Vec<_>>(), ["lookup1", "lookup16", "lookup64"]);
    }
}
