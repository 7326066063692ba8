//! Results in the form that Neon's driver reads.

use core::ops::ControlFlow;
use core::task::{Context, Poll};

use crate::datasource::{Cell, Column, Completion, RowSink};
use crate::encode::{TextFormat, write_cell, write_string};

/// PostgreSQL's types `json` and `jsonb`.
const JSON_TYPES: [u32; 2] = [114, 3802];
/// Commands whose tags end with a number of rows.
const COUNTED: [&str; 8] = ["SELECT", "INSERT", "UPDATE", "DELETE", "MERGE", "FETCH", "MOVE", "COPY"];

/// Form of a result's rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowFormat {
    pub(super) rows: RowForm,
    pub(super) cells: CellForm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowForm {
    Array,
    /// An object with a key per column; of columns with the same name, the last wins.
    Object,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CellForm {
    /// PostgreSQL's text, which the driver parses by the type of the column.
    Text,
    /// JSON values where the type has one.
    Json,
}

/// A whole result, up to a size limit.
#[derive(Debug)]
pub(super) struct NeonResult {
    out: Vec<u8>,
    format: RowFormat,
    /// `None` for a statement without a result set.
    columns: Option<Vec<ResultColumn>>,
    rows: u64,
    bytes_max: usize,
}

#[derive(Debug)]
struct ResultColumn {
    /// The name as JSON.
    key: Vec<u8>,
    format: CellFormat,
}

#[derive(Clone, Copy, Debug)]
enum CellFormat {
    Value(TextFormat),
    /// The text is JSON.
    Embedded,
}

impl NeonResult {
    pub(super) fn new(format: RowFormat, bytes_max: usize) -> Self {
        Self { out: br#"{"fields":["#.to_vec(), format, columns: None, rows: 0, bytes_max }
    }

    /// Reports whether the size limit stopped the statement.
    pub(super) fn is_too_large(&self) -> bool {
        self.bytes_max < self.out.len()
    }

    /// Completes the result.
    pub(super) fn finish(mut self, completion: &Completion) -> Vec<u8> {
        if self.columns.is_none() {
            self.begin_rows();
        }
        // As node-postgres does: `CREATE TABLE` is `CREATE`.
        let command = completion.command.split(' ').next().unwrap_or_default();
        self.out.extend_from_slice(br#"],"command":"#);
        write_string(&mut self.out, command);
        self.out.extend_from_slice(br#","rowCount":"#);
        let count = COUNTED.contains(&command).then(|| completion.rows_affected.to_string());
        self.out.extend_from_slice(count.as_deref().unwrap_or("null").as_bytes());
        self.out.extend_from_slice(match self.format.rows {
            RowForm::Array => br#","rowAsArray":true}"#.as_slice(),
            RowForm::Object => br#","rowAsArray":false}"#,
        });
        self.out
    }

    fn begin_rows(&mut self) {
        self.out.extend_from_slice(br#"],"rows":["#);
    }
}

impl RowSink for NeonResult {
    fn columns(&mut self, columns: &[Column]) {
        let mut result_columns = Vec::with_capacity(columns.len());
        for (index, column) in columns.iter().enumerate() {
            let mut key = Vec::new();
            write_string(&mut key, &column.name);
            let origin = column.origin;
            self.out.extend_from_slice(if index == 0 { br#"{"name":"#.as_slice() } else { br#",{"name":"# });
            self.out.extend_from_slice(&key);
            let rest = format!(
                concat!(
                    r#","dataTypeID":{},"tableID":{},"columnID":{},"dataTypeSize":{},"#,
                    r#""dataTypeModifier":{},"format":"text"}}"#
                ),
                origin.type_oid, origin.table_oid, origin.column_id, origin.type_size, origin.type_modifier
            );
            self.out.extend_from_slice(rest.as_bytes());
            result_columns.push(ResultColumn { key, format: CellFormat::of(column, self.format.cells) });
        }
        self.columns = Some(result_columns);
        self.begin_rows();
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        // A statement that writes must not be stopped, so the rest of a result that is too large is dropped.
        if self.is_too_large() {
            return ControlFlow::Continue(());
        }
        if self.rows > 0 {
            self.out.push(b',');
        }
        self.rows += 1;
        let (open, close) = match self.format.rows {
            RowForm::Array => (b'[', b']'),
            RowForm::Object => (b'{', b'}'),
        };
        self.out.push(open);
        for (index, (cell, column)) in cells.zip(self.columns.iter().flatten()).enumerate() {
            if index > 0 {
                self.out.push(b',');
            }
            if self.format.rows == RowForm::Object {
                self.out.extend_from_slice(&column.key);
                self.out.push(b':');
            }
            column.format.write(&mut self.out, cell);
        }
        self.out.push(close);
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

impl CellFormat {
    fn of(column: &Column, form: CellForm) -> Self {
        match form {
            CellForm::Text => Self::Value(TextFormat::String),
            CellForm::Json if JSON_TYPES.contains(&column.origin.type_oid) => Self::Embedded,
            CellForm::Json => Self::Value(TextFormat::of(column)),
        }
    }

    fn write(self, out: &mut Vec<u8>, cell: Cell<'_>) {
        match (self, cell) {
            (Self::Embedded, Cell::Text(json)) => out.extend_from_slice(json.as_bytes()),
            (Self::Embedded, cell) => write_cell(out, cell, TextFormat::String),
            (Self::Value(format), cell) => write_cell(out, cell, format),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasource::{ColumnOrigin, RowsEnd};
    use serde_json::{Value, json};
    use std::time::Duration;

    const DRIVER: RowFormat = RowFormat { rows: RowForm::Array, cells: CellForm::Text };
    const PLAIN: RowFormat = RowFormat { rows: RowForm::Object, cells: CellForm::Json };

    fn completion(command: &str, rows_affected: u64) -> Completion {
        let first_response = Duration::ZERO;
        Completion {
            command: command.to_owned(),
            rows_affected,
            first_response,
            end: RowsEnd::All,
            last_insert_rowid: None,
        }
    }

    fn column(name: &str, type_oid: u32) -> Column {
        let origin =
            ColumnOrigin { type_oid, type_size: 4, type_modifier: -1, table_oid: 16_400, column_id: 2 };
        Column { name: name.to_owned(), type_name: "t".into(), origin }
    }

    fn result(format: RowFormat) -> Value {
        let mut result = NeonResult::new(format, 10_000);
        result.columns(&[column("n\"", 23), column("list", 1007), column("doc", 3802)]);
        let cells = [Cell::Text("7"), Cell::Text("{1,NULL}"), Cell::Text(r#"{"a": 1}"#)];
        assert!(result.row(&mut cells.into_iter()).is_continue());
        assert!(result.row(&mut [Cell::Null; 3].into_iter()).is_continue());
        serde_json::from_slice(&result.finish(&completion("SELECT", 2))).unwrap()
    }

    #[test]
    fn the_driver_gets_arrays_of_text_and_the_types_of_the_columns() {
        let json = result(DRIVER);
        let field = json!({
            "name": "n\"", "dataTypeID": 23, "tableID": 16_400, "columnID": 2, "dataTypeSize": 4,
            "dataTypeModifier": -1, "format": "text"
        });
        assert_eq!(json["fields"][0], field);
        assert_eq!(json["rows"], json!([["7", "{1,NULL}", r#"{"a": 1}"#], [null, null, null]]));
        let rest = (&json["command"], &json["rowCount"], &json["rowAsArray"]);
        assert_eq!(rest, (&json!("SELECT"), &json!(2), &json!(true)));
    }

    #[test]
    fn without_the_drivers_headers_rows_are_objects_of_json_values() {
        let json = result(PLAIN);
        let first = json!({"n\"": 7, "list": [1, null], "doc": {"a": 1}});
        let second = json!({"n\"": null, "list": null, "doc": null});
        assert_eq!(json["rows"], json!([first, second]));
        assert_eq!(json["rowAsArray"], false);
    }

    #[test]
    fn the_command_is_one_word_and_counts_only_what_postgresql_counts() {
        for (command, word, count) in [
            ("INSERT", "INSERT", json!(3)),
            ("SELECT", "SELECT", json!(3)),
            ("CREATE TABLE", "CREATE", json!(null)),
            ("SHOW", "SHOW", json!(null)),
        ] {
            let body = NeonResult::new(DRIVER, 1_000).finish(&completion(command, 3));
            let json: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!((&json["command"], &json["rowCount"]), (&json!(word), &count));
            assert_eq!((&json["fields"], &json["rows"]), (&json!([]), &json!([])));
        }
    }

    #[test]
    fn a_row_may_have_no_columns() {
        let mut result = NeonResult::new(DRIVER, 1_000);
        result.columns(&[]);
        assert!(result.row(&mut core::iter::empty()).is_continue());
        let json: Value = serde_json::from_slice(&result.finish(&completion("SELECT", 1))).unwrap();
        assert_eq!((&json["fields"], &json["rows"]), (&json!([]), &json!([[]])));
    }

    #[test]
    fn a_result_above_the_size_limit_is_dropped_without_stopping_the_statement() {
        let mut result = NeonResult::new(DRIVER, 1_000);
        result.columns(&[column("a", 25)]);
        let long = "x".repeat(500);
        assert!(result.row(&mut [Cell::Text(&long)].into_iter()).is_continue());
        assert!(!result.is_too_large());
        for _ in 0..100 {
            assert!(result.row(&mut [Cell::Text(&long)].into_iter()).is_continue());
        }
        assert!(result.is_too_large());
        assert!(result.out.len() < 3_000, "the rest is dropped");
    }
}
