//! Conversion of JSON parameters to SQLite values.
//!
//! | JSON | without a type | types that accept it |
//! |---|---|---|
//! | `null` | NULL | all |
//! | boolean | INTEGER 0 or 1 | `boolean`, `integer`, `text`, `json` |
//! | number | INTEGER or REAL, see below | `integer`, `real`, `boolean` (0, 1), `text`, `json` |
//! | string | TEXT | `text`, `integer`, `real`, `boolean`, `blob` (base64), `json` (JSON text) |
//! | array, object | – | `json`, `text` |
//!
//! A number without fraction and exponent is an INTEGER and must fit in 64 bits. Another number is a REAL and may have 17
//! digits, which a REAL keeps. Numbers beyond that are errors that name the type to give; none is rounded silently.

use base64::Engine as _;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rusqlite::types::Value;
use serde::de::IgnoredAny;

use crate::error::DatabaseError;
use crate::param::{Param, ParamValue};

/// Significant digits that every 64-bit floating-point number keeps when it is written in its shortest form.
const REAL_DIGITS_MAX: usize = 17;

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ParamType {
    Null,
    Boolean,
    Integer,
    Real,
    Text,
    Blob,
    Json,
}

/// Names of [`ParamType`], in any case.
const TYPE_NAMES: [(&str, ParamType); 10] = [
    ("null", ParamType::Null),
    ("boolean", ParamType::Boolean),
    ("bool", ParamType::Boolean),
    ("integer", ParamType::Integer),
    ("int", ParamType::Integer),
    ("real", ParamType::Real),
    ("double", ParamType::Real),
    ("text", ParamType::Text),
    ("blob", ParamType::Blob),
    ("json", ParamType::Json),
];

/// A parameter as SQLite binds it.
#[derive(Debug)]
pub(super) struct BoundParam {
    /// `None` for a parameter that is bound by position.
    pub(super) name: Option<String>,
    pub(super) value: Value,
}

/// Converts all parameters of a statement.
pub(super) fn to_bound(params: &[Param]) -> Result<Vec<BoundParam>, DatabaseError> {
    let convert = |(index, param): (usize, &Param)| {
        let value = to_value(param).map_err(|reason| DatabaseError::Param { index, reason })?;
        Ok(BoundParam { name: param.name.clone(), value })
    };
    params.iter().enumerate().map(convert).collect()
}

/// Converts one parameter; the error completes a sentence that begins with "parameter 1".
fn to_value(param: &Param) -> Result<Value, String> {
    let Some(type_name) = &param.type_name else { return untyped(&param.value) };
    let known = TYPE_NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(type_name));
    let Some((_, param_type)) = known else {
        let names: Vec<&str> = TYPE_NAMES.iter().map(|(name, _)| *name).collect();
        return Err(format!("has the unknown type {type_name:?}; SQLite's types are {}", names.join(", ")));
    };
    if param.value == ParamValue::Null {
        return Ok(Value::Null);
    }
    match param_type {
        ParamType::Null => Err("has the type null, but a value".to_owned()),
        ParamType::Boolean => boolean(&param.value),
        ParamType::Integer => integer(&param.value),
        ParamType::Real => real(&param.value),
        ParamType::Text => Ok(text(&param.value)),
        ParamType::Blob => blob(&param.value),
        ParamType::Json => json(&param.value),
    }
}

fn untyped(value: &ParamValue) -> Result<Value, String> {
    match value {
        ParamValue::Null => Ok(Value::Null),
        ParamValue::Bool(boolean) => Ok(Value::Integer(i64::from(*boolean))),
        ParamValue::Number(digits) => number(digits),
        ParamValue::Text(text) => Ok(Value::Text(text.clone())),
        ParamValue::Json(_) => {
            Err("is an array or object; give it the type \"json\" to store its JSON text".to_owned())
        }
    }
}

fn number(digits: &str) -> Result<Value, String> {
    if let Ok(integer) = digits.parse() {
        return Ok(Value::Integer(integer));
    }
    if !digits.contains(['.', 'e', 'E']) {
        return Err("does not fit in a 64-bit integer; give it the type \"text\" or \"real\"".to_owned());
    }
    if REAL_DIGITS_MAX < significant_digits(digits) {
        return Err(format!(
            "has more than the {REAL_DIGITS_MAX} digits that a REAL keeps; give it the type \"text\" or \"real\""
        ));
    }
    finite(digits).map(Value::Real)
}

fn significant_digits(number: &str) -> usize {
    let mantissa = number.split(['e', 'E']).next().unwrap_or_default();
    let digits: String = mantissa.chars().filter(char::is_ascii_digit).collect();
    let fraction = digits.trim_start_matches('0');
    if mantissa.contains('.') { fraction.trim_end_matches('0').len() } else { fraction.len() }
}

fn finite(digits: &str) -> Result<f64, String> {
    match digits.parse::<f64>() {
        Ok(real) if real.is_finite() => Ok(real),
        _ => Err("is outside the range of a REAL; give it the type \"text\"".to_owned()),
    }
}

fn boolean(value: &ParamValue) -> Result<Value, String> {
    let is_true = match value {
        ParamValue::Bool(boolean) => Some(*boolean),
        ParamValue::Number(text) | ParamValue::Text(text) => match text.as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        },
        ParamValue::Null | ParamValue::Json(_) => None,
    };
    let message = "has the type boolean, but is not true, false, 1 or 0";
    is_true.map(|is_true| Value::Integer(i64::from(is_true))).ok_or_else(|| message.to_owned())
}

fn integer(value: &ParamValue) -> Result<Value, String> {
    let integer = match value {
        ParamValue::Bool(boolean) => Some(i64::from(*boolean)),
        ParamValue::Number(digits) | ParamValue::Text(digits) => digits.parse().ok(),
        ParamValue::Null | ParamValue::Json(_) => None,
    };
    integer.map(Value::Integer).ok_or_else(|| "has the type integer, but is not a 64-bit integer".to_owned())
}

/// Reads numbers, and the strings `NaN`, `Infinity` and `-Infinity`, which JSON numbers cannot express.
fn real(value: &ParamValue) -> Result<Value, String> {
    match value {
        ParamValue::Number(digits) => finite(digits).map(Value::Real),
        ParamValue::Text(text) => match text.parse() {
            Ok(real) => Ok(Value::Real(real)),
            Err(_) => Err("has the type real, but is not a number".to_owned()),
        },
        ParamValue::Null | ParamValue::Bool(_) | ParamValue::Json(_) => {
            Err("has the type real, but is not a number".to_owned())
        }
    }
}

fn text(value: &ParamValue) -> Value {
    match value {
        ParamValue::Null => Value::Null,
        ParamValue::Bool(boolean) => Value::Text(boolean.to_string()),
        ParamValue::Number(text) | ParamValue::Text(text) | ParamValue::Json(text) => {
            Value::Text(text.clone())
        }
    }
}

fn blob(value: &ParamValue) -> Result<Value, String> {
    let ParamValue::Text(encoded) = value else {
        return Err("has the type blob, but is not a string in base64".to_owned());
    };
    let decoded = BASE64.decode(encoded);
    decoded.map(Value::Blob).map_err(|error| format!("is not valid base64: {error}"))
}

fn json(value: &ParamValue) -> Result<Value, String> {
    if let ParamValue::Text(json) = value
        && let Err(error) = serde_json::from_str::<IgnoredAny>(json)
    {
        return Err(format!("has the type json, but is not JSON text: {error}"));
    }
    Ok(text(value))
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;

    fn converted(json: &str) -> Result<Value, String> {
        let raw: &RawValue = serde_json::from_str(json).unwrap();
        to_value(&Param::parse(raw).unwrap())
    }

    #[test]
    fn values_without_a_type_keep_their_storage_class() {
        for (json, expected) in [
            ("null", Value::Null),
            ("true", Value::Integer(1)),
            ("false", Value::Integer(0)),
            ("9223372036854775807", Value::Integer(i64::MAX)),
            ("-9223372036854775808", Value::Integer(i64::MIN)),
            ("-0", Value::Integer(0)),
            ("1.0", Value::Real(1.0)),
            ("1e20", Value::Real(1e20)),
            ("0.1", Value::Real(0.1)),
            ("1.7976931348623157e308", Value::Real(f64::MAX)),
            (r#""it's""#, Value::Text("it's".to_owned())),
        ] {
            assert_eq!(converted(json), Ok(expected), "{json}");
        }
    }

    #[test]
    fn a_number_that_would_lose_digits_is_an_error() {
        for json in [
            "9223372036854775808",
            "12345678901234567890",
            "12345678901234567.89",
            "0.123456789012345678",
            "1e999",
        ] {
            assert!(converted(json).unwrap_err().contains("give it the type \"text\""), "{json}");
        }
    }

    #[test]
    fn a_type_decides_how_a_value_is_read() {
        for (json, expected) in [
            (r#"{"type": "integer", "value": "-9223372036854775808"}"#, Value::Integer(i64::MIN)),
            (r#"{"type": "INTEGER", "value": true}"#, Value::Integer(1)),
            (r#"{"type": "real", "value": 12345678901234567890}"#, Value::Real(1.2345678901234567e19)),
            (r#"{"type": "real", "value": "Infinity"}"#, Value::Real(f64::INFINITY)),
            (
                r#"{"type": "text", "value": 12345678901234567890.10}"#,
                Value::Text("12345678901234567890.10".to_owned()),
            ),
            (r#"{"type": "text", "value": [1, 2]}"#, Value::Text("[1, 2]".to_owned())),
            (r#"{"type": "blob", "value": "AP8="}"#, Value::Blob(vec![0, 255])),
            (r#"{"type": "blob", "value": "AP8"}"#, Value::Blob(vec![0, 255])),
            (r#"{"type": "blob", "value": ""}"#, Value::Blob(Vec::new())),
            (r#"{"type": "boolean", "value": "false"}"#, Value::Integer(0)),
            (r#"{"type": "json", "value": {"a": 1}}"#, Value::Text(r#"{"a": 1}"#.to_owned())),
            (r#"{"type": "json", "value": "[1]"}"#, Value::Text("[1]".to_owned())),
            (r#"{"type": "blob", "value": null}"#, Value::Null),
            (r#"{"type": "null", "value": null}"#, Value::Null),
        ] {
            assert_eq!(converted(json), Ok(expected), "{json}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_its_type_is_an_error() {
        for (json, expected) in [
            (r#"{"type": "integer", "value": 1.5}"#, "64-bit integer"),
            (r#"{"type": "integer", "value": "x"}"#, "64-bit integer"),
            (r#"{"type": "real", "value": "x"}"#, "not a number"),
            (r#"{"type": "real", "value": true}"#, "not a number"),
            (r#"{"type": "blob", "value": "!"}"#, "base64"),
            (r#"{"type": "blob", "value": 1}"#, "base64"),
            (r#"{"type": "boolean", "value": 2}"#, "boolean"),
            (r#"{"type": "json", "value": "{"}"#, "JSON text"),
            (r#"{"type": "null", "value": 1}"#, "null"),
            (
                r#"{"type": "uuid", "value": "x"}"#,
                "null, boolean, bool, integer, int, real, double, text, blob, json",
            ),
            ("[1, 2]", "type \"json\""),
        ] {
            assert!(converted(json).unwrap_err().contains(expected), "{json}: {:?}", converted(json));
        }
    }

    #[test]
    fn an_error_names_the_parameter() {
        let params = [Param::untyped(ParamValue::Null), Param::untyped(ParamValue::Json("[]".to_owned()))];
        assert!(matches!(to_bound(&params), Err(DatabaseError::Param { index: 1, .. })));
    }
}
