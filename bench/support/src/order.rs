//! Repeatable random order.

/// The SplitMix64 generator: the same seed gives the same order.
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Shuffles `items` (Fisher-Yates); the modulo bias is below 2^-32.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.next_number() % (last as u64 + 1);
            items.swap(last, other as usize);
        }
    }

    /// Returns the next number.
    pub fn next_number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_order_and_another_seed_gives_another() {
        assert_eq!(order(7), order(7));
        assert_ne!(order(7), order(8));
    }

    #[test]
    fn a_shuffle_loses_nothing_and_every_item_comes_first_sometimes() {
        let mut random = SplitMix64::new(1);
        let mut first = [0; 5];
        for _ in 0..500 {
            let mut items: Vec<_> = (0..5).collect();
            random.shuffle(&mut items);
            first[items[0]] += 1;
            items.sort_unstable();
            assert_eq!(items, [0, 1, 2, 3, 4]);
        }
        assert!(first.iter().all(|times| (60..140).contains(times)), "{first:?}");
    }

    fn order(seed: u64) -> Vec<u32> {
        let mut items: Vec<_> = (0..20).collect();
        SplitMix64::new(seed).shuffle(&mut items);
        items
    }
}
