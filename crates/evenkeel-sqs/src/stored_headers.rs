//! Binary format of the headers that are stored with a message: flags, MD5 of the body, sender, trace header, deduplication
//! id, account of the sender, attributes.
//!
//! Guarantees: decoding reverses encoding; bytes of another version, or cut inside a field, decode to `None`.

use std::sync::Arc;

use evenkeel_policy::account::AccountNumber;
use evenkeel_server::tenant::{Tenant, Tenants};

use crate::attribute::{Attribute, Value};
use crate::stored_key::{FirstLevel, first_level};

/// First byte: version of the format.
const LAYOUT: u8 = 1;
const HAS_GROUP: u8 = 1;
const HAS_DEDUP: u8 = 2;
const SENDER_PREFIX: u8 = 4;
const LABEL: u8 = 8;
const HAS_ACCOUNT: u8 = 16;
const TEXT: u8 = 1;
const BINARY: u8 = 2;

/// Headers stored with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StoredHeaders<'a> {
    /// True if the client sent a key or group.
    pub(crate) has_group: bool,
    pub(crate) first_level: FirstLevel,
    pub(crate) body_md5: [u8; 16],
    /// Name of the tenant that sent the message; `admin` for an administrator.
    pub(crate) sender: &'a str,
    /// Account of that tenant, because another tenant may get its name; earlier versions do not store it.
    pub(crate) account: Option<AccountNumber>,
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
        let first_level = match self.first_level {
            FirstLevel::MayNameTenant => 0,
            FirstLevel::Label => LABEL,
            FirstLevel::SenderName => LABEL | SENDER_PREFIX,
        };
        let dedup = self.dedup.map_or(0, |_| HAS_DEDUP);
        let account = self.account.map_or(0, |_| HAS_ACCOUNT);
        out.extend([LAYOUT, group | first_level | dedup | account]);
        out.extend(self.body_md5);
        push_text(&mut out, self.sender);
        push_text(&mut out, self.trace.unwrap_or_default());
        if let Some(dedup) = self.dedup {
            push_text(&mut out, dedup);
        }
        if let Some(account) = self.account {
            push_text(&mut out, &account.to_string());
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
        let account = if flags & HAS_ACCOUNT == 0 { None } else { Some(reader.text()?.parse().ok()?) };
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
            first_level: first_level_of(flags),
            body_md5,
            sender,
            account,
            trace: Some(trace).filter(|trace| !trace.is_empty()),
            dedup,
            attributes,
        })
    }
}

/// The fields of stored headers that tell where a message comes from, decoded without the attributes.
struct Origin<'a> {
    first_level: FirstLevel,
    sender: &'a str,
    account: Option<AccountNumber>,
}

impl<'a> Origin<'a> {
    fn decode(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = HeaderReader(bytes);
        let [LAYOUT, flags] = *reader.take(2)? else { return None };
        reader.take(16)?;
        let sender = reader.text()?;
        reader.text()?;
        if flags & HAS_DEDUP != 0 {
            reader.text()?;
        }
        let account = if flags & HAS_ACCOUNT == 0 { None } else { Some(reader.text()?.parse().ok()?) };
        Some(Self { first_level: first_level_of(flags), sender, account })
    }

    /// Returns the tenant that sent the message, unless it was removed; a new tenant of its name is another one.
    fn tenant<'t>(&self, tenants: &'t Tenants) -> Option<&'t Arc<Tenant>> {
        let is_sender =
            |tenant: &&Arc<Tenant>| self.account.is_none() || self.account == tenant.settings.account;
        tenants.get(self.sender).filter(is_sender)
    }
}

fn first_level_of(flags: u8) -> FirstLevel {
    match flags & (LABEL | SENDER_PREFIX) {
        0 => FirstLevel::MayNameTenant,
        LABEL => FirstLevel::Label,
        _ => FirstLevel::SenderName,
    }
}

/// Returns the tenant to charge for a message: the first level of its key if that is a tenant and the sender may act for
/// it, else the sender.
pub fn tenant_to_charge<'t>(tenants: &'t Tenants, headers: &[u8], key: &str) -> Option<&'t Arc<Tenant>> {
    let origin = Origin::decode(headers);
    let may_name = origin.as_ref().is_none_or(|origin| origin.first_level == FirstLevel::MayNameTenant);
    let named = may_name.then(|| tenants.get(first_level(key))).flatten();
    named.or_else(|| origin?.tenant(tenants))
}

/// Returns a message's key as the client sent it: without the sender's name, if that was put before it.
pub fn client_key<'k>(headers: &[u8], key: &'k str) -> &'k str {
    match Origin::decode(headers) {
        Some(Origin { first_level: FirstLevel::SenderName, sender, .. }) => {
            key.strip_prefix(sender).and_then(|rest| rest.strip_prefix('/')).unwrap_or(key)
        }
        Some(_) | None => key,
    }
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
            first_level: FirstLevel::MayNameTenant,
            body_md5: [7; 16],
            sender: "me",
            account: None,
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
        assert_eq!(StoredHeaders::decode(&bytes), Some(headers.clone()));
        // The account was added later, after the deduplication id.
        let account = Some("123456789012".parse().unwrap());
        let with_account = StoredHeaders { account, ..headers };
        let end = 18 + 4 + 3 + 3;
        let account_text = b"\0\x0c123456789012";
        let bytes = [&[1, 3 | 16], &bytes[2..end], account_text, &bytes[end..]].concat();
        assert_eq!(with_account.encode(), bytes);
        assert_eq!(StoredHeaders::decode(&bytes), Some(with_account));
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(
            has_group: bool, first_level in prop::sample::select(&[FirstLevel::MayNameTenant, FirstLevel::Label, FirstLevel::SenderName]),
            account in prop::option::of(any::<u64>().prop_map(AccountNumber::from_random)), body_md5: [u8; 16], sender in ".{0,64}", trace in ".{0,64}",
            dedup in prop::option::of(".{1,64}"), text in ".{0,64}", binary: Vec<u8>,
        ) {
            let attributes = vec![
                Attribute { name: "a", data_type: "String", value: Value::Text(&text) },
                Attribute { name: "b", data_type: "Binary.x", value: Value::Binary(&binary) },
            ];
            let trace = Some(trace.as_str()).filter(|trace| !trace.is_empty());
            let dedup = dedup.as_deref();
            let headers = StoredHeaders { has_group, first_level, body_md5, sender: &sender, account, trace, dedup, attributes };
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
                has_group: true, first_level: FirstLevel::Label, body_md5: [7; 16], sender: "me", account: None, trace: None, dedup: None, attributes,
            };
            let bytes = headers.encode();
            let len = len.min(bytes.len());
            // Headers that are truncated between two attributes are valid, with fewer attributes.
            let valid = [bytes.len(), 2 + 16 + 4 + 2];
            prop_assert_eq!(StoredHeaders::decode(&bytes[..len]).is_some(), valid.contains(&len));
        }
    }
}
