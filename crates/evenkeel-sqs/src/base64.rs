//! Base 64 with padding, as JSON carries bytes.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Writes bytes as text.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word =
            chunk.iter().fold(0_u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - chunk.len()));
        for digit in 0..4 {
            let shown = ALPHABET[(word >> (18 - 6 * digit)) as usize & 63];
            text.push(if digit <= chunk.len() { char::from(shown) } else { '=' });
        }
    }
    text
}

/// Reads text as bytes; `None` when it is not base 64.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.trim_end_matches('=');
    if !text.len().is_multiple_of(4) || 2 < text.len() - digits.len() || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() * 3 / 4);
    let mut word = 0_u32;
    let mut bits = 0;
    for digit in digits.bytes() {
        word = word << 6 | u32::from(value(digit)?);
        bits += 6;
        if 8 <= bits {
            bits -= 8;
            // The cast keeps exactly the byte meant.
            bytes.push((word >> bits) as u8);
        }
    }
    Some(bytes)
}

const fn value(digit: u8) -> Option<u8> {
    match digit {
        b'A'..=b'Z' => Some(digit - b'A'),
        b'a'..=b'z' => Some(digit - b'a' + 26),
        b'0'..=b'9' => Some(digit - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_vectors_of_rfc_4648_hold() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()));
        }
    }

    #[test]
    fn what_is_not_base_64_is_refused() {
        for bad in ["Z", "Zg", "Zg=", "====", "Zm9v====", "Zm-v", "Zm9v\n"] {
            assert_eq!(decode(bad), None, "{bad:?} was taken");
        }
    }

    proptest! {
        #[test]
        fn bytes_read_back_as_they_were_written(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
