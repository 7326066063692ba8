//! Results as Markdown tables.

use bench_support::Quartiles;

use super::args::Options;
use super::score::{RowSamples, Score};
use crate::workload::{Better, Workload};

/// Draws one table per workload, after a heading with the parameters that repeat the run.
pub(super) fn all(scores: &[Score], options: &Options) -> String {
    let settings =
        if options.settings.is_empty() { "defaults".to_owned() } else { options.settings.join(" ") };
    let mut text = format!("rounds: {}, seed: {}, settings: {settings}\n", options.rounds, options.seed);
    for score in scores {
        text += &one(score);
    }
    text
}

fn one(score: &Score) -> String {
    let workload = score.workload;
    let direction = match workload.metric().better {
        Better::Higher => "higher is better",
        Better::Lower => "lower is better",
    };
    let mut columns = columns(score);
    if score.rows.iter().any(|row| row.error().is_some()) {
        let notes = score.rows.iter().map(|row| row.error().unwrap_or_default());
        columns.push(Column::new(Align::Left, "note", notes));
    }
    format!("\n## {}: {} ({direction})\n\n{}", workload.name(), workload.about(), draw(&columns))
}

struct Column {
    align: Align,
    /// The heading comes first.
    cells: Vec<String>,
}

#[derive(Clone, Copy)]
enum Align {
    Left,
    Right,
}

impl Column {
    fn new(align: Align, heading: &str, cells: impl Iterator<Item = String>) -> Self {
        Self { align, cells: std::iter::once(heading.to_owned()).chain(cells).collect() }
    }
}

fn columns(score: &Score) -> Vec<Column> {
    let metric = score.workload.metric();
    let baseline = score.rows.first().map_or("", |row| &row.entrant.label);
    let right = |heading: &str, cell: &dyn Fn(&RowSamples) -> Option<String>| {
        Column::new(Align::Right, heading, score.rows.iter().map(|row| cell(row).unwrap_or_default()))
    };
    let mut columns = vec![
        Column::new(Align::Left, "runtime", score.rows.iter().map(|row| row.entrant.label.clone())),
        right(metric.unit, &|row| Some(short(row.quartiles(metric.name)?.median))),
        right("quartiles", &|row| Some(range(row.quartiles(metric.name)?, short))),
        right("CPU ns/op", &|row| Some(short(row.quartiles("cpu_ns_per_op")?.median))),
        right(&format!("× {baseline}"), &|row| Some(format_ratio(score.ratio(row)?.median))),
        right("quartiles", &|row| Some(range(score.ratio(row)?, format_ratio))),
    ];
    for name in extra_metrics(score) {
        columns.push(right(&name.replace("_us", " µs").replace('_', " "), &|row| {
            Some(short(row.quartiles(&name)?.median))
        }));
    }
    columns
}

/// Lists the metrics that have no column yet.
fn extra_metrics(score: &Score) -> Vec<String> {
    let mut extra: Vec<String> = Vec::new();
    for name in score.rows.iter().flat_map(RowSamples::metrics) {
        if !has_column(score.workload, name) && extra.iter().all(|known| known != name) {
            extra.push(name.to_owned());
        }
    }
    extra
}

fn has_column(workload: Workload, name: &str) -> bool {
    match (name, workload) {
        ("ops" | "secs" | "cpu_ns_per_op", _) => true,
        // In the other workloads, the rate is the headline metric or depends only on the workload's pauses.
        ("rate", Workload::Latency1 | Workload::Latency10 | Workload::Latency100 | Workload::Latency1000) => {
            false
        }
        ("rate", _) => true,
        (name, workload) => name == workload.metric().name,
    }
}

fn range(quartiles: Quartiles, format: impl Fn(f64) -> String) -> String {
    format!("{}–{}", format(quartiles.lower), format(quartiles.upper))
}

/// Formats a number with two or three significant digits.
pub(super) fn short(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{:.2} M", value / 1e6),
        size if size >= 1e4 => format!("{:.0} k", value / 1e3),
        size if size >= 1e2 => format!("{value:.0}"),
        size if size >= 1e1 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Formats a ratio; small ones get three decimals, so that slow contenders can be distinguished.
fn format_ratio(ratio: f64) -> String {
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
    fn a_table_is_aligned_and_has_notes_only_for_errors() {
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
        score.rows[2].record(3, Err(ChildError::Failed("crashed".to_owned())));
        assert!(one(&score).contains("| crashed (1 of 3 rounds) |\n"), "{}", one(&score));
    }

    #[test]
    fn a_contender_without_results_has_a_row_with_the_reason() {
        let mut score = score(Workload::Wake, &[("tokio-mpsc", &[9.0]), ("own", &[])]);
        score.rows[1].record(1, Err(ChildError::Unsupported("unsupported: no skynet".to_owned())));
        let row = "| own        |        |           |           |              |           | unsupported: no skynet |\n";
        assert!(one(&score).ends_with(row), "{}", one(&score));
    }

    #[test]
    fn the_first_line_has_the_parameters_of_the_run() {
        assert_eq!(all(&[], &options("--seed 5")), "rounds: 7, seed: 5, settings: defaults\n");
        let text = all(&[], &options("--seed 5 --rounds 9 echo=on --scale 2"));
        assert_eq!(text, "rounds: 9, seed: 5, settings: echo=on scale=2\n");
    }

    #[test]
    fn numbers_are_short() {
        let shown = [1_234_567.0, 45_678.0, 1234.0, 12.34, 1.234, 0.0].map(short);
        assert_eq!(shown, ["1.23 M", "46 k", "1234", "12.3", "1.23", "0.00"]);
    }
}
