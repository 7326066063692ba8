//! Results as a table for people and as JSON for programs.

use std::fmt::Write;

use crate::measure::{Effort, Goal, Row};

/// Results of one group.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupResult {
    /// The group's name.
    pub group: String,
    /// One row per contender, the baseline first.
    pub rows: Vec<Row>,
}

const HEAD: [&str; 7] =
    ["group", "contender", "cpu ns/op", "wall ns/op", "× baseline (quartiles)", "more ns", "goal"];

/// Formats the results as an aligned Markdown table.
pub fn table(results: &[GroupResult]) -> String {
    let mut lines = vec![HEAD.map(str::to_owned)];
    for GroupResult { group, rows } in results {
        let groups = std::iter::once(group.as_str()).chain(std::iter::repeat(""));
        lines.extend(groups.zip(rows).map(|(group, row)| cells(group, row)));
    }
    let mut widths = [0; HEAD.len()];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.chars().count().max(*width);
        }
    }
    lines.insert(1, std::array::from_fn(|column| rule(column, widths[column])));
    let mut text = String::new();
    for line in &lines {
        for (column, (cell, width)) in line.iter().zip(widths).enumerate() {
            let padding = " ".repeat(width - cell.chars().count());
            text += &if is_number(column) {
                format!("| {padding}{cell} ")
            } else {
                format!("| {cell}{padding} ")
            };
        }
        text += "|\n";
    }
    text
}

fn cells(group: &str, row: &Row) -> [String; HEAD.len()] {
    let ratio = row.ratio;
    [
        group.to_owned(),
        row.name.to_owned(),
        format_ns(row.cpu_ns),
        format_ns(row.wall_ns),
        format!("{:.3} ({:.3}–{:.3})", ratio.median, ratio.lower, ratio.upper),
        format!("{:+.1}", row.more_ns),
        goal_result(row),
    ]
}

fn rule(column: usize, width: usize) -> String {
    if is_number(column) { format!("{}:", "-".repeat(width - 1)) } else { "-".repeat(width) }
}

fn is_number(column: usize) -> bool {
    (2..6).contains(&column)
}

fn format_ns(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

fn goal_result(row: &Row) -> String {
    let (Some(goal), Some(met)) = (row.goal, row.meets_goal()) else { return String::new() };
    let outcome = if met { "met" } else { "missed" };
    match goal {
        Goal::NsMax(max) => format!("≤ {max} ns: {outcome}"),
        Goal::RatioBelow(limit) => format!("< {limit} ×: {outcome}"),
    }
}

/// Formats the results as JSON, with one object per row under `rows`, named `group/contender`.
///
/// `ratio` compares with the first row of the same group.
pub fn json(results: &[GroupResult], effort: Effort) -> String {
    let mut text = format!(
        "{{\n  \"rounds\": {},\n  \"batch_ms\": {},\n  \"rows\": [",
        effort.rounds,
        effort.batch_time.as_secs_f64() * 1e3
    );
    let rows = results.iter().flat_map(|group| group.rows.iter().map(|row| (group.group.as_str(), row)));
    for (index, (group, row)) in rows.enumerate() {
        let separator = if index == 0 { "" } else { "," };
        // The names consist of letters, digits, `-`, `/` and spaces, so nothing needs escaping.
        let _ = write!(
            text,
            "{separator}\n    {{ \"name\": \"{group}/{}\", \"ns_per_op\": {:.3}, \"wall_ns_per_op\": {:.3}, \
             \"ratio\": {:.4}, \"ratio_lower\": {:.4}, \"ratio_upper\": {:.4}, \"more_ns\": {:.3} }}",
            row.name,
            row.cpu_ns,
            row.wall_ns,
            row.ratio.median,
            row.ratio.lower,
            row.ratio.upper,
            row.more_ns,
        );
    }
    text += "\n  ]\n}\n";
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Quartiles;

    #[test]
    fn the_table_is_aligned_and_shows_whether_goals_are_met() {
        assert_eq!(
            table(&results()),
            "\
| group  | contender | cpu ns/op | wall ns/op | × baseline (quartiles) | more ns | goal             |
| ------ | --------- | --------: | ---------: | ---------------------: | ------: | ---------------- |
| pick/8 | fifo      |       2.0 |        2.1 |    1.000 (1.000–1.000) |    +0.0 |                  |
|        | drr       |       9.8 |        123 |    4.900 (4.800–5.000) |    +7.8 | ≤ 10 ns: met     |
|        | slow      |      11.0 |       12.0 |    5.500 (5.000–6.000) |    +9.0 | < 1.05 ×: missed |
"
        );
    }

    #[test]
    fn json_names_every_row_by_group_and_contender() {
        let text = json(&results(), Effort::QUICK);
        assert!(
            text.starts_with("{\n  \"rounds\": 3,\n  \"batch_ms\": 0.2,\n  \"rows\": [\n    { \"name\""),
            "{text}"
        );
        let drr = "{ \"name\": \"pick/8/drr\", \"ns_per_op\": 9.800, \"wall_ns_per_op\": 123.400, \
                   \"ratio\": 4.9000, \"ratio_lower\": 4.8000, \"ratio_upper\": 5.0000, \"more_ns\": 7.800 },\n";
        assert!(text.contains(drr), "{text}");
        assert!(text.ends_with("\"more_ns\": 9.000 }\n  ]\n}\n"), "{text}");
    }

    fn results() -> Vec<GroupResult> {
        let row = |name, cpu_ns, wall_ns, [lower, median, upper]: [f64; 3], goal| Row {
            name,
            cpu_ns,
            wall_ns,
            ratio: Quartiles { lower, median, upper },
            more_ns: cpu_ns - 2.0,
            goal,
        };
        let rows = vec![
            row("fifo", 2.0, 2.1, [1.0; 3], None),
            row("drr", 9.8, 123.4, [4.8, 4.9, 5.0], Some(Goal::NsMax(10.0))),
            row("slow", 11.0, 12.0, [5.0, 5.5, 6.0], Some(Goal::RatioBelow(1.05))),
        ];
        vec![GroupResult { group: "pick/8".to_owned(), rows }]
    }
}
