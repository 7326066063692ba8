//! Seeded random numbers by index: the same seed and index always give the same number.

/// Returns the number at an index of the sequence (SplitMix64).
pub(super) fn draw(seed: u64, index: u64) -> u64 {
    let mut mixed = seed.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// Returns a fraction, at least 0 and below 1.
pub(super) fn draw_fraction(seed: u64, index: u64) -> f64 {
    // 53 bits, the precision of an f64.
    (draw(seed, index) >> 11) as f64 / (1_u64 << 53) as f64
}

/// Hashes a text to a seed (FNV-1a).
pub(super) fn seed_of(text: &str) -> u64 {
    text.bytes()
        .fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_are_below_one_and_differ_by_seed_and_index() {
        assert!((0..1_000).all(|index| (0.0..1.0).contains(&draw_fraction(1, index))));
        assert_ne!(draw(1, 0), draw(2, 0));
        assert_ne!(draw(1, 0), draw(1, 1));
        assert_ne!(seed_of("a"), seed_of("b"));
    }
}
