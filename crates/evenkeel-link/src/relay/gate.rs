//! Decisions of a relay about the messages of a set-up, without I/O.

use std::fmt;
use std::net::SocketAddr;

use evenkeel_policy::time::{Duration, Instant};
use ring::hmac;

use super::message::{COOKIE_LEN, MessageError, NONCE_LEN, SetupBody, SetupMessage, encode_address};
use super::setup_key::{SetupKey, SignaturePurpose, Transcript, is_signed};
use crate::identity::Fingerprint;

/// Signatures that a relay checks per second; further tokens are refused as [`RefusalReason::Busy`].
pub const SIGNATURES_PER_SECOND_MAX: u32 = 500;

/// Time for which a cookie is valid; one round trip must fit.
const COOKIE_LIFETIME: Duration = Duration::from_secs(10);
const COOKIE_PURPOSE: &[u8] = b"evenkeel link relay v1: cookie\0";
/// Bytes of the time in a cookie.
const TIME_LEN: usize = 8;

/// Reason for which a relay refuses a set-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The packet is no message, and its source has no association.
    Malformed,
    /// The message is for a relay with another key.
    OtherRelay,
    /// This relay did not issue the cookie, or not to this address.
    ForgedCookie,
    /// The cookie has expired.
    StaleCookie,
    /// The key may not use this relay.
    UnknownPeer,
    /// The signature is wrong.
    WrongSignature,
    /// The relay may not forward to the next address.
    NextNotAllowed,
    /// The key has too many associations.
    PeerFull,
    /// The relay has too many associations or set-ups.
    Busy,
    /// The relay cannot open a socket to the next address.
    NoSocket,
}

impl RefusalReason {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Malformed,
        Self::OtherRelay,
        Self::ForgedCookie,
        Self::StaleCookie,
        Self::UnknownPeer,
        Self::WrongSignature,
        Self::NextNotAllowed,
        Self::PeerFull,
        Self::Busy,
        Self::NoSocket,
    ];

    /// Returns the value of the metrics' label.
    pub fn label(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::OtherRelay => "other_relay",
            Self::ForgedCookie => "forged_cookie",
            Self::StaleCookie => "stale_cookie",
            Self::UnknownPeer => "unknown_peer",
            Self::WrongSignature => "wrong_signature",
            Self::NextNotAllowed => "next_not_allowed",
            Self::PeerFull => "peer_full",
            Self::Busy => "busy",
            Self::NoSocket => "no_socket",
        }
    }

    pub(super) fn to_byte(self) -> u8 {
        self as u8
    }

    pub(super) fn from_byte(byte: u8) -> Option<Self> {
        Self::ALL.get(usize::from(byte)).copied()
    }
}

impl fmt::Display for RefusalReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Malformed => "the packet is no set-up message, and its source has no association",
            Self::OtherRelay => "the message is for a relay with another key",
            Self::ForgedCookie => "the token's cookie was not issued to this address by this relay",
            Self::StaleCookie => "the token's cookie has expired",
            Self::UnknownPeer => "the key is not among those of --peer",
            Self::WrongSignature => "the token's signature is wrong",
            Self::NextNotAllowed => "the next address is not among those of --next",
            Self::PeerFull => "the key has too many associations",
            Self::Busy => "the relay has too many associations or set-ups",
            Self::NoSocket => "the relay could not open a socket to the next address; see its log",
        })
    }
}

/// Answer to a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum GateAnswer {
    /// Send this.
    Reply(Vec<u8>),
    /// The token is valid: open an association, then send its acceptance.
    Open(ValidToken),
    /// Refuse; some refusals are sent to the client.
    Refuse(SetupRefusal),
}

/// Refusal, and the message that says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetupRefusal {
    pub(super) reason: RefusalReason,
    pub(super) reply: Option<Vec<u8>>,
}

/// Token whose cookie, key, signature and next address are valid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ValidToken {
    /// Index of the key among the allowed ones.
    pub(super) peer: usize,
    pub(super) next: SocketAddr,
    pub(super) acceptance: Vec<u8>,
    nonce: [u8; NONCE_LEN],
}

/// Keys and addresses that a relay accepts; it keeps no state per client.
pub(super) struct RelayGate {
    key: SetupKey,
    secret: hmac::Key,
    peers: Vec<Fingerprint>,
    next: Vec<SocketAddr>,
    /// Second of the last check of a signature, and the number of checks in it.
    checked_second: u64,
    checks: u32,
}

impl RelayGate {
    /// Creates a gate; `secret` authenticates its cookies.
    pub(super) fn new(
        key: SetupKey,
        secret: hmac::Key,
        peers: Vec<Fingerprint>,
        next: Vec<SocketAddr>,
    ) -> Self {
        Self { key, secret, peers, next, checked_second: 0, checks: 0 }
    }

    pub(super) fn fingerprint(&self) -> Fingerprint {
        self.key.fingerprint()
    }

    pub(super) fn peers(&self) -> &[Fingerprint] {
        &self.peers
    }

    /// Answers a packet that is not to be forwarded.
    pub(super) fn answer(&mut self, now: Instant, client: SocketAddr, packet: &[u8]) -> GateAnswer {
        let message = match SetupMessage::decode(packet) {
            Ok(message) => message,
            Err(MessageError::NoMagic | MessageError::Length | MessageError::Unknown) => {
                return GateAnswer::Refuse(SetupRefusal { reason: RefusalReason::Malformed, reply: None });
            }
        };
        match message.body {
            _ if message.relay != self.fingerprint() => self.refuse_other_relay(&message),
            SetupBody::Hello => {
                let cookie = self.cookie(now, client, &message.nonce);
                GateAnswer::Reply(reply(&message, SetupBody::Challenge { cookie }))
            }
            SetupBody::Token { .. } => match self.check_token(now, client, &message) {
                Ok(token) => GateAnswer::Open(token),
                Err(reason) => GateAnswer::Refuse(self.refusal(message.relay, message.nonce, reason)),
            },
            SetupBody::Challenge { .. } | SetupBody::Accepted { .. } | SetupBody::Refused { .. } => {
                GateAnswer::Refuse(SetupRefusal { reason: RefusalReason::Malformed, reply: None })
            }
        }
    }

    /// Refuses a message for another relay; answers only a hello, so that two relays never answer each other.
    fn refuse_other_relay(&self, message: &SetupMessage) -> GateAnswer {
        let mut refusal = self.refusal(message.relay, message.nonce, RefusalReason::OtherRelay);
        refusal.reply = refusal.reply.filter(|_| message.body == SetupBody::Hello);
        GateAnswer::Refuse(refusal)
    }

    /// Creates the refusal of a valid token for which no association can be opened.
    pub(super) fn refuse_token(&self, token: &ValidToken, reason: RefusalReason) -> SetupRefusal {
        self.refusal(self.fingerprint(), token.nonce, reason)
    }

    fn refusal(&self, relay: Fingerprint, nonce: [u8; NONCE_LEN], reason: RefusalReason) -> SetupRefusal {
        let body = SetupBody::Refused { reason, by: self.fingerprint() };
        SetupRefusal { reason, reply: Some(SetupMessage { relay, nonce, body }.encode()) }
    }

    fn check_token(
        &mut self,
        now: Instant,
        client: SocketAddr,
        message: &SetupMessage,
    ) -> Result<ValidToken, RefusalReason> {
        let SetupBody::Token { cookie, next, key, signature } = &message.body else {
            return Err(RefusalReason::Malformed);
        };
        self.check_cookie(now, client, &message.nonce, cookie)?;
        let fingerprint = Fingerprint::of_ed25519(key);
        let peer = self.peers.iter().position(|peer| *peer == fingerprint);
        let peer = peer.ok_or(RefusalReason::UnknownPeer)?;
        self.count_check(now)?;
        let transcript = Transcript {
            relay: message.relay,
            client: fingerprint,
            nonce: message.nonce,
            cookie: *cookie,
            next: *next,
        };
        if !is_signed(key, SignaturePurpose::Token, &transcript, signature) {
            return Err(RefusalReason::WrongSignature);
        }
        if !self.next.contains(next) {
            return Err(RefusalReason::NextNotAllowed);
        }
        let signature = self.key.sign(SignaturePurpose::Acceptance, &transcript);
        let acceptance = reply(message, SetupBody::Accepted { key: self.key.public(), signature });
        Ok(ValidToken { peer, next: *next, acceptance, nonce: message.nonce })
    }

    fn count_check(&mut self, now: Instant) -> Result<(), RefusalReason> {
        let second = now.since(Instant::ORIGIN).as_secs();
        if second != self.checked_second {
            self.checked_second = second;
            self.checks = 0;
        }
        if SIGNATURES_PER_SECOND_MAX <= self.checks {
            return Err(RefusalReason::Busy);
        }
        self.checks += 1;
        Ok(())
    }

    /// Creates a cookie: the time and a MAC.
    fn cookie(&self, now: Instant, client: SocketAddr, nonce: &[u8; NONCE_LEN]) -> [u8; COOKIE_LEN] {
        let issued_at = now.since(Instant::ORIGIN).as_millis() as u64;
        let time = issued_at.to_be_bytes();
        let mac = hmac::sign(&self.secret, &mac_input(client, nonce, &time));
        let mut cookie = [0; COOKIE_LEN];
        cookie[..TIME_LEN].copy_from_slice(&time);
        cookie[TIME_LEN..].copy_from_slice(mac.as_ref());
        cookie
    }

    fn check_cookie(
        &self,
        now: Instant,
        client: SocketAddr,
        nonce: &[u8; NONCE_LEN],
        cookie: &[u8; COOKIE_LEN],
    ) -> Result<(), RefusalReason> {
        let (time, mac) = cookie.split_first_chunk::<TIME_LEN>().expect("a cookie begins with its time");
        hmac::verify(&self.secret, &mac_input(client, nonce, time), mac)
            .map_err(|_| RefusalReason::ForgedCookie)?;
        let issued_at = Instant::from_millis(u64::from_be_bytes(*time));
        if COOKIE_LIFETIME < now.since(issued_at) { Err(RefusalReason::StaleCookie) } else { Ok(()) }
    }
}

fn mac_input(client: SocketAddr, nonce: &[u8; NONCE_LEN], time: &[u8; TIME_LEN]) -> Vec<u8> {
    [COOKIE_PURPOSE, &encode_address(client), nonce, time].concat()
}

fn reply(message: &SetupMessage, body: SetupBody) -> Vec<u8> {
    SetupMessage { relay: message.relay, nonce: message.nonce, body }.encode()
}

#[cfg(test)]
mod tests;
