//! Latency model of continuous batching: each sequence slows down as the batch grows, while total throughput rises (for
//! a `batch_slowdown` below 1).
//!
//! Guarantees: a token in a batch of n sequences takes `1 + batch_slowdown × (n - 1)` times as long as in a batch of
//! one.

use super::options::SimOptions;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct LatencyModel {
    /// Time to first token of an empty prompt.
    base_ttft: Duration,
    prefill_tokens_per_second: f64,
    /// Time per token in a batch of one.
    single_step_time: Duration,
    batch_slowdown: f64,
}

impl LatencyModel {
    pub(super) fn new(options: &SimOptions) -> Self {
        Self {
            base_ttft: options.first_token,
            prefill_tokens_per_second: f64::from(options.prefill_per_second),
            single_step_time: Duration::from_secs(1) / options.tokens_per_second,
            batch_slowdown: options.batch_slowdown,
        }
    }

    /// Returns the time from getting a slot to the first token.
    pub(super) fn time_to_first_token(&self, prompt_tokens: u32) -> Duration {
        self.base_ttft + Duration::from_secs_f64(f64::from(prompt_tokens) / self.prefill_tokens_per_second)
    }

    /// Returns the time per token in a batch of this size.
    pub(super) fn step_time(&self, batch_size: u32) -> Duration {
        self.single_step_time.mul_f64(1.0 + self.batch_slowdown * f64::from(batch_size.saturating_sub(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_prompt_has_a_later_first_token() {
        assert_eq!(model().time_to_first_token(0), Duration::from_millis(50));
        assert_eq!(model().time_to_first_token(1_000), Duration::from_millis(150));
    }

    #[test]
    fn a_larger_batch_slows_each_sequence_and_raises_throughput() {
        assert_eq!(model().step_time(1), Duration::from_millis(20));
        assert_eq!(model().step_time(11), Duration::from_millis(30));
        let throughput = |batch| f64::from(batch) / model().step_time(batch).as_secs_f64();
        assert!((1..64).all(|batch| throughput(batch) < throughput(batch + 1)));
    }

    fn model() -> LatencyModel {
        LatencyModel::new(&SimOptions::default())
    }
}
