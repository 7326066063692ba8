//! Base64 with padding, the encoding of binary values in JSON.

use ::base64::Engine as _;
use ::base64::alphabet::STANDARD;
use ::base64::engine::general_purpose::{GeneralPurpose, PAD};

/// Standard alphabet with padding. Accepts non-zero bits after the last byte, which a strict decoder rejects.
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, PAD.with_decode_allow_trailing_bits(true));

pub(crate) fn encode(bytes: &[u8]) -> String {
    BASE64.encode(bytes)
}

/// Decodes text; `None` if it is not base64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    BASE64.decode(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn encoding_and_decoding_match_the_vectors_of_rfc_4648() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn text_that_is_not_base64_is_rejected_and_trailing_bits_are_ignored() {
        for bad in ["Z", "Zg", "Zg=", "====", "Zm9v====", "Zm-v", "Zm9v\n"] {
            assert_eq!(decode(bad), None, "{bad:?} was accepted");
        }
        assert_eq!(decode("Zh==").as_deref(), Some(b"f".as_slice()));
    }

    proptest! {
        #[test]
        fn decoding_reverses_encoding(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
