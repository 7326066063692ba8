//! Generation speed under continuous batching: each sequence slows down as the batch grows, while the throughput of the
//! batch rises.
//!
//! Guarantees: a token in a batch of n sequences takes `1 + slowdown × (n - 1)` times as long as in a batch of one.

use super::options::SimOptions;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pace {
    first_token: Duration,
    prefill_per_second: f64,
    single_step: Duration,
    batch_slowdown: f64,
}

impl Pace {
    pub(super) fn new(options: &SimOptions) -> Self {
        Self {
            first_token: options.first_token,
            prefill_per_second: f64::from(options.prefill_per_second),
            single_step: Duration::from_secs(1) / options.tokens_per_second,
            batch_slowdown: options.batch_slowdown,
        }
    }

    /// Returns the time from getting a slot to the first token.
    pub(super) fn first_token(&self, prompt_tokens: u32) -> Duration {
        self.first_token + Duration::from_secs_f64(f64::from(prompt_tokens) / self.prefill_per_second)
    }

    /// Returns the time per token in a batch of this size.
    pub(super) fn step(&self, batch: u32) -> Duration {
        self.single_step.mul_f64(1.0 + self.batch_slowdown * f64::from(batch.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prompt_has_a_later_first_token() {
        assert_eq!(pace().first_token(0), Duration::from_millis(50));
        assert_eq!(pace().first_token(1_000), Duration::from_millis(150));
    }

    #[test]
    fn a_larger_batch_slows_each_sequence_and_raises_throughput() {
        assert_eq!(pace().step(1), Duration::from_millis(20));
        assert_eq!(pace().step(11), Duration::from_millis(30));
        let throughput = |batch| f64::from(batch) / pace().step(batch).as_secs_f64();
        assert!((1..64).all(|batch| throughput(batch) < throughput(batch + 1)));
    }

    fn pace() -> Pace {
        Pace::new(&SimOptions::default())
    }
}
