//! The figures as tables that are also Markdown.

use bench_support::Quartiles;

use super::args::Options;
use super::score::{RowSamples, Score};
use crate::workload::{Better, Workload};

/// Draws a table per workload, under a line that says how to repeat them.
pub(super) fn all(scores: &[Score], options: &Options) -> String {
    let settings =
        if options.settings.is_empty() { "as usual".to_owned() } else { options.settings.join(" ") };
    let mut text = format!("rounds: {}, seed: {}, settings: {settings}\n", options.rounds, options.seed);
    for score in scores {
        text += &one(score);
    }
    text
}

fn one(score: &Score) -> String {
    let workload = score.workload;
    let direction = match workload.figure().better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let mut columns = columns(score);
    if score.lines.iter().any(|line| line.trouble().is_some()) {
        let notes = score.lines.iter().map(|line| line.trouble().unwrap_or_default());
        columns.push(Column::new(Align::Left, "note", notes));
    }
    format!("\n## {}: {} ({direction})\n\n{}", workload.name(), workload.about(), draw(&columns))
}

struct Column {
    align: Align,
    /// The head first.
    cells: Vec<String>,
}

#[derive(Clone, Copy)]
enum Align {
    Left,
    Right,
}

impl Column {
    fn new(align: Align, head: &str, cells: impl Iterator<Item = String>) -> Self {
        Self { align, cells: std::iter::once(head.to_owned()).chain(cells).collect() }
    }
}

fn columns(score: &Score) -> Vec<Column> {
    let figure = score.workload.figure();
    let baseline = score.lines.first().map_or("", |line| &line.entrant.label);
    let right = |head: &str, cell: &dyn Fn(&RowSamples) -> Option<String>| {
        Column::new(Align::Right, head, score.lines.iter().map(|line| cell(line).unwrap_or_default()))
    };
    let mut columns = vec![
        Column::new(Align::Left, "runtime", score.lines.iter().map(|line| line.entrant.label.clone())),
        right(figure.unit, &|line| Some(short(line.quartiles(figure.name)?.median))),
        right("quartiles", &|line| Some(span(line.quartiles(figure.name)?, short))),
        right("CPU ns/op", &|line| Some(short(line.quartiles("cpu_ns_per_op")?.median))),
        right(&format!("× {baseline}"), &|line| Some(times(score.ratio(line)?.median))),
        right("quartiles", &|line| Some(span(score.ratio(line)?, times))),
    ];
    for name in extra_figures(score) {
        columns.push(right(&name.replace("_us", " µs").replace('_', " "), &|line| {
            Some(short(line.quartiles(&name)?.median))
        }));
    }
    columns
}

/// Lists the figures that have no column yet.
fn extra_figures(score: &Score) -> Vec<String> {
    let mut extra: Vec<String> = Vec::new();
    for name in score.lines.iter().flat_map(RowSamples::figures) {
        if !is_shown(score.workload, name) && extra.iter().all(|known| known != name) {
            extra.push(name.to_owned());
        }
    }
    extra
}

fn is_shown(workload: Workload, name: &str) -> bool {
    match (name, workload) {
        ("ops" | "secs" | "cpu_ns_per_op", _) => true,
        // Elsewhere the rate is either the figure itself or says only how long the workload paused.
        ("rate", Workload::Latency1 | Workload::Latency10 | Workload::Latency100 | Workload::Latency1000) => {
            false
        }
        ("rate", _) => true,
        (name, workload) => name == workload.figure().name,
    }
}

fn span(quartiles: Quartiles, shown: impl Fn(f64) -> String) -> String {
    format!("{}–{}", shown(quartiles.lower), shown(quartiles.upper))
}

/// Writes a figure with two or three digits that count.
pub(super) fn short(figure: f64) -> String {
    match figure.abs() {
        size if size >= 1e6 => format!("{:.2} M", figure / 1e6),
        size if size >= 1e4 => format!("{:.0} k", figure / 1e3),
        size if size >= 1e2 => format!("{figure:.0}"),
        size if size >= 1e1 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

/// Writes a ratio, with a third digit where two would hide who is how slow.
fn times(ratio: f64) -> String {
    if ratio < 0.1 { format!("{ratio:.3}") } else { format!("{ratio:.2}") }
}

fn draw(columns: &[Column]) -> String {
    let widths: Vec<_> = columns
        .iter()
        .map(|column| column.cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0).max(2))
        .collect();
    let mut text = String::new();
    for row in 0..columns.first().map_or(0, |column| column.cells.len()) {
        for (column, width) in columns.iter().zip(&widths) {
            let cell = &column.cells[row];
            let padding = " ".repeat(width - cell.chars().count());
            text += &match column.align {
                Align::Left => format!("| {cell}{padding} "),
                Align::Right => format!("| {padding}{cell} "),
            };
        }
        text += "|\n";
        if row == 0 {
            for (column, width) in columns.iter().zip(&widths) {
                text += &match column.align {
                    Align::Left => format!("| {} ", "-".repeat(*width)),
                    Align::Right => format!("| {}: ", "-".repeat(width - 1)),
                };
            }
            text += "|\n";
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::args::tests::options;
    use super::super::child::ChildError;
    use super::super::score::tests::score;
    use super::*;

    #[test]
    fn a_table_is_aligned_and_has_notes_only_for_trouble() {
        let mut score = score(
            Workload::Tell1,
            &[("tokio-mpsc", &[4e6, 6e6]), ("tokio-mpsc (again)", &[4e6, 6e6]), ("slow", &[4e3, 6e3])],
        );
        let table = "
## tell1: one producer tells one actor 1 M times (higher is better)

| runtime            | per second |     quartiles | CPU ns/op | × tokio-mpsc |   quartiles |
| ------------------ | ---------: | ------------: | --------: | -----------: | ----------: |
| tokio-mpsc         |     5.00 M | 4.50 M–5.50 M |       123 |         1.00 |   1.00–1.00 |
| tokio-mpsc (again) |     5.00 M | 4.50 M–5.50 M |       123 |         1.00 |   1.00–1.00 |
| slow               |       5000 |     4500–5500 |       123 |        0.001 | 0.001–0.001 |
";
        assert_eq!(one(&score), table);
        score.lines[2].note(3, Err(ChildError::Failed("fell".to_owned())));
        assert!(one(&score).contains("| fell (1 of 3 rounds) |\n"), "{}", one(&score));
    }

    #[test]
    fn whoever_gave_nothing_has_a_row_that_says_why() {
        let mut score = score(Workload::Wake, &[("tokio-mpsc", &[9.0]), ("own", &[])]);
        score.lines[1].note(1, Err(ChildError::Unsupported("unsupported: no wings".to_owned())));
        let row = "| own        |        |           |           |              |           | unsupported: no wings |\n";
        assert!(one(&score).ends_with(row), "{}", one(&score));
    }

    #[test]
    fn the_first_line_says_how_to_repeat_the_run() {
        assert_eq!(all(&[], &options("--seed 5")), "rounds: 7, seed: 5, settings: as usual\n");
        let told = all(&[], &options("--seed 5 --rounds 9 echo=on --scale 2"));
        assert_eq!(told, "rounds: 9, seed: 5, settings: echo=on scale=2\n");
    }

    #[test]
    fn figures_are_short() {
        let shown = [1_234_567.0, 45_678.0, 1234.0, 12.34, 1.234, 0.0].map(short);
        assert_eq!(shown, ["1.23 M", "46 k", "1234", "12.3", "1.23", "0.00"]);
    }
}
