//! Prints a result that arrives as newline-delimited JSON (the columns, the rows, and a summary or an error) or as CSV.
//!
//! Guarantee: a result without its last line, because the connection was lost, is an error; CSV that is cut ends with an
//! error of the connection. The response to a statement
//! that may write is read to its end even if no more rows are printed, because closing the connection would undo it.

use std::io::{self, BufWriter, Write};

use serde_json::Value;

use super::keyword::Effect;
use crate::cli::CliError;
use crate::cli::table::Table;

/// Most text of a table; all of it is in memory.
pub(super) const TABLE_BYTES_MAX: usize = 64 << 20;
/// Longest line of a result.
const LINE_BYTES_MAX: usize = 256 << 20;

/// Format of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    /// The lines of the response.
    Lines,
    /// The response itself.
    Csv,
}

impl Format {
    /// Returns the media type of the response that is printed in this format.
    pub(super) fn media_type(self) -> &'static str {
        match self {
            Self::Table | Self::Lines => "application/x-ndjson",
            Self::Csv => "text/csv",
        }
    }
}

/// Use for more of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    /// Nothing of the rest would be printed.
    Enough,
}

/// Prints a response, chunk by chunk.
pub(super) struct ResultPrinter {
    format: Format,
    effect: Effect,
    /// The beginning of a line.
    partial: Vec<u8>,
    table: ResultTable,
    output: OutputState,
    last: Option<Value>,
}

/// Rows of a table, as text.
#[derive(Default)]
struct ResultTable {
    header: Option<Vec<String>>,
    rows: Vec<Vec<String>>,
    bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OutputState {
    Open,
    /// The table has reached its limit.
    Full,
    /// The reader of the output is gone.
    Closed,
}

impl ResultPrinter {
    pub(super) fn new(format: Format, effect: Effect) -> Self {
        let table = ResultTable::default();
        Self { format, effect, partial: Vec::new(), table, output: OutputState::Open, last: None }
    }

    /// Prints or collects the lines that a chunk completes.
    pub(super) fn add(&mut self, chunk: &[u8]) -> Result<Progress, CliError> {
        match self.format {
            Format::Csv if self.output == OutputState::Open => self.print(&[chunk])?,
            Format::Csv => {}
            Format::Table | Format::Lines => self.add_lines(chunk)?,
        }
        let is_enough = self.output != OutputState::Open && self.effect == Effect::Read;
        Ok(if is_enough { Progress::Enough } else { Progress::More })
    }

    fn add_lines(&mut self, chunk: &[u8]) -> Result<(), CliError> {
        let mut rest = chunk;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            rest = &after[1..];
            self.extend_line(line)?;
            let line = std::mem::take(&mut self.partial);
            self.add_line(&line)?;
        }
        self.extend_line(rest)
    }

    fn extend_line(&mut self, part: &[u8]) -> Result<(), CliError> {
        if LINE_BYTES_MAX - self.partial.len() < part.len() {
            return Err(format!("a row is longer than {LINE_BYTES_MAX} bytes").into());
        }
        self.partial.extend_from_slice(part);
        Ok(())
    }

    fn add_line(&mut self, line: &[u8]) -> Result<(), CliError> {
        // A row is an array; the columns and the last line are objects.
        let is_row = line.first() == Some(&b'[');
        let needs_value = !is_row || self.format == Format::Table && self.output == OutputState::Open;
        if self.format == Format::Lines && self.output == OutputState::Open {
            self.print(&[line, b"\n"])?;
        }
        if !needs_value {
            return Ok(());
        }
        let value: Value = serde_json::from_slice(line)
            .map_err(|_| "the server's response is not a result of a statement")?;
        match value {
            Value::Array(cells) => {
                if !self.table.push(&cells) {
                    self.output = OutputState::Full;
                }
            }
            mut object if object["columns"].is_array() => self.table.set_columns(object["columns"].take()),
            object => self.last = Some(object),
        }
        Ok(())
    }

    fn print(&mut self, parts: &[&[u8]]) -> Result<(), CliError> {
        let mut out = io::stdout().lock();
        let written = parts.iter().try_for_each(|part| out.write_all(part)).and_then(|()| out.flush());
        match written {
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.output = OutputState::Closed,
            result => result?,
        }
        Ok(())
    }

    /// Prints the rest; returns the error that the server reported after the first rows.
    pub(super) fn finish(self) -> Result<Option<Value>, CliError> {
        let is_cut = self.effect == Effect::Read && self.output != OutputState::Open;
        if self.format == Format::Csv {
            return Ok(None);
        }
        let summary = match self.last {
            Some(mut last) if last["error"].is_object() => return Ok(Some(last["error"].take())),
            Some(last) => last,
            None if is_cut => Value::Null,
            None => return Err("the connection was lost before the end of the result".into()),
        };
        if self.format == Format::Lines {
            return Ok(None);
        }
        let count = self.table.rows.len();
        match self.table.header {
            Some(header) => print_table(&Table::of_rows(header, self.table.rows))?,
            None => {
                let rows = summary["rowCount"].as_u64().unwrap_or_default();
                let plural = if rows == 1 { "" } else { "s" };
                eprintln!("{}: {rows} row{plural} affected", summary["command"].as_str().unwrap_or("done"));
            }
        }
        if self.output == OutputState::Full {
            eprintln!("only the first {count} rows are shown; --json and --csv print all of them");
        }
        Ok(None)
    }
}

/// Prints a table row by row. A closed pipe is not an error.
fn print_table(table: &Table) -> Result<(), CliError> {
    let mut out = BufWriter::new(io::stdout().lock());
    let written = write!(out, "{table}").and_then(|()| out.flush());
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

impl ResultTable {
    fn set_columns(&mut self, columns: Value) {
        let name = |column: &Value| shown_text(column["name"].as_str().unwrap_or_default());
        self.header = columns.as_array().map(|columns| columns.iter().map(name).collect());
    }

    /// Adds a row; returns whether there was room for it.
    fn push(&mut self, cells: &[Value]) -> bool {
        let width = self.header.as_ref().map_or(0, Vec::len);
        let mut row: Vec<String> = cells.iter().map(shown_cell).collect();
        row.resize(width, String::new());
        let bytes: usize = row.iter().map(|cell| cell.len() + size_of::<String>()).sum();
        if TABLE_BYTES_MAX - self.bytes < bytes {
            return false;
        }
        self.bytes += bytes;
        self.rows.push(row);
        true
    }
}

fn shown_cell(value: &Value) -> String {
    match value {
        Value::Null => "NULL".to_owned(),
        Value::String(text) => shown_text(text),
        Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Escapes control characters, which would break the table or control the terminal.
fn shown_text(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Adds chunks to a printer that collects a table.
    fn table_of(effect: Effect, chunks: &[&str]) -> ResultPrinter {
        let mut printer = ResultPrinter::new(Format::Table, effect);
        for chunk in chunks {
            printer.add(chunk.as_bytes()).unwrap();
        }
        printer
    }

    #[test]
    fn lines_may_be_split_anywhere() {
        let text = "{\"columns\":[{\"name\":\"é\",\"type\":\"\"}]}\n[null]\n[\"a\\nb\"]\n{\"rowCount\":2}\n";
        for split in (0..text.len()).filter(|split| text.is_char_boundary(*split)) {
            let (first, second) = text.split_at(split);
            let printer = table_of(Effect::Read, &[first, second]);
            assert_eq!(printer.table.header, Some(vec!["é".to_owned()]));
            assert_eq!(printer.table.rows, [["NULL"], ["a\\nb"]]);
            assert!(printer.finish().unwrap().is_none());
        }
    }

    #[test]
    fn a_result_without_its_last_line_is_an_error() {
        let cut = table_of(Effect::Read, &["{\"columns\":[]}\n[]\n[1"]).finish().unwrap_err();
        assert_eq!(cut.to_string(), "the connection was lost before the end of the result");
        assert!(table_of(Effect::Read, &[]).finish().is_err());
        assert!(ResultPrinter::new(Format::Table, Effect::Read).add(b"<html>\n").is_err());
    }

    #[test]
    fn an_error_after_the_first_rows_is_returned() {
        let printer = table_of(Effect::Read, &["{\"columns\":[]}\n{\"error\":{\"code\":\"22012\"}}\n"]);
        assert_eq!(printer.finish().unwrap(), Some(json!({"code": "22012"})));
    }

    #[test]
    fn a_table_has_a_limit_and_a_statement_that_writes_is_read_to_its_end() {
        let half = "x".repeat(TABLE_BYTES_MAX / 2);
        let rows = format!("{{\"columns\":[{{\"name\":\"n\"}}]}}\n[\"{half}\"]\n[\"{half}\"]\n");
        for (effect, expected) in [(Effect::Read, Progress::Enough), (Effect::Write, Progress::More)] {
            let mut printer = ResultPrinter::new(Format::Table, effect);
            assert_eq!(printer.add(rows.as_bytes()).unwrap(), expected);
            assert_eq!((printer.table.rows.len(), printer.output), (1, OutputState::Full));
            assert_eq!(printer.finish().is_ok(), effect == Effect::Read);
        }
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(shown_text("a\tb\u{1b}[31m\u{7f}é"), "a\\tb\\u{1b}[31m\\u{7f}é");
        assert_eq!(shown_cell(&json!([1, null])), "[1,null]");
        assert_eq!(shown_cell(&json!(true)), "true");
    }
}
