//! The decision alone: readings in, decisions out.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

use alloc::string::ToString;
use alloc::vec::Vec;

use super::*;

const CALM: (usize, Option<Duration>) = (0, None);
const DEEP: (usize, Option<Duration>) = (1_000, None);
const SLOW: (usize, Option<Duration>) = (0, Some(Duration::from_millis(5)));

#[test]
fn pressure_of_either_kind_brings_half_as_many_more_after_two_readings() {
    for pressure in [DEEP, SLOW] {
        let mut desk = Desk::new(options(1, 20));
        assert_eq!(desk.follow(pressure, 12), [1, 2, 2, 3, 3, 4, 4, 6, 6, 9, 9, 13]);
        assert_eq!(
            desk.follow(pressure, 8),
            [13, 19, 19, 20, 20, 20, 20, 20],
            "and no more than there may be"
        );
    }
}

#[test]
fn calm_sends_one_home_at_a_time() {
    let mut desk = Desk::new(options(2, 20));
    desk.workers = number(4);
    assert_eq!(desk.follow(CALM, 12), [4, 4, 4, 4, 3, 3, 3, 3, 3, 2, 2, 2]);
    assert_eq!(desk.follow(CALM, 20), [2; 20], "and leaves as many as there must be");
}

#[test]
fn between_calm_and_pressure_nothing_changes() {
    let mut desk = Desk::new(options(1, 20));
    desk.workers = number(4);
    let steady = [
        (4, None),
        (16, Some(Duration::from_millis(1))),
        (0, Some(Duration::from_micros(101))),
        (4, Some(Duration::ZERO)),
    ];
    for reading in steady {
        assert_eq!(desk.follow(reading, 100), [4; 100], "{reading:?}");
    }
}

#[test]
fn a_single_reading_of_another_kind_starts_the_count_again() {
    let mut desk = Desk::new(options(1, 20));
    desk.workers = number(4);
    for _ in 0..100 {
        assert_eq!(desk.follow(CALM, 4), [4; 4]);
        assert_eq!(desk.follow(DEEP, 1), [4]);
    }
}

#[test]
fn a_number_out_of_bounds_is_brought_back_at_once() {
    for (workers, expected) in [(1, 3), (9, 8)] {
        let mut desk = Desk::new(options(3, 8));
        desk.workers = number(workers);
        assert_eq!(desk.follow(DEEP, 1), [expected]);
    }
}

/// Whatever is read, in whatever order.
#[test]
#[cfg_attr(miri, ignore = "numbers only, and too many of them")]
fn the_number_stays_in_its_bounds_and_moves_by_no_more_than_half() {
    for seed in 0..200 {
        let mut random = Random(seed);
        let low = 1 + random.below(4);
        let span = random.below(30);
        let mut desk = Desk::new(options(low, low + span));
        desk.workers = number(low);
        for _ in 0..500 {
            let before = desk.workers.get();
            let wait = (random.below(3) != 0).then(|| Duration::from_micros(random.below(3_000) as u64));
            let after = desk.follow((random.below(200), wait), 1)[0];
            assert!((low..=low + span).contains(&after), "seed {seed}: {after}");
            let up = before + (before / 2).max(1);
            assert!((before - 1..=up).contains(&after), "seed {seed}: from {before} to {after}");
        }
    }
}

/// A load that keeps so many workers busy: fewer are under pressure, so many are calm.
#[test]
#[cfg_attr(miri, ignore = "numbers only, and too many of them")]
fn under_a_steady_load_the_number_settles() {
    for needed in [1, 2, 5, 16] {
        let mut desk = Desk::new(options(1, 20));
        let numbers = desk.follow_load(needed, 10_000);
        let changes = |numbers: &[usize]| numbers.windows(2).filter(|pair| pair[0] != pair[1]).count();
        assert!(changes(&numbers) <= 160, "{needed}: {} changes in 10000", changes(&numbers));
        // At the end it goes one down now and then, to see whether it still must have so many.
        let end = &numbers[5_000..];
        assert!(
            end.iter().all(|workers| (needed.max(2) - 1..=needed).contains(workers)),
            "{needed}: {end:?}"
        );
        let few = end.iter().filter(|workers| **workers < needed).count();
        assert!(few * 50 <= end.len(), "{needed}: {few} of {} readings with too few", end.len());
    }
}

#[test]
#[cfg_attr(miri, ignore = "numbers only, and too many of them")]
fn a_load_that_goes_away_is_followed_at_the_usual_pace() {
    let mut desk = Desk::new(options(1, 20));
    desk.follow_load(10, 10_000);
    let settled = desk.workers.get();
    let numbers = desk.follow_load(1, SHRINK_BACKOFF_MAX as usize * 5 + 5 * settled + 10);
    assert_eq!(numbers.last(), Some(&1), "{numbers:?}");
}

#[test]
fn options_that_contradict_each_other_are_refused_in_words() {
    let usual = options(1, 4);
    let low = Duration::from_millis(3);
    let high = Duration::from_millis(2);
    for (options, expected) in [
        (AdaptiveOptions { workers_min: number(5), ..usual }, "workers_min is 5, above workers_max 4"),
        (AdaptiveOptions { depth_low: 3, depth_high: 2, ..usual }, "depth_low is 3, above depth_high 2"),
        (AdaptiveOptions { wait_low: low, wait_high: high, ..usual }, "wait_low is 3ms, above wait_high 2ms"),
        (AdaptiveOptions { period: Duration::ZERO, ..usual }, "period is zero"),
    ] {
        assert_eq!(AdaptiveDispatcher::new(options).unwrap_err().to_string(), expected);
    }
}

/// A dispatcher whose decisions are followed.
struct Desk {
    dispatcher: AdaptiveDispatcher,
    workers: NonZeroUsize,
}

impl Desk {
    fn new(options: AdaptiveOptions) -> Self {
        Self { dispatcher: AdaptiveDispatcher::new(options).unwrap(), workers: NonZeroUsize::MIN }
    }

    /// How many workers there are after each of so many equal readings.
    fn follow(&mut self, (ready_depth, wait): (usize, Option<Duration>), readings: usize) -> Vec<usize> {
        let mut one = || {
            let reading = LoadSample { workers: self.workers, ready_depth, wait };
            if let Decision::Change(workers) = self.dispatcher.decide(&reading) {
                assert_ne!(workers, self.workers, "that is no change");
                self.workers = workers;
            }
            self.workers.get()
        };
        (0..readings).map(|_| one()).collect()
    }

    fn follow_load(&mut self, needed: usize, readings: usize) -> Vec<usize> {
        let load = |workers: NonZeroUsize| if workers.get() < needed { DEEP } else { CALM };
        (0..readings).map(|_| self.follow(load(self.workers), 1)[0]).collect()
    }
}

/// Two readings to grow, five to shrink.
fn options(workers_min: usize, workers_max: usize) -> AdaptiveOptions {
    AdaptiveOptions {
        workers_min: number(workers_min),
        shrink_after: NonZeroU32::new(5).unwrap(),
        ..AdaptiveOptions::up_to(number(workers_max))
    }
}

fn number(workers: usize) -> NonZeroUsize {
    NonZeroUsize::new(workers).unwrap()
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) % bound.max(1) as u64) as usize
    }
}
