//! The figures as tables that are also Markdown.

use bench_figures::Quartiles;

use crate::args::Options;
use crate::rounds::Outcome;
use crate::score::{Line, Score};
use crate::workload::Workload;

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
    if score.workload == Workload::Load {
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
fn column(head: &str, score: &Score, cell: impl Fn(&Line) -> Option<String>) -> Vec<String> {
    let cells = score.lines.iter().map(|line| cell(line).unwrap_or_default());
    std::iter::once(head.to_owned()).chain(cells).collect()
}

fn draw(columns: &[Vec<String>]) -> String {
    let widths: Vec<_> = columns
        .iter()
        .map(|column| column.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(3))
        .collect();
    let mut text = String::new();
    for row in 0..columns.first().map_or(0, Vec::len) {
        for (at, (column, width)) in columns.iter().zip(&widths).enumerate() {
            let (cell, width) = (&column[row], *width);
            text += &if at == 0 { format!("| {cell:width$} |") } else { format!(" {cell:>width$} |") };
        }
        text += "\n";
        if row == 0 {
            for (at, width) in widths.iter().enumerate() {
                let dashes = "-".repeat(*width);
                text += &if at == 0 { format!("| {dashes} |") } else { format!(" {}: |", &dashes[1..]) };
            }
            text += "\n";
        }
    }
    text
}

/// Writes a figure with about three digits.
fn short(figure: f64) -> String {
    match figure.abs() {
        size if size < 10.0 => format!("{figure:.2}"),
        size if size < 100.0 => format!("{figure:.1}"),
        _ => format!("{figure:.0}"),
    }
}

/// Writes a ratio, and between which quartiles it is the middle.
fn times(Quartiles { lower, median, upper }: Quartiles) -> String {
    format!("{median:.2} ({lower:.2}–{upper:.2})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_aligned() {
        let columns = [
            vec!["contender".to_owned(), "own".to_owned(), "other".to_owned()],
            vec!["µs".to_owned(), short(1.234), short(1234.5)],
        ];
        assert_eq!(
            draw(&columns),
            "\
| contender |   µs |
| --------- | ---: |
| own       | 1.23 |
| other     | 1234 |
"
        );
    }
}
