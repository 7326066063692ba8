//! The figures as tables that are also Markdown.

use bench_support::{RowSamples, draw, short, times};

use crate::args::Options;
use crate::rounds::Outcome;
use crate::score::Score;
use crate::workload::LlmWorkload;

/// Draws a table per workload, under a line that says how to repeat them.
pub(crate) fn all(outcome: &Outcome, options: &Options) -> String {
    let mut text = format!("rounds: {}, seed: {}, scale: {}\n", options.rounds, options.seed, options.scale);
    for score in &outcome.scores {
        text += &one(score, &outcome.idle);
    }
    for (label, why) in &outcome.missing {
        text += &format!("\n{label} is left out: {why}\n");
    }
    text
}

fn one(score: &Score, idle: &[(String, f64)]) -> String {
    let mut columns = vec![column("contender", score, |line| Some(line.label.clone()))];
    for figure in score.workload.figures() {
        columns.push(column(figure.head, score, |line| Some(short(line.quartiles(figure.name)?.median))));
        if figure.group.is_some() {
            let head = format!("× {}", score.baseline);
            columns.push(column(&head, score, |line| Some(times(score.ratio(line, figure.name)?))));
        }
    }
    if score.workload == LlmWorkload::Load {
        columns.push(column("MiB idle", score, |line| {
            idle.iter().find(|(label, _)| *label == line.label).map(|(_, mib)| short(*mib))
        }));
    }
    if score.lines.iter().any(|line| line.trouble.is_some()) {
        columns.push(column("note", score, |line| line.trouble.as_ref().map(|trouble| trouble.0.clone())));
    }
    format!("\n## {}: {}\n\n{}", score.workload.name(), score.workload.about(), draw(&columns))
}

/// A column, its head first.
fn column(head: &str, score: &Score, cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = score.lines.iter().map(|line| cell(line).unwrap_or_default());
    std::iter::once(head.to_owned()).chain(cells).collect()
}
