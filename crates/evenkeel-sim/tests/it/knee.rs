//! The adaptive concurrency limit, compared with fixed limits.

use evenkeel_pipeline::Slots;
use evenkeel_policy::concurrency_limit::LimitConfig;
use evenkeel_policy::time::Duration;
use evenkeel_sim::{KneePlan, KneeRun, Scraping, run_knee};

use crate::seeds;

const KNEE: u32 = 32;
const SETTLED: Duration = Duration::from_secs(300);
const END: Duration = Duration::from_secs(900);

#[test]
fn the_limit_settles_near_the_knee_and_costs_hardly_any_throughput() {
    for (seed, scrapes) in cases() {
        let adaptive = simulate(seed, adaptive(), scrapes, &[(0, KNEE)], END);
        let [known, guessed] = [KNEE, 4 * KNEE]
            .map(|slots| simulate(seed, Slots::Fixed(slots), Scraping::Disabled, &[(0, KNEE)], END));
        let limit = adaptive.median_limit(SETTLED, END);
        let results = |run: &KneeRun| {
            (
                run.throughput(SETTLED, END),
                run.first_token_p95(SETTLED, END),
                run.mean_queue_len(SETTLED, END),
            )
        };
        let adaptive_results = results(&adaptive);
        let known_results = results(&known);
        let guessed_results = results(&guessed);
        println!(
            "seed {seed}, scraping {scrapes:?}: limit {limit}, knee {KNEE}; (responses per second, first token p95, \
             engine queue): adaptive {adaptive_results:?}, fixed at the knee {known_results:?}, fixed at four times \
             the knee {guessed_results:?}"
        );
        assert!((KNEE * 3 / 4..=KNEE * 5 / 4).contains(&limit), "seed {seed}: {limit}");
        assert!(
            0.9 * known_results.0 <= adaptive_results.0,
            "seed {seed}: {} of {} per second",
            adaptive_results.0,
            known_results.0
        );
        assert!(
            adaptive_results.1 < guessed_results.1 / 4,
            "seed {seed}: {:?} against {:?}",
            adaptive_results.1,
            guessed_results.1
        );
        assert!(
            adaptive_results.2 < f64::from(KNEE) / 8.0,
            "seed {seed}: {} queued in the engine",
            adaptive_results.2
        );
    }
}

#[test]
fn the_limit_follows_an_engine_whose_knee_falls_and_rises_again() {
    let minute = |minute: u64| Duration::from_secs(60 * minute);
    for (seed, scrapes) in cases() {
        let batches = [(0, KNEE), (600, KNEE / 4), (1_500, KNEE)];
        let run = simulate(seed, adaptive(), scrapes, &batches, minute(40));
        let limits =
            [(5, 10), (17, 25), (32, 40)].map(|(from, to)| run.median_limit(minute(from), minute(to)));
        println!("seed {seed}, scraping {scrapes:?}: knee 32, 8, 32; limits {limits:?}");
        assert!((24..=40).contains(&limits[0]), "seed {seed}: {limits:?}");
        assert!((5..=13).contains(&limits[1]), "seed {seed}: {limits:?}");
        assert!((24..=40).contains(&limits[2]), "seed {seed}: {limits:?}");
    }
}

/// Such a queue defeats DRR, which cannot reorder requests inside the engine.
#[test]
fn a_fixed_limit_that_is_too_high_keeps_a_queue_inside_the_engine() {
    let run = simulate(1, Slots::Fixed(4 * KNEE), Scraping::Disabled, &[(0, KNEE)], END);
    assert!(run.mean_queue_len(SETTLED, END) > f64::from(2 * KNEE));
}

fn cases() -> impl Iterator<Item = (u64, Scraping)> {
    seeds().flat_map(|seed| [(seed, Scraping::Disabled), (seed, Scraping::Enabled)])
}

fn adaptive() -> Slots {
    Slots::Adaptive(LimitConfig::default())
}

fn simulate(
    seed: u64,
    slots: Slots,
    scrapes: Scraping,
    batches: &[(u64, u32)],
    duration: Duration,
) -> KneeRun {
    let batches = batches.iter().map(|(at, batch)| (Duration::from_secs(*at), *batch)).collect();
    run_knee(&KneePlan { seed, duration, clients: 200, slots, scrapes, batches }).unwrap()
}
