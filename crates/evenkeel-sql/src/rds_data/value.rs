//! Values of a result as the Data API's fields, or as plain JSON.
//!
//! NaN, the infinities, and arrays in PostgreSQL's unusual text forms are strings.

use std::borrow::Cow;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::datasource::postgres::types::element_type;
use crate::datasource::{Cell, Column};
use crate::encode::{ElementFormat, TextFormat, infinite_name, write_cell, write_string};

/// Form of `numeric` values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum DecimalForm {
    #[default]
    String,
    DoubleOrLong,
}

/// Form of integers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) enum LongForm {
    #[default]
    Long,
    String,
}

/// Kind of a column's values; a value of SQLite has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Scalar(ScalarKind),
    Array(ScalarKind),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ScalarKind {
    Bool,
    Long,
    Double,
    Decimal,
    Blob,
    Json,
    Text,
}

/// A value of the Data API.
enum FieldValue<'a> {
    Null,
    Bool(bool),
    /// Digits.
    Long(Cow<'a, str>),
    /// A JSON number with a fraction or an exponent.
    Double(Cow<'a, str>),
    Text(Cow<'a, str>),
    Blob(Cow<'a, [u8]>),
    Array {
        /// Name of the field with the elements.
        elements: &'static str,
        /// A JSON array, whose elements are arrays if it has several dimensions.
        json: String,
    },
}

impl ValueKind {
    pub(super) fn of(column: &Column) -> Self {
        let oid = column.origin.type_oid;
        match (TextFormat::of(column), element_type(oid)) {
            (TextFormat::Array(_), Some(element)) => Self::Array(ScalarKind::of(element)),
            _ => Self::Scalar(ScalarKind::of(oid)),
        }
    }
}

impl ScalarKind {
    fn of(oid: u32) -> Self {
        match oid {
            16 => Self::Bool,
            // int8, int2, int4, oid
            20 | 21 | 23 | 26 => Self::Long,
            // float4, float8
            700 | 701 => Self::Double,
            1700 => Self::Decimal,
            17 => Self::Blob,
            // json, jsonb
            114 | 3802 => Self::Json,
            _ => Self::Text,
        }
    }
}

/// Forms of numbers in a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NumberForms {
    pub(super) decimals: DecimalForm,
    pub(super) longs: LongForm,
}

/// Writes a value as a field, such as `{"longValue":1}`.
pub(super) fn write_field(out: &mut Vec<u8>, cell: Cell<'_>, kind: ValueKind, forms: NumberForms) {
    let value = FieldValue::of(cell, kind, forms);
    let name = match &value {
        FieldValue::Null => "isNull",
        FieldValue::Bool(_) => "booleanValue",
        FieldValue::Long(_) => "longValue",
        FieldValue::Double(_) => "doubleValue",
        FieldValue::Text(_) => "stringValue",
        FieldValue::Blob(_) => "blobValue",
        FieldValue::Array { .. } => "arrayValue",
    };
    out.extend_from_slice(format!("{{\"{name}\":").as_bytes());
    match value {
        FieldValue::Null => out.extend_from_slice(b"true"),
        FieldValue::Array { elements, json } => write_array(out, elements, &json),
        other => other.write_json(out),
    }
    out.push(b'}');
}

/// Writes a value as plain JSON.
pub(super) fn write_json(out: &mut Vec<u8>, cell: Cell<'_>, kind: ValueKind, forms: NumberForms) {
    FieldValue::of(cell, kind, forms).write_json(out);
}

impl<'a> FieldValue<'a> {
    fn of(cell: Cell<'a>, kind: ValueKind, forms: NumberForms) -> Self {
        match (cell, kind) {
            (Cell::Null, _) => Self::Null,
            (Cell::Text(text), ValueKind::Scalar(kind)) => Self::of_text(text, kind, forms),
            (Cell::Text(text), ValueKind::Array(element)) => Self::of_array(text, element, forms),
            (Cell::Integer(number), _) => Self::of_long(Cow::Owned(number.to_string()), forms),
            (Cell::Real(number), _) if number.is_finite() => Self::Double(Cow::Owned(format!("{number:?}"))),
            (Cell::Real(number), _) => Self::Text(Cow::Borrowed(infinite_name(number))),
            (Cell::Blob(bytes), _) => Self::Blob(Cow::Borrowed(bytes)),
        }
    }

    fn of_text(text: &'a str, kind: ScalarKind, forms: NumberForms) -> Self {
        let is_finite = !matches!(text, "NaN" | "Infinity" | "-Infinity");
        match kind {
            ScalarKind::Bool => Self::Bool(text == "t"),
            ScalarKind::Long => Self::of_long(Cow::Borrowed(text), forms),
            ScalarKind::Double if is_finite => Self::of_double(text),
            ScalarKind::Decimal if is_finite && forms.decimals == DecimalForm::DoubleOrLong => {
                match text.parse::<i64>() {
                    Ok(_) => Self::of_long(Cow::Borrowed(text), forms),
                    Err(_) => Self::of_double(text),
                }
            }
            ScalarKind::Blob => match unhex(text) {
                Some(bytes) => Self::Blob(Cow::Owned(bytes)),
                None => Self::Text(Cow::Borrowed(text)),
            },
            ScalarKind::Double | ScalarKind::Decimal | ScalarKind::Json | ScalarKind::Text => {
                Self::Text(Cow::Borrowed(text))
            }
        }
    }

    fn of_long(digits: Cow<'a, str>, forms: NumberForms) -> Self {
        match forms.longs {
            LongForm::Long => Self::Long(digits),
            LongForm::String => Self::Text(digits),
        }
    }

    /// Adds a fraction to a number without one, which Python would read as an integer.
    fn of_double(text: &'a str) -> Self {
        if text.contains(['.', 'e', 'E']) {
            Self::Double(Cow::Borrowed(text))
        } else {
            Self::Double(Cow::Owned(format!("{text}.0")))
        }
    }

    fn of_array(text: &'a str, element: ScalarKind, forms: NumberForms) -> Self {
        let (format, elements) = match element {
            ScalarKind::Bool => (ElementFormat::Bool, "booleanValues"),
            ScalarKind::Long if forms.longs == LongForm::Long => (ElementFormat::Number, "longValues"),
            ScalarKind::Double => (ElementFormat::Number, "doubleValues"),
            ScalarKind::Decimal if forms.decimals == DecimalForm::DoubleOrLong => {
                (ElementFormat::Number, "doubleValues")
            }
            ScalarKind::Json => (ElementFormat::Json, "stringValues"),
            ScalarKind::Long | ScalarKind::Decimal | ScalarKind::Blob | ScalarKind::Text => {
                (ElementFormat::String, "stringValues")
            }
        };
        let json = array_json(text, format);
        match json {
            // NaN or an infinity.
            Some(json) if format == ElementFormat::Number && json.contains('"') => {
                let json = array_json(text, ElementFormat::String).unwrap_or(json);
                Self::Array { elements: "stringValues", json }
            }
            Some(json) => Self::Array { elements, json },
            None => Self::Text(Cow::Borrowed(text)),
        }
    }

    fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Self::Null => out.extend_from_slice(b"null"),
            Self::Bool(value) => out.extend_from_slice(value.to_string().as_bytes()),
            Self::Long(text) | Self::Double(text) => out.extend_from_slice(text.as_bytes()),
            Self::Text(text) => write_string(out, text),
            Self::Blob(bytes) => write_string(out, &STANDARD.encode(bytes)),
            Self::Array { json, .. } => out.extend_from_slice(json.as_bytes()),
        }
    }
}

/// Returns PostgreSQL's array text as a JSON array; `None` if it is in another form.
fn array_json(text: &str, format: ElementFormat) -> Option<String> {
    let mut json = Vec::new();
    write_cell(&mut json, Cell::Text(text), TextFormat::Array(format));
    String::from_utf8(json).ok().filter(|json| json.starts_with('['))
}

/// Writes a JSON array as AWS's structure, which names the type of the elements.
fn write_array(out: &mut Vec<u8>, elements: &str, json: &str) {
    // The text is a JSON array.
    let inner: Vec<&RawValue> = serde_json::from_str(json).unwrap_or_default();
    let is_nested = inner.iter().any(|element| element.get().starts_with('['));
    if !is_nested {
        out.extend_from_slice(format!("{{\"{elements}\":{json}}}").as_bytes());
        return;
    }
    out.extend_from_slice(br#"{"arrayValues":["#);
    for (index, element) in inner.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        write_array(out, elements, element.get());
    }
    out.extend_from_slice(b"]}");
}

/// Reads PostgreSQL's text of a `bytea`.
fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_prefix("\\x")?.as_bytes();
    let nibble = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
    let pairs = digits.chunks(2);
    pairs.map(|pair| Some(nibble(pair[0])? << 4 | nibble(*pair.get(1)?)?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const DEFAULT: NumberForms = NumberForms { decimals: DecimalForm::String, longs: LongForm::Long };
    const NUMBERS: NumberForms = NumberForms { decimals: DecimalForm::DoubleOrLong, longs: LongForm::Long };
    const STRINGS: NumberForms = NumberForms { decimals: DecimalForm::String, longs: LongForm::String };

    fn field(cell: Cell<'_>, kind: ValueKind, forms: NumberForms) -> Value {
        let mut out = Vec::new();
        write_field(&mut out, cell, kind, forms);
        serde_json::from_slice(&out).unwrap_or_else(|error| panic!("{}: {error}", out.escape_ascii()))
    }

    fn scalar(text: &str, kind: ScalarKind, forms: NumberForms) -> Value {
        field(Cell::Text(text), ValueKind::Scalar(kind), forms)
    }

    fn array(text: &str, element: ScalarKind) -> Value {
        field(Cell::Text(text), ValueKind::Array(element), DEFAULT)
    }

    #[test]
    fn the_type_chooses_the_field() {
        for (text, kind, expected) in [
            ("t", ScalarKind::Bool, json!({"booleanValue": true})),
            ("-9223372036854775808", ScalarKind::Long, json!({"longValue": i64::MIN})),
            ("1.5", ScalarKind::Double, json!({"doubleValue": 1.5})),
            ("NaN", ScalarKind::Double, json!({"stringValue": "NaN"})),
            ("1.50", ScalarKind::Decimal, json!({"stringValue": "1.50"})),
            ("\\x00ff", ScalarKind::Blob, json!({"blobValue": "AP8="})),
            ("\\x", ScalarKind::Blob, json!({"blobValue": ""})),
            ("{\"a\": 1}", ScalarKind::Json, json!({"stringValue": "{\"a\": 1}"})),
            ("a\"b", ScalarKind::Text, json!({"stringValue": "a\"b"})),
        ] {
            assert_eq!(scalar(text, kind, DEFAULT), expected);
        }
        assert_eq!(field(Cell::Null, ValueKind::Scalar(ScalarKind::Long), DEFAULT), json!({"isNull": true}));
        assert!(scalar("2", ScalarKind::Double, DEFAULT)["doubleValue"].is_f64(), "2.0, not 2");
    }

    #[test]
    fn options_choose_the_form_of_numbers() {
        assert_eq!(scalar("1.50", ScalarKind::Decimal, NUMBERS), json!({"doubleValue": 1.5}));
        assert_eq!(scalar("7", ScalarKind::Decimal, NUMBERS), json!({"longValue": 7}));
        assert_eq!(scalar("NaN", ScalarKind::Decimal, NUMBERS), json!({"stringValue": "NaN"}));
        let large = scalar("12345678901234567890", ScalarKind::Decimal, NUMBERS);
        assert_eq!(large, json!({"doubleValue": 12_345_678_901_234_567_890.0}));
        assert_eq!(scalar("7", ScalarKind::Long, STRINGS), json!({"stringValue": "7"}));
    }

    #[test]
    fn arrays_name_the_type_of_their_elements() {
        let array_value = |value: Value| json!({"arrayValue": value});
        for (text, element, expected) in [
            ("{1,NULL}", ScalarKind::Long, json!({"longValues": [1, null]})),
            ("{}", ScalarKind::Long, json!({"longValues": []})),
            ("{t,f}", ScalarKind::Bool, json!({"booleanValues": [true, false]})),
            ("{1.5}", ScalarKind::Double, json!({"doubleValues": [1.5]})),
            ("{1.5,NaN}", ScalarKind::Double, json!({"stringValues": ["1.5", "NaN"]})),
            ("{1.50}", ScalarKind::Decimal, json!({"stringValues": ["1.50"]})),
            (r#"{a,"b,c",NULL}"#, ScalarKind::Text, json!({"stringValues": ["a", "b,c", null]})),
        ] {
            assert_eq!(array(text, element), array_value(expected), "{text}");
        }
        let nested = json!({"arrayValues": [{"longValues": [1, 2]}, {"longValues": [3, 4]}]});
        assert_eq!(array("{{1,2},{3,4}}", ScalarKind::Long), array_value(nested));
        assert_eq!(array("[0:1]={1,2}", ScalarKind::Long), json!({"stringValue": "[0:1]={1,2}"}));
    }

    #[test]
    fn a_value_of_sqlite_has_its_own_type() {
        let kind = ValueKind::Scalar(ScalarKind::Text);
        assert_eq!(field(Cell::Integer(7), kind, DEFAULT), json!({"longValue": 7}));
        assert_eq!(field(Cell::Integer(7), kind, STRINGS), json!({"stringValue": "7"}));
        assert_eq!(field(Cell::Real(2.0), kind, DEFAULT), json!({"doubleValue": 2.0}));
        assert_eq!(field(Cell::Real(f64::INFINITY), kind, DEFAULT), json!({"stringValue": "Infinity"}));
        assert_eq!(field(Cell::Blob(b"\0"), kind, DEFAULT), json!({"blobValue": "AA=="}));
    }
}
