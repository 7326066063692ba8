//! Attributes of messages: what they may be, what they digest to, which of them a consumer wants.

use core::fmt;

use md5::{Digest, Md5};
use serde::ser::SerializeMap;
use serde::{Deserialize, Serialize, Serializer};

use crate::base64;
use crate::error::SqsError;
use crate::limit::{ATTRIBUTE_NAME_MAX, ATTRIBUTES_MAX, TRACE_MAX};
use crate::text_validation::is_valid_text;

/// The one attribute that AWS itself reads.
const TRACE_HEADER: &str = "AWSTraceHeader";

/// Attributes as they are sent, by name.
pub(crate) type AttributeMap = std::collections::BTreeMap<String, AttributeInput>;

/// An attribute's value as it is sent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct AttributeInput {
    data_type: Option<String>,
    string_value: Option<String>,
    #[serde(default, deserialize_with = "bytes")]
    binary_value: Option<Vec<u8>>,
    string_list_values: Option<Vec<serde::de::IgnoredAny>>,
    binary_list_values: Option<Vec<serde::de::IgnoredAny>>,
}

impl AttributeInput {
    /// Makes a value of text.
    pub(crate) fn text(text: String) -> Self {
        Self { data_type: Some("String".to_owned()), string_value: Some(text), ..Self::default() }
    }

    /// Counts type and value.
    pub(crate) fn size(&self) -> usize {
        let len = |text: &Option<String>| text.as_deref().map_or(0, str::len);
        len(&self.data_type) + len(&self.string_value) + self.binary_value.as_deref().map_or(0, <[u8]>::len)
    }
}

fn bytes<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Vec<u8>>, D::Error> {
    let Some(text) = Option::<String>::deserialize(deserializer)? else { return Ok(None) };
    base64::decode(&text).map(Some).ok_or_else(|| serde::de::Error::custom("a binary value is not base 64"))
}

/// One attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attribute<'a> {
    pub(crate) name: &'a str,
    pub(crate) data_type: &'a str,
    pub(crate) value: Value<'a>,
}

/// An attribute's value.
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
    /// Counts it as part of its message.
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

/// Reads the attributes of a message, sorted by name.
pub(crate) fn check(sent: &AttributeMap) -> Result<Vec<Attribute<'_>>, SqsError> {
    if ATTRIBUTES_MAX < sent.len() {
        let count = sent.len();
        return Err(SqsError::invalid(format!(
            "Number of message attributes [{count}] exceeds the allowed maximum [{ATTRIBUTES_MAX}]."
        )));
    }
    sent.iter().map(|(name, value)| check_one(name, value)).collect()
}

fn check_one<'a>(name: &'a str, sent: &'a AttributeInput) -> Result<Attribute<'a>, SqsError> {
    let wrong =
        |what: fmt::Arguments<'_>| SqsError::invalid(format!("Message (user) attribute '{name}' {what}."));
    if !is_name(name) {
        return Err(SqsError::invalid(format!(
            "Message (user) attribute name '{name}' is invalid: it has 1 to 256 letters, digits, hyphens, underscores \
             or periods, none of the latter first, last or twice in a row, and does not begin with AWS. or Amazon."
        )));
    }
    let lists = [&sent.string_list_values, &sent.binary_list_values];
    if lists.into_iter().flatten().any(|list| !list.is_empty()) {
        let message = "Message attribute list values in SendMessage operation are not supported.".to_owned();
        return Err(SqsError::Unsupported { message });
    }
    let data_type = sent.data_type.as_deref().filter(|kind| !kind.is_empty());
    let data_type =
        data_type.ok_or_else(|| wrong(format_args!("must contain a non-empty attribute type")))?;
    let base = data_type.split('.').next().unwrap_or_default();
    if ATTRIBUTE_NAME_MAX < data_type.len() || !["String", "Number", "Binary"].contains(&base) {
        return Err(wrong(format_args!(
            "has an invalid message attribute type, the set of supported type prefixes is Binary, Number, and String"
        )));
    }
    let empty = || wrong(format_args!("must contain a non-empty value of type '{data_type}'"));
    let value = if base == "Binary" {
        Value::Binary(sent.binary_value.as_deref().filter(|bytes| !bytes.is_empty()).ok_or_else(empty)?)
    } else {
        let text = sent.string_value.as_deref().filter(|text| !text.is_empty()).ok_or_else(empty)?;
        if !is_valid_text(text) {
            return Err(SqsError::Contents);
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

fn is_name(name: &str) -> bool {
    let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
    let dotted = name.starts_with('.') || name.ends_with('.') || name.contains("..");
    let lower = name.to_ascii_lowercase();
    let reserved = lower.starts_with("aws.") || lower.starts_with("amazon.");
    (1..=ATTRIBUTE_NAME_MAX).contains(&name.len()) && plain && !dotted && !reserved
}

fn is_number(text: &str) -> bool {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    plain && text.parse::<f64>().is_ok_and(|number| number.abs() <= 1e128)
}

/// Reads the one attribute that may be sent to AWS itself.
pub(crate) fn check_system(sent: &AttributeMap) -> Result<Option<Attribute<'_>>, SqsError> {
    if let Some(name) = sent.keys().find(|name| *name != TRACE_HEADER) {
        return Err(SqsError::invalid(format!("Message system attribute name '{name}' is invalid.")));
    }
    let Some((name, value)) = sent.iter().next() else { return Ok(None) };
    let text = value.string_value.as_deref().unwrap_or_default();
    let fits = (1..=TRACE_MAX).contains(&text.len()) && is_valid_text(text);
    if value.data_type.as_deref() != Some("String") || !fits {
        return Err(SqsError::invalid(format!(
            "Message system attribute '{name}' must be a String of 1 to {TRACE_MAX} bytes."
        )));
    }
    Ok(Some(Attribute { name, data_type: "String", value: Value::Text(text) }))
}

/// Digests attributes as AWS does: each name, type and value with its length before it.
pub(crate) fn digest(attributes: &[Attribute<'_>]) -> Option<String> {
    if attributes.is_empty() {
        return None;
    }
    let mut md5 = Md5::new();
    let mut part = |bytes: &[u8], before: &[u8]| {
        md5.update(before);
        // A message is at most a mebibyte.
        md5.update((bytes.len() as u32).to_be_bytes());
        md5.update(bytes);
    };
    for attribute in attributes {
        let kind = match attribute.value {
            Value::Text(_) => 1,
            Value::Binary(_) => 2,
        };
        part(attribute.name.as_bytes(), &[]);
        part(attribute.data_type.as_bytes(), &[]);
        part(attribute.value.as_bytes(), &[kind]);
    }
    Some(hex(&md5.finalize()))
}

/// Digests a body.
pub(crate) fn digest_body(body: &[u8]) -> [u8; 16] {
    Md5::digest(body).into()
}

/// Writes bytes in hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

/// Which attributes a consumer wants.
pub(crate) struct Filter<'a>(pub(crate) &'a [String]);

impl Filter<'_> {
    /// Tells whether it wants one: by its name, by `prefix.*`, or as one of `All`.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.0.iter().any(|wanted| match wanted.strip_suffix(".*") {
            Some(prefix) => name.starts_with(prefix),
            None => wanted == "All" || wanted == name,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text<'a>(name: &'a str, value: &'a str) -> Attribute<'a> {
        Attribute { name, data_type: "String", value: Value::Text(value) }
    }

    /// Digests that AWS itself answered.
    #[test]
    fn attributes_digest_as_aws_digests_them() {
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
    fn bodies_digest_as_aws_digests_them() {
        assert_eq!(hex(&digest_body(b"msg")), "6e2baaf3b97dbeef01c0043275f9a0e7");
        assert_eq!(hex(&digest_body(b"test")), "098f6bcd4621d373cade4e832627b4f6");
    }

    #[test]
    fn a_filter_takes_names_prefixes_and_all() {
        let wants = |filter: &str, name: &str| Filter(&[filter.to_owned()]).wants(name);
        assert!(wants("All", "a") && wants(".*", "a") && wants("a", "a"));
        assert!(wants("Hel.*", "Hello") && wants("Hel.*", "Help.Me") && !wants("Hel.*", "General"));
        assert!(!wants("a", "ab") && !wants("*", "a") && !Filter(&[]).wants("a"));
    }

    #[test]
    fn what_is_no_attribute_is_refused() {
        let refused = |name: &str, kind: &str, value: &str| {
            let value = AttributeInput {
                data_type: Some(kind.to_owned()),
                string_value: Some(value.to_owned()),
                ..AttributeInput::default()
            };
            check_one(name, &value).is_err()
        };
        assert!(!refused("a", "String", "x") && !refused("a.b-c_1", "Number.int", "-1.5e3"));
        for name in ["", ".a", "a.", "a..b", "AWS.x", "amazon.x", "a b", "ä", &"x".repeat(257)] {
            assert!(refused(name, "String", "x"), "{name:?} was taken");
        }
        for (kind, value) in
            [("", "x"), ("Text", "x"), ("String", ""), ("Number", "x"), ("Number", "inf"), ("Binary", "x")]
        {
            assert!(refused("a", kind, value), "{kind:?} {value:?} was taken");
        }
    }
}
