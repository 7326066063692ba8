//! Seeded random numbers.

use evenkeel_policy::time::Duration;

/// A SplitMix64 generator: the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number in `0.0..1.0`.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number in `0..end`, or 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(end)) >> 64) as u64
    }

    /// Returns the time to the next arrival of a Poisson process with the given mean interval.
    pub fn exponential(&mut self, mean: Duration) -> Duration {
        // Not `f64::ln`, whose result may differ between machines.
        mean.mul_f64(-libm::log(1.0 - self.unit()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_another_seed_gives_others() {
        let draw = |seed| {
            let mut rng = Rng::new(seed);
            [rng.next_u64(), rng.next_u64(), rng.below(1_000)]
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn numbers_are_within_their_range_and_intervals_have_the_given_mean() {
        let mut rng = Rng::new(1);
        let mean = Duration::from_millis(10);
        let mut sum = Duration::ZERO;
        for _ in 0..10_000 {
            assert!((0.0..1.0).contains(&rng.unit()));
            assert!(rng.below(3) < 3);
            sum += rng.exponential(mean);
        }
        assert_eq!(rng.below(0), 0);
        let ratio = sum.as_secs_f64() / 100.0;
        assert!((0.95..1.05).contains(&ratio), "the mean is {ratio} times the expected one");
    }
}
