//! Inputs that fuzzing found, or that show each kind of frame, message and error.

use std::fs;
use std::net::SocketAddr;

use evenkeel_link::identity::Fingerprint;
use evenkeel_link::relay::{MessageError, RefusalReason, SetupBody, SetupMessage};
use proptest::array::uniform;
use proptest::prelude::*;

use crate::checks::{link_frames, relay_setup};

/// Checks every file of a corpus; returns their number.
fn check_corpus(name: &str, check: fn(&[u8])) -> usize {
    let corpus = format!("{}/tests/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let files = fs::read_dir(corpus).unwrap().map(|file| file.unwrap().path());
    files.map(|file| check(&fs::read(file).unwrap())).count()
}

#[test]
fn every_input_of_the_corpus_passes_the_check() {
    let count = check_corpus("link_frames", link_frames::check);
    assert!(count >= 10, "{count} inputs");
}

#[test]
fn every_set_up_message_of_the_corpus_passes_the_check() {
    let count = check_corpus("relay_setup", relay_setup::check);
    assert!(count >= 10, "{count} inputs");
}

proptest! {
    #[test]
    fn random_bytes_pass_the_check(input in proptest::collection::vec(any::<u8>(), 0..300)) {
        link_frames::check(&input);
        relay_setup::check(&input);
    }

    /// Small numbers are more often valid types, lengths and flows.
    #[test]
    fn small_bytes_pass_the_check(input in proptest::collection::vec(0_u8..20, 0..300)) {
        link_frames::check(&input);
    }

    #[test]
    fn a_set_up_message_is_read_as_it_was_written(message in setup_message()) {
        let bytes = message.encode();
        prop_assert_eq!(SetupMessage::decode(&bytes), Ok(message));
        relay_setup::check(&bytes);
    }

    #[test]
    fn a_set_up_message_with_a_changed_byte_is_another_message_or_none(
        message in setup_message(), at: prop::sample::Index, change in 1_u8..,
    ) {
        let mut bytes = message.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert_ne!(SetupMessage::decode(&bytes), Ok(message));
        relay_setup::check(&bytes);
    }

    #[test]
    fn a_set_up_message_with_further_bytes_is_malformed(message in setup_message(), further in 1_usize..20) {
        let mut bytes = message.encode();
        bytes.resize(bytes.len() + further, 0);
        prop_assert_eq!(SetupMessage::decode(&bytes), Err(MessageError::Length));
    }
}

fn setup_message() -> impl Strategy<Value = SetupMessage> {
    let address = any::<(std::net::IpAddr, u16)>().prop_filter_map("mapped", |(ip, port)| {
        Some(SocketAddr::new(ip, port)).filter(|_| ip.to_canonical() == ip)
    });
    let token = (uniform(any::<u8>()), address, any::<[u8; 32]>(), uniform(any::<u8>()));
    let reason = prop::sample::select(&RefusalReason::ALL);
    let body = prop_oneof![
        Just(SetupBody::Hello),
        uniform(any::<u8>()).prop_map(|cookie| SetupBody::Challenge { cookie }),
        token.prop_map(|(cookie, next, key, signature)| SetupBody::Token { cookie, next, key, signature }),
        (any::<[u8; 32]>(), uniform(any::<u8>()))
            .prop_map(|(key, signature)| SetupBody::Accepted { key, signature }),
        (reason, any::<[u8; 32]>())
            .prop_map(|(reason, by)| { SetupBody::Refused { reason, by: Fingerprint::from_bytes(by) } }),
    ];
    (any::<[u8; 32]>(), any::<[u8; 16]>(), body).prop_map(|(relay, nonce, body)| SetupMessage {
        relay: Fingerprint::from_bytes(relay),
        nonce,
        body,
    })
}
