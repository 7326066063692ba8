//! Request ids, returned in every response: the client's own if it is safe to log, otherwise a generated one.
//!
//! Guarantees: an id has at most 128 characters, all ASCII letters, digits or `-_.:`, so that it needs no escaping in
//! logs.

use core::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use ring::rand::{SecureRandom, SystemRandom};

/// Header with the request id, in requests and responses.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Maximum length of a request id.
pub const LEN_MAX: usize = 128;

/// Generator of ids that are unique within a process and, with very high probability, across processes.
pub struct RequestIds {
    seed: [u64; 2],
    generated: AtomicU64,
}

impl RequestIds {
    /// Creates a generator with a random seed; fails if the system's random number generator fails.
    pub fn new() -> Result<Self, ring::error::Unspecified> {
        let mut bytes = [[0; 8]; 2];
        for half in &mut bytes {
            SystemRandom::new().fill(half)?;
        }
        Ok(Self { seed: bytes.map(u64::from_le_bytes), generated: AtomicU64::new(0) })
    }

    /// Returns the client's id if it is valid, or generates one.
    pub fn for_request(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(REQUEST_ID) {
            Some(id) if is_valid(id.as_bytes()) => id.clone(),
            _ => self.generate(),
        }
    }

    fn generate(&self) -> HeaderValue {
        let sequence = self.generated.fetch_add(1, Ordering::Relaxed);
        // The mix obscures the number of requests but can be inverted; it is a bijection, so no id repeats.
        let number = u128::from(self.seed[0]) << 64 | u128::from(mix(sequence.wrapping_add(self.seed[1])));
        let mut text = *b"req-00000000000000000000000000000000";
        for (index, digit) in text.iter_mut().skip(4).enumerate() {
            *digit = b"0123456789abcdef"[(number >> (124 - 4 * index)) as usize & 0xf];
        }
        // Cannot fail: the text is ASCII.
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req"))
    }
}

/// Reports whether a request id may be used and logged as it is.
pub fn is_valid(id: &[u8]) -> bool {
    (1..=LEN_MAX).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte))
}

/// The finalizer of SplitMix64, a bijection on 64 bits.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(client_id: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_str(client_id).unwrap());
        RequestIds::new().unwrap().for_request(&headers).to_str().unwrap().to_owned()
    }

    #[test]
    fn a_valid_id_of_the_client_is_used() {
        let longest = "x".repeat(LEN_MAX);
        for id in ["a", "trace-1_2.3:4", &longest] {
            assert_eq!(id_for(id), id);
        }
    }

    #[test]
    fn any_other_id_is_replaced() {
        for id in ["", "two words", "<script>", "a\tb", &"x".repeat(LEN_MAX + 1)] {
            assert!(id_for(id).starts_with("req-"), "{id:?} was used");
        }
    }

    #[test]
    fn ids_differ() {
        let ids = RequestIds::new().unwrap();
        assert_ne!(ids.generate(), ids.generate());
    }
}
