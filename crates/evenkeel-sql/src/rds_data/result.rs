//! Results of the Data API: records, their columns, and the number of changed rows.

use core::ops::ControlFlow;
use core::task::{Context, Poll};

use serde::Deserialize;
use serde_json::{Value, json};

pub(super) use super::value::{DecimalForm, LongForm};
use super::value::{NumberForms, ValueKind, write_field, write_json};
use crate::datasource::postgres::types::element_type;
use crate::datasource::{Cell, Column, Completion, RowSink};
use crate::encode::write_string;

/// Commands that change rows.
const CHANGES: [&str; 5] = ["INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE"];

/// Form of the records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub(super) enum RecordsFormat {
    /// Lists of typed fields.
    #[default]
    None,
    /// A text that contains a JSON array of objects; of columns with the same name, the last wins.
    Json,
}

/// Options of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ResultOptions {
    pub(super) format: RecordsFormat,
    pub(super) decimals: DecimalForm,
    pub(super) longs: LongForm,
    pub(super) includes_metadata: bool,
}

/// A whole result, up to a size limit.
pub(super) struct RdsResult {
    /// The records, separated by commas.
    out: Vec<u8>,
    options: ResultOptions,
    /// `None` for a statement without a result set.
    columns: Option<Vec<ResultColumn>>,
    metadata: Vec<Value>,
    rows: u64,
    bytes_max: usize,
    is_too_large: bool,
}

struct ResultColumn {
    /// The name as JSON.
    key: Vec<u8>,
    kind: ValueKind,
}

impl RdsResult {
    pub(super) fn new(options: ResultOptions, bytes_max: usize) -> Self {
        Self {
            out: Vec::new(),
            options,
            columns: None,
            metadata: Vec::new(),
            rows: 0,
            bytes_max,
            is_too_large: false,
        }
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.is_too_large
    }

    /// Returns the body of the response.
    pub(super) fn finish(self, completion: &Completion) -> Vec<u8> {
        let is_change = CHANGES.contains(&completion.command.as_str());
        let updated = if is_change { completion.rows_affected } else { 0 };
        let mut body = format!(r#"{{"numberOfRecordsUpdated":{updated},"generatedFields":[]"#).into_bytes();
        if self.columns.is_some() {
            match self.options.format {
                RecordsFormat::None => {
                    body.extend_from_slice(br#","records":["#);
                    body.extend_from_slice(&self.out);
                    body.push(b']');
                }
                RecordsFormat::Json => {
                    body.extend_from_slice(br#","formattedRecords":"#);
                    let records = [b"[", self.out.as_slice(), b"]"].concat();
                    // JSON text is UTF-8.
                    write_string(&mut body, &String::from_utf8_lossy(&records));
                }
            }
        }
        // As on AWS, a formatted result has no metadata.
        if self.options.includes_metadata && self.options.format == RecordsFormat::None {
            body.extend_from_slice(br#","columnMetadata":"#);
            body.extend_from_slice(Value::Array(self.metadata).to_string().as_bytes());
        }
        body.push(b'}');
        body
    }

    fn write_row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) {
        let Some(columns) = &self.columns else { return };
        let forms = NumberForms { decimals: self.options.decimals, longs: self.options.longs };
        let (open, close) = match self.options.format {
            RecordsFormat::None => (b'[', b']'),
            RecordsFormat::Json => (b'{', b'}'),
        };
        if self.rows > 0 {
            self.out.push(b',');
        }
        self.rows += 1;
        self.out.push(open);
        for (index, (cell, column)) in cells.zip(columns).enumerate() {
            // Before the cell is encoded, which may multiply its size.
            if self.bytes_max < self.out.len().saturating_add(cell.byte_len()) {
                self.is_too_large = true;
                return;
            }
            if index > 0 {
                self.out.push(b',');
            }
            match self.options.format {
                RecordsFormat::None => write_field(&mut self.out, cell, column.kind, forms),
                RecordsFormat::Json => {
                    self.out.extend_from_slice(&column.key);
                    self.out.push(b':');
                    write_json(&mut self.out, cell, column.kind, forms);
                }
            }
        }
        self.out.push(close);
    }
}

impl RowSink for RdsResult {
    fn columns(&mut self, columns: &[Column]) {
        let result_column = |column: &Column| {
            let mut key = Vec::new();
            write_string(&mut key, &column.name);
            ResultColumn { key, kind: ValueKind::of(column) }
        };
        self.columns = Some(columns.iter().map(result_column).collect());
        if self.options.includes_metadata {
            self.metadata = columns.iter().map(column_metadata).collect();
        }
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        // A statement that writes must not be stopped, so the rest of a result that is too large is dropped.
        if !self.is_too_large {
            self.write_row(cells);
            self.is_too_large |= self.bytes_max < self.out.len();
        }
        if self.is_too_large {
            self.out = Vec::new();
        }
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// Drops rows: a batch has no result set.
pub(super) struct DiscardedRows;

impl RowSink for DiscardedRows {
    fn columns(&mut self, _: &[Column]) {}

    fn row(&mut self, _: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// Describes a column as AWS does. The database's protocol does not tell the names of the schema and the table.
fn column_metadata(column: &Column) -> Value {
    let oid = column.origin.type_oid;
    let modifier = column.origin.type_modifier;
    let (precision, scale) = match oid {
        // numeric(precision, scale)
        1700 if modifier >= 4 => ((modifier - 4) >> 16, (modifier - 4) & 0x7ff),
        // varchar(n), char(n)
        1042 | 1043 if modifier >= 4 => (modifier - 4, 0),
        21 => (5, 0),
        23 => (10, 0),
        20 => (19, 0),
        700 => (8, 8),
        701 => (17, 17),
        _ => (0, 0),
    };
    let is_number = matches!(oid, 20 | 21 | 23 | 700 | 701 | 1700);
    json!({
        "name": column.name,
        "label": column.name,
        "type": jdbc_type(oid),
        "typeName": column.type_name,
        "schemaName": "",
        "tableName": "",
        "isAutoIncrement": false,
        "isSigned": is_number,
        "isCurrency": oid == 790,
        "isCaseSensitive": matches!(oid, 25 | 1042 | 1043),
        // Unknown, in the words of JDBC.
        "nullable": 2,
        "precision": precision,
        "scale": scale,
        "arrayBaseColumnType": element_type(oid).map_or(0, jdbc_type),
    })
}

/// Returns the number that JDBC, and with it AWS, gives a type.
fn jdbc_type(oid: u32) -> i32 {
    match oid {
        16 | 1560 => -7,
        21 => 5,
        23 => 4,
        20 | 26 => -5,
        700 => 7,
        701 | 790 => 8,
        1700 => 2,
        1042 => 1,
        // text, varchar, name; SQLite's columns have no OID
        25 | 1043 | 19 | 0 => 12,
        17 => -2,
        1082 => 91,
        1083 | 1266 => 92,
        1114 | 1184 => 93,
        _ if element_type(oid).is_some() => 2003,
        // OTHER
        _ => 1111,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasource::{ColumnOrigin, RowsEnd};
    use std::time::Duration;

    const PLAIN: ResultOptions = ResultOptions {
        format: RecordsFormat::None,
        decimals: DecimalForm::String,
        longs: LongForm::Long,
        includes_metadata: false,
    };

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

    fn column(name: &str, type_oid: u32, type_modifier: i32) -> Column {
        let origin = ColumnOrigin { type_oid, type_modifier, ..ColumnOrigin::default() };
        Column { name: name.to_owned(), type_name: "t".into(), origin }
    }

    fn body(options: ResultOptions) -> Value {
        let mut result = RdsResult::new(options, 10_000);
        result.columns(&[column("a\"", 23, -1), column("b", 25, -1)]);
        for cells in [[Cell::Text("1"), Cell::Text("x")], [Cell::Null, Cell::Null]] {
            assert!(result.row(&mut cells.into_iter()).is_continue());
        }
        serde_json::from_slice(&result.finish(&completion("SELECT", 2))).unwrap()
    }

    #[test]
    fn records_are_lists_of_fields() {
        let nulls = json!([{"isNull": true}, {"isNull": true}]);
        let records = json!([[{"longValue": 1}, {"stringValue": "x"}], nulls]);
        let expected = json!({"numberOfRecordsUpdated": 0, "generatedFields": [], "records": records});
        assert_eq!(body(PLAIN), expected);
    }

    #[test]
    fn formatted_records_are_a_text_with_objects() {
        let json = body(ResultOptions { format: RecordsFormat::Json, includes_metadata: true, ..PLAIN });
        let text = json["formattedRecords"].as_str().unwrap();
        let records: Value = serde_json::from_str(text).unwrap();
        assert_eq!(records, json!([{"a\"": 1, "b": "x"}, {"a\"": null, "b": null}]));
        assert!(json.get("records").is_none() && json.get("columnMetadata").is_none());
    }

    #[test]
    fn a_change_counts_its_rows_and_has_no_records() {
        for (command, updated) in [("INSERT", 3), ("UPDATE", 3), ("SELECT", 0), ("CREATE TABLE", 0)] {
            let body = RdsResult::new(PLAIN, 1_000).finish(&completion(command, 3));
            let json: Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(json, json!({"numberOfRecordsUpdated": updated, "generatedFields": []}));
        }
    }

    #[test]
    fn metadata_describes_the_columns() {
        let numeric = column_metadata(&column("n", 1700, ((10 << 16) | 2) + 4));
        assert_eq!(
            (&numeric["type"], &numeric["precision"], &numeric["scale"]),
            (&json!(2), &json!(10), &json!(2))
        );
        let varchar = column_metadata(&column("v", 1043, 24));
        assert_eq!((&varchar["type"], &varchar["precision"]), (&json!(12), &json!(20)));
        let array = column_metadata(&column("l", 1007, -1));
        assert_eq!((&array["type"], &array["arrayBaseColumnType"]), (&json!(2003), &json!(4)));
        let json = body(ResultOptions { includes_metadata: true, ..PLAIN });
        assert_eq!(json["columnMetadata"][0]["label"], "a\"");
    }

    #[test]
    fn a_result_above_the_size_limit_is_dropped_without_stopping_the_statement() {
        let mut result = RdsResult::new(PLAIN, 1_000);
        result.columns(&[column("a", 25, -1)]);
        let long = "x".repeat(500);
        assert!(result.row(&mut [Cell::Text(&long)].into_iter()).is_continue());
        assert!(!result.is_too_large());
        for _ in 0..100 {
            assert!(result.row(&mut [Cell::Text(&long)].into_iter()).is_continue());
        }
        assert!(result.is_too_large());
        assert!(result.out.is_empty(), "the rest is dropped");
    }
}
