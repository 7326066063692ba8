//! A limit that follows an engine's knee, beside those that somebody guessed.

use evenkeel_pipeline::Slots;
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::time::Duration;
use evenkeel_sim::{KneePlan, KneeRun, Scrapes, run_knee};

use crate::seeds;

const KNEE: u32 = 32;
const SETTLED: Duration = Duration::from_secs(300);
const END: Duration = Duration::from_secs(900);

#[test]
fn a_limit_settles_near_the_knee_and_costs_hardly_any_throughput() {
    for (seed, scrapes) in cases() {
        let adaptive = simulate(seed, adaptive(), scrapes, &[(0, KNEE)], END);
        let [known, guessed] = [KNEE, 4 * KNEE]
            .map(|slots| simulate(seed, Slots::Fixed(slots), Scrapes::Never, &[(0, KNEE)], END));
        let limit = adaptive.median_limit(SETTLED, END);
        let figures = |run: &KneeRun| {
            (run.throughput(SETTLED, END), run.first_token_p95(SETTLED, END), run.mean_queue(SETTLED, END))
        };
        let of_ours = figures(&adaptive);
        let of_known = figures(&known);
        let of_guessed = figures(&guessed);
        println!(
            "seed {seed}, {scrapes:?}: limit {limit} beside a knee of {KNEE}; answers a second, first token p95, engine's queue: {of_ours:?}; knee known {of_known:?}; four times the knee {of_guessed:?}"
        );
        assert!((KNEE * 3 / 4..=KNEE * 5 / 4).contains(&limit), "seed {seed}: {limit}");
        assert!(0.9 * of_known.0 <= of_ours.0, "seed {seed}: {} of {} a second", of_ours.0, of_known.0);
        assert!(of_ours.1 < of_guessed.1 / 4, "seed {seed}: {:?} beside {:?}", of_ours.1, of_guessed.1);
        assert!(of_ours.2 < f64::from(KNEE) / 8.0, "seed {seed}: {} queue in the engine", of_ours.2);
    }
}

#[test]
fn a_limit_follows_an_engine_that_changes_and_comes_back() {
    let minute = |minute: u64| Duration::from_secs(60 * minute);
    for (seed, scrapes) in cases() {
        let batches = [(0, KNEE), (600, KNEE / 4), (1_500, KNEE)];
        let run = simulate(seed, adaptive(), scrapes, &batches, minute(40));
        let limits =
            [(5, 10), (17, 25), (32, 40)].map(|(from, to)| run.median_limit(minute(from), minute(to)));
        println!("seed {seed}, {scrapes:?}: knee 32, 8, 32 and limits {limits:?}");
        assert!((24..=40).contains(&limits[0]), "seed {seed}: {limits:?}");
        assert!((5..=13).contains(&limits[1]), "seed {seed}: {limits:?}");
        assert!((24..=40).contains(&limits[2]), "seed {seed}: {limits:?}");
    }
}

/// What a limit that follows spares everybody: turns count for nothing in there.
#[test]
fn a_guess_that_is_too_high_queues_inside_of_the_engine_for_ever() {
    let run = simulate(1, Slots::Fixed(4 * KNEE), Scrapes::Never, &[(0, KNEE)], END);
    assert!(f64::from(2 * KNEE) < run.mean_queue(SETTLED, END));
}

fn cases() -> impl Iterator<Item = (u64, Scrapes)> {
    seeds().flat_map(|seed| [(seed, Scrapes::Never), (seed, Scrapes::Every)])
}

fn adaptive() -> Slots {
    Slots::Adaptive(LimitConfig::default())
}

fn simulate(
    seed: u64,
    slots: Slots,
    scrapes: Scrapes,
    batches: &[(u64, u32)],
    duration: Duration,
) -> KneeRun {
    let batches = batches.iter().map(|(at, batch)| (Duration::from_secs(*at), *batch)).collect();
    run_knee(&KneePlan { seed, duration, clients: 200, slots, scrapes, batches }).unwrap()
}
