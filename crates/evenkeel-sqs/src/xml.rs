//! Responses of the query protocol, as XML: the fields that the JSON protocol sends, under the query protocol's names.

use serde_json::{Map, Value};

use crate::operation::Operation;
use crate::text_validation::is_valid;

const DECLARATION: &str = "<?xml version=\"1.0\"?>";
const NAMESPACE: &str = "http://queue.amazonaws.com/doc/2012-11-05/";

/// The parts of an error response.
pub(crate) struct XmlError<'a> {
    pub(crate) cause: &'static str,
    pub(crate) code: &'static str,
    pub(crate) message: &'a str,
}

/// Encodes the response of an operation.
pub(crate) fn response(operation: Operation, request_id: &str, fields: &Value) -> String {
    let name = operation.name();
    let mut xml = Xml::default();
    xml.text.push_str(DECLARATION);
    xml.text.push_str(&format!("<{name}Response xmlns=\"{NAMESPACE}\">"));
    if operation.has_result() {
        xml.element(&format!("{name}Result"), |xml| xml.value(operation, fields));
    }
    xml.element("ResponseMetadata", |xml| xml.text_element("RequestId", request_id));
    xml.text.push_str(&format!("</{name}Response>"));
    xml.text
}

/// Encodes an error.
pub(crate) fn error(error: &XmlError<'_>, request_id: &str) -> String {
    let mut xml = Xml::default();
    xml.text.push_str(DECLARATION);
    xml.text.push_str(&format!("<ErrorResponse xmlns=\"{NAMESPACE}\">"));
    xml.element("Error", |xml| {
        xml.text_element("Type", error.cause);
        xml.text_element("Code", error.code);
        xml.text_element("Message", error.message);
        xml.text.push_str("<Detail/>");
    });
    xml.text_element("RequestId", request_id);
    xml.text.push_str("</ErrorResponse>");
    xml.text
}

/// XML that is being written.
#[derive(Default)]
struct Xml {
    text: String,
}

impl Xml {
    fn element(&mut self, name: &str, write: impl FnOnce(&mut Self)) {
        for part in ["<", name, ">"] {
            self.text.push_str(part);
        }
        let start = self.text.len();
        write(self);
        if self.text.len() == start {
            self.text.truncate(start - 1);
            return self.text.push_str("/>");
        }
        for part in ["</", name, ">"] {
            self.text.push_str(part);
        }
    }

    fn text_element(&mut self, name: &str, text: &str) {
        self.element(name, |xml| xml.escape(text));
    }

    fn value(&mut self, operation: Operation, value: &Value) {
        match value {
            Value::Null => {}
            Value::Bool(_) | Value::Number(_) => self.text.push_str(&value.to_string()),
            Value::String(text) => self.escape(text),
            Value::Array(items) => items.iter().for_each(|item| self.value(operation, item)),
            Value::Object(fields) => self.fields(operation, fields),
        }
    }

    fn fields(&mut self, operation: Operation, fields: &Map<String, Value>) {
        for (name, value) in fields {
            match value {
                Value::Array(items) => {
                    let name = element_of(operation, name);
                    for item in items {
                        self.element(&name, |xml| xml.value(operation, item));
                    }
                }
                Value::Object(map) => {
                    let (entry, key) = entry_of(name);
                    for (name, value) in map {
                        self.element(entry, |xml| {
                            xml.text_element(key, name);
                            xml.element("Value", |xml| xml.value(operation, value));
                        });
                    }
                }
                value => self.element(name, |xml| xml.value(operation, value)),
            }
        }
    }

    /// Writes escaped text. Characters that XML does not allow (only the native API accepts them) become U+FFFD.
    fn escape(&mut self, text: &str) {
        for character in text.chars() {
            match character {
                '&' => self.text.push_str("&amp;"),
                '<' => self.text.push_str("&lt;"),
                '>' => self.text.push_str("&gt;"),
                '"' => self.text.push_str("&quot;"),
                '\'' => self.text.push_str("&apos;"),
                // A parser would turn it into a newline.
                '\r' => self.text.push_str("&#xD;"),
                character if is_valid(character) => self.text.push(character),
                _ => self.text.push('\u{fffd}'),
            }
        }
    }
}

/// Returns the name of a list's elements.
fn element_of(operation: Operation, list: &str) -> String {
    match list {
        "QueueUrls" | "queueUrls" => "QueueUrl".to_owned(),
        "Messages" => "Message".to_owned(),
        "Failed" => "BatchResultErrorEntry".to_owned(),
        _ => format!("{}ResultEntry", operation.name()),
    }
}

/// Returns the names of a map's entries and of their keys.
fn entry_of(map: &str) -> (&'static str, &'static str) {
    match map {
        "Tags" => ("Tag", "Key"),
        "MessageAttributes" => ("MessageAttribute", "Name"),
        _ => ("Attribute", "Name"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_response_has_the_query_protocols_names_and_escapes_every_text() {
        let attributes = json!({"a<": {"DataType": "String", "StringValue": "x"}});
        let message =
            json!({"Body": "<&>\"'\r\n\t\u{1}ä", "Attributes": {"S": "1"}, "MessageAttributes": attributes});
        let xml = response(Operation::ReceiveMessage, "req-1", &json!({"Messages": [message]}));
        let expected = concat!(
            r#"<?xml version="1.0"?><ReceiveMessageResponse xmlns="http://queue.amazonaws.com/doc/2012-11-05/">"#,
            "<ReceiveMessageResult><Message><Attribute><Name>S</Name><Value>1</Value></Attribute>",
            "<Body>&lt;&amp;&gt;&quot;&apos;&#xD;\n\t\u{fffd}ä</Body>",
            "<MessageAttribute><Name>a&lt;</Name><Value><DataType>String</DataType><StringValue>x</StringValue>",
            "</Value></MessageAttribute></Message></ReceiveMessageResult>",
            "<ResponseMetadata><RequestId>req-1</RequestId></ResponseMetadata></ReceiveMessageResponse>",
        );
        assert_eq!(xml, expected);
        let batch = json!({"Successful": [{"Id": "a"}], "Failed": [{"SenderFault": true}]});
        let xml = response(Operation::DeleteMessageBatch, "req-1", &batch);
        assert!(
            xml.contains("<DeleteMessageBatchResultEntry><Id>a</Id></DeleteMessageBatchResultEntry>"),
            "{xml}"
        );
        assert!(xml.contains("<BatchResultErrorEntry><SenderFault>true</SenderFault>"), "{xml}");
        let empty = response(Operation::ReceiveMessage, "req-1", &json!({}));
        assert!(empty.contains("<ReceiveMessageResult/>"), "{empty}");
        let empty = response(Operation::DeleteQueue, "req-1", &json!({}));
        assert!(!empty.contains("Result") && empty.contains("<RequestId>req-1</RequestId>"), "{empty}");
    }
}
