//! A name for each request, in every answer: the client's if it is harmless, otherwise ours.
//!
//! Bound: at most 128 characters out of letters, digits and `-_.:`, so that it can be logged as it is.

use core::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderName, HeaderValue};
use ring::rand::{SecureRandom, SystemRandom};

/// The header that carries it, both ways.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const LEN_MAX: usize = 128;

/// Makes ids that do not repeat within a process and are unlikely to between two.
pub struct RequestIds {
    seed: [u64; 2],
    made: AtomicU64,
}

impl RequestIds {
    /// Starts a sequence at a random place; `Err` when the system has no randomness to give.
    pub fn new() -> Result<Self, ring::error::Unspecified> {
        let mut bytes = [[0; 8]; 2];
        for half in &mut bytes {
            SystemRandom::new().fill(half)?;
        }
        Ok(Self { seed: bytes.map(u64::from_le_bytes), made: AtomicU64::new(0) })
    }

    /// Takes the client's id if it is sane, and makes one otherwise.
    pub fn of(&self, headers: &HeaderMap) -> HeaderValue {
        match headers.get(REQUEST_ID) {
            Some(theirs) if is_sane(theirs.as_bytes()) => theirs.clone(),
            _ => self.make(),
        }
    }

    fn make(&self) -> HeaderValue {
        let step = self.made.fetch_add(1, Ordering::Relaxed);
        // Mixed, so that an id does not tell how many requests there were; one to one, so none repeats.
        let number = u128::from(self.seed[0]) << 64 | u128::from(mix(step.wrapping_add(self.seed[1])));
        let mut text = *b"req-00000000000000000000000000000000";
        for (at, digit) in text.iter_mut().skip(4).enumerate() {
            *digit = b"0123456789abcdef"[(number >> (124 - 4 * at)) as usize & 0xf];
        }
        HeaderValue::from_bytes(&text).unwrap_or(HeaderValue::from_static("req"))
    }
}

fn is_sane(id: &[u8]) -> bool {
    (1..=LEN_MAX).contains(&id.len())
        && id.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:".contains(byte))
}

/// The last step of SplitMix64: one to one on 64 bits.
fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id_for(theirs: &str) -> String {
        let mut headers = HeaderMap::new();
        headers.insert(REQUEST_ID, HeaderValue::from_str(theirs).unwrap());
        RequestIds::new().unwrap().of(&headers).to_str().unwrap().to_owned()
    }

    #[test]
    fn a_sane_id_of_the_client_is_kept() {
        let longest = "x".repeat(LEN_MAX);
        for id in ["a", "trace-1_2.3:4", &longest] {
            assert_eq!(id_for(id), id);
        }
    }

    #[test]
    fn any_other_id_is_replaced() {
        for id in ["", "two words", "<script>", "a\tb", &"x".repeat(LEN_MAX + 1)] {
            assert!(id_for(id).starts_with("req-"), "{id:?} was kept");
        }
    }

    #[test]
    fn ids_differ() {
        let ids = RequestIds::new().unwrap();
        assert_ne!(ids.make(), ids.make());
    }
}
