//! Message attributes: validation, MD5 digests as AWS computes them, and the attribute filter of a receive.

use std::collections::BTreeMap;

use evenkeel_server::hex::hex;
use md5::{Digest, Md5};
use serde::ser::SerializeMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::base64;
use crate::error::SqsError;
use crate::limit::{ATTRIBUTE_NAME_MAX, ATTRIBUTES_MAX, TRACE_MAX};
use crate::reason;
use crate::text_validation::is_valid_text;

/// The only message system attribute that a client may send.
const TRACE_HEADER: &str = "AWSTraceHeader";

/// Attributes of a request by name, not validated yet.
pub(crate) type AttributeMap = BTreeMap<String, AttributeInput>;

/// An attribute of a request, not validated yet.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct AttributeInput {
    data_type: Option<String>,
    string_value: Option<String>,
    #[serde(default, deserialize_with = "deserialize_base64")]
    binary_value: Option<Vec<u8>>,
    string_list_values: Option<Vec<serde::de::IgnoredAny>>,
    binary_list_values: Option<Vec<serde::de::IgnoredAny>>,
}

impl AttributeInput {
    /// Creates an attribute of type `String`.
    pub(crate) fn text(text: String) -> Self {
        Self { data_type: Some("String".to_owned()), string_value: Some(text), ..Self::default() }
    }

    /// Returns the size of type and value in bytes.
    pub(crate) fn size_without_name(&self) -> usize {
        let len = |text: &Option<String>| text.as_deref().map_or(0, str::len);
        len(&self.data_type) + len(&self.string_value) + self.binary_value.as_deref().map_or(0, <[u8]>::len)
    }
}

/// Deserializes attributes; one that is `null`, which is how a form's attribute without a value arrives, has no type.
pub(crate) fn attribute_map<'de, D: Deserializer<'de>>(deserializer: D) -> Result<AttributeMap, D::Error> {
    let map = Option::<BTreeMap<String, Option<AttributeInput>>>::deserialize(deserializer)?;
    let inputs = map.into_iter().flatten();
    Ok(inputs.map(|(name, input)| (name, input.unwrap_or_default())).collect())
}

fn deserialize_base64<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    base64::decode(&text).map(Some).ok_or_else(|| serde::de::Error::custom("a binary value is not base64"))
}

/// A valid attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub(crate) name: &'a str,
    pub(crate) data_type: &'a str,
    pub(crate) value: Value<'a>,
}

/// Value of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Value<'a> {
    Text(&'a str),
    Binary(&'a [u8]),
}

impl<'a> Value<'a> {
    pub(crate) fn as_bytes(self) -> &'a [u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Binary(bytes) => bytes,
        }
    }
}

impl Attribute<'_> {
    /// Returns the bytes that count towards the message's size.
    pub(crate) fn size(&self) -> usize {
        self.name.len() + self.data_type.len() + self.value.as_bytes().len()
    }
}

impl Serialize for Attribute<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        match self.value {
            Value::Text(text) => map.serialize_entry("StringValue", text)?,
            Value::Binary(bytes) => map.serialize_entry("BinaryValue", &base64::encode(bytes))?,
        }
        map.serialize_entry("DataType", self.data_type)?;
        map.end()
    }
}

/// Validates the attributes of a message and returns them sorted by name.
pub(crate) fn validate(input: &AttributeMap) -> Result<Vec<Attribute<'_>>, SqsError> {
    let count = input.len();
    if count > ATTRIBUTES_MAX {
        return Err(SqsError::invalid(format!(
            "Number of message attributes [{count}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )));
    }
    input.iter().map(|(name, value)| validate_one(name, value)).collect()
}

fn validate_one<'a>(name: &'a str, input: &'a AttributeInput) -> Result<Attribute<'a>, SqsError> {
    check_name(name)?;
    let lists = [&input.string_list_values, &input.binary_list_values];
    if lists.into_iter().flatten().any(|list| !list.is_empty()) {
        return Err(SqsError::Unsupported { message: reason::ATTRIBUTE_LIST });
    }
    let data_type = input.data_type.as_deref().filter(|kind| !kind.is_empty());
    let data_type = data_type.ok_or_else(|| {
        SqsError::invalid(format!(
            "The message (user) attribute '{name}' must contain a non-empty message attribute value."
        ))
    })?;
    let base = data_type.split('.').next().unwrap_or_default();
    if !["String", "Number", "Binary"].contains(&base) {
        return Err(SqsError::invalid(format!(
            "The type of message (user) attribute '{name}' is invalid. You must use only the following supported type \
             prefixes: Binary, Number, String."
        )));
    }
    if data_type.len() > ATTRIBUTE_NAME_MAX {
        return Err(SqsError::invalid(reason::ATTRIBUTE_TYPE_LENGTH));
    }
    let empty = || {
        SqsError::invalid(format!(
            "Message (user) attribute '{name}' must contain a non-empty value of type '{base}'."
        ))
    };
    let value = if base == "Binary" {
        Value::Binary(input.binary_value.as_deref().filter(|bytes| !bytes.is_empty()).ok_or_else(empty)?)
    } else {
        let text = input.string_value.as_deref().filter(|text| !text.is_empty()).ok_or_else(empty)?;
        if !is_valid_text(text) {
            // Not `InvalidMessageContents`, which AWS returns for the body only.
            return Err(SqsError::invalid(reason::CHARACTERS));
        }
        if base == "Number" && !is_number(text) {
            return Err(SqsError::invalid(format!(
                "Can't cast the value of message (user) attribute '{name}' to a number."
            )));
        }
        Value::Text(text)
    };
    Ok(Attribute { name, data_type, value })
}

/// Checks an attribute's name; AWS accepts letters beyond ASCII, although it documents otherwise.
fn check_name(name: &str) -> Result<(), SqsError> {
    let is_valid = |character: char| character.is_alphanumeric() || "-_.".contains(character);
    let lower = name.to_ascii_lowercase();
    let is_reserved = lower.starts_with("aws.") || lower.starts_with("amazon.");
    let has_misplaced_dots = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    let reason = match name {
        "" => reason::NO_ATTRIBUTE_NAME,
        _ if name.len() > ATTRIBUTE_NAME_MAX => reason::ATTRIBUTE_NAME_LENGTH,
        _ if !name.chars().all(is_valid) => reason::ATTRIBUTE_NAME_CHARACTERS,
        _ if is_reserved || has_misplaced_dots => reason::ATTRIBUTE_NAME_RESERVED,
        _ => return Ok(()),
    };
    Err(SqsError::invalid(reason))
}

fn is_number(text: &str) -> bool {
    let has_valid_chars = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    has_valid_chars && text.parse::<f64>().is_ok_and(|number| number.abs() <= 1e128)
}

/// Validates the message system attributes and returns the trace header.
pub(crate) fn validate_system(input: &AttributeMap) -> Result<Option<Attribute<'_>>, SqsError> {
    if let Some(name) = input.keys().find(|name| *name != TRACE_HEADER) {
        return Err(SqsError::invalid(format!("Message system attribute name '{name}' is invalid.")));
    }
    let Some((name, value)) = input.iter().next() else { return Ok(None) };
    let text = value.string_value.as_deref().unwrap_or_default();
    let fits = (1..=TRACE_MAX).contains(&text.len()) && is_valid_text(text);
    if value.data_type.as_deref() != Some("String") || !fits {
        return Err(SqsError::invalid(format!(
            "Message system attribute '{name}' must be a String of 1 to {TRACE_MAX} bytes."
        )));
    }
    Ok(Some(Attribute { name, data_type: "String", value: Value::Text(text) }))
}

/// Computes the MD5 of attributes as AWS does: over each name, type and value, each prefixed with its length, and a
/// byte before the length of the value for its kind (1 string, 2 binary).
pub(crate) fn digest(attributes: &[Attribute<'_>]) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let mut md5 = Md5::new();
    let mut update = |prefix: &[u8], bytes: &[u8]| {
        md5.update(prefix);
        // A message has at most 1 MiB, so lengths fit in 32 bits.
        md5.update((bytes.len() as u32).to_be_bytes());
        md5.update(bytes);
    };
    for attribute in attributes {
        let kind = match attribute.value {
            Value::Text(_) => 1,
            Value::Binary(_) => 2,
        };
        update(&[], attribute.name.as_bytes());
        update(&[], attribute.data_type.as_bytes());
        update(&[kind], attribute.value.as_bytes());
    }
    Some(hex(&md5.finalize()))
}

/// Computes the MD5 of a body.
pub(crate) fn digest_body(body: &[u8]) -> [u8; 16] {
    Md5::digest(body).into()
}

/// Patterns of the attribute names that a receive requests.
pub(crate) struct Filter<'a>(pub(crate) &'a [String]);

impl Filter<'_> {
    /// Reports whether an attribute is requested: by its name, by `prefix.*`, or by `All` or `*`.
    pub(crate) fn includes(&self, name: &str) -> bool {
        self.0.iter().any(|pattern| match pattern.strip_suffix(".*") {
            Some(prefix) => name.starts_with(prefix),
            None => ["All", "*", name].contains(&pattern.as_str()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(name: &'a str, value: &'a str) -> Attribute<'a> {
        Attribute { name, data_type: "String", value: Value::Text(value) }
    }

    /// The expected digests are from AWS's own responses.
    #[test]
    fn attribute_digests_match_those_of_aws() {
        assert_eq!(digest(&[text("Foo", "Bar")]).as_deref(), Some("ae7155c6026991b6d54b11589678bf9c"));
        let three = [text("General", "Kenobi"), text("Hello", "There"), text("Help.Me", "Me")];
        assert_eq!(digest(&three).as_deref(), Some("4c360f3fdafd970e05fae2f149d997f5"));
        assert_eq!(digest(&three[1..2]).as_deref(), Some("a311262e065454b75da111d535b8dacd"));
        let trace = b"traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01";
        let binary = Attribute { name: "attr1", data_type: "Binary", value: Value::Binary(trace) };
        assert_eq!(digest(&[binary]).as_deref(), Some("8cbe4db156db8a94db8b801b7addb984"));
        assert_eq!(digest(&[]), None);
    }

    #[test]
    fn body_digests_match_those_of_aws() {
        assert_eq!(hex(&digest_body(b"msg")), "6e2baaf3b97dbeef01c0043275f9a0e7");
        assert_eq!(hex(&digest_body(b"test")), "098f6bcd4621d373cade4e832627b4f6");
    }

    #[test]
    fn a_filter_matches_names_prefixes_and_all() {
        let includes = |filter: &str, name: &str| Filter(&[filter.to_owned()]).includes(name);
        assert!(includes("All", "a") && includes(".*", "a") && includes("*", "a") && includes("a", "a"));
        assert!(includes("Hel.*", "Hello") && includes("Hel.*", "Help.Me") && !includes("Hel.*", "General"));
        assert!(!includes("a", "ab") && !includes("*a", "a") && !Filter(&[]).includes("a"));
    }

    #[test]
    fn invalid_attributes_are_rejected() {
        let is_rejected = |name: &str, kind: &str, value: &str| {
            let value = AttributeInput {
                data_type: Some(kind.to_owned()),
                string_value: Some(value.to_owned()),
                ..AttributeInput::default()
            };
            validate_one(name, &value).is_err()
        };
        assert!(!is_rejected("a", "String", "x") && !is_rejected("a.b-c_1", "Number.int", "-1.5e3"));
        assert!(!is_rejected("größe", "String", "x") && !is_rejected("名前", "String", "x"));
        for name in ["", ".a", "a.", "a..b", "AWS.x", "amazon.x", "a b", "a\u{1}", &"x".repeat(257)] {
            assert!(is_rejected(name, "String", "x"), "{name:?} was accepted");
        }
        for (kind, value) in [
            ("", "x"),
            ("Text", "x"),
            ("String", ""),
            ("String", "\u{1}"),
            ("Number", "x"),
            ("Number", "inf"),
            ("Binary", "x"),
        ] {
            assert!(is_rejected("a", kind, value), "{kind:?} {value:?} was accepted");
        }
    }
}
