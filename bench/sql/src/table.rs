//! Results as Markdown tables.

use bench_support::{RowSamples, draw, format_ratio, short};

use crate::args::SqlBenchOptions;
use crate::contender::{ON_SQLITE, SQLITE_BASELINE};
use crate::rounds::SqlOutcome;
use crate::score::CaseScore;

/// Draws one table per case, after lines with the parameters of the run and the state of the machine.
pub(crate) fn all(outcome: &SqlOutcome, options: &SqlBenchOptions) -> String {
    let mut text = format!(
        "rounds: {}, seconds per turn: {}, seed: {}; load average before each round: {}\n",
        options.rounds,
        options.seconds,
        options.run.seed,
        outcome.loads.join(", "),
    );
    if !outcome.resets.is_empty() {
        let resets = outcome.resets.iter().map(|(case, resets)| format!("{case} {resets:.2}"));
        let resets: Vec<_> = resets.collect();
        text += &format!("resets per query with tenants: {}\n", resets.join(", "));
    }
    let mib = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
    let rss = outcome.rss.iter().map(|(label, bytes)| format!("{label} {}", short(mib(*bytes))));
    text += &format!("MiB resident after the last round: {}\n", rss.collect::<Vec<_>>().join(", "));
    for score in &outcome.scores {
        text += &one(score);
        text += &beside_sqld(score);
    }
    for (label, reason) in &outcome.missing {
        text += &format!("\n{label} was skipped: {reason}\n");
    }
    text
}

/// Draws the table of a case.
pub(crate) fn one(score: &CaseScore) -> String {
    let mut columns = vec![column("contender", score, |row| Some(row.label.clone()))];
    for metric in score.metrics.iter().filter(|metric| metric.has_column()) {
        columns.push(column(metric.heading, score, |row| Some(short(row.quartiles(metric.name)?.median))));
        if metric.has_ratio_column() {
            let heading = format!("× {}", score.baseline);
            columns.push(column(&heading, score, |row| Some(format_ratio(score.ratio(row, metric.name)?))));
        }
    }
    if score.rows.iter().any(|row| row.last_error.is_some()) {
        columns.push(column("note", score, |row| row.last_error.as_ref().map(ToString::to_string)));
    }
    format!("\n## {}: {}\n\n{}", score.name, score.about, draw(&columns))
}

/// Lists the ratios of Evenkeel on SQLite to sqld, a line for each row.
fn beside_sqld(score: &CaseScore) -> String {
    let Some(sqld) = score.row(SQLITE_BASELINE) else { return String::new() };
    let mut text = String::new();
    for row in ON_SQLITE.iter().filter_map(|label| score.row(label)) {
        let metrics = score.metrics.iter().filter(|metric| metric.has_ratio_column());
        let ratios = metrics.filter_map(|metric| {
            let ratio = format_ratio(row.ratio(sqld, metric.name)?);
            Some(format!("{} {ratio}", metric.heading))
        });
        text += &format!("\n{} × {SQLITE_BASELINE}: {}\n", row.label, ratios.collect::<Vec<_>>().join(", "));
    }
    text
}

/// Builds a column with its heading first.
fn column(heading: &str, score: &CaseScore, cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = score.rows.iter().map(|row| cell(row).unwrap_or_default());
    std::iter::once(heading.to_owned()).chain(cells).collect()
}
