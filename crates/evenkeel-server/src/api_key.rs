//! API keys for authentication: generated at random, stored as hashes, read from request headers.
//!
//! Guarantees: a key has 256 random bits, so inverting its SHA-256 is as hard as guessing the key. A slow password hash
//! would only help against keys that people choose, and costs a millisecond per request. Hashes are compared in
//! constant time.

use core::fmt;
use core::str::FromStr;

use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderName};
use ring::digest::{SHA256, digest};
use ring::rand::{SecureRandom, SystemRandom};
use subtle::ConstantTimeEq;

use crate::api_error::ApiError;
use crate::hex::hex;

pub(crate) const KEY_PREFIX: &str = "ek-";
const HASH_PREFIX: &str = "sha256:";
/// Longer credentials are rejected without hashing them.
const KEY_LEN_MAX: usize = 256;

const X_API_KEY: HeaderName = HeaderName::from_static("x-api-key");
const API_KEY: HeaderName = HeaderName::from_static("api-key");
const KEY_HEADERS: [HeaderName; 3] = [AUTHORIZATION, X_API_KEY, API_KEY];

/// Generates a new key. Only its hash is stored.
pub fn make_key() -> Result<String, ring::error::Unspecified> {
    let mut bytes = [0; 32];
    SystemRandom::new().fill(&mut bytes)?;
    Ok(format!("{KEY_PREFIX}{}", hex(&bytes)))
}

/// Reports whether a text has the form of a key that [`make_key`] generates.
pub fn is_generated(text: &str) -> bool {
    let digits = text.strip_prefix(KEY_PREFIX).unwrap_or_default();
    digits.len() == 64 && digits.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// SHA-256 of a key, formatted as `sha256:` followed by 64 hexadecimal digits.
#[derive(Clone, Copy)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    /// Hashes a key.
    pub fn of(key: &str) -> Self {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest(&SHA256, key.as_bytes()).as_ref());
        Self(bytes)
    }

    /// Compares in constant time.
    pub fn matches(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }

    /// Returns the first 8 hexadecimal digits, enough to distinguish keys.
    pub fn short_digits(&self) -> String {
        hex(&self.0[..4])
    }

    /// Returns the first 64 bits, by which hashes are looked up.
    ///
    /// The time of a lookup may reveal these bits, but nobody can construct a key with a given hash.
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

/// Parse error of a key hash. It does not contain the text, which may be a key pasted by mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a key hash must be `sha256:` followed by 64 hexadecimal digits")]
pub struct KeyHashError;

/// Reads the API key from `Authorization: Bearer`, `x-api-key` or `api-key`.
///
/// Two different keys are an error: it is unclear which of them the client means.
pub fn credential(headers: &HeaderMap) -> Result<&str, ApiError> {
    let mut found = None;
    for name in &KEY_HEADERS {
        for value in headers.get_all(name) {
            let value = value.to_str().map_err(|_| ApiError::Unauthenticated)?.trim();
            let key = if *name == AUTHORIZATION { bearer(value)? } else { value };
            if found.is_some_and(|other| other != key) {
                return Err(ApiError::Unauthenticated);
            }
            found = Some(key);
        }
    }
    check_length(found.ok_or(ApiError::Unauthenticated)?)
}

/// Reports whether a request has a header for an API key, valid or not.
pub(crate) fn has_credential(headers: &HeaderMap) -> bool {
    KEY_HEADERS.iter().any(|name| headers.contains_key(name))
}

/// Rejects an empty key, and one that is too long to hash.
pub(crate) fn check_length(key: &str) -> Result<&str, ApiError> {
    if (1..=KEY_LEN_MAX).contains(&key.len()) { Ok(key) } else { Err(ApiError::Unauthenticated) }
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
    fn a_key_is_read_from_each_of_the_three_headers() {
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
    fn a_missing_key_another_scheme_and_two_keys_are_rejected() {
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
    fn parsing_a_hash_reverses_formatting_it() {
        // Published test vector for "abc".
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
        assert!(is_generated(&one) && !is_generated(&one[1..]) && !is_generated(&one[..66]));
        assert_ne!(one, other);
    }
}
