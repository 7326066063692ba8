//! What the door keeps with a message beside its body, in few bytes.
//!
//! Bound: what is written reads back as it was; anything else is not a header of ours, and read as none.

use crate::attribute::{Attribute, Value};

/// The first byte, so that a later layout can be told from this one.
const LAYOUT: u8 = 1;
const HAS_GROUP: u8 = 1;
const HAS_DEDUP: u8 = 2;
const TEXT: u8 = 1;
const BINARY: u8 = 2;

/// What is kept with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredHeaders<'a> {
    /// Whether its sender named its group.
    pub(crate) has_group: bool,
    /// The MD5 of its body.
    pub(crate) body_md5: [u8; 16],
    /// Who sent it.
    pub(crate) sender: &'a str,
    /// What it traces.
    pub(crate) trace: Option<&'a str>,
    /// What its sender calls it.
    pub(crate) dedup: Option<&'a str>,
    /// Its attributes, sorted by name.
    pub(crate) attributes: Vec<Attribute<'a>>,
}

impl<'a> StoredHeaders<'a> {
    /// Writes it; the door's limits keep every length within its field.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let attributes: usize = self.attributes.iter().map(|attribute| attribute.size() + 9).sum();
        let mut out =
            Vec::with_capacity(32 + self.sender.len() + self.trace.map_or(0, str::len) + attributes);
        let group = if self.has_group { HAS_GROUP } else { 0 };
        out.extend([LAYOUT, group | self.dedup.map_or(0, |_| HAS_DEDUP)]);
        out.extend(self.body_md5);
        short(&mut out, self.sender);
        short(&mut out, self.trace.unwrap_or_default());
        if let Some(dedup) = self.dedup {
            short(&mut out, dedup);
        }
        for Attribute { name, data_type, value } in &self.attributes {
            short(&mut out, name);
            short(&mut out, data_type);
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

    /// Reads it.
    pub(crate) fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = HeaderReader(bytes);
        let [LAYOUT, flags] = *rest.take(2)? else { return None };
        let body_md5 = rest.take(16)?.try_into().ok()?;
        let sender = rest.short()?;
        let trace = rest.short()?;
        let dedup = if flags & HAS_DEDUP == 0 { None } else { Some(rest.short()?) };
        let mut attributes = Vec::new();
        while !rest.0.is_empty() {
            let name = rest.short()?;
            let data_type = rest.short()?;
            let kind = rest.take(1)?[0];
            let len = u32::from_be_bytes(rest.take(4)?.try_into().ok()?);
            let bytes = rest.take(len as usize)?;
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

/// Reads who sent a message from the headers of its payload; `None` when that is not known.
pub fn sender_of(headers: &[u8]) -> Option<&str> {
    StoredHeaders::decode(headers).map(|kept| kept.sender).filter(|sender| !sender.is_empty())
}

/// Reads what an attribute of a message says, by its name in any case, from the headers of its payload; `None` unless
/// that is text.
pub fn header_of<'a>(headers: &'a [u8], name: &str) -> Option<&'a str> {
    let mut attributes = StoredHeaders::decode(headers)?.attributes.into_iter();
    match attributes.find(|attribute| attribute.name.eq_ignore_ascii_case(name))?.value {
        Value::Text(text) => Some(text),
        Value::Binary(_) => None,
    }
}

fn short(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u16).to_be_bytes());
    out.extend(text.as_bytes());
}

/// What is left to read.
struct HeaderReader<'a>(&'a [u8]);

impl<'a> HeaderReader<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn short(&mut self) -> Option<&'a str> {
        let len = u16::from_be_bytes(self.take(2)?.try_into().ok()?);
        str::from_utf8(self.take(usize::from(len))?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_header_reads_back_as_it_was_written(
            has_group: bool, body_md5: [u8; 16], sender in ".{0,64}", trace in ".{0,64}",
            dedup in prop::option::of(".{1,64}"), text in ".{0,64}", binary: Vec<u8>,
        ) {
            let attributes = vec![
                Attribute { name: "a", data_type: "String", value: Value::Text(&text) },
                Attribute { name: "b", data_type: "Binary.x", value: Value::Binary(&binary) },
            ];
            let trace = Some(trace.as_str()).filter(|trace| !trace.is_empty());
            let dedup = dedup.as_deref();
            let kept = StoredHeaders { has_group, body_md5, sender: &sender, trace, dedup, attributes };
            let bytes = kept.encode();
            prop_assert_eq!(StoredHeaders::decode(&bytes), Some(kept));
        }

        #[test]
        fn bytes_of_any_kind_are_read_or_refused(bytes: Vec<u8>) {
            StoredHeaders::decode(&bytes);
        }

        #[test]
        fn a_header_cut_short_is_none(at in 0_usize..40) {
            let attributes = vec![Attribute { name: "a", data_type: "String", value: Value::Text("x") }];
            let kept = StoredHeaders {
                has_group: true, body_md5: [7; 16], sender: "me", trace: None, dedup: None, attributes,
            };
            let bytes = kept.encode();
            // Between attributes it is a header with fewer of them.
            let whole = [bytes.len(), 2 + 16 + 4 + 2];
            prop_assert_eq!(StoredHeaders::decode(&bytes[..at.min(bytes.len())]).is_some(), whole.contains(&at.min(bytes.len())));
        }
    }
}
