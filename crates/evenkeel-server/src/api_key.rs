//! API keys: made at random, kept as hashes, found in a request's headers.
//!
//! Bound: a key is 256 random bits, so a plain SHA-256 of it is as hard to invert as to guess; a slow password hash
//! would protect keys that people choose, and cost a millisecond per request. Hashes are compared in constant
//! time.

use core::fmt;
use core::str::FromStr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use crate::api_error::ApiError;

const KEY_PREFIX: &str = "ek-";
const HASH_PREFIX: &str = "sha256:";
/// No key of ours is longer; what is longer is not hashed.
const KEY_LEN_MAX: usize = 256;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const API_KEY: HeaderName = HeaderName::from_static("api-key");

/// Makes a new key; it is shown once, and only its hash is kept.
pub fn make_key() -> Result<String, ring::error::Unspecified> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(format!("{KEY_PREFIX}{}", hex(&bytes)))
}

/// The SHA-256 of a key, written `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a key.
    pub fn of(key: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
        Self(bytes)
    }

    /// Compares in a time that does not depend on where they differ.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// The first bits, to look a hash up by.
    ///
    /// How long a look-up takes may tell these bits of a hash; nobody can choose a key by its hash.
    pub(crate) fn lookup_prefix(&self) -> u64 {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        u64::from_be_bytes([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{HASH_PREFIX}{}", hex(&self.0))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyHash(..)")
    }
}

impl FromStr for KeyHash {
    type Err = KeyHashError;

    fn from_str(text: &str) -> Result<Self, KeyHashError> {
        let digits = text.strip_prefix(HASH_PREFIX).ok_or(KeyHashError)?.as_bytes();
        let mut bytes = [0; 32];
        if digits.len() != 2 * bytes.len() {
            return Err(KeyHashError);
        }
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(bytes))
    }
}

fn nibble(digit: u8) -> Result<u8, KeyHashError> {
    // A hexadecimal digit is below 16.
    char::from(digit).to_digit(16).map(|value| value as u8).ok_or(KeyHashError)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A text that is no key hash; it is not repeated, because it may be a key put in the wrong place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyHashError;

impl fmt::Display for KeyHashError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key hash is `sha256:` and 64 hexadecimal digits")
    }
}

impl core::error::Error for KeyHashError {}

/// Finds the key in `Authorization: Bearer`, `x-api-key` or `api-key`.
///
/// Two that differ are refused: which of them counts would be a guess.
pub fn credential(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut found = None;
    for name in [&AUTHORIZATION, &X_API_KEY, &API_KEY] {
        for value in headers.get_all(name) {
            let value = value.to_str().map_err(|_| ApiError::Unauthenticated)?.trim();
            let key = if name == AUTHORIZATION { bearer(value)? } else { value };
            if found.is_some_and(|other| other != key) {
                return Err(ApiError::Unauthenticated);
            }
            found = Some(key);
        }
    }
    found.filter(|key| (1..=KEY_LEN_MAX).contains(&key.len())).ok_or(ApiError::Unauthenticated)
}

fn bearer(value: &str) -> Result<&str, ApiError> {
    let (scheme, key) = value.split_once(' ').ok_or(ApiError::Unauthenticated)?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return Err(ApiError::Unauthenticated);
    }
    Ok(key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn found(headers: &[(&'static str, &str)]) -> Option<String> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
        }
        credential(&map).ok().map(str::to_owned)
    }

    #[test]
    fn a_key_is_found_in_each_of_the_three_headers() {
        for header in [
            ("authorization", "Bearer ek-1"),
            ("authorization", "bearer  ek-1 "),
            ("x-api-key", "ek-1"),
            ("api-key", "ek-1"),
        ] {
            assert_eq!(found(&[header]).as_deref(), Some("ek-1"), "{header:?}");
        }
        assert_eq!(
            found(&[("x-api-key", "ek-1"), ("authorization", "Bearer ek-1")]).as_deref(),
            Some("ek-1")
        );
    }

    #[test]
    fn no_key_other_schemes_and_two_keys_are_no_credential() {
        let long = "k".repeat(KEY_LEN_MAX + 1);
        assert_eq!(found(&[]), None);
        for value in ["", "Bearer", "Bearer ", "Basic ek-1", "ek-1"] {
            assert_eq!(found(&[("authorization", value)]), None, "{value:?}");
        }
        assert_eq!(found(&[("x-api-key", "")]), None);
        assert_eq!(found(&[("x-api-key", &long)]), None);
        assert_eq!(found(&[("x-api-key", "ek-1"), ("api-key", "ek-2")]), None);
    }

    #[test]
    fn a_hash_is_read_as_it_is_written() {
        // The published test vector for "abc".
        let text = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(KeyHash::of("abc").to_string(), text);
        assert!(text.parse::<KeyHash>().unwrap().matches(&KeyHash::of("abc")));
        assert!(!text.parse::<KeyHash>().unwrap().matches(&KeyHash::of("abd")));
        for bad in ["", "sha256:", &text[7..], &text[..70], &text.replace('b', "g"), &format!("{text}0")] {
            assert_eq!(bad.parse::<KeyHash>().unwrap_err(), KeyHashError);
        }
    }

    #[test]
    fn keys_are_long_and_differ() {
        let one = make_key().unwrap();
        let other = make_key().unwrap();
        assert_eq!(one.len(), 3 + 64);
        assert_ne!(one, other);
    }
}
