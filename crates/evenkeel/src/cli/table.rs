//! Lists of JSON objects as columns that line up.

use std::fmt;

use serde_json::Value;

/// Rows under their headings.
pub(super) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Shows these fields of each object.
    pub(super) fn of(columns: &[&str], objects: &[Value]) -> Self {
        let heading = columns.iter().map(|column| column.to_uppercase().replace('_', " ")).collect();
        let row = |object: &Value| columns.iter().map(|column| cell(&object[*column])).collect();
        let rows = std::iter::once(heading).chain(objects.iter().map(row)).collect();
        Self { rows }
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
        let columns = self.rows.first().map_or(0, Vec::len);
        let wide = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(wide).collect();
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
    fn columns_line_up_and_what_is_not_set_is_a_dash() {
        let objects =
            [json!({"name": "a", "rpm": null, "models": ["x", "y"]}), json!({"name": "longer", "rpm": 60})];
        let shown = Table::of(&["name", "rpm", "models"], &objects).to_string();
        assert_eq!(shown, "NAME    RPM  MODELS\na       -    x,y\nlonger  60   -\n");
    }
}
