//! Binary format of the headers that are stored with a message: sender, trace header, deduplication id, attributes.
//!
//! Guarantees: decoding reverses encoding; bytes in another format decode to `None`.

use crate::attribute::{Attribute, Value};

/// First byte: version of the format.
const LAYOUT: u8 = 1;
const HAS_GROUP: u8 = 1;
const HAS_DEDUP: u8 = 2;
const TEXT: u8 = 1;
const BINARY: u8 = 2;

/// Headers stored with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredHeaders<'a> {
    /// True if the sender set a group; otherwise the message has the default key.
    pub(crate) has_group: bool,
    pub(crate) body_md5: [u8; 16],
    /// Name of the tenant that sent the message.
    pub(crate) sender: &'a str,
    /// Value of the trace header.
    pub(crate) trace: Option<&'a str>,
    /// Deduplication id as the client sent it.
    pub(crate) dedup: Option<&'a str>,
    /// Sorted by name.
    pub(crate) attributes: Vec<Attribute<'a>>,
}

impl<'a> StoredHeaders<'a> {
    /// Encodes the headers. The API's limits ensure that every length fits its field.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let attributes: usize = self.attributes.iter().map(|attribute| attribute.size() + 9).sum();
        let mut out =
            Vec::with_capacity(32 + self.sender.len() + self.trace.map_or(0, str::len) + attributes);
        let group = if self.has_group { HAS_GROUP } else { 0 };
        out.extend([LAYOUT, group | self.dedup.map_or(0, |_| HAS_DEDUP)]);
        out.extend(self.body_md5);
        push_text(&mut out, self.sender);
        push_text(&mut out, self.trace.unwrap_or_default());
        if let Some(dedup) = self.dedup {
            push_text(&mut out, dedup);
        }
        for Attribute { name, data_type, value } in &self.attributes {
            push_text(&mut out, name);
            push_text(&mut out, data_type);
            out.push(match value {
                Value::Text(_) => TEXT,
                Value::Binary(_) => BINARY,
            });
            let bytes = value.as_bytes();
            out.extend((bytes.len() as u32).to_be_bytes());
            out.extend(bytes);
        }
        out
    }

    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = HeaderReader(bytes);
        let [LAYOUT, flags] = *reader.take(2)? else { return None };
        let body_md5 = reader.take(16)?.try_into().ok()?;
        let sender = reader.text()?;
        let trace = reader.text()?;
        let dedup = if flags & HAS_DEDUP == 0 { None } else { Some(reader.text()?) };
        let mut attributes = Vec::new();
        while !reader.0.is_empty() {
            let name = reader.text()?;
            let data_type = reader.text()?;
            let kind = reader.take(1)?[0];
            let len = u32::from_be_bytes(reader.take(4)?.try_into().ok()?);
            let bytes = reader.take(len as usize)?;
            let value = match kind {
                TEXT => Value::Text(str::from_utf8(bytes).ok()?),
                BINARY => Value::Binary(bytes),
                _ => return None,
            };
            attributes.push(Attribute { name, data_type, value });
        }
        Some(Self {
            has_group: flags & HAS_GROUP != 0,
            body_md5,
            sender,
            trace: Some(trace).filter(|trace| !trace.is_empty()),
            dedup,
            attributes,
        })
    }
}

/// Returns the sender from the stored headers of a message; `None` if it is unknown.
pub fn sender_of(headers: &[u8]) -> Option<&str> {
    StoredHeaders::decode(headers).map(|stored| stored.sender).filter(|sender| !sender.is_empty())
}

/// Returns a text attribute from the stored headers of a message; names are case-insensitive.
pub fn header_of<'a>(headers: &'a [u8], name: &str) -> Option<&'a str> {
    let mut attributes = StoredHeaders::decode(headers)?.attributes.into_iter();
    match attributes.find(|attribute| attribute.name.eq_ignore_ascii_case(name))?.value {
        Value::Text(text) => Some(text),
        Value::Binary(_) => None,
    }
}

/// Appends the length of a text in two bytes, then the text.
fn push_text(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// The bytes that are not decoded yet.
struct HeaderReader<'a>(&'a [u8]);

impl<'a> HeaderReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<&'a str> {
        let len = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        str::from_utf8(self.take(usize::from(len))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Headers as released versions store them. If this test fails, stored messages become unreadable.
    #[test]
    fn the_stored_format_is_unchanged() {
        let attributes = vec![
            Attribute { name: "a", data_type: "String", value: Value::Text("x") },
            Attribute { name: "b", data_type: "Binary", value: Value::Binary(&[0xff]) },
        ];
        let headers = StoredHeaders {
            has_group: true,
            body_md5: [7; 16],
            sender: "me",
            trace: Some("t"),
            dedup: Some("d"),
            attributes,
        };
        let mut bytes = vec![1, 3];
        bytes.extend([7; 16]);
        bytes.extend(*b"\0\x02me\0\x01t\0\x01d");
        bytes.extend(*b"\0\x01a\0\x06String\x01\0\0\0\x01x");
        bytes.extend(*b"\0\x01b\0\x06Binary\x02\0\0\0\x01\xff");
        assert_eq!(headers.encode(), bytes);
        assert_eq!(StoredHeaders::decode(&bytes), Some(headers));
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            has_group: bool, body_md5: [u8; 16], sender in ".{0,64}", trace in ".{0,64}",
            dedup in prop::option::of(".{1,64}"), text in ".{0,64}", binary: Vec<u8>,
        ) {
            let attributes = vec![
                Attribute { name: "a", data_type: "String", value: Value::Text(&text) },
                Attribute { name: "b", data_type: "Binary.x", value: Value::Binary(&binary) },
            ];
            let trace = Some(trace.as_str()).filter(|trace| !trace.is_empty());
            let dedup = dedup.as_deref();
            let headers = StoredHeaders { has_group, body_md5, sender: &sender, trace, dedup, attributes };
            let bytes = headers.encode();
            prop_assert_eq!(StoredHeaders::decode(&bytes), Some(headers));
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(bytes: Vec<u8>) {
            StoredHeaders::decode(&bytes);
        }

        #[test]
        fn headers_truncated_within_a_field_are_rejected(len in 0_usize..40) {
            let attributes = vec![Attribute { name: "a", data_type: "String", value: Value::Text("x") }];
            let headers = StoredHeaders {
                has_group: true, body_md5: [7; 16], sender: "me", trace: None, dedup: None, attributes,
            };
            let bytes = headers.encode();
            let len = len.min(bytes.len());
            // Headers that are truncated between two attributes are valid, with fewer attributes.
            let valid = [bytes.len(), 2 + 16 + 4 + 2];
            prop_assert_eq!(StoredHeaders::decode(&bytes[..len]).is_some(), valid.contains(&len));
        }
    }
}
