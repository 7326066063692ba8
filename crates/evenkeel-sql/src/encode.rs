//! Values as JSON: PostgreSQL's text form and SQLite's typed values, each value without loss.
//!
//! Guarantees: `int8`, `numeric`, NaN and infinities are strings, because JSON numbers cannot carry them. SQL NULL is
//! `null`; `json` values are strings that contain JSON text, so that a JSON `null` differs from SQL NULL. An array is a
//! JSON array of such values, except one with lower bounds other than 1 and one of `json` values with several dimensions,
//! which stay in PostgreSQL's text form: as a parameter, their JSON would mean another array.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::datasource::postgres::types::element_type;
use crate::datasource::{Cell, Column};

/// Largest magnitude of an integer that every JSON parser reads exactly: 2^53 - 1.
const SAFE_INTEGER_MAX: u64 = (1 << 53) - 1;
/// PostgreSQL's type `box`, the only one whose arrays have another separator than a comma.
const BOX: u32 = 603;
/// Deepest nesting of an array; PostgreSQL allows 6 dimensions.
const ARRAY_DEPTH_MAX: usize = 6;

/// JSON form of PostgreSQL's text values of one type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextFormat {
    String,
    /// A number if it is finite, else a string.
    Number,
    Bool,
    /// An array of such values.
    Array(ElementFormat),
}

/// JSON form of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ElementFormat {
    String,
    Number,
    Bool,
    /// A string with JSON text.
    Json,
}

impl TextFormat {
    /// Chooses the form by PostgreSQL's type; SQLite has none (0).
    pub(crate) fn of(column: &Column) -> Self {
        let oid = column.origin.type_oid;
        match (ElementFormat::of(oid), element_type(oid)) {
            (_, Some(BOX)) => Self::String,
            (_, Some(element)) => Self::Array(ElementFormat::of(element)),
            (ElementFormat::Number, None) => Self::Number,
            (ElementFormat::Bool, None) => Self::Bool,
            (ElementFormat::String | ElementFormat::Json, None) => Self::String,
        }
    }
}

impl ElementFormat {
    fn of(oid: u32) -> Self {
        match oid {
            // bool
            16 => Self::Bool,
            // int2, int4, oid, float4, float8
            21 | 23 | 26 | 700 | 701 => Self::Number,
            // json, jsonb
            114 | 3802 => Self::Json,
            _ => Self::String,
        }
    }
}

/// Writes one value.
pub(crate) fn write_cell(out: &mut Vec<u8>, cell: Cell<'_>, format: TextFormat) {
    match cell {
        Cell::Null => out.extend_from_slice(b"null"),
        Cell::Text(text) => write_text(out, text, format),
        Cell::Integer(number) if number.unsigned_abs() <= SAFE_INTEGER_MAX => {
            out.extend_from_slice(number.to_string().as_bytes());
        }
        Cell::Integer(number) => write_string(out, &number.to_string()),
        Cell::Real(number) if number.is_finite() => write_number(out, number),
        Cell::Real(number) => write_string(out, infinite_name(number)),
        Cell::Blob(bytes) => {
            // The form in which a parameter carries bytes, so that a value can be sent back as it came.
            out.extend_from_slice(br#"{"type":"blob","value":""#);
            out.extend_from_slice(STANDARD.encode(bytes).as_bytes());
            out.extend_from_slice(br#""}"#);
        }
    }
}

fn write_text(out: &mut Vec<u8>, text: &str, format: TextFormat) {
    match format {
        TextFormat::String => write_string(out, text),
        TextFormat::Number => write_element(out, text, ElementFormat::Number),
        TextFormat::Bool => write_element(out, text, ElementFormat::Bool),
        TextFormat::Array(element) => {
            let start = out.len();
            let mut reader = ArrayReader { text, depth: 0 };
            if reader.write(out, element).is_none() || !reader.text.is_empty() {
                out.truncate(start);
                write_string(out, text);
            }
        }
    }
}

fn write_element(out: &mut Vec<u8>, text: &str, format: ElementFormat) {
    match format {
        ElementFormat::Bool if text == "t" => out.extend_from_slice(b"true"),
        ElementFormat::Bool if text == "f" => out.extend_from_slice(b"false"),
        ElementFormat::Number if !matches!(text, "NaN" | "Infinity" | "-Infinity") => {
            out.extend_from_slice(text.as_bytes());
        }
        ElementFormat::String | ElementFormat::Number | ElementFormat::Bool | ElementFormat::Json => {
            write_string(out, text);
        }
    }
}

/// Writes a JSON string.
pub(crate) fn write_string(out: &mut Vec<u8>, text: &str) {
    // Writing to a vector cannot fail.
    let _ = serde_json::to_writer(out, text);
}

fn write_number(out: &mut Vec<u8>, number: f64) {
    let _ = serde_json::to_writer(out, &number);
}

/// Returns the name of a number that is not finite, as PostgreSQL writes it.
pub(crate) fn infinite_name(number: f64) -> &'static str {
    if number.is_nan() {
        "NaN"
    } else if number > 0.0 {
        "Infinity"
    } else {
        "-Infinity"
    }
}

/// Reads PostgreSQL's array text, such as `{1,NULL,"a\"b"}`.
struct ArrayReader<'a> {
    text: &'a str,
    depth: usize,
}

impl ArrayReader<'_> {
    /// Writes the array at the beginning of the text as JSON; `None` if it is in another form.
    fn write(&mut self, out: &mut Vec<u8>, element: ElementFormat) -> Option<()> {
        self.text = self.text.strip_prefix('{')?;
        self.depth += 1;
        if ARRAY_DEPTH_MAX < self.depth {
            return None;
        }
        out.push(b'[');
        if let Some(rest) = self.text.strip_prefix('}') {
            self.text = rest;
            out.push(b']');
            self.depth -= 1;
            return Some(());
        }
        loop {
            match self.text.as_bytes().first()? {
                b'{' if element == ElementFormat::Json => return None,
                b'{' => self.write(out, element)?,
                b'"' => self.write_quoted(out, element)?,
                _ => self.write_bare(out, element)?,
            }
            let separator = self.text.chars().next()?;
            self.text = &self.text[separator.len_utf8()..];
            match separator {
                ',' => out.push(b','),
                '}' => break,
                _ => return None,
            }
        }
        out.push(b']');
        self.depth -= 1;
        Some(())
    }

    fn write_bare(&mut self, out: &mut Vec<u8>, element: ElementFormat) -> Option<()> {
        let end = self.text.find([',', '}'])?;
        let (text, rest) = self.text.split_at(end);
        self.text = rest;
        if text == "NULL" {
            out.extend_from_slice(b"null");
        } else {
            write_element(out, text, element);
        }
        Some(())
    }

    fn write_quoted(&mut self, out: &mut Vec<u8>, element: ElementFormat) -> Option<()> {
        let mut value = String::new();
        let mut chars = self.text.char_indices().skip(1);
        while let Some((index, c)) = chars.next() {
            match c {
                '\\' => value.push(chars.next()?.1),
                '"' => {
                    self.text = &self.text[index + 1..];
                    write_element(out, &value, element);
                    return Some(());
                }
                other => value.push(other),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datasource::ColumnOrigin;

    fn json(cell: Cell<'_>, format: TextFormat) -> String {
        let mut out = Vec::new();
        write_cell(&mut out, cell, format);
        let text = String::from_utf8(out).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
        text
    }

    fn array(text: &str, element: ElementFormat) -> String {
        json(Cell::Text(text), TextFormat::Array(element))
    }

    #[test]
    fn numbers_that_json_cannot_carry_are_strings() {
        assert_eq!(json(Cell::Text("1.5e+20"), TextFormat::Number), "1.5e+20");
        assert_eq!(json(Cell::Text("NaN"), TextFormat::Number), "\"NaN\"");
        assert_eq!(json(Cell::Text("-Infinity"), TextFormat::Number), "\"-Infinity\"");
        assert_eq!(json(Cell::Integer(9_007_199_254_740_991), TextFormat::String), "9007199254740991");
        assert_eq!(json(Cell::Integer(9_007_199_254_740_992), TextFormat::String), "\"9007199254740992\"");
        assert_eq!(json(Cell::Integer(i64::MIN), TextFormat::String), "\"-9223372036854775808\"");
        assert_eq!(json(Cell::Real(f64::INFINITY), TextFormat::String), "\"Infinity\"");
        assert_eq!(json(Cell::Real(0.1), TextFormat::String), "0.1");
    }

    #[test]
    fn a_json_null_is_not_a_sql_null() {
        assert_eq!(json(Cell::Null, TextFormat::String), "null");
        assert_eq!(json(Cell::Text("null"), TextFormat::String), "\"null\"");
    }

    #[test]
    fn a_blob_has_the_form_of_a_parameter() {
        assert_eq!(json(Cell::Blob(b"\0\xff"), TextFormat::String), r#"{"type":"blob","value":"AP8="}"#);
    }

    #[test]
    fn arrays_are_json_arrays() {
        assert_eq!(array("{}", ElementFormat::Number), "[]");
        assert_eq!(array("{1,NULL,-3}", ElementFormat::Number), "[1,null,-3]");
        assert_eq!(array("{{1,2},{3,4}}", ElementFormat::Number), "[[1,2],[3,4]]");
        assert_eq!(array("{t,f,NULL}", ElementFormat::Bool), "[true,false,null]");
        assert_eq!(
            array(r#"{a,"b,c","d\"e\\","NULL",é}"#, ElementFormat::String),
            r#"["a","b,c","d\"e\\","NULL","é"]"#
        );
        assert_eq!(array("{1.5,NaN}", ElementFormat::Number), r#"[1.5,"NaN"]"#);
    }

    #[test]
    fn an_array_in_another_form_stays_text() {
        for text in ["[0:1]={1,2}", "{1,2", "{1,2}x", r#"{"a"#, "{", "{1;2}x", &"{".repeat(9)] {
            assert_eq!(array(text, ElementFormat::Number), serde_json::to_string(text).unwrap(), "{text}");
        }
        assert_eq!(array("{1,NULL}", ElementFormat::Json), r#"["1",null]"#);
        assert_eq!(array("{{1},{2}}", ElementFormat::Json), r#""{{1},{2}}""#);
    }

    #[test]
    fn the_format_follows_the_type() {
        let format = |type_oid| {
            let origin = ColumnOrigin { type_oid, ..ColumnOrigin::default() };
            TextFormat::of(&Column { name: String::new(), type_name: "".into(), origin })
        };
        assert_eq!(format(16), TextFormat::Bool);
        assert_eq!(format(23), TextFormat::Number);
        // int8, numeric, json
        for oid in [20, 1700, 114] {
            assert_eq!(format(oid), TextFormat::String);
        }
        assert_eq!(format(1016), TextFormat::Array(ElementFormat::String));
        assert_eq!(format(2951), TextFormat::Array(ElementFormat::String));
        assert_eq!(format(1007), TextFormat::Array(ElementFormat::Number));
    }
}
