//! Parameters in PostgreSQL's text form.
//!
//! Guarantees: a value whose type is given as `json` or `jsonb` is the JSON value that was sent, and its JSON `null` is
//! not SQL NULL. A value without a type may be one from a result: a string where JSON is needed is JSON text. An array
//! whose type is not given takes the type that the statement needs.

use std::borrow::Cow;

use evenkeel_postgres::Param as TextParam;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::types::{TypeNames, element_type};
use crate::error::DatabaseError;
use crate::param::{Param, ParamValue};

const JSON: u32 = 114;
const JSONB: u32 = 3802;
/// Deepest nesting of an array.
const DEPTH_MAX: usize = 6;

/// Reports whether the types that the statement infers are needed to encode its parameters.
pub(super) fn needs_inferred_types(params: &[Param]) -> bool {
    params.iter().any(|param| param.type_name.is_none() && matches!(param.value, ParamValue::Json(_)))
}

/// Returns the type that a parameter names, 0 if the server infers one, or the name if only the database knows it.
pub(super) fn named_type<'a>(param: &'a Param, types: &TypeNames) -> Result<u32, &'a str> {
    match &param.type_name {
        None => Ok(0),
        Some(name) => types.oid(name).ok_or(name),
    }
}

pub(super) fn unknown_type(index: usize, name: &str) -> DatabaseError {
    let reason = format!("has the type {name:?}, which this database does not know");
    DatabaseError::Param { index, reason }
}

/// Encodes parameters; `types` has a type for each, 0 if it is not known.
pub(super) fn encode<'a>(params: &'a [Param], types: &[u32]) -> Result<Vec<TextParam<'a>>, DatabaseError> {
    let encoded = params.iter().enumerate().map(|(index, param)| {
        let type_oid = types.get(index).copied().unwrap_or(0);
        let strings = if param.type_name.is_some() { JsonString::Value } else { JsonString::Text };
        let value = encode_value(&param.value, type_oid, strings)
            .map_err(|reason| DatabaseError::Param { index, reason: reason.to_owned() })?;
        if value.as_ref().is_some_and(|value| value.contains('\0')) {
            let reason = "contains a NUL character, which PostgreSQL cannot store".to_owned();
            return Err(DatabaseError::Param { index, reason });
        }
        // The server infers the type, as it did when the statement was described.
        let type_oid = if param.type_name.is_some() { type_oid } else { 0 };
        Ok(TextParam { type_oid, value })
    });
    encoded.collect()
}

/// Meaning of a string where the database needs JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JsonString {
    /// The parameter names its type: the string itself is the value.
    Value,
    /// The string is JSON text, as in a result.
    Text,
}

fn encode_value(
    value: &ParamValue,
    type_oid: u32,
    strings: JsonString,
) -> Result<Option<Cow<'_, str>>, &'static str> {
    if strings == JsonString::Value && matches!(type_oid, JSON | JSONB) {
        return Ok(Some(json_text(value)));
    }
    Ok(Some(match value {
        ParamValue::Null => return Ok(None),
        ParamValue::Bool(true) => Cow::Borrowed("true"),
        ParamValue::Bool(false) => Cow::Borrowed("false"),
        ParamValue::Number(text) | ParamValue::Text(text) => Cow::Borrowed(text.as_str()),
        ParamValue::Json(text) if matches!(type_oid, JSON | JSONB) => Cow::Borrowed(text.as_str()),
        ParamValue::Json(text) => {
            let element = element_type(type_oid);
            if !text.starts_with('[') || (element.is_none() && type_oid < super::types::USER_OID_MIN) {
                return Err("is an array or object, but the statement needs neither an array nor JSON there");
            }
            let mut out = String::with_capacity(text.len());
            write_array(&mut out, text, ElementType { oid: element.unwrap_or(0), strings }, 1)?;
            Cow::Owned(out)
        }
    }))
}

/// Returns a parameter as JSON text.
fn json_text(value: &ParamValue) -> Cow<'_, str> {
    match value {
        ParamValue::Null => Cow::Borrowed("null"),
        ParamValue::Bool(true) => Cow::Borrowed("true"),
        ParamValue::Bool(false) => Cow::Borrowed("false"),
        ParamValue::Number(text) | ParamValue::Json(text) => Cow::Borrowed(text.as_str()),
        // Serializing a string does not fail.
        ParamValue::Text(text) => Cow::Owned(serde_json::to_string(text).unwrap_or_default()),
    }
}

/// Type of an array's elements; the OID is 0 if it is not known.
#[derive(Clone, Copy)]
struct ElementType {
    oid: u32,
    strings: JsonString,
}

impl ElementType {
    fn is_json(self) -> bool {
        matches!(self.oid, JSON | JSONB)
    }
}

/// Writes a JSON array as PostgreSQL's array text.
fn write_array(out: &mut String, json: &str, element: ElementType, depth: usize) -> Result<(), &'static str> {
    if DEPTH_MAX < depth {
        return Err("is an array with more than six dimensions");
    }
    let elements: Vec<&RawValue> = Deserialize::deserialize(&mut serde_json::Deserializer::from_str(json))
        .map_err(|_| "is not a valid JSON array")?;
    out.push('{');
    for (index, value) in elements.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        let text = value.get();
        match text.as_bytes().first() {
            Some(b'n') => out.push_str("NULL"),
            Some(b'[') if !element.is_json() => write_array(out, text, element, depth + 1)?,
            Some(b'"') if element.is_json() && element.strings == JsonString::Value => {
                write_quoted(out, text);
            }
            Some(byte) if element.is_json() && *byte != b'"' => write_quoted(out, text),
            Some(b'{') => return Err("is an array with an object, but its element type is not JSON"),
            Some(b'"') => {
                let string: String = serde_json::from_str(text).map_err(|_| "has an invalid string")?;
                write_quoted(out, &string);
            }
            _ => out.push_str(text),
        }
    }
    out.push('}');
    Ok(())
}

fn write_quoted(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            out.push('\\');
        }
        out.push(c);
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(json: &str, inferred: u32) -> Result<Option<String>, DatabaseError> {
        let types = TypeNames::default();
        let params = [Param::parse(serde_json::from_str(json).unwrap()).unwrap()];
        let named = named_type(&params[0], &types).map_err(|name| unknown_type(0, name))?;
        let encoded = encode(&params, &[if named == 0 { inferred } else { named }])?;
        Ok(encoded[0].value.as_ref().map(ToString::to_string))
    }

    fn text(json: &str, inferred: u32) -> Option<String> {
        encoded(json, inferred).unwrap()
    }

    #[test]
    fn values_are_sent_as_text() {
        for (json, expected) in
            [("null", None), ("true", Some("true")), ("1.50", Some("1.50")), (r#""a'b""#, Some("a'b"))]
        {
            assert_eq!(text(json, 0).as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn a_json_null_is_not_a_sql_null() {
        assert_eq!(text(r#"{"type": "jsonb", "value": null}"#, 0).as_deref(), Some("null"));
        assert_eq!(text(r#"{"type": "int4", "value": null}"#, 0), None);
        assert_eq!(text(r#"{"type": "json", "value": "x"}"#, 0).as_deref(), Some("\"x\""));
        assert_eq!(text(r#"{"type": "json", "value": {"a": [1]}}"#, 0).as_deref(), Some(r#"{"a": [1]}"#));
    }

    #[test]
    fn an_array_takes_the_type_that_the_statement_needs() {
        assert_eq!(text("[1, null, 3]", 1007).as_deref(), Some("{1,NULL,3}"));
        assert_eq!(text(r#"["a\"b", "NULL", ""]"#, 1009).as_deref(), Some(r#"{"a\"b","NULL",""}"#));
        assert_eq!(text("[[1,2],[3,4]]", 1007).as_deref(), Some("{{1,2},{3,4}}"));
        assert_eq!(text("[1, 2]", JSONB).as_deref(), Some("[1, 2]"));
        assert_eq!(text(r#"[{"a": 1}, [2]]"#, 3807).as_deref(), Some(r#"{"{\"a\": 1}","[2]"}"#));
    }

    #[test]
    fn a_string_is_json_text_unless_the_parameter_names_its_type() {
        assert_eq!(text(r#"["1", null]"#, 3807).as_deref(), Some(r#"{"1",NULL}"#));
        assert_eq!(
            text(r#"{"type": "jsonb[]", "value": ["1", null]}"#, 0).as_deref(),
            Some(r#"{"\"1\"",NULL}"#)
        );
    }

    #[test]
    fn values_that_cannot_be_bound_are_rejected() {
        assert!(encoded("[1]", 23).is_err(), "an array for an int4");
        assert!(encoded(r#"[{"a": 1}]"#, 1007).is_err(), "an object in an int4[]");
        assert!(encoded(&format!("{}{}", "[".repeat(7), "]".repeat(7)), 1007).is_err(), "seven dimensions");
        assert!(encoded(r#""a\u0000b""#, 25).is_err(), "a NUL character");
        let error = encoded(r#"{"type": "int5", "value": 1}"#, 0).unwrap_err();
        assert_eq!(error.to_string(), "parameter 1 has the type \"int5\", which this database does not know");
    }
}
