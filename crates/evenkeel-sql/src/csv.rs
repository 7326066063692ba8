//! Results as CSV (RFC 4180), with the conventions of PostgreSQL's `COPY … CSV`.
//!
//! Guarantees: NULL is an empty field without quotes, an empty text is `""`. Values are PostgreSQL's own texts, and SQLite's
//! in the same form: bytes are `\x` and hexadecimal digits.

use evenkeel_server::hex::hex;

use crate::datasource::{Cell, Column};
use crate::encode::infinite_name;

pub(crate) const LINE_END: &str = "\r\n";

/// Writes the line with the names of the columns.
pub(crate) fn write_header(out: &mut Vec<u8>, columns: &[Column]) {
    for (index, column) in columns.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_text(out, &column.name);
    }
    out.extend_from_slice(LINE_END.as_bytes());
}

/// Writes one field.
pub(crate) fn write_cell(out: &mut Vec<u8>, cell: Cell<'_>) {
    match cell {
        Cell::Null => {}
        Cell::Text(text) => write_text(out, text),
        Cell::Integer(number) => out.extend_from_slice(number.to_string().as_bytes()),
        // The shortest text that reads back as the same number.
        Cell::Real(number) if number.is_finite() => out.extend_from_slice(format!("{number:?}").as_bytes()),
        Cell::Real(number) => out.extend_from_slice(infinite_name(number).as_bytes()),
        Cell::Blob(bytes) => {
            out.extend_from_slice(b"\\x");
            out.extend_from_slice(hex(bytes).as_bytes());
        }
    }
}

fn write_text(out: &mut Vec<u8>, text: &str) {
    let is_special = |byte: u8| matches!(byte, b'"' | b',' | b'\r' | b'\n');
    // `\.` on a line of its own ends the data of a COPY.
    if !text.is_empty() && text != "\\." && !text.bytes().any(is_special) {
        out.extend_from_slice(text.as_bytes());
        return;
    }
    out.push(b'"');
    for byte in text.bytes() {
        if byte == b'"' {
            out.push(b'"');
        }
        out.push(byte);
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(cell: Cell<'_>) -> String {
        let mut out = Vec::new();
        write_cell(&mut out, cell);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn null_differs_from_an_empty_text() {
        assert_eq!(field(Cell::Null), "");
        assert_eq!(field(Cell::Text("")), "\"\"");
    }

    #[test]
    fn only_fields_that_need_quotes_have_them() {
        for (text, expected) in [
            ("plain text; é", "plain text; é"),
            ("a,b", "\"a,b\""),
            ("say \"x\"", "\"say \"\"x\"\"\""),
            ("a\nb", "\"a\nb\""),
            ("a\rb", "\"a\rb\""),
            ("\\.", "\"\\.\""),
            ("NULL", "NULL"),
        ] {
            assert_eq!(field(Cell::Text(text)), expected);
        }
    }

    #[test]
    fn the_values_of_sqlite_have_the_form_of_postgresql() {
        assert_eq!(field(Cell::Integer(i64::MIN)), "-9223372036854775808");
        assert_eq!(field(Cell::Real(0.1)), "0.1");
        assert_eq!(field(Cell::Real(1e300)), "1e300");
        assert_eq!(field(Cell::Real(f64::NEG_INFINITY)), "-Infinity");
        assert_eq!(field(Cell::Blob(b"\0\xff")), "\\x00ff");
        assert_eq!(field(Cell::Blob(b"")), "\\x");
    }
}
