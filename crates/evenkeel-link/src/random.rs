//! Random numbers of the system.

use ring::rand::{SecureRandom, SystemRandom};

/// Returns a random number, or 0 if the system has none, which only affects how first picks are spread.
pub(crate) fn draw() -> u64 {
    let mut bytes = [0; 8];
    match SystemRandom::new().fill(&mut bytes) {
        Ok(()) => u64::from_be_bytes(bytes),
        Err(_) => 0,
    }
}
