//! Times to first token of an engine without a queue, by prompt length and cache state.
//!
//! Limits: 40 averages, whatever the prompts; recording and reading are O(1).

use crate::estimate::{Ewma, Gains};
use crate::time::Duration;

/// Buckets of prompt length, one per power of two; the last one has no upper end.
const BUCKETS: usize = 20;
/// Gains of an average: a probe brings few samples, so each of them has to count.
const GAINS: Gains = Gains::BASELINE;
/// Fraction of the baseline below which even a sample of a loaded engine lowers it: a queue only adds time.
const FASTER: f64 = 0.8;
/// Multiple of the baseline beyond which a single sample counts no further.
const OUTLIER: f64 = 3.0;

/// Prompt of a request, as far as it determines the time to first token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PromptClass(u8);

/// State of the engine's prefix cache for a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PromptCache {
    /// An earlier request of the same conversation went to this engine.
    Warm,
    /// The engine has to process the whole prompt.
    Cold,
}

impl PromptClass {
    /// Returns the class of a prompt of `tokens` tokens.
    pub fn new(tokens: u64, cache: PromptCache) -> Self {
        let bucket = (tokens.max(1).ilog2() as usize).min(BUCKETS - 1);
        Self(match cache {
            PromptCache::Cold => bucket as u8,
            PromptCache::Warm => (BUCKETS + bucket) as u8,
        })
    }

    fn index(self) -> usize {
        usize::from(self.0).min(2 * BUCKETS - 1)
    }
}

/// One moving average per prompt class.
#[derive(Clone, Debug)]
pub(super) struct Baselines {
    by_class: [Ewma; 2 * BUCKETS],
    /// Classes whose next idle sample replaces the average, as a bit set.
    doubted: u64,
    /// Seconds per unit of output.
    pace: Ewma,
}

impl Baselines {
    pub(super) const fn new() -> Self {
        Self { by_class: [Ewma::new(GAINS); 2 * BUCKETS], doubted: 0, pace: Ewma::new(GAINS) }
    }

    /// Returns the baseline of a class in milliseconds; `None` before its first sample.
    pub(super) fn millis(&self, class: PromptClass) -> Option<f64> {
        self.by_class[class.index()].mean()
    }

    /// Returns the baseline of a class, or of the nearest class that takes longer: a longer prompt, or one not cached.
    pub(super) fn millis_at_most(&self, class: PromptClass) -> Option<f64> {
        let index = class.index();
        let bucket = index % BUCKETS;
        let same = if index < BUCKETS { &self.by_class[bucket..BUCKETS] } else { &self.by_class[index..] };
        let cold = &self.by_class[bucket..BUCKETS];
        same.iter().chain(cold).find_map(Ewma::mean)
    }

    /// Records a sample of an engine that had no queue.
    pub(super) fn record_idle(&mut self, class: PromptClass, ttft: Duration) {
        let index = class.index();
        let known = self.by_class[index].mean();
        if self.doubted & 1 << index != 0 {
            self.doubted &= !(1 << index);
            self.by_class[index] = Ewma::new(GAINS);
            return self.by_class[index].record_millis(ttft);
        }
        let millis = ttft.as_secs_f64() * 1_000.0;
        self.by_class[index].record_valid(known.map_or(millis, |known| millis.min(OUTLIER * known)));
    }

    /// Records a sample of an engine that may have a queue: it can only lower the baseline.
    pub(super) fn record_loaded(&mut self, class: PromptClass, ttft: Duration) {
        let millis = ttft.as_secs_f64() * 1_000.0;
        if self.millis(class).is_some_and(|known| millis < FASTER * known) {
            self.by_class[class.index()].record_millis(ttft);
        }
    }

    /// Returns the seconds per unit of output of an engine that is not loaded.
    pub(super) fn pace(&self) -> Option<f64> {
        self.pace.mean()
    }

    /// Records the seconds per unit of output of an engine that is not loaded.
    pub(super) fn record_idle_pace(&mut self, pace: f64) {
        let known = self.pace.mean();
        self.pace.record_valid(known.map_or(pace, |known| pace.min(OUTLIER * known)));
    }

    /// Lets the next idle sample of each class replace its baseline.
    pub(super) fn doubt(&mut self) {
        self.doubted = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_of_different_lengths_or_cache_states_have_baselines_of_their_own() {
        let mut baselines = Baselines::new();
        let short = PromptClass::new(100, PromptCache::Cold);
        let long = PromptClass::new(8_000, PromptCache::Cold);
        let cached = PromptClass::new(8_000, PromptCache::Warm);
        for (class, millis) in [(short, 60), (long, 850), (cached, 90)] {
            baselines.record_idle(class, Duration::from_millis(millis));
        }
        assert_eq!(
            [short, long, cached].map(|class| baselines.millis(class)),
            [Some(60.0), Some(850.0), Some(90.0)]
        );
        assert_eq!(PromptClass::new(127, PromptCache::Cold), short, "the same power of two");
        assert_eq!(baselines.millis(PromptClass::new(128, PromptCache::Cold)), None);
    }

    #[test]
    fn every_prompt_length_has_a_class() {
        let mut baselines = Baselines::new();
        for tokens in [0, 1, u64::MAX] {
            let class = PromptClass::new(tokens, PromptCache::Warm);
            baselines.record_idle(class, Duration::from_millis(5));
            assert_eq!(baselines.millis(class), Some(5.0));
        }
    }

    #[test]
    fn samples_of_a_loaded_engine_lower_a_baseline_but_never_raise_it() {
        let mut baselines = Baselines::new();
        let class = PromptClass::default();
        baselines.record_loaded(class, Duration::from_millis(10));
        assert_eq!(baselines.millis(class), None);
        baselines.record_idle(class, Duration::from_millis(100));
        for millis in [90, 110, 5_000] {
            baselines.record_loaded(class, Duration::from_millis(millis));
        }
        assert_eq!(baselines.millis(class), Some(100.0));
        (0..40).for_each(|_| baselines.record_loaded(class, Duration::from_millis(50)));
        assert!(baselines.millis(class) < Some(63.0));
    }

    #[test]
    fn a_doubted_baseline_is_replaced_by_the_next_idle_sample() {
        let mut baselines = Baselines::new();
        let class = PromptClass::default();
        baselines.record_idle(class, Duration::from_millis(100));
        baselines.record_idle(class, Duration::from_millis(10_000));
        assert_eq!(baselines.millis(class), Some(150.0), "an outlier counts as three times the baseline");
        baselines.doubt();
        baselines.record_idle(class, Duration::from_millis(400));
        assert_eq!(baselines.millis(class), Some(400.0));
    }
}
