//! Set-ups that a gate accepts and refuses.

use super::*;
use crate::relay::message::{KEY_LEN, SETUP_LEN_MAX, SIGNATURE_LEN};
use crate::relay::setup_key::tests::key;

const NONCE: [u8; NONCE_LEN] = [5; NONCE_LEN];

/// A gate and a client that may use it.
struct Exchange {
    gate: RelayGate,
    client_key: SetupKey,
}

impl Exchange {
    fn new() -> Self {
        let client_key = key();
        let peers = vec![key().fingerprint(), client_key.fingerprint()];
        Self { gate: gate(key(), peers), client_key }
    }

    fn say_hello(&mut self, now: Instant, from: SocketAddr) -> [u8; COOKIE_LEN] {
        let hello = SetupMessage { relay: self.gate.fingerprint(), nonce: NONCE, body: SetupBody::Hello };
        let GateAnswer::Reply(reply) = self.gate.answer(now, from, &hello.encode()) else {
            panic!("no challenge");
        };
        match SetupMessage::decode(&reply).unwrap().body {
            SetupBody::Challenge { cookie } => cookie,
            other => panic!("{other:?}"),
        }
    }

    fn token(&self, cookie: [u8; COOKIE_LEN]) -> SetupMessage {
        token(&self.client_key, self.gate.fingerprint(), cookie, next())
    }

    fn refusal(&mut self, now: Instant, from: SocketAddr, message: &SetupMessage) -> RefusalReason {
        let packet = message.encode();
        match self.gate.answer(now, from, &packet) {
            GateAnswer::Refuse(SetupRefusal { reason, reply }) => {
                assert!(reply.is_none_or(|reply| reply.len() <= packet.len()));
                reason
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_token_with_a_fresh_cookie_opens_an_association() {
    let mut exchange = Exchange::new();
    let cookie = exchange.say_hello(at(1_000), client(1));
    let token = exchange.token(cookie);
    let GateAnswer::Open(opened) = exchange.gate.answer(at(1_200), client(1), &token.encode()) else {
        panic!("refused");
    };
    assert_eq!((opened.peer, opened.next), (1, next()));
    let acceptance = SetupMessage::decode(&opened.acceptance).unwrap();
    let SetupBody::Accepted { key, signature } = acceptance.body else { panic!("{acceptance:?}") };
    assert_eq!(Fingerprint::of_ed25519(&key), exchange.gate.fingerprint());
    let client = exchange.client_key.fingerprint();
    let relay = exchange.gate.fingerprint();
    let transcript = Transcript { relay, client, nonce: NONCE, cookie, next: next() };
    assert!(is_signed(&key, SignaturePurpose::Acceptance, &transcript, &signature));
}

#[test]
fn a_hello_gets_no_longer_an_answer_than_it_is() {
    let mut exchange = Exchange::new();
    let hello = SetupMessage { relay: exchange.gate.fingerprint(), nonce: NONCE, body: SetupBody::Hello };
    let hello = hello.encode();
    assert_eq!(hello.len(), SETUP_LEN_MAX);
    let GateAnswer::Reply(reply) = exchange.gate.answer(at(0), client(1), &hello) else {
        panic!("no challenge")
    };
    assert!(reply.len() < hello.len());
    for len in 0..hello.len() {
        let refused = SetupRefusal { reason: RefusalReason::Malformed, reply: None };
        assert_eq!(exchange.gate.answer(at(0), client(1), &hello[..len]), GateAnswer::Refuse(refused));
    }
}

#[test]
fn a_token_from_another_address_or_with_another_nonce_is_forged() {
    let mut exchange = Exchange::new();
    let cookie = exchange.say_hello(at(0), client(1));
    let token = exchange.token(cookie);
    assert_eq!(exchange.refusal(at(1), client(2), &token), RefusalReason::ForgedCookie);
    let other = SetupMessage { nonce: [6; NONCE_LEN], ..token };
    assert_eq!(exchange.refusal(at(1), client(1), &other), RefusalReason::ForgedCookie);
}

#[test]
fn a_cookie_of_another_relay_or_with_another_time_is_forged() {
    let mut exchange = Exchange::new();
    let mut cookie = exchange.say_hello(at(0), client(1));
    let peers = vec![exchange.client_key.fingerprint()];
    let mut restarted = Exchange { gate: gate(key(), peers), client_key: key() };
    let token = token(&exchange.client_key, restarted.gate.fingerprint(), cookie, next());
    assert_eq!(restarted.refusal(at(1), client(1), &token), RefusalReason::ForgedCookie);
    cookie[TIME_LEN - 1] += 1;
    let token = exchange.token(cookie);
    assert_eq!(exchange.refusal(at(1), client(1), &token), RefusalReason::ForgedCookie);
}

#[test]
fn a_token_that_is_replayed_later_is_stale() {
    let mut exchange = Exchange::new();
    let cookie = exchange.say_hello(at(0), client(1));
    let token = exchange.token(cookie);
    assert!(matches!(exchange.gate.answer(at(10_000), client(1), &token.encode()), GateAnswer::Open(_)));
    assert_eq!(exchange.refusal(at(10_001), client(1), &token), RefusalReason::StaleCookie);
}

#[test]
fn a_token_of_an_unknown_key_or_for_another_next_address_is_refused() {
    let mut exchange = Exchange::new();
    let cookie = exchange.say_hello(at(0), client(1));
    let relay = exchange.gate.fingerprint();
    let stranger = token(&key(), relay, cookie, next());
    assert_eq!(exchange.refusal(at(1), client(1), &stranger), RefusalReason::UnknownPeer);
    let elsewhere = token(&exchange.client_key, relay, cookie, client(25));
    assert_eq!(exchange.refusal(at(1), client(1), &elsewhere), RefusalReason::NextNotAllowed);
}

#[test]
fn a_token_whose_signature_or_signed_content_was_changed_is_refused() {
    let mut exchange = Exchange::new();
    let cookie = exchange.say_hello(at(0), client(1));
    let valid = exchange.token(cookie).encode();
    for at_byte in valid.len() - SIGNATURE_LEN..valid.len() {
        let mut forged = valid.clone();
        forged[at_byte] ^= 1;
        let forged = SetupMessage::decode(&forged).unwrap();
        assert_eq!(exchange.refusal(at(1), client(1), &forged), RefusalReason::WrongSignature);
    }
    // The port of the next address.
    let mut forged = valid;
    let port = forged.len() - SIGNATURE_LEN - KEY_LEN - 1;
    forged[port] ^= 1;
    let forged = SetupMessage::decode(&forged).unwrap();
    assert_eq!(exchange.refusal(at(1), client(1), &forged), RefusalReason::WrongSignature);
}

#[test]
fn checks_of_signatures_are_limited_per_second() {
    let mut exchange = Exchange::new();
    let cookie = exchange.say_hello(at(0), client(1));
    let mut token = exchange.token(cookie);
    let valid = token.clone();
    let SetupBody::Token { signature, .. } = &mut token.body else { panic!() };
    signature[0] ^= 1;
    for _ in 0..SIGNATURES_PER_SECOND_MAX {
        assert_eq!(exchange.refusal(at(500), client(1), &token), RefusalReason::WrongSignature);
    }
    assert_eq!(exchange.refusal(at(999), client(1), &valid), RefusalReason::Busy);
    assert!(matches!(exchange.gate.answer(at(1_000), client(1), &valid.encode()), GateAnswer::Open(_)));
}

#[test]
fn a_hello_for_another_relay_gets_the_fingerprint_of_this_one() {
    let mut exchange = Exchange::new();
    let other = Fingerprint::from_bytes([1; 32]);
    let hello = SetupMessage { relay: other, nonce: NONCE, body: SetupBody::Hello };
    let answer = exchange.gate.answer(at(0), client(1), &hello.encode());
    let GateAnswer::Refuse(SetupRefusal { reason: RefusalReason::OtherRelay, reply: Some(reply) }) = answer
    else {
        panic!("{answer:?}");
    };
    let by = exchange.gate.fingerprint();
    let body = SetupBody::Refused { reason: RefusalReason::OtherRelay, by };
    assert_eq!(SetupMessage::decode(&reply), Ok(SetupMessage { relay: other, nonce: NONCE, body }));
    // An answer of a relay gets no answer.
    let answer = exchange.gate.answer(at(0), client(1), &reply);
    assert!(matches!(answer, GateAnswer::Refuse(SetupRefusal { reply: None, .. })), "{answer:?}");
}

fn gate(relay: SetupKey, peers: Vec<Fingerprint>) -> RelayGate {
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &relay.public());
    RelayGate::new(relay, secret, peers, vec![client(1), next()])
}

fn token(key: &SetupKey, relay: Fingerprint, cookie: [u8; COOKIE_LEN], next: SocketAddr) -> SetupMessage {
    let transcript = Transcript { relay, client: key.fingerprint(), nonce: NONCE, cookie, next };
    let signature = key.sign(SignaturePurpose::Token, &transcript);
    SetupMessage {
        relay,
        nonce: NONCE,
        body: SetupBody::Token { cookie, next, key: key.public(), signature },
    }
}

fn at(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], port))
}

fn next() -> SocketAddr {
    SocketAddr::from(([198, 51, 100, 7], 7443))
}
