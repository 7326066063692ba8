//! Results as Markdown tables.

use bench_support::{RowSamples, draw, format_ratio, short};

use crate::args::Options;
use crate::rounds::Outcome;
use crate::score::Score;
use crate::workload::LlmWorkload;

/// Draws one table per workload, after a line with the parameters that repeat the run.
pub(crate) fn all(outcome: &Outcome, options: &Options) -> String {
    let mut text = format!("rounds: {}, seed: {}, scale: {}\n", options.rounds, options.seed, options.scale);
    for score in &outcome.scores {
        text += &one(score, &outcome.idle);
    }
    for (label, reason) in &outcome.missing {
        text += &format!("\n{label} was skipped: {reason}\n");
    }
    text
}

fn one(score: &Score, idle: &[(String, f64)]) -> String {
    let mut columns = vec![column("contender", score, |row| Some(row.label.clone()))];
    for metric in score.workload.metrics() {
        columns.push(column(metric.heading, score, |row| Some(short(row.quartiles(metric.name)?.median))));
        if metric.group.is_some() {
            let heading = format!("× {}", score.baseline);
            columns.push(column(&heading, score, |row| Some(format_ratio(score.ratio(row, metric.name)?))));
        }
    }
    if score.workload == LlmWorkload::Load {
        columns.push(column("MiB idle", score, |row| {
            idle.iter().find(|(label, _)| *label == row.label).map(|(_, mib)| short(*mib))
        }));
    }
    if score.rows.iter().any(|row| row.last_error.is_some()) {
        columns.push(column("note", score, |row| row.last_error.as_ref().map(ToString::to_string)));
    }
    format!("\n## {}: {}\n\n{}", score.workload.name(), score.workload.about(), draw(&columns))
}

/// Builds a column with its heading first.
fn column(heading: &str, score: &Score, cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = score.rows.iter().map(|row| cell(row).unwrap_or_default());
    std::iter::once(heading.to_owned()).chain(cells).collect()
}
