//! Results as Markdown tables.

use bench_support::{RowSamples, draw, format_ratio, short};

use crate::args::Options;
use crate::rounds::{Outcome, Score};

/// Draws one table per case, after lines with the parameters of the run and the state of the machine.
pub(crate) fn all(outcome: &Outcome, options: &Options) -> String {
    let sync_us: Vec<_> = outcome.sync_us.iter().map(|us| short(*us)).collect();
    let mut text = format!(
        "rounds: {}, seed: {}, scale: {}\non {}; fsync takes {} µs (p50, by round); load average before each round: {}\n",
        options.rounds,
        options.seed,
        options.scale,
        outcome.filesystem,
        sync_us.join(", "),
        outcome.loads.join(", "),
    );
    for (label, syncs) in &outcome.syncs {
        text += &format!(
            "{label}: {:.2} fsyncs per message with one producer, {:.2} with 16, {:.2} with one consumer (strace)\n",
            syncs.one_producer, syncs.many_producers, syncs.one_consumer
        );
    }
    for score in &outcome.scores {
        text += &one(score);
    }
    for (label, reason) in &outcome.missing {
        text += &format!("\n{label} was skipped: {reason}\n");
    }
    text
}

fn one(score: &Score) -> String {
    let baseline = score.rows.first().map_or("", |row| row.label.as_str());
    let heading = format!("× {baseline}");
    let median = |row: &RowSamples, metric: &str| Some(short(row.quartiles(metric)?.median));
    let ratio = |row: &RowSamples, metric: &str| Some(format_ratio(score.ratio(row, metric)?));
    let mut columns = vec![
        column("contender", score, |row| Some(row.label.clone())),
        column("messages/s", score, |row| median(row, "rate")),
        column(&heading, score, |row| ratio(row, "rate")),
        column("CPU µs/message", score, |row| median(row, "cpu_us")),
        column(&heading, score, |row| ratio(row, "cpu_us")),
        column("p50 µs", score, |row| median(row, "p50_us")),
        column("p99 µs", score, |row| median(row, "p99_us")),
    ];
    if score.rows.iter().any(|row| row.last_error.is_some()) {
        columns.push(column("note", score, |row| row.last_error.as_ref().map(ToString::to_string)));
    }
    format!("\n## {}: {}\n\n{}", score.case.name(), score.case.about(), draw(&columns))
}

/// Builds a column with its heading first.
fn column(heading: &str, score: &Score, cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = score.rows.iter().map(|row| cell(row).unwrap_or_default());
    std::iter::once(heading.to_owned()).chain(cells).collect()
}
