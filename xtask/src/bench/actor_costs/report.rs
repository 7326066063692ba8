//! The costs as tables for people, and as JSON for `cargo xtask bench compare`.

use super::{Cost, CostKind};
use serde_json::json;

/// Formats a table for each kind of cost.
pub(super) fn tables(costs: &[Cost]) -> String {
    let of_kind = |kind| costs.iter().filter(move |cost| cost.case.kind == kind);
    let number = |cost: &Cost| format!("{:.1}", cost.total);
    let instructions = of_kind(CostKind::Instructions)
        .map(|cost| vec![cost.case.name.clone(), number(cost), cost.case.about.clone()]);
    let memory = of_kind(CostKind::Memory).map(|cost| {
        let parts = cost.parts.iter().map(|(component, bytes)| format!("{} {bytes:.1}", component.name()));
        let parts = parts.collect::<Vec<_>>().join(", ");
        vec![cost.case.name.clone(), number(cost), cost.case.about.clone(), parts]
    });
    let instructions = table(&["case", "instructions", "per"], instructions.collect());
    let memory = table(&["case", "bytes", "per", "of which"], memory.collect());
    format!("{instructions}\n{memory}")
}

/// Formats an aligned table; the second column has numbers.
fn table(head: &[&str], rows: Vec<Vec<String>>) -> String {
    let widths: Vec<_> = (0..head.len())
        .map(|column| {
            let cells = rows.iter().map(|row| row[column].chars().count());
            cells.chain([head[column].chars().count()]).max().unwrap_or(0)
        })
        .collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).enumerate();
        let cells = cells.map(|(column, (cell, &width))| match column {
            1 => format!(" {cell:>width$} |"),
            _ => format!(" {cell:width$} |"),
        });
        format!("|{}\n", cells.collect::<String>())
    };
    let head: Vec<_> = head.iter().map(|&cell| cell.to_owned()).collect();
    let rule: Vec<_> = widths
        .iter()
        .enumerate()
        .map(
            |(column, &width)| {
                if column == 1 { format!("{}:", "-".repeat(width - 1)) } else { "-".repeat(width) }
            },
        )
        .collect();
    let rows = rows.iter().map(|row| line(row)).collect::<String>();
    line(&head) + &line(&rule) + &rows
}

/// Formats the results, one line per row, so that a diff of two baselines shows which rows changed.
pub(super) fn json(costs: &[Cost], environment: &[(&str, String)]) -> String {
    let environment: Vec<_> = environment
        .iter()
        .map(|(tool, version)| format!("    {}: {}", json!(tool), json!(version)))
        .collect();
    let rows: Vec<_> = costs.iter().flat_map(rows).collect();
    format!(
        "{{\n  \"suite\": \"actor-costs\",\n  \"better\": \"lower\",\n  \"rounds\": 1,\n  \"environment\": {{\n{}\n  }},\n  \
         \"rows\": [\n{}\n  ]\n}}\n",
        environment.join(",\n"),
        rows.join(",\n")
    )
}

/// Returns the row of a cost and one for each of its parts.
fn rows(cost: &Cost) -> Vec<String> {
    let name = format!("{}/{}", cost.case.kind.name(), cost.case.name);
    let row = |name: String, count: f64| {
        format!("    {{ \"name\": {}, \"count\": {} }}", json!(name), (count * 100.0).round() / 100.0)
    };
    let parts =
        cost.parts.iter().map(|(component, bytes)| row(format!("{name}/{}", component.name()), *bytes));
    std::iter::once(row(name.clone(), cost.total)).chain(parts).collect()
}

#[cfg(test)]
mod tests {
    use super::super::CostCase;
    use super::super::massif::Component;
    use super::*;
    use crate::bench::results::Results;

    #[test]
    fn the_tables_are_aligned_and_show_the_parts_of_memory() {
        assert_eq!(
            tables(&costs()),
            "\
| case | instructions | per         |
| ---- | -----------: | ----------- |
| tell |       1164.8 | one message |

| case | bytes | per        | of which                  |
| ---- | ----: | ---------- | ------------------------- |
| idle | 240.0 | idle actor | cell 200.0, registry 40.0 |
"
        );
    }

    #[test]
    fn every_cost_and_every_part_is_a_row_that_compare_reads() {
        let text = json(&costs(), &[("rustc", "rustc 1.95.0".to_owned())]);
        assert_eq!(
            text,
            r#"{
  "suite": "actor-costs",
  "better": "lower",
  "rounds": 1,
  "environment": {
    "rustc": "rustc 1.95.0"
  },
  "rows": [
    { "name": "instructions/tell", "count": 1164.77 },
    { "name": "memory/idle", "count": 240 },
    { "name": "memory/idle/cell", "count": 200 },
    { "name": "memory/idle/registry", "count": 40 }
  ]
}
"#
        );
        let results = Results::parse(&text).unwrap();
        assert_eq!(results.find("memory/idle/registry").map(|row| row.ratio), Some(40.0));
    }

    fn costs() -> [Cost; 2] {
        let case = |kind, name: &str, about: &str| CostCase {
            kind,
            name: name.to_owned(),
            count: 64,
            about: about.to_owned(),
        };
        [
            Cost {
                case: case(CostKind::Instructions, "tell", "one message"),
                total: 1_164.766,
                parts: Vec::new(),
            },
            Cost {
                case: case(CostKind::Memory, "idle", "idle actor"),
                total: 240.0,
                parts: vec![(Component::Cell, 200.0), (Component::Registry, 40.0)],
            },
        ]
    }
}
