//! Any bytes may arrive at a relay: what decodes as a set-up message encodes to the same bytes, and nothing panics.

use evenkeel_link::relay::{SETUP_LEN_MAX, SetupMessage};

/// Checks one input.
pub(crate) fn check(input: &[u8]) {
    if let Ok(message) = SetupMessage::decode(input) {
        assert!(input.len() <= SETUP_LEN_MAX, "{message:?}");
        assert_eq!(message.encode(), input, "{message:?}");
        for len in 0..input.len() {
            assert!(SetupMessage::decode(&input[..len]).is_err(), "cut at {len}: {message:?}");
        }
    }
}
