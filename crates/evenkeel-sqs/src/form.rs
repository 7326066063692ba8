//! Requests of the query protocol: the parameters of a form or a query string, as the JSON that the JSON protocol sends.
//!
//! `Attribute.1.Name=A&Attribute.1.Value=5` becomes `{"Attributes": {"A": "5"}}`, so that both protocols share the types of
//! requests. Limits: [`PARAMETERS_MAX`] parameters; a repeated parameter is an error.

use std::collections::BTreeMap;

use evenkeel_server::percent;
use serde_json::{Map, Value};

use crate::error::SqsError;

/// A batch of ten messages with ten attributes each has fewer than 400 parameters.
const PARAMETERS_MAX: usize = 1_000;
/// Parts of the longest name, `SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringListValue.1`.
const PARTS_MAX: usize = 7;
/// Parameters of a signature in the query string.
const SIGNATURE_PREFIX: &str = "X-Amz-";
const ENTRIES: &str = "Entries";

/// Lists: the name of an element in the query protocol, and of the list in JSON.
const LISTS: [(&str, &str); 8] = [
    ("AttributeName", "AttributeNames"),
    ("MessageAttributeName", "MessageAttributeNames"),
    ("MessageSystemAttributeName", "MessageSystemAttributeNames"),
    ("TagKey", "TagKeys"),
    ("AWSAccountId", "AWSAccountIds"),
    ("ActionName", "Actions"),
    ("StringListValue", "StringListValues"),
    ("BinaryListValue", "BinaryListValues"),
];
/// Maps: the name of an entry in the query protocol, of the map in JSON, and of the entry's key.
const MAPS: [(&str, &str, &str); 5] = [
    ("Attribute", "Attributes", "Name"),
    ("MessageAttribute", "MessageAttributes", "Name"),
    ("MessageSystemAttribute", "MessageSystemAttributes", "Name"),
    ("Tag", "Tags", "Key"),
    // The SDKs' name for the tags of `TagQueue`.
    ("Tags", "Tags", "Key"),
];
const INTEGERS: [&str; 6] = [
    "DelaySeconds",
    "MaxNumberOfMessages",
    "MaxNumberOfMessagesPerSecond",
    "MaxResults",
    "VisibilityTimeout",
    "WaitTimeSeconds",
];

/// The decoded parameters of a request.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Form(BTreeMap<String, FormNode>);

/// Parameters that share the first parts of their names.
#[derive(Debug, PartialEq, Eq)]
enum FormNode {
    Text(String),
    Parts(BTreeMap<String, FormNode>),
}

impl Form {
    /// Decodes the parameters of a query string and of a form.
    pub(crate) fn parse(query: &str, body: &[u8]) -> Result<Self, SqsError> {
        let body = str::from_utf8(body).map_err(|_| malformed("the form is not UTF-8"))?;
        let mut form = Self::default();
        let pairs =
            query.split('&').filter(|pair| !pair.starts_with(SIGNATURE_PREFIX)).chain(body.split('&'));
        for (index, pair) in pairs.filter(|pair| !pair.is_empty()).enumerate() {
            if PARAMETERS_MAX <= index {
                return Err(malformed(format!("more than {PARAMETERS_MAX} parameters")));
            }
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            form.insert(&decode(name)?, decode(value)?)?;
        }
        Ok(form)
    }

    /// Returns a parameter that is neither a list nor a map.
    pub(crate) fn text(&self, name: &str) -> Option<&str> {
        match self.0.get(name)? {
            FormNode::Text(text) => Some(text),
            FormNode::Parts(_) => None,
        }
    }

    /// Sets a parameter, unless the request has it.
    pub(crate) fn set_default(&mut self, name: &str, value: &str) {
        self.0.entry(name.to_owned()).or_insert_with(|| FormNode::Text(value.to_owned()));
    }

    /// Converts the parameters into the JSON of the JSON protocol.
    pub(crate) fn into_json(self) -> Result<Value, SqsError> {
        to_object(self.0)
    }

    fn insert(&mut self, name: &str, value: String) -> Result<(), SqsError> {
        let parts: Vec<&str> = name.splitn(PARTS_MAX + 1, '.').collect();
        let Some((last, parents)) = parts.split_last().filter(|_| parts.len() <= PARTS_MAX) else {
            return Err(malformed(format!("the name of parameter {name} has too many parts")));
        };
        let repeated = || malformed(format!("the parameter {name} may only be specified once"));
        let mut branch = &mut self.0;
        for part in parents {
            let node = branch.entry((*part).to_owned()).or_insert_with(|| FormNode::Parts(BTreeMap::new()));
            let FormNode::Parts(parts) = node else { return Err(repeated()) };
            branch = parts;
        }
        match branch.insert((*last).to_owned(), FormNode::Text(value)) {
            None => Ok(()),
            Some(_) => Err(repeated()),
        }
    }
}

/// Decodes `+` and percent-encoding.
fn decode(text: &str) -> Result<String, SqsError> {
    let invalid = || malformed("a parameter is not valid percent-encoding of UTF-8");
    let spaces = if text.contains('+') { &text.replace('+', " ") } else { text };
    percent::decode(spaces).ok_or_else(invalid)
}

fn to_object(parts: BTreeMap<String, FormNode>) -> Result<Value, SqsError> {
    let mut object = Map::new();
    for (name, node) in parts {
        let (name, value) = convert(name, node)?;
        if object.contains_key(&name) {
            return Err(malformed(format!("{name} is specified twice")));
        }
        object.insert(name, value);
    }
    Ok(Value::Object(object))
}

/// Converts a parameter; returns its name in JSON and its value.
fn convert(name: String, node: FormNode) -> Result<(String, Value), SqsError> {
    if let Some((_, list)) = LISTS.iter().find(|(element, _)| *element == name) {
        return Ok(((*list).to_owned(), Value::Array(elements(&name, node)?)));
    }
    if let Some((_, map, key)) = MAPS.iter().find(|(entry, _, _)| *entry == name) {
        return Ok(((*map).to_owned(), entries(&name, node, key)?));
    }
    if name.ends_with("BatchRequestEntry") {
        let entries = numbered(&name, node)?.into_iter().map(|entry| match entry {
            FormNode::Parts(parts) => to_object(parts),
            FormNode::Text(_) => Err(malformed(format!("{name} has no parameters"))),
        });
        return Ok((ENTRIES.to_owned(), Value::Array(entries.collect::<Result<_, _>>()?)));
    }
    let is_list = name == ENTRIES || LISTS.iter().any(|(_, list)| *list == name);
    let value = match node {
        // SDKs send empty lists under their name in JSON.
        FormNode::Text(text) if is_list && text.is_empty() => Value::Array(Vec::new()),
        FormNode::Text(text) if INTEGERS.contains(&name.as_str()) => {
            let number: i64 =
                text.parse().map_err(|_| malformed("STRING_VALUE can not be converted to an Integer"))?;
            number.into()
        }
        FormNode::Text(text) => text.into(),
        FormNode::Parts(parts) => to_object(parts)?,
    };
    Ok((name, value))
}

/// Returns the texts of a list. A parameter without an index (`AttributeName=All`) is a list with one element.
fn elements(name: &str, node: FormNode) -> Result<Vec<Value>, SqsError> {
    let nodes = match node {
        FormNode::Text(_) => vec![node],
        FormNode::Parts(_) => numbered(name, node)?,
    };
    let texts = nodes.into_iter().map(|node| match node {
        FormNode::Text(text) => Ok(text.into()),
        FormNode::Parts(_) => Err(malformed(format!("{name} is not a list of texts"))),
    });
    texts.collect()
}

/// Returns the entries of a map, each of which has a key and a value; one without a number is the only one.
fn entries(name: &str, node: FormNode, key: &str) -> Result<Value, SqsError> {
    let is_single =
        matches!(&node, FormNode::Parts(parts) if parts.keys().all(|part| part == key || part == "Value"));
    let nodes = if is_single { vec![node] } else { numbered(name, node)? };
    let mut map = Map::new();
    for entry in nodes {
        let FormNode::Parts(mut parts) = entry else { return Err(malformed(format!("{name} has no {key}"))) };
        let key = match parts.remove(key) {
            Some(FormNode::Text(key)) => key,
            Some(FormNode::Parts(_)) | None => String::new(),
        };
        let value = match parts.remove("Value") {
            Some(FormNode::Text(text)) => text.into(),
            Some(FormNode::Parts(parts)) => to_object(parts)?,
            None => Value::Null,
        };
        if map.contains_key(&key) {
            return Err(malformed(format!("{name} {key} is specified twice")));
        }
        map.insert(key, value);
    }
    Ok(Value::Object(map))
}

/// Returns numbered nodes in the order of their numbers.
fn numbered(name: &str, node: FormNode) -> Result<Vec<FormNode>, SqsError> {
    let invalid = || malformed(format!("{name} must be followed by a number"));
    let FormNode::Parts(parts) = node else { return Err(invalid()) };
    let nodes = parts.into_iter().map(|(text, node)| {
        // `01` and `+1` would be the same number as `1`, and one of the two nodes would be lost.
        let number = text.parse().ok().filter(|number: &u32| number.to_string() == text);
        Ok((number.ok_or_else(invalid)?, node))
    });
    let nodes: BTreeMap<u32, FormNode> = nodes.collect::<Result<_, SqsError>>()?;
    Ok(nodes.into_values().collect())
}

fn malformed(message: impl Into<String>) -> SqsError {
    SqsError::Serialization { message: message.into() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn parse(query: &str, body: &str) -> Result<Value, SqsError> {
        Form::parse(query, body.as_bytes())?.into_json()
    }

    #[test]
    fn lists_maps_and_batches_become_the_json_of_the_json_protocol() {
        let body = "QueueUrl=http%3A%2F%2Fa%2Fq&AttributeName.10=c&AttributeName.2=b&AttributeName.1=a+b%2B\
             &Attribute.1.Name=DelaySeconds&Attribute.1.Value=5&Tag.1.Key=k&Tag.1.Value=&MaxResults=-3\
             &SendMessageBatchRequestEntry.1.Id=i&SendMessageBatchRequestEntry.1.DelaySeconds=7\
             &SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=n.1\
             &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=String\
             &SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=%C3%A4";
        let attribute = json!({"n.1": {"DataType": "String", "StringValue": "ä"}});
        let expected = json!({
            "QueueUrl": "http://a/q", "AttributeNames": ["a b+", "b", "c"], "Attributes": {"DelaySeconds": "5"},
            "Tags": {"k": ""}, "MaxResults": -3,
            "Entries": [{"Id": "i", "DelaySeconds": 7, "MessageAttributes": attribute}],
        });
        assert_eq!(parse("X-Amz-Signature=00", body), Ok(expected.clone()));
        assert_eq!(parse(&body.replace('\n', ""), ""), Ok(expected));
        assert_eq!(
            parse("", "Entries=&AttributeName=All"),
            Ok(json!({"Entries": [], "AttributeNames": ["All"]}))
        );
        let single = "Attribute.Name=DelaySeconds&Attribute.Value=5&AttributeName.4294967295=a";
        let expected = json!({"Attributes": {"DelaySeconds": "5"}, "AttributeNames": ["a"]});
        assert_eq!(parse("", single), Ok(expected));
    }

    #[test]
    fn malformed_forms_are_errors() {
        let many: String = (0..=PARAMETERS_MAX).map(|n| format!("a{n}=&")).collect();
        assert!(parse("", &many[..many.len() - "a1000=&".len()]).is_ok());
        for bad in [
            many.as_str(),
            "a=%zz",
            "a=%ff",
            "a=1&a=2",
            "a=1&a.b=2",
            "a.b=1&a=2",
            "a.b.c.d.e.f.g.h=1",
            "Attribute.x.Name=a",
            "Attribute=a",
            "AttributeName.1=a&AttributeName.01=b",
            "AttributeName.%2B1=a",
            "Attribute.Name=a&Attribute.1.Name=b",
            "AttributeName.4294967296=a",
            "Attribute.1.Name=a&Attribute.2.Name=a",
            "AttributeName.1.x=a",
            "DelaySeconds=x",
            "DelaySeconds=99999999999999999999",
            "SendMessageBatchRequestEntry.1=a",
            "Tag.1.Key=a&Tags.1.Key=b",
        ] {
            let result = parse("", bad);
            assert!(matches!(result, Err(SqsError::Serialization { .. })), "{bad}: {result:?}");
        }
        assert!(Form::parse("", b"a=\xff").is_err());
    }

    proptest! {
        #[test]
        fn arbitrary_forms_do_not_panic(query: String, body: Vec<u8>, names in "(Attribute|Tag|a|1|Name|Value|[.]|=|&){0,40}") {
            let _ = Form::parse(&query, &body).and_then(Form::into_json);
            let _ = parse("", &names);
        }
    }
}
