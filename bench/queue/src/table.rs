//! The figures as tables that are also Markdown.

use bench_support::{RowSamples, draw, short, times};

use crate::args::Options;
use crate::rounds::{Outcome, Score};

/// Draws a table per case, under lines that say how to repeat them and where they come from.
pub(crate) fn all(outcome: &Outcome, options: &Options) -> String {
    let sync_us: Vec<_> = outcome.sync_us.iter().map(|us| short(*us)).collect();
    let mut text = format!(
        "rounds: {}, seed: {}, scale: {}\non {}; a flush takes {} µs (p50, by round); load average before each round: {}\n",
        options.rounds,
        options.seed,
        options.scale,
        outcome.filesystem,
        sync_us.join(", "),
        outcome.loads.join(", "),
    );
    for (label, syncs) in &outcome.syncs {
        text += &format!(
            "{label} flushes {:.2} times a message with one producer, {:.2} times with 16, {:.2} times with one consumer (strace)\n",
            syncs.alone, syncs.among, syncs.taken
        );
    }
    for score in &outcome.scores {
        text += &one(score);
    }
    for (label, why) in &outcome.missing {
        text += &format!("\n{label} is left out: {why}\n");
    }
    text
}

fn one(score: &Score) -> String {
    let baseline = score.lines.first().map_or("", |line| line.label.as_str());
    let head = format!("× {baseline}");
    let median = |line: &RowSamples, figure: &str| Some(short(line.quartiles(figure)?.median));
    let ratio = |line: &RowSamples, figure: &str| Some(times(score.ratio(line, figure)?));
    let mut columns = vec![
        column("contender", score, |line| Some(line.label.clone())),
        column("messages/s", score, |line| median(line, "rate")),
        column(&head, score, |line| ratio(line, "rate")),
        column("CPU µs/message", score, |line| median(line, "cpu_us")),
        column(&head, score, |line| ratio(line, "cpu_us")),
        column("p50 µs", score, |line| median(line, "p50_us")),
        column("p99 µs", score, |line| median(line, "p99_us")),
    ];
    if score.lines.iter().any(|line| line.trouble.is_some()) {
        columns.push(column("note", score, |line| line.trouble.as_ref().map(|trouble| trouble.0.clone())));
    }
    format!("\n## {}: {}\n\n{}", score.case.name(), score.case.about(), draw(&columns))
}

/// A column, its head first.
fn column(head: &str, score: &Score, cell: impl Fn(&RowSamples) -> Option<String>) -> Vec<String> {
    let cells = score.lines.iter().map(|line| cell(line).unwrap_or_default());
    std::iter::once(head.to_owned()).chain(cells).collect()
}
