//! Parameters of the Data API.
//!
//! Guarantees: a value has the type that AWS gives it, whatever the statement needs: `longValue` is `int8`, `stringValue`
//! is `text` unless `typeHint` names another type. NULL has the type of its hint, or the one that the statement needs.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::hex::hex;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::datasource::EngineKind;
use crate::param::{Param, ParamValue};
use crate::request::invalid;

/// Texts of the floating-point numbers that JSON cannot express.
const NOT_FINITE: [&str; 3] = ["NaN", "Infinity", "-Infinity"];

/// A parameter of a statement.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct SqlParameter<'a> {
    name: Option<String>,
    #[serde(borrow)]
    value: Option<Field<'a>>,
    type_hint: Option<TypeHint>,
}

/// A value; exactly one field of AWS's union.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
enum Field<'a> {
    IsNull(bool),
    BooleanValue(bool),
    LongValue(i64),
    /// A number, with its digits as sent.
    DoubleValue(#[serde(borrow)] &'a RawValue),
    StringValue(String),
    /// Base64.
    BlobValue(String),
    ArrayValue(ArrayValue),
}

#[derive(Deserialize)]
enum ArrayValue {
    #[serde(rename = "booleanValues")]
    Booleans(Vec<Option<bool>>),
    #[serde(rename = "longValues")]
    Longs(Vec<Option<i64>>),
    #[serde(rename = "doubleValues")]
    Doubles(Vec<Option<f64>>),
    #[serde(rename = "stringValues")]
    Strings(Vec<Option<String>>),
    #[serde(rename = "arrayValues")]
    Arrays(Vec<ArrayValue>),
}

/// Type of a string, or of the strings of an array.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
enum TypeHint {
    Date,
    Decimal,
    Json,
    Time,
    Timestamp,
    Uuid,
}

/// Type of a value before the database is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueType {
    Bool,
    Long,
    Double,
    Text,
    Blob,
    Hinted(TypeHint),
}

/// Reason why a parameter is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum ParameterError {
    #[error("has no value")]
    NoValue,
    #[error("has isNull: false; leave out isNull and give the value")]
    NotNull,
    #[error("has a typeHint, which only strings and NULL can have")]
    Hint,
    #[error("has a doubleValue that is not a number")]
    Double,
    #[error("has a blobValue that is not base64")]
    Blob,
    #[error("has an array of arrays with different types")]
    MixedArray,
    #[error("is an array, and SQLite has no arrays")]
    ArrayInSqlite,
}

impl SqlParameter<'_> {
    pub(super) fn name(&self) -> Result<&str, ApiError> {
        let no_name = || invalid("parameters", "a parameter has no name");
        self.name.as_deref().filter(|name| !name.is_empty()).ok_or_else(no_name)
    }

    /// Returns the value as a parameter of the database.
    pub(super) fn to_param(&self, engine: EngineKind) -> Result<Param, ParameterError> {
        let field = self.value.as_ref().ok_or(ParameterError::NoValue)?;
        let is_hintable = matches!(field, Field::IsNull(_) | Field::StringValue(_) | Field::ArrayValue(_));
        if self.type_hint.is_some() && !is_hintable {
            return Err(ParameterError::Hint);
        }
        match field {
            Field::IsNull(true) => Ok(self.null(engine)),
            Field::IsNull(false) => Err(ParameterError::NotNull),
            Field::BooleanValue(value) => Ok(ValueType::Bool.param(engine, ParamValue::Bool(*value))),
            Field::LongValue(value) => {
                Ok(ValueType::Long.param(engine, ParamValue::Number(value.to_string())))
            }
            Field::DoubleValue(json) => Ok(ValueType::Double.param(engine, double(json)?)),
            Field::StringValue(text) => Ok(self.string(text, engine)),
            Field::BlobValue(base64) => blob(base64, engine),
            Field::ArrayValue(array) => self.array(array, engine),
        }
    }

    fn null(&self, engine: EngineKind) -> Param {
        match self.type_hint {
            // As a value of type json, null would be the JSON null.
            None | Some(TypeHint::Json) => Param::untyped(ParamValue::Null),
            Some(hint) => ValueType::Hinted(hint).param(engine, ParamValue::Null),
        }
    }

    fn string(&self, text: &str, engine: EngineKind) -> Param {
        match self.type_hint {
            None => ValueType::Text.param(engine, ParamValue::Text(text.to_owned())),
            // The text is the JSON, not a JSON string; SQLite checks it.
            Some(TypeHint::Json) if engine == EngineKind::Postgres => {
                ValueType::Hinted(TypeHint::Json).param(engine, ParamValue::Json(text.to_owned()))
            }
            Some(hint) => ValueType::Hinted(hint).param(engine, ParamValue::Text(text.to_owned())),
        }
    }

    fn array(&self, array: &ArrayValue, engine: EngineKind) -> Result<Param, ParameterError> {
        if engine == EngineKind::Sqlite {
            return Err(ParameterError::ArrayInSqlite);
        }
        let mut json = String::new();
        let element = array.write(&mut json)?;
        let element = match (element, self.type_hint) {
            (element, None) => element,
            (ValueType::Text, Some(hint)) => ValueType::Hinted(hint),
            (_, Some(_)) => return Err(ParameterError::Hint),
        };
        let type_name = Some(format!("{}[]", element.name(engine)));
        Ok(Param { name: None, type_name, value: ParamValue::Json(json) })
    }
}

fn double(json: &RawValue) -> Result<ParamValue, ParameterError> {
    match ParamValue::parse(json.get()) {
        Ok(ParamValue::Number(digits)) => Ok(ParamValue::Number(digits)),
        Ok(ParamValue::Text(text)) if NOT_FINITE.contains(&text.as_str()) => Ok(ParamValue::Text(text)),
        _ => Err(ParameterError::Double),
    }
}

fn blob(base64: &str, engine: EngineKind) -> Result<Param, ParameterError> {
    let bytes = STANDARD.decode(base64).map_err(|_| ParameterError::Blob)?;
    let text = match engine {
        EngineKind::Postgres => format!("\\x{}", hex(&bytes)),
        EngineKind::Sqlite => base64.to_owned(),
    };
    Ok(ValueType::Blob.param(engine, ParamValue::Text(text)))
}

impl ArrayValue {
    /// Writes the array as JSON; returns the type of its elements.
    fn write(&self, out: &mut String) -> Result<ValueType, ParameterError> {
        let value_type = match self {
            Self::Booleans(values) => write_json(out, values, ValueType::Bool),
            Self::Longs(values) => write_json(out, values, ValueType::Long),
            Self::Doubles(values) => write_json(out, values, ValueType::Double),
            Self::Strings(values) => write_json(out, values, ValueType::Text),
            Self::Arrays(arrays) => {
                let mut value_type = None;
                out.push('[');
                for (index, array) in arrays.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    let inner = array.write(out)?;
                    if value_type.is_some_and(|known| known != inner) {
                        return Err(ParameterError::MixedArray);
                    }
                    value_type = Some(inner);
                }
                out.push(']');
                value_type.unwrap_or(ValueType::Text)
            }
        };
        Ok(value_type)
    }
}

fn write_json(out: &mut String, values: &impl Serialize, value_type: ValueType) -> ValueType {
    // Serializing lists of plain values does not fail.
    out.push_str(&serde_json::to_string(values).unwrap_or_default());
    value_type
}

impl ValueType {
    fn param(self, engine: EngineKind, value: ParamValue) -> Param {
        Param { name: None, type_name: Some(self.name(engine).to_owned()), value }
    }

    /// Returns the name of the type in the database.
    fn name(self, engine: EngineKind) -> &'static str {
        let (postgres, sqlite) = match self {
            Self::Bool => ("bool", "boolean"),
            Self::Long => ("int8", "integer"),
            Self::Double => ("float8", "real"),
            Self::Text => ("text", "text"),
            Self::Blob => ("bytea", "blob"),
            Self::Hinted(TypeHint::Date) => ("date", "text"),
            Self::Hinted(TypeHint::Decimal) => ("numeric", "text"),
            Self::Hinted(TypeHint::Json) => ("json", "json"),
            Self::Hinted(TypeHint::Time) => ("time", "text"),
            Self::Hinted(TypeHint::Timestamp) => ("timestamp", "text"),
            Self::Hinted(TypeHint::Uuid) => ("uuid", "text"),
        };
        match engine {
            EngineKind::Postgres => postgres,
            EngineKind::Sqlite => sqlite,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn param(value: Value, hint: Option<&str>, engine: EngineKind) -> Result<Param, String> {
        let mut parameter = json!({"name": "a", "value": value});
        if let Some(hint) = hint {
            parameter["typeHint"] = json!(hint);
        }
        let text = parameter.to_string();
        let parsed: SqlParameter<'_> = serde_json::from_str(&text).map_err(|error| error.to_string())?;
        parsed.to_param(engine).map_err(|error| error.to_string())
    }

    fn postgres(value: Value, hint: Option<&str>) -> (Option<String>, ParamValue) {
        let Param { type_name, value, .. } = param(value, hint, EngineKind::Postgres).unwrap();
        (type_name, value)
    }

    fn typed(name: &str, value: ParamValue) -> (Option<String>, ParamValue) {
        (Some(name.to_owned()), value)
    }

    fn text(text: &str) -> ParamValue {
        ParamValue::Text(text.to_owned())
    }

    #[test]
    fn a_value_has_the_type_that_aws_gives_it() {
        let number = |digits: &str| ParamValue::Number(digits.to_owned());
        assert_eq!(postgres(json!({"booleanValue": true}), None), typed("bool", ParamValue::Bool(true)));
        let least = number("-9223372036854775808");
        assert_eq!(postgres(json!({"longValue": i64::MIN}), None), typed("int8", least));
        assert_eq!(postgres(json!({"doubleValue": 1.5}), None), typed("float8", number("1.5")));
        assert_eq!(postgres(json!({"doubleValue": "NaN"}), None), typed("float8", text("NaN")));
        assert_eq!(postgres(json!({"stringValue": "a'b"}), None), typed("text", text("a'b")));
        assert_eq!(postgres(json!({"blobValue": "AP8="}), None), typed("bytea", text("\\x00ff")));
        assert_eq!(postgres(json!({"isNull": true}), None), (None, ParamValue::Null));
    }

    #[test]
    fn a_hint_names_the_type_of_a_string() {
        for (hint, name) in [
            ("DATE", "date"),
            ("TIME", "time"),
            ("TIMESTAMP", "timestamp"),
            ("DECIMAL", "numeric"),
            ("UUID", "uuid"),
        ] {
            assert_eq!(postgres(json!({"stringValue": "x"}), Some(hint)), typed(name, text("x")));
            assert_eq!(postgres(json!({"isNull": true}), Some(hint)), typed(name, ParamValue::Null));
        }
        let object = ParamValue::Json("{\"a\": 1}".to_owned());
        assert_eq!(postgres(json!({"stringValue": "{\"a\": 1}"}), Some("JSON")), typed("json", object));
        assert_eq!(postgres(json!({"isNull": true}), Some("JSON")), (None, ParamValue::Null));
    }

    #[test]
    fn arrays_have_the_type_of_their_elements() {
        let array = |value: Value, hint| postgres(json!({"arrayValue": value}), hint);
        let json = |text: &str| ParamValue::Json(text.to_owned());
        assert_eq!(array(json!({"longValues": [1, null]}), None), typed("int8[]", json("[1,null]")));
        assert_eq!(array(json!({"booleanValues": [true]}), None), typed("bool[]", json("[true]")));
        assert_eq!(array(json!({"doubleValues": [1.5]}), None), typed("float8[]", json("[1.5]")));
        assert_eq!(array(json!({"stringValues": ["a"]}), None), typed("text[]", json("[\"a\"]")));
        assert_eq!(array(json!({"stringValues": ["a"]}), Some("UUID")), typed("uuid[]", json("[\"a\"]")));
        let nested = json!({"arrayValues": [{"longValues": [1]}, {"longValues": [2]}]});
        assert_eq!(array(nested, None), typed("int8[]", json("[[1],[2]]")));
    }

    #[test]
    fn sqlite_has_types_of_its_own() {
        let lite = |value: Value, hint| param(value, hint, EngineKind::Sqlite).unwrap();
        assert_eq!(lite(json!({"longValue": 1}), None).type_name.as_deref(), Some("integer"));
        assert_eq!(lite(json!({"blobValue": "AP8="}), None).value, text("AP8="));
        assert_eq!(lite(json!({"stringValue": "1.5"}), Some("DECIMAL")).type_name.as_deref(), Some("text"));
        let object = lite(json!({"stringValue": "{}"}), Some("JSON"));
        assert_eq!((object.type_name.as_deref(), object.value), (Some("json"), text("{}")));
    }

    #[test]
    fn values_that_cannot_be_bound_are_rejected() {
        for (value, hint, engine, message) in [
            (json!({"isNull": false}), None, EngineKind::Postgres, "isNull: false"),
            (json!({"longValue": 1}), Some("UUID"), EngineKind::Postgres, "only strings and NULL"),
            (json!({"longValue": 1.5}), None, EngineKind::Postgres, "expected i64"),
            (json!({"longValue": 9_223_372_036_854_775_808_u64}), None, EngineKind::Postgres, "i64"),
            (json!({"doubleValue": "x"}), None, EngineKind::Postgres, "not a number"),
            (json!({"doubleValue": [1]}), None, EngineKind::Postgres, "not a number"),
            (json!({"blobValue": "!"}), None, EngineKind::Postgres, "not base64"),
            (json!({"stringValue": "x"}), Some("MONEY"), EngineKind::Postgres, "unknown variant"),
            (json!({"otherValue": "x"}), None, EngineKind::Postgres, "unknown variant"),
            (json!({"longValue": 1, "isNull": true}), None, EngineKind::Postgres, "expected"),
            (json!({"arrayValue": {"longValues": [1]}}), None, EngineKind::Sqlite, "no arrays"),
            (json!({"arrayValue": {"longValues": [1]}}), Some("UUID"), EngineKind::Postgres, "strings"),
            (
                json!({"arrayValue": {"arrayValues": [{"longValues": [1]}, {"stringValues": ["a"]}]}}),
                None,
                EngineKind::Postgres,
                "different types",
            ),
        ] {
            let error = param(value.clone(), hint, engine).unwrap_err();
            assert!(error.contains(message), "{value}: {error}");
        }
    }
}
