//! Order of memory accesses.

/// Access order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessOrder {
    /// One after the other, which the processor prefetches.
    Sequential,
    /// The same every time, but without a pattern to prefetch.
    Shuffled,
}

impl AccessOrder {
    /// Returns `0..count` in this order.
    pub(super) fn indices(self, count: u32) -> Vec<u32> {
        let mut indices: Vec<u32> = (0..count).collect();
        if self == Self::Shuffled {
            let mut state = 0x5EED;
            for index in (1..indices.len()).rev() {
                indices.swap(index, (next(&mut state) % (index as u64 + 1)) as usize);
            }
        }
        indices
    }
}

/// SplitMix64.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shuffled_indices_are_a_permutation() {
        let mut shuffled = AccessOrder::Shuffled.indices(1_000);
        assert_eq!(shuffled, AccessOrder::Shuffled.indices(1_000));
        let in_a_row = shuffled.windows(2).filter(|pair| pair[0] + 1 == pair[1]).count();
        assert!(in_a_row < 10, "{in_a_row}");
        shuffled.sort_unstable();
        assert_eq!(shuffled, AccessOrder::Sequential.indices(1_000));
    }
}
