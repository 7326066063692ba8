//! Messages of a set-up. Numbers are big-endian; every message starts with the same 57 bytes:
//!
//! | field | bytes | |
//! |---|---|---|
//! | magic | 8 | begins with 0, unlike a QUIC packet whose fixed bit is set |
//! | kind | 1 | |
//! | relay | 32 | fingerprint of the relay of this exchange: a relay forwards messages for another one |
//! | nonce | 16 | of the client |
//!
//! The body follows:
//!
//! | kind | message | body |
//! |---|---|---|
//! | 1 | hello | zeros up to [`SETUP_LEN_MAX`] bytes in all, so that no answer is longer |
//! | 2 | challenge | cookie |
//! | 3 | token | cookie, next address, key, signature |
//! | 4 | acceptance | key, signature |
//! | 5 | refusal | code of the reason, fingerprint of the relay that refuses |

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::gate::RefusalReason;
use crate::identity::Fingerprint;

/// Length of a hello, the longest message.
pub const SETUP_LEN_MAX: usize = 256;

const MAGIC: &[u8; 8] = b"\0evkrly1";
const FINGERPRINT_LEN: usize = 32;
const HEADER_LEN: usize = MAGIC.len() + 1 + FINGERPRINT_LEN + NONCE_LEN;

pub(super) const NONCE_LEN: usize = 16;
pub(super) const COOKIE_LEN: usize = 40;
pub(super) const KEY_LEN: usize = 32;
pub(super) const SIGNATURE_LEN: usize = 64;
/// Address with its family and port.
const ADDRESS_LEN: usize = 1 + 16 + 2;

/// One message of a set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetupMessage {
    /// Relay that the client addresses.
    pub relay: Fingerprint,
    /// Random number of the client, repeated in every answer.
    pub nonce: [u8; NONCE_LEN],
    pub body: SetupBody,
}

/// Content of a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SetupBody {
    Hello,
    Challenge { cookie: [u8; COOKIE_LEN] },
    Token { cookie: [u8; COOKIE_LEN], next: SocketAddr, key: [u8; KEY_LEN], signature: [u8; SIGNATURE_LEN] },
    Accepted { key: [u8; KEY_LEN], signature: [u8; SIGNATURE_LEN] },
    Refused { reason: RefusalReason, by: Fingerprint },
}

/// Error for bytes that are not a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The bytes do not begin like a message; they may be a QUIC packet.
    #[error("not a message of a set-up")]
    NoMagic,
    #[error("the message is cut off or too long")]
    Length,
    #[error("the message has an unknown kind, address family or refusal")]
    Unknown,
}

impl SetupMessage {
    /// Encodes the message, in at most [`SETUP_LEN_MAX`] bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.push(self.body.kind());
        bytes.extend(self.relay.to_bytes());
        bytes.extend(self.nonce);
        match &self.body {
            SetupBody::Hello => bytes.resize(SETUP_LEN_MAX, 0),
            SetupBody::Challenge { cookie } => bytes.extend(cookie),
            SetupBody::Token { cookie, next, key, signature } => {
                bytes.extend(cookie);
                bytes.extend(encode_address(*next));
                bytes.extend(key);
                bytes.extend(signature);
            }
            SetupBody::Accepted { key, signature } => {
                bytes.extend(key);
                bytes.extend(signature);
            }
            SetupBody::Refused { reason, by } => {
                bytes.push(reason.to_byte());
                bytes.extend(by.to_bytes());
            }
        }
        bytes
    }

    /// Decodes a message; rejects trailing bytes and padding that is not zero.
    pub fn decode(bytes: &[u8]) -> Result<Self, MessageError> {
        let mut reader = SetupReader(bytes.strip_prefix(MAGIC).ok_or(MessageError::NoMagic)?);
        let [kind] = reader.array()?;
        let relay = Fingerprint::from_bytes(reader.array()?);
        let nonce = reader.array()?;
        let body = match kind {
            1 => {
                let padding: [u8; SETUP_LEN_MAX - HEADER_LEN] = reader.array()?;
                if padding.iter().any(|byte| *byte != 0) {
                    return Err(MessageError::Unknown);
                }
                SetupBody::Hello
            }
            2 => SetupBody::Challenge { cookie: reader.array()? },
            3 => SetupBody::Token {
                cookie: reader.array()?,
                next: reader.address()?,
                key: reader.array()?,
                signature: reader.array()?,
            },
            4 => SetupBody::Accepted { key: reader.array()?, signature: reader.array()? },
            5 => {
                let [reason] = reader.array()?;
                let reason = RefusalReason::from_byte(reason).ok_or(MessageError::Unknown)?;
                SetupBody::Refused { reason, by: Fingerprint::from_bytes(reader.array()?) }
            }
            _ => return Err(MessageError::Unknown),
        };
        if reader.0.is_empty() { Ok(Self { relay, nonce, body }) } else { Err(MessageError::Length) }
    }

    /// Reports whether a packet is addressed to a relay, whatever follows the address.
    pub(super) fn is_addressed_to(packet: &[u8], relay: Fingerprint) -> bool {
        addressee(packet) == Some(relay)
    }
}

impl SetupBody {
    fn kind(&self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Challenge { .. } => 2,
            Self::Token { .. } => 3,
            Self::Accepted { .. } => 4,
            Self::Refused { .. } => 5,
        }
    }
}

fn addressee(packet: &[u8]) -> Option<Fingerprint> {
    let rest = packet.strip_prefix(MAGIC)?.get(1..)?;
    Some(Fingerprint::from_bytes(*rest.first_chunk()?))
}

/// Encodes an address as it is sent and signed: family, IPv6 or IPv4-mapped address, port.
pub(super) fn encode_address(address: SocketAddr) -> [u8; ADDRESS_LEN] {
    let mut bytes = [0; ADDRESS_LEN];
    match address.ip() {
        IpAddr::V4(ip) => {
            bytes[0] = 4;
            bytes[1..17].copy_from_slice(&ip.to_ipv6_mapped().octets());
        }
        IpAddr::V6(ip) => {
            bytes[0] = 6;
            bytes[1..17].copy_from_slice(&ip.octets());
        }
    }
    bytes[17..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

/// Unread rest of a message.
struct SetupReader<'a>(&'a [u8]);

impl SetupReader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(MessageError::Length)?;
        self.0 = rest;
        Ok(*taken)
    }

    fn address(&mut self) -> Result<SocketAddr, MessageError> {
        let [family] = self.array()?;
        let ip = Ipv6Addr::from(self.array::<16>()?);
        let port = u16::from_be_bytes(self.array()?);
        let ip = match (family, ip.to_ipv4_mapped()) {
            (4, Some(ip)) => IpAddr::V4(ip),
            (6, None) => IpAddr::V6(ip),
            _ => return Err(MessageError::Unknown),
        };
        Ok(SocketAddr::new(ip, port))
    }
}

const TOKEN_LEN: usize = HEADER_LEN + COOKIE_LEN + ADDRESS_LEN + KEY_LEN + SIGNATURE_LEN;
const REFUSAL_LEN: usize = HEADER_LEN + 1 + FINGERPRINT_LEN;
// An answer is not longer than the message that it answers.
const _: () = assert!(HEADER_LEN + COOKIE_LEN <= SETUP_LEN_MAX && REFUSAL_LEN <= TOKEN_LEN);
const _: () = assert!(HEADER_LEN + KEY_LEN + SIGNATURE_LEN <= TOKEN_LEN && TOKEN_LEN <= SETUP_LEN_MAX);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_for_a_relay_are_addressed_to_it() {
        let ours = Fingerprint::from_bytes([1; 32]);
        let other = Fingerprint::from_bytes([2; 32]);
        let hello = SetupMessage { relay: ours, nonce: [7; NONCE_LEN], body: SetupBody::Hello }.encode();
        assert!(SetupMessage::is_addressed_to(&hello, ours));
        assert!(SetupMessage::is_addressed_to(&hello[..41], ours));
        assert!(!SetupMessage::is_addressed_to(&hello[..40], ours));
        assert!(!SetupMessage::is_addressed_to(&hello, other));
        assert!(!SetupMessage::is_addressed_to(&hello[1..], ours));
    }

    #[test]
    fn an_address_has_one_encoding() {
        for text in ["192.0.2.1:7443", "[2001:db8::7]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            let encoded = encode_address(address);
            assert_eq!(SetupReader(&encoded).address(), Ok(address));
            let mut wrong = encoded;
            wrong[0] = 10 - wrong[0];
            assert_eq!(SetupReader(&wrong).address(), Err(MessageError::Unknown));
        }
    }
}
