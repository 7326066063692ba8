//! Tests of the worker-count decisions, without an actor system.
#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;

const CALM: Load = Load { ready_depth: 0, wait: None };
const DEEP: Load = Load { ready_depth: 1_000, wait: None };
const SLOW: Load = Load { ready_depth: 0, wait: Some(Duration::from_millis(5)) };

/// A [`LoadSample`] without the number of workers.
#[derive(Clone, Copy, Debug)]
struct Load {
    ready_depth: usize,
    wait: Option<Duration>,
}

#[test]
fn two_samples_under_pressure_by_depth_or_by_wait_grow_the_workers_by_half() {
    for pressure in [DEEP, SLOW] {
        let mut harness = Harness::new(options(1, 20));
        assert_eq!(harness.apply(pressure, 12), [1, 2, 2, 3, 3, 4, 4, 6, 6, 9, 9, 13]);
        assert_eq!(
            harness.apply(pressure, 8),
            [13, 19, 19, 20, 20, 20, 20, 20],
            "must not exceed the maximum"
        );
    }
}

#[test]
fn calm_removes_one_worker_at_a_time() {
    let mut harness = Harness::new(options(2, 20));
    harness.workers = nonzero(4);
    assert_eq!(harness.apply(CALM, 12), [4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2, 2]);
    assert_eq!(harness.apply(CALM, 20), [2; 20], "must not fall below the minimum");
}

#[test]
fn between_calm_and_pressure_nothing_changes() {
    let mut harness = Harness::new(options(1, 20));
    harness.workers = nonzero(4);
    let steady = [
        Load { ready_depth: 4, wait: None },
        Load { ready_depth: 16, wait: Some(Duration::from_millis(1)) },
        Load { ready_depth: 0, wait: Some(Duration::from_micros(101)) },
        Load { ready_depth: 4, wait: Some(Duration::ZERO) },
    ];
    for load in steady {
        assert_eq!(harness.apply(load, 100), [4; 100], "{load:?}");
    }
}

#[test]
fn a_sample_at_another_level_resets_the_streak() {
    let mut harness = Harness::new(options(1, 20));
    harness.workers = nonzero(4);
    for _ in 0..100 {
        assert_eq!(harness.apply(CALM, 4), [4; 4]);
        assert_eq!(harness.apply(DEEP, 1), [4]);
    }
}

#[test]
fn a_worker_count_outside_the_limits_is_clamped_at_once() {
    for (workers, expected) in [(1, 3), (9, 8)] {
        let mut harness = Harness::new(options(3, 8));
        harness.workers = nonzero(workers);
        assert_eq!(harness.apply(DEEP, 1), [expected]);
    }
}

#[test]
#[cfg_attr(miri, ignore = "pure arithmetic, slow under Miri")]
fn any_samples_keep_the_worker_count_within_limits_and_grow_it_by_at_most_half_or_one() {
    for seed in 0..200 {
        let mut random = Lcg(seed);
        let low = 1 + random.below(4);
        let span = random.below(30);
        let mut harness = Harness::new(options(low, low + span));
        harness.workers = nonzero(low);
        for _ in 0..500 {
            let before = harness.workers.get();
            let wait = (random.below(3) != 0).then(|| Duration::from_micros(random.below(3_000) as u64));
            let after = harness.apply(Load { ready_depth: random.below(200), wait }, 1)[0];
            assert!((low..=low + span).contains(&after), "seed {seed}: {after}");
            let up = before + (before / 2).max(1);
            assert!((before - 1..=up).contains(&after), "seed {seed}: from {before} to {after}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "pure arithmetic, slow under Miri")]
fn the_worker_count_settles_under_a_steady_load() {
    for needed in [1, 2, 5, 16] {
        let mut harness = Harness::new(options(1, 20));
        let numbers = harness.apply_load_for(needed, 10_000);
        let changes = |numbers: &[usize]| numbers.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes(&numbers) <= 160, "{needed}: {} changes in 10000", changes(&numbers));
        // From time to time the dispatcher removes a worker to find out whether the load still needs it.
        let end = &numbers[5_000..];
        assert!(
            end.iter().all(|workers| (needed.max(2) - 1..=needed).contains(workers)),
            "{needed}: {end:?}"
        );
        let short_samples = end.iter().filter(|workers| **workers < needed).count();
        assert!(
            short_samples * 50 <= end.len(),
            "{needed}: {short_samples} of {} samples with too few",
            end.len()
        );
    }
}

#[test]
#[cfg_attr(miri, ignore = "pure arithmetic, slow under Miri")]
fn workers_are_removed_at_the_usual_pace_when_the_load_drops() {
    let mut harness = Harness::new(options(1, 20));
    harness.apply_load_for(10, 10_000);
    let settled = harness.workers.get();
    let numbers = harness.apply_load_for(1, SHRINK_BACKOFF_MAX as usize * 5 + 5 * settled + 10);
    assert_eq!(numbers.last(), Some(&1), "{numbers:?}");
}

#[test]
fn invalid_options_are_rejected_with_a_reason() {
    let usual = options(1, 4);
    let low = Duration::from_millis(3);
    let high = Duration::from_millis(2);
    for (options, expected) in [
        (AdaptiveOptions { workers_min: nonzero(5), ..usual }, "workers_min is 5, above workers_max 4"),
        (AdaptiveOptions { depth_low: 3, depth_high: 2, ..usual }, "depth_low is 3, above depth_high 2"),
        (AdaptiveOptions { wait_low: low, wait_high: high, ..usual }, "wait_low is 3ms, above wait_high 2ms"),
        (AdaptiveOptions { period: Duration::ZERO, ..usual }, "period is zero"),
    ] {
        assert_eq!(AdaptiveDispatcher::new(options).unwrap_err().to_string(), expected);
    }
}

/// A dispatcher and the worker count that its decisions change.
struct Harness {
    dispatcher: AdaptiveDispatcher,
    workers: NonZeroUsize,
}

impl Harness {
    fn new(options: AdaptiveOptions) -> Self {
        Self { dispatcher: AdaptiveDispatcher::new(options).unwrap(), workers: NonZeroUsize::MIN }
    }

    /// Applies a load `samples` times; returns the number of workers after each.
    fn apply(&mut self, load: Load, samples: usize) -> Vec<usize> {
        let mut step = || {
            let Load { ready_depth, wait } = load;
            let sample = LoadSample { workers: self.workers, ready_depth, wait };
            if let Decision::Change(workers) = self.dispatcher.decide(&sample) {
                assert_ne!(workers, self.workers, "the decision changes nothing");
                self.workers = workers;
            }
            self.workers.get()
        };
        (0..samples).map(|_| step()).collect()
    }

    /// Applies a load that `needed` workers can just handle: high while there are fewer workers, else low.
    fn apply_load_for(&mut self, needed: usize, samples: usize) -> Vec<usize> {
        let load = |workers: NonZeroUsize| if workers.get() < needed { DEEP } else { CALM };
        (0..samples).map(|_| self.apply(load(self.workers), 1)[0]).collect()
    }
}

/// Two samples to grow, five to shrink.
fn options(workers_min: usize, workers_max: usize) -> AdaptiveOptions {
    AdaptiveOptions {
        workers_min: nonzero(workers_min),
        shrink_after: NonZeroU32::new(5).unwrap(),
        ..AdaptiveOptions::up_to(nonzero(workers_max))
    }
}

fn nonzero(workers: usize) -> NonZeroUsize {
    NonZeroUsize::new(workers).unwrap()
}

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }
}
