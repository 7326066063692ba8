//! Formats lists of JSON objects as tables with aligned columns.

use std::fmt;

use serde_json::Value;

/// Longest cell to which the other cells of its column are aligned; otherwise one long cell would multiply the output.
const ALIGNED_CHARS_MAX: usize = 200;

/// Rows of cells; the first row is the header.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with one row per object and one column per name in `columns`. The header shows the names in
    /// upper case, with underscores replaced by spaces.
    pub(super) fn new(columns: &[&str], objects: &[Value]) -> Self {
        let header = columns.iter().map(|column| column.to_uppercase().replace('_', " ")).collect();
        let row = |object: &Value| columns.iter().map(|column| cell(&object[*column])).collect();
        let rows = std::iter::once(header).chain(objects.iter().map(row)).collect();
        Self { rows }
    }

    /// Creates a table of rows that have a cell for each column of the header.
    pub(super) fn of_rows(header: Vec<String>, rows: impl IntoIterator<Item = Vec<String>>) -> Self {
        Self { rows: std::iter::once(header).chain(rows).collect() }
    }
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(cell).collect::<Vec<_>>().join(","),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let column_count = self.rows.first().map_or(0, Vec::len);
        let width = |column: usize| {
            let lengths = self.rows.iter().map(|row| row[column].chars().count());
            lengths.filter(|length| *length <= ALIGNED_CHARS_MAX).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..column_count).map(width).collect();
        for row in &self.rows {
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}"));
            writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn columns_are_aligned_and_missing_values_are_dashes() {
        let objects =
            [json!({"name": "a", "rpm": null, "models": ["x", "y"]}), json!({"name": "longer", "rpm": 60})];
        let text = Table::new(&["name", "rpm", "models"], &objects).to_string();
        assert_eq!(text, "NAME    RPM  MODELS\na       -    x,y\nlonger  60   -\n");
    }

    #[test]
    fn a_very_long_cell_does_not_widen_its_column() {
        let cells = |first: &str| vec![first.to_owned(), "x".to_owned()];
        let aligned = "a".repeat(ALIGNED_CHARS_MAX);
        let text = Table::of_rows(cells("n"), [cells(&aligned)]).to_string();
        assert_eq!(text, format!("n{}  x\n{aligned}  x\n", " ".repeat(ALIGNED_CHARS_MAX - 1)));
        let longer = "a".repeat(ALIGNED_CHARS_MAX + 1);
        let longest = "a".repeat(100_000);
        let text = Table::of_rows(cells("n"), [cells(&longer), cells(&longest)]).to_string();
        assert_eq!(text, format!("n  x\n{longer}  x\n{longest}  x\n"));
    }
}
