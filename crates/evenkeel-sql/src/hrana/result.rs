//! Results as the protocol writes them.

use core::ops::ControlFlow;
use core::task::{Context, Poll};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::datasource::{AccessMode, Cell, Column, Completion, RowSink, StatementDescription};
use crate::encode::write_string;

/// A whole result of a statement, up to a size limit.
#[derive(Debug)]
pub(super) struct HranaResult {
    out: Vec<u8>,
    rows: u64,
    wants_rows: bool,
    has_columns: bool,
    bytes_max: usize,
    /// Set once a row did not fit.
    is_cut: bool,
    /// The kind of access decides whether a statement is stopped at the size limit.
    access: AccessMode,
}

impl HranaResult {
    pub(super) fn new(wants_rows: bool, access: AccessMode, bytes_max: usize) -> Self {
        let out = br#"{"cols":["#.to_vec();
        Self { out, rows: 0, wants_rows, has_columns: false, bytes_max, is_cut: false, access }
    }

    pub(super) fn is_too_large(&self) -> bool {
        self.is_cut || self.bytes_max < self.out.len()
    }

    /// Completes the result.
    pub(super) fn finish(mut self, completion: &Completion) -> Vec<u8> {
        if !self.has_columns {
            self.out.extend_from_slice(br#"],"rows":["#);
        }
        self.out.extend_from_slice(b"],");
        write_counts(&mut self.out, completion);
        let rest = format!(
            r#","replication_index":null,"rows_read":0,"rows_written":0,"query_duration_ms":{}}}"#,
            completion.first_response.as_secs_f64() * 1e3
        );
        self.out.extend_from_slice(rest.as_bytes());
        self.out
    }
}

impl RowSink for HranaResult {
    fn columns(&mut self, columns: &[Column]) {
        self.has_columns = true;
        write_columns(&mut self.out, columns);
        self.out.extend_from_slice(br#"],"rows":["#);
    }

    fn row(&mut self, cells: &mut dyn Iterator<Item = Cell<'_>>) -> ControlFlow<()> {
        if self.wants_rows && !self.is_too_large() {
            if self.rows > 0 {
                self.out.push(b',');
            }
            self.rows += 1;
            self.is_cut = write_row(&mut self.out, cells, self.bytes_max).is_break();
        }
        if !self.is_too_large() {
            return ControlFlow::Continue(());
        }
        self.is_cut = true;
        self.out = Vec::new();
        // A statement that writes must not be stopped, so the rest of its rows is dropped.
        match self.access {
            AccessMode::ReadOnly => ControlFlow::Break(()),
            AccessMode::ReadWrite => ControlFlow::Continue(()),
        }
    }

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<ControlFlow<()>> {
        Poll::Ready(ControlFlow::Continue(()))
    }
}

/// Writes the elements of `cols`.
pub(super) fn write_columns(out: &mut Vec<u8>, columns: &[Column]) {
    for (index, column) in columns.iter().enumerate() {
        out.extend_from_slice(if index == 0 { br#"{"name":"#.as_slice() } else { br#",{"name":"# });
        write_string(out, &column.name);
        out.extend_from_slice(br#","decltype":"#);
        match column.type_name.as_ref() {
            "" => out.extend_from_slice(b"null"),
            declared => write_string(out, declared),
        }
        out.push(b'}');
    }
}

/// Writes a row as an array of values; `Break` if `out` would become larger than `bytes_max`.
pub(super) fn write_row(
    out: &mut Vec<u8>,
    cells: &mut dyn Iterator<Item = Cell<'_>>,
    bytes_max: usize,
) -> ControlFlow<()> {
    out.push(b'[');
    for (index, cell) in cells.enumerate() {
        if index > 0 {
            out.push(b',');
        }
        // Before the cell is encoded, which may multiply its size.
        if bytes_max < out.len().saturating_add(cell.byte_len()) {
            return ControlFlow::Break(());
        }
        write_value(out, cell);
    }
    out.push(b']');
    ControlFlow::Continue(())
}

fn write_value(out: &mut Vec<u8>, cell: Cell<'_>) {
    match cell {
        Cell::Null => out.extend_from_slice(br#"{"type":"null"}"#),
        Cell::Integer(number) => {
            out.extend_from_slice(format!(r#"{{"type":"integer","value":"{number}"}}"#).as_bytes());
        }
        Cell::Real(number) => {
            // JSON has no infinity; parsers read a number beyond the range of a float as one.
            let text = match number.is_finite() {
                true => json!(number).to_string(),
                false if number > 0.0 => "1e999".to_owned(),
                false => "-1e999".to_owned(),
            };
            out.extend_from_slice(format!(r#"{{"type":"float","value":{text}}}"#).as_bytes());
        }
        Cell::Text(text) => {
            out.extend_from_slice(br#"{"type":"text","value":"#);
            write_string(out, text);
            out.push(b'}');
        }
        Cell::Blob(bytes) => {
            out.extend_from_slice(br#"{"type":"blob","base64":""#);
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.extend_from_slice(br#""}"#);
        }
    }
}

/// Writes the number of changed rows and the row id of the last insert.
pub(super) fn write_counts(out: &mut Vec<u8>, completion: &Completion) {
    let is_dml = ["INSERT", "REPLACE", "UPDATE", "DELETE"].contains(&completion.command.as_str());
    let affected = if is_dml { completion.rows_affected } else { 0 };
    let rowid = completion.last_insert_rowid.map_or("null".to_owned(), |rowid| format!("\"{rowid}\""));
    let counts = format!(r#""affected_row_count":{affected},"last_insert_rowid":{rowid}"#);
    out.extend_from_slice(counts.as_bytes());
}

/// Returns the description of a statement.
pub(super) fn description(described: &StatementDescription) -> Value {
    let column = |column: &Column| {
        let declared = Some(&column.type_name).filter(|declared| !declared.is_empty());
        json!({"name": column.name, "decltype": declared})
    };
    let params: Vec<_> = described.params.iter().map(|name| json!({"name": name})).collect();
    json!({
        "params": params,
        "cols": described.columns.iter().map(column).collect::<Vec<_>>(),
        "is_explain": described.is_explain,
        "is_readonly": described.is_readonly,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasource::{ColumnOrigin, RowsEnd};
    use std::time::Duration;

    fn completion(command: &str, rows_affected: u64) -> Completion {
        Completion {
            command: command.to_owned(),
            rows_affected,
            first_response: Duration::ZERO,
            end: RowsEnd::All,
            last_insert_rowid: (command == "INSERT").then_some(i64::MAX),
        }
    }

    fn column(name: &str, type_name: &'static str) -> Column {
        Column { name: name.to_owned(), type_name: type_name.into(), origin: ColumnOrigin::default() }
    }

    fn query(wants_rows: bool, rows: &[&[Cell<'_>]]) -> Value {
        let mut result = HranaResult::new(wants_rows, AccessMode::ReadOnly, 10_000);
        result.columns(&[column("a\"", "INTEGER"), column("b", "")]);
        for row in rows {
            assert!(result.row(&mut row.iter().copied()).is_continue());
        }
        serde_json::from_slice(&result.finish(&completion("SELECT", 2))).unwrap()
    }

    #[test]
    fn every_type_of_value_keeps_its_digits_and_bytes() {
        let json = query(
            true,
            &[
                &[Cell::Integer(i64::MIN), Cell::Real(0.1)],
                &[Cell::Text("it's \"é\"\0"), Cell::Blob(b"\0\xff")],
                &[Cell::Null, Cell::Real(1.0)],
            ],
        );
        let expected = json!([
            [{"type": "integer", "value": "-9223372036854775808"}, {"type": "float", "value": 0.1}],
            [{"type": "text", "value": "it's \"é\"\0"}, {"type": "blob", "base64": "AP8="}],
            [{"type": "null"}, {"type": "float", "value": 1.0}],
        ]);
        assert_eq!(json["rows"], expected);
        let columns = json!([{"name": "a\"", "decltype": "INTEGER"}, {"name": "b", "decltype": null}]);
        assert_eq!(json["cols"], columns);
        assert_eq!((&json["affected_row_count"], &json["last_insert_rowid"]), (&json!(0), &json!(null)));
    }

    #[test]
    fn infinities_are_numbers_out_of_range() {
        let mut out = Vec::new();
        let cells = [Cell::Real(f64::INFINITY), Cell::Real(f64::NEG_INFINITY)];
        assert!(write_row(&mut out, &mut cells.into_iter(), 1_000).is_continue());
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, r#"[{"type":"float","value":1e999},{"type":"float","value":-1e999}]"#);
    }

    #[test]
    fn rows_that_are_not_wanted_are_left_out() {
        let json = query(false, &[&[Cell::Null, Cell::Null]]);
        assert_eq!((&json["rows"], json["cols"].as_array().map(Vec::len)), (&json!([]), Some(2)));
    }

    #[test]
    fn an_insert_reports_its_row_id() {
        let result = HranaResult::new(true, AccessMode::ReadWrite, 1_000);
        let json: Value = serde_json::from_slice(&result.finish(&completion("INSERT", 3))).unwrap();
        assert_eq!(
            (&json["cols"], &json["rows"], &json["affected_row_count"]),
            (&json!([]), &json!([]), &json!(3))
        );
        assert_eq!(json["last_insert_rowid"], "9223372036854775807");
    }

    #[test]
    fn the_size_limit_stops_a_query_but_not_a_statement_that_writes() {
        for (access, expected) in [(AccessMode::ReadOnly, false), (AccessMode::ReadWrite, true)] {
            let mut result = HranaResult::new(true, access, 1_000);
            result.columns(&[column("a", "TEXT")]);
            let long = "x".repeat(600);
            let all = (0..100).all(|_| result.row(&mut [Cell::Text(&long)].into_iter()).is_continue());
            assert_eq!(all, expected, "{access:?}");
            assert!(result.is_too_large());
            assert!(result.out.len() < 3_000, "the rest is dropped");
        }
    }

    #[test]
    fn a_value_that_cannot_fit_is_not_encoded() {
        let mut result = HranaResult::new(true, AccessMode::ReadOnly, 10_000);
        result.columns(&[column("a", "TEXT")]);
        // In JSON it would have 6 MB.
        let long = "\x01".repeat(1_000_000);
        assert!(result.row(&mut [Cell::Text(&long)].into_iter()).is_break());
        assert!(result.is_too_large());
        let mut out = Vec::new();
        assert!(write_row(&mut out, &mut [Cell::Null, Cell::Text(&long)].into_iter(), 10_000).is_break());
        assert!(out.capacity() < 10_000, "{} bytes", out.capacity());
    }
}
