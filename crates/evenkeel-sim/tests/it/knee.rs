//! The adaptive concurrency limit: the matrix of its goals, and a comparison with fixed limits.

use evenkeel_pipeline::Slots;
use evenkeel_policy::concurrency_limit::{LimitConfig, ResponseDelivery};
use evenkeel_policy::time::Duration;
use evenkeel_sim::{
    EngineShape, KneeCell, KneeDemand, KneePlan, KneeRun, Scraping, Service, knee_cells, measure_knee_cell,
    run_knee,
};

use crate::seeds;

const KNEE: u32 = 32;
const SETTLED: Duration = Duration::from_secs(300);
const END: Duration = Duration::from_secs(900);

#[test]
fn the_limit_finds_the_knee_of_an_engine_with_slots() {
    assert_goals(knee_cells(EngineShape::Slots));
}

#[test]
fn the_limit_finds_the_knee_of_an_engine_that_all_requests_share() {
    assert_goals(knee_cells(EngineShape::Shared));
}

/// The time to first token does not show this knee; only a saturated engine's pace does.
#[test]
fn the_limit_finds_the_knee_of_a_saturated_engine_that_only_long_responses_share() {
    let shows = |cell: &KneeCell| cell.service == Service::Far && 2.0 <= cell.demand && 16 <= cell.knee;
    assert_goals(knee_cells(EngineShape::SharedDecode).into_iter().filter(shows).collect());
}

fn assert_goals(cells: Vec<KneeCell>) {
    let mut missed = vec![];
    for cell in cells {
        let result = measure_knee_cell(&cell, 1).unwrap();
        let misses = cell.misses(&result);
        println!("{cell:?}: {result:?} {misses:?}");
        if !misses.is_empty() {
            missed.push(format!("{cell:?}: {result:?} misses {misses:?}"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

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
        let knees = [(0, KNEE), (600, KNEE / 4), (1_500, KNEE)];
        let run = simulate(seed, adaptive(), scrapes, &knees, minute(40));
        let limits =
            [(5, 10), (17, 25), (32, 40)].map(|(from, to)| run.median_limit(minute(from), minute(to)));
        println!("seed {seed}, scraping {scrapes:?}: knee 32, 8, 32; limits {limits:?}");
        assert!((24..=40).contains(&limits[0]), "seed {seed}: {limits:?}");
        assert!((5..=13).contains(&limits[1]), "seed {seed}: {limits:?}");
        assert!((24..=40).contains(&limits[2]), "seed {seed}: {limits:?}");
    }
}

/// Without streams there is no time to first token; the limit climbs by output per second.
#[test]
fn without_streams_the_limit_settles_within_twice_the_knee() {
    for seed in seeds() {
        for knee in [4, 16] {
            let plan = KneePlan {
                delivery: ResponseDelivery::Whole,
                output: 50,
                ..plan(seed, adaptive(), Scraping::Disabled, &[(0, knee)], END)
            };
            let limit = run_knee(&plan).unwrap().median_limit(SETTLED, END);
            println!("seed {seed}, no streams, knee {knee}: limit {limit}");
            assert!((knee / 2..=2 * knee).contains(&limit), "seed {seed}: {limit} for a knee of {knee}");
        }
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

fn simulate(seed: u64, slots: Slots, scrapes: Scraping, knees: &[(u64, u32)], duration: Duration) -> KneeRun {
    run_knee(&plan(seed, slots, scrapes, knees, duration)).unwrap()
}

/// Plans 200 clients of an engine that batches in steps.
fn plan(seed: u64, slots: Slots, scrapes: Scraping, knees: &[(u64, u32)], duration: Duration) -> KneePlan {
    KneePlan {
        seed,
        duration,
        demand: KneeDemand::Clients(200),
        prompts: vec![64, 128, 256, 512],
        output: 144,
        delivery: ResponseDelivery::Stream,
        slots,
        scrapes,
        shape: EngineShape::Steps,
        knees: knees.iter().map(|(at, knee)| (Duration::from_secs(*at), *knee)).collect(),
    }
}
