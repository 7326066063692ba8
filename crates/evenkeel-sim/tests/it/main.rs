//! Evenkeel's guarantees in simulation; a failing test prints its seed.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod choice;
mod cli;
mod fairness;
mod flows;
mod knee;
mod link;
mod link_candidates;
mod link_datagrams;
mod link_lane;
mod poison;
mod redirect;

use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;
use evenkeel_sim::{
    AdmitPolicy, Scenario, ServiceOrder, Share, SimRun, TenantSummary, TraceEvent, database, demo,
    flood_and_trickle, inference, park_wake_storm, run, sybil, weight_change, weights,
};

const MESSAGE_TIME: Duration = Duration::from_millis(10);

#[test]
fn the_same_seed_gives_the_same_events_and_another_does_not() {
    for make in [flood_and_trickle, park_wake_storm, demo] {
        let first = simulate(&make(7));
        let again = simulate(&make(7));
        let other = simulate(&make(8));
        assert!(!first.events.is_empty());
        assert!(first == again, "the same seed gave different events");
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_ne!(first.fingerprint(), other.fingerprint(), "another seed gave the same events");
    }
}

/// Policies can be compared because arrivals do not depend on scheduling decisions.
#[test]
fn the_same_seed_gives_the_same_arrivals_under_every_policy() {
    let fair = flood_and_trickle(7);
    let plain = Scenario { order: ServiceOrder::Fifo, admit: AdmitPolicy::All, ..fair.clone() };
    let arrivals = |run: SimRun| {
        run.events
            .into_iter()
            .filter(|timed| matches!(timed.event, TraceEvent::Arrived { .. }))
            .collect::<Vec<_>>()
    };
    assert_eq!(arrivals(simulate(&fair)), arrivals(simulate(&plain)));
}

#[test]
fn during_a_flood_a_quiet_tenant_is_never_rejected_and_waits_at_most_two_service_times() {
    for seed in seeds() {
        let [flood, quiet] = tenants(&simulate(&flood_and_trickle(seed)));
        assert!(quiet.arrived > 80 && flood.arrived > 700 * quiet.arrived, "seed {seed}");
        assert_eq!(quiet.rejected, 0, "seed {seed}");
        let wait = quiet.wait_percentile(99);
        println!("flood 1000:1, seed {seed}: quiet wait p99 {wait:?}, flood rejected {}", flood.rejected);
        assert!(wait <= 2 * MESSAGE_TIME, "seed {seed}: quiet waits {wait:?}");
        assert!(flood.rejected > flood.arrived / 2, "seed {seed}");
    }
}

/// Counts the waiting requests from the events: those that arrived and were neither rejected, evicted nor dispatched.
#[test]
fn the_queue_never_exceeds_its_capacity() {
    for seed in seeds() {
        let mut waiting = 0_i64;
        let mut most = 0;
        for timed in simulate(&flood_and_trickle(seed)).events {
            waiting += match timed.event {
                TraceEvent::Arrived { .. } => 1,
                TraceEvent::Rejected { .. } | TraceEvent::Evicted { .. } | TraceEvent::Dispatched { .. } => {
                    -1
                }
                _ => 0,
            };
            most = most.max(waiting);
        }
        // An arrival is recorded before it is admitted or rejected.
        assert!((80..=101).contains(&most), "seed {seed}: {most} waited");
    }
}

/// Repeats the flood without fair admission, then without DRR.
#[test]
fn without_fair_admission_or_drr_the_quiet_tenant_is_rejected_or_waits() {
    for seed in seeds() {
        let by_load = AdmitPolicy::ByLoad(BackpressureConfig::default());
        let [_, quiet] = tenants(&simulate(&Scenario { admit: by_load, ..flood_and_trickle(seed) }));
        assert!(quiet.rejected > quiet.arrived / 2, "seed {seed}: {} of {}", quiet.rejected, quiet.arrived);
        let [_, quiet] =
            tenants(&simulate(&Scenario { order: ServiceOrder::Fifo, ..flood_and_trickle(seed) }));
        assert!(quiet.wait_percentile(50) > 5 * MESSAGE_TIME, "seed {seed}: {:?}", quiet.wait_percentile(50));
    }
}

#[test]
fn weights_of_1_to_5_hold_within_1_percent_in_every_window_of_1000() {
    for seed in seeds() {
        let windows = simulate(&weights(seed)).window_shares(5, 1_000);
        assert!(windows.len() > 20, "seed {seed}: {} windows", windows.len());
        for shares in windows {
            for (weight, share) in (1..).zip(shares) {
                let off = (share.0 - f64::from(weight) / 15.0).abs();
                assert!(off < 0.01, "seed {seed}: weight {weight} got {share}");
            }
        }
    }
}

#[test]
fn a_new_weight_applies_to_the_backlog_from_the_next_round() {
    for seed in seeds() {
        let done = simulate(&weight_change(seed));
        let change =
            done.events.iter().position(|timed| matches!(timed.event, TraceEvent::WeightChanged { .. }));
        let (before, after) = done.events.split_at(change.unwrap());
        for (events, expected) in [(before, 0.5), (after, 0.8)] {
            let part =
                SimRun { events: events.to_vec(), still_waiting: 0, idle_while_waiting: 0, cache_hits: 0 };
            let windows = part.window_shares(2, 100);
            assert!(windows.len() > 10, "seed {seed}");
            for shares in windows {
                let Share(promoted) = shares[1];
                assert!((promoted - expected).abs() < 0.021, "seed {seed}: {promoted} instead of {expected}");
            }
        }
    }
}

#[test]
fn a_tenant_with_ten_keys_gets_no_more_than_one_with_one_key() {
    for seed in seeds() {
        let windows = simulate(&sybil(seed)).window_shares(3, 300);
        assert!(windows.len() > 20, "seed {seed}");
        for share in windows.into_iter().flatten() {
            assert!((share.0 - 1.0 / 3.0).abs() < 0.01, "seed {seed}: {share}");
        }
    }
}

#[test]
fn no_wake_up_is_lost_in_a_storm_of_parking_and_waking() {
    for seed in seeds() {
        let done = simulate(&park_wake_storm(seed));
        let woken =
            done.events.iter().filter(|timed| matches!(timed.event, TraceEvent::Woken { .. })).count();
        assert!(woken > 10_000, "seed {seed}: only {woken} wake-ups");
        assert_eq!(
            done.idle_while_waiting, 0,
            "seed {seed}: a slot was free while a request could be served"
        );
        let all: [TenantSummary; 3] = tenants(&done);
        let arrived: usize = all.iter().map(|tenant| tenant.arrived).sum();
        let sent: usize = all.iter().map(|tenant| tenant.dispatched).sum();
        assert_eq!(arrived, sent + done.still_waiting, "seed {seed}");
        assert!(
            done.still_waiting < 20,
            "seed {seed}: {} still wait ten seconds after the storm",
            done.still_waiting
        );
    }
}

/// The estimates are far off, but the final charge is the actual cost.
#[test]
fn tenants_with_wrong_estimates_still_get_equal_service() {
    for seed in seeds() {
        let mut scenario = weights(seed);
        scenario.tenants.truncate(2);
        for (plan, (estimate, actual)) in scenario.tenants.iter_mut().zip([(200, 3_000), (3_000, 200)]) {
            plan.weight = Weight::ONE;
            plan.estimate = Cost(estimate);
            plan.actual = (Cost(actual), Cost(actual));
        }
        let [under, over] = tenants(&simulate(&scenario));
        let ratio = under.service.0 as f64 / over.service.0 as f64;
        println!("estimates off by 15 times, seed {seed}: service ratio {ratio:.3}");
        assert!((0.98..1.02).contains(&ratio), "seed {seed}: {} against {}", under.service, over.service);
    }
}

#[test]
fn in_the_demo_only_the_greedy_tenant_is_rejected() {
    for seed in seeds() {
        let fair = demo(seed);
        let by_load = AdmitPolicy::ByLoad(BackpressureConfig::default());
        let plain = Scenario { order: ServiceOrder::Fifo, admit: by_load, ..fair.clone() };
        let [_, steady, quiet] = tenants(&simulate(&fair));
        let [_, _, plain_quiet] = tenants(&simulate(&plain));
        assert_eq!((steady.rejected, quiet.rejected), (0, 0), "seed {seed}");
        assert!(plain_quiet.rejected > 0, "seed {seed}");
        assert!(4 * quiet.wait_percentile(99) < plain_quiet.wait_percentile(50), "seed {seed}");
    }
}

/// Runs the pipeline as an inference pool, charged in tokens with poor estimates.
#[test]
fn in_an_inference_pool_tokens_are_shared_by_weight_and_conversations_stay_on_their_nodes() {
    for seed in seeds() {
        let done = simulate(&inference(seed));
        let [long, short, talk] = tenants(&done);
        let ratio = long.service.0 as f64 / (2.0 * short.service.0 as f64);
        let p50 = talk.wait_percentile(50);
        let p99 = talk.wait_percentile(99);
        let sent = long.dispatched + short.dispatched + talk.dispatched;
        let cached = done.cache_hits as f64 / sent as f64;
        println!(
            "inference, seed {seed}: service ratio {ratio:.3}, wait p50 {p50:?}, p99 {p99:?}, cache hits {cached:.2}"
        );
        assert!((0.98..1.02).contains(&ratio), "seed {seed}: {} against {}", long.service, short.service);
        assert_eq!((long.rejected, short.rejected, talk.rejected), (0, 0, 0), "seed {seed}");
        assert!(
            p50 < Duration::from_millis(250) && p99 < Duration::from_millis(2_800),
            "seed {seed}: wait p50 {p50:?}, p99 {p99:?}"
        );
        assert!(cached > 0.4, "seed {seed}: {cached} cache hits, where chance gives a quarter");
    }
}

/// Runs the pipeline as a database pool, charged in milliseconds, with nodes picked by score.
#[test]
fn in_a_database_pool_reports_neither_fill_the_queue_nor_delay_the_application() {
    for seed in seeds() {
        let scenario = database(seed);
        let [reports, app] = tenants(&simulate(&scenario));
        let p50 = app.wait_percentile(50);
        let p99 = app.wait_percentile(99);
        assert_eq!(app.rejected, 0, "seed {seed}");
        assert!(p99 < Duration::from_millis(50), "seed {seed}: {p99:?}");
        assert!(
            reports.service.0 > 5 * app.service.0,
            "seed {seed}: reports should use the capacity that the application leaves"
        );
        let [_, app] = tenants(&simulate(&Scenario { order: ServiceOrder::Fifo, ..scenario }));
        let fifo_p50 = app.wait_percentile(50);
        println!("database, seed {seed}: app wait p50 {p50:?}, p99 {p99:?}; FIFO p50 {fifo_p50:?}");
        assert!(fifo_p50 > 4 * p50, "seed {seed}: wait p50 {fifo_p50:?} with FIFO, {p50:?} with DRR");
    }
}

/// Returns five seeds, or `EVENKEEL_SIM_SEEDS` many; `cargo xtask deep soak` sets it to 200.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("EVENKEEL_SIM_SEEDS").map(|count| count.parse().unwrap());
    1..1 + count.unwrap_or(5)
}

fn simulate(scenario: &Scenario) -> SimRun {
    let _seed = SeedIfPanicking(scenario.seed);
    run(scenario).unwrap()
}

/// Prints the seed of a simulation that panics.
struct SeedIfPanicking(u64);

impl Drop for SeedIfPanicking {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the simulation that panicked had seed {}", self.0);
        }
    }
}

fn tenants<const N: usize>(done: &SimRun) -> [TenantSummary; N] {
    std::array::from_fn(|id| done.tenant(TenantId(id as u32)))
}
