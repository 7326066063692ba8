//! Statement parameters as JSON, bound and never spliced into SQL.
//!
//! A parameter is `null`, a boolean, a number, a string or an array, or an object `{"type": …, "value": …}` that names
//! the database type. Numbers keep their digits: `12345678901234567890.10` reaches a `numeric` column unchanged.

use serde::Deserialize;
use serde_json::value::RawValue;

/// One bound parameter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Param {
    /// Name of the parameter, with or without the prefix `:`, `@` or `$`; `None` binds by position.
    pub name: Option<String>,
    /// Name of the database type; `None` lets the database infer it.
    pub type_name: Option<String>,
    pub value: ParamValue,
}

/// Value of a parameter, as sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParamValue {
    Null,
    Bool(bool),
    /// A JSON number, with its digits as sent.
    Number(String),
    Text(String),
    /// An array, or with an explicit type also an object: JSON text as sent.
    Json(String),
}

/// Reason why a parameter is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParamError {
    #[error(
        "must be null, a boolean, a number, a string, an array, or an object with exactly \"type\" and \"value\""
    )]
    UntypedObject,
    #[error("has the type {0:?}, which is not a type name")]
    TypeName(String),
    #[error("is a string with an unpaired surrogate, which is no character")]
    InvalidString,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TypedParam<'a> {
    #[serde(rename = "type")]
    type_name: String,
    #[serde(borrow)]
    value: &'a RawValue,
}

/// Longest accepted type name.
const TYPE_NAME_BYTES_MAX: usize = 128;

impl Param {
    pub fn untyped(value: ParamValue) -> Self {
        Self { name: None, type_name: None, value }
    }

    /// Reads a parameter from JSON text.
    pub fn parse(json: &RawValue) -> Result<Self, ParamError> {
        let text = json.get();
        if !text.starts_with('{') {
            return ParamValue::parse(text).map(Self::untyped);
        }
        let typed: TypedParam<'_> = serde_json::from_str(text).map_err(|_| ParamError::UntypedObject)?;
        if !is_type_name(&typed.type_name) {
            return Err(ParamError::TypeName(typed.type_name));
        }
        let value = ParamValue::parse(typed.value.get())?;
        Ok(Self { name: None, type_name: Some(typed.type_name), value })
    }
}

impl ParamValue {
    /// Reads valid JSON text.
    pub(crate) fn parse(text: &str) -> Result<Self, ParamError> {
        Ok(match text.as_bytes().first() {
            Some(b'n') => Self::Null,
            Some(b't') => Self::Bool(true),
            Some(b'f') => Self::Bool(false),
            // Of the strings that valid JSON contains, only those with an unpaired surrogate do not parse.
            Some(b'"') => Self::Text(serde_json::from_str(text).map_err(|_| ParamError::InvalidString)?),
            Some(b'[' | b'{') => Self::Json(text.to_owned()),
            _ => Self::Number(text.to_owned()),
        })
    }
}

/// Accepts names such as `int4`, `double precision`, `numeric(10,2)`, `text[]` and `"My Type"`.
fn is_type_name(name: &str) -> bool {
    let is_allowed = |c: char| c.is_alphanumeric() || "_ .,()[]\"".contains(c);
    (1..=TYPE_NAME_BYTES_MAX).contains(&name.len()) && name.chars().all(is_allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(json: &str) -> Result<Param, ParamError> {
        Param::parse(serde_json::from_str(json).unwrap())
    }

    fn value(json: &str) -> ParamValue {
        parsed(json).unwrap().value
    }

    #[test]
    fn each_json_type_is_a_parameter() {
        assert_eq!(value("null"), ParamValue::Null);
        assert_eq!(value("true"), ParamValue::Bool(true));
        assert_eq!(value("false"), ParamValue::Bool(false));
        assert_eq!(value(r#""a\u0000\"é""#), ParamValue::Text("a\0\"é".to_owned()));
        assert_eq!(value("[1, 2]"), ParamValue::Json("[1, 2]".to_owned()));
    }

    #[test]
    fn a_number_keeps_its_digits() {
        assert_eq!(
            value("123456789012345678901234567890.10"),
            ParamValue::Number("123456789012345678901234567890.10".to_owned())
        );
    }

    #[test]
    fn an_object_names_its_type() {
        let param = parsed(r#"{"type": "jsonb", "value": {"a": null}}"#).unwrap();
        assert_eq!(param.type_name.as_deref(), Some("jsonb"));
        assert_eq!(param.value, ParamValue::Json(r#"{"a": null}"#.to_owned()));
        assert_eq!(parsed(r#"{"type": "jsonb", "value": null}"#).unwrap().value, ParamValue::Null);
    }

    #[test]
    fn an_unpaired_surrogate_is_rejected() {
        for json in [r#""a\ud800""#, r#"{"type": "text", "value": "\udc00a"}"#] {
            assert_eq!(parsed(json), Err(ParamError::InvalidString), "{json}");
        }
        assert_eq!(value(r#""\ud83e\udd80""#), ParamValue::Text("\u{1f980}".to_owned()));
    }

    #[test]
    fn other_objects_are_rejected() {
        for json in [r#"{"a": 1}"#, r#"{"type": "int4"}"#, r#"{"type": "int4", "value": 1, "x": 2}"#, "{}"] {
            assert_eq!(parsed(json), Err(ParamError::UntypedObject), "{json}");
        }
        let long = "x".repeat(TYPE_NAME_BYTES_MAX + 1);
        for name in ["", "int4; drop table x", "a'b", long.as_str()] {
            let json = format!(r#"{{"type": "{name}", "value": 1}}"#);
            assert_eq!(parsed(&json), Err(ParamError::TypeName(name.to_owned())), "{name}");
        }
    }
}
