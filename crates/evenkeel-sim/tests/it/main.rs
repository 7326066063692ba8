//! What the simulator shows of Evenkeel's promises; each test prints the seed it ran with when it fails.
#![allow(clippy::unwrap_used, reason = "a helper of a test may fail the test")]

mod cli;
mod fairness;
mod knee;

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
        assert!(first == again, "the same seed gave other events");
        assert_eq!(first.fingerprint(), again.fingerprint());
        assert_ne!(first.fingerprint(), other.fingerprint(), "another seed gave the same events");
    }
}

/// Two ways of deciding can be compared: who asks, when and for what does not depend on who is served.
#[test]
fn the_same_seed_gives_the_same_arrivals_however_it_is_decided() {
    let fair = flood_and_trickle(7);
    let plain = Scenario { order: ServiceOrder::Fifo, admit: AdmitPolicy::Everybody, ..fair.clone() };
    let arrivals = |done: SimRun| {
        done.events
            .into_iter()
            .filter(|stamped| matches!(stamped.event, TraceEvent::Arrived { .. }))
            .collect::<Vec<_>>()
    };
    assert_eq!(arrivals(simulate(&fair)), arrivals(simulate(&plain)));
}

#[test]
fn beside_a_flood_a_quiet_tenant_is_never_refused_and_waits_at_most_two_service_times() {
    for seed in seeds() {
        let [flood, quiet] = tenants(&simulate(&flood_and_trickle(seed)));
        assert!(quiet.arrived > 80 && flood.arrived > 700 * quiet.arrived, "seed {seed}");
        assert_eq!(quiet.rejected, 0, "seed {seed}");
        let wait = quiet.wait_percentile(99);
        println!("flood 1000:1, seed {seed}: quiet wait p99 {wait:?}, flood refused {}", flood.rejected);
        assert!(wait <= 2 * MESSAGE_TIME, "seed {seed}: quiet waits {wait:?}");
        assert!(flood.rejected > flood.arrived / 2, "seed {seed}");
    }
}

/// Counted from the events alone: whoever came and was neither refused, pushed out nor sent.
#[test]
fn no_more_wait_than_there_are_places() {
    for seed in seeds() {
        let mut waiting = 0_i64;
        let mut most = 0;
        for stamped in simulate(&flood_and_trickle(seed)).events {
            waiting += match stamped.event {
                TraceEvent::Arrived { .. } => 1,
                TraceEvent::Rejected { .. } | TraceEvent::Evicted { .. } | TraceEvent::Dispatched { .. } => {
                    -1
                }
                _ => 0,
            };
            most = most.max(waiting);
        }
        // An arrival is told of before it is decided on.
        assert!((80..=101).contains(&most), "seed {seed}: {most} waited");
    }
}

/// The same arrivals without fair admission, and without turns: what the quiet tenant is spared.
#[test]
fn by_load_and_first_come_first_served_the_quiet_tenant_is_refused_and_waits() {
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
fn a_new_weight_counts_on_the_backlog_from_the_next_round() {
    for seed in seeds() {
        let done = simulate(&weight_change(seed));
        let change =
            done.events.iter().position(|stamped| matches!(stamped.event, TraceEvent::Reweighed { .. }));
        let (before, after) = done.events.split_at(change.unwrap());
        for (events, expected) in [(before, 0.5), (after, 0.8)] {
            let part =
                SimRun { events: events.to_vec(), left_waiting: 0, idle_while_waiting: 0, cache_hits: 0 };
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
fn ten_keys_get_a_tenant_no_more_than_one() {
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
            done.events.iter().filter(|stamped| matches!(stamped.event, TraceEvent::Woken { .. })).count();
        assert!(woken > 10_000, "seed {seed}: {woken} wakes are hardly a storm");
        assert_eq!(done.idle_while_waiting, 0, "seed {seed}: a slot was free while somebody could be served");
        let all: [TenantSummary; 3] = tenants(&done);
        let arrived: usize = all.iter().map(|tenant| tenant.arrived).sum();
        let sent: usize = all.iter().map(|tenant| tenant.dispatched).sum();
        assert_eq!(arrived, sent + done.left_waiting, "seed {seed}");
        assert!(
            done.left_waiting < 20,
            "seed {seed}: {} wait ten seconds after the storm",
            done.left_waiting
        );
    }
}

/// Estimates may be wrong by a lot; what is charged in the end is what it cost.
#[test]
fn tenants_with_wrong_estimates_still_get_equal_service() {
    for seed in seeds() {
        let mut scenario = weights(seed);
        scenario.tenants.truncate(2);
        for (plan, (estimate, actual)) in scenario.tenants.iter_mut().zip([(200, 3_000), (3_000, 200)]) {
            plan.weight = Weight::ONE;
            (plan.estimate, plan.actual) = (Cost(estimate), (Cost(actual), Cost(actual)));
        }
        let [under, over] = tenants(&simulate(&scenario));
        let ratio = under.service.0 as f64 / over.service.0 as f64;
        println!("estimates off by 15 times, seed {seed}: service ratio {ratio:.3}");
        assert!((0.98..1.02).contains(&ratio), "seed {seed}: {} beside {}", under.service, over.service);
    }
}

#[test]
fn in_the_demo_only_the_greedy_tenant_is_refused() {
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

/// The same pipeline as an inference pool, charged in tokens of which estimates know little.
#[test]
fn in_an_inference_pool_tokens_are_shared_by_weight_and_conversations_stay_on_their_nodes() {
    for seed in seeds() {
        let done = simulate(&inference(seed));
        let [long, short, talk] = tenants(&done);
        let ratio = long.service.0 as f64 / (2.0 * short.service.0 as f64);
        let half = talk.wait_percentile(50);
        let most = talk.wait_percentile(99);
        let sent = long.dispatched + short.dispatched + talk.dispatched;
        let at_home = done.cache_hits as f64 / sent as f64;
        println!(
            "inference, seed {seed}: {ratio:.3} by weight, waits {half:?} to {most:?}, {at_home:.2} at home"
        );
        assert!((0.98..1.02).contains(&ratio), "seed {seed}: {} beside {}", long.service, short.service);
        assert_eq!((long.rejected, short.rejected, talk.rejected), (0, 0, 0), "seed {seed}");
        assert!(
            half < Duration::from_millis(250) && most < Duration::from_millis(2_800),
            "seed {seed}: {most:?}"
        );
        assert!(at_home > 0.4, "seed {seed}: {at_home} where chance is a quarter");
    }
}

/// The same pipeline as a database pool, charged in milliseconds and chosen by score.
#[test]
fn in_a_database_pool_reports_neither_fill_the_queue_nor_delay_the_application() {
    for seed in seeds() {
        let scenario = database(seed);
        let [reports, app] = tenants(&simulate(&scenario));
        let half = app.wait_percentile(50);
        let most = app.wait_percentile(99);
        assert_eq!(app.rejected, 0, "seed {seed}");
        assert!(most < Duration::from_millis(50), "seed {seed}: {most:?}");
        assert!(reports.service.0 > 5 * app.service.0, "seed {seed}: what the application leaves is used");
        let [_, app] = tenants(&simulate(&Scenario { order: ServiceOrder::Fifo, ..scenario }));
        let plain = app.wait_percentile(50);
        println!(
            "database, seed {seed}: app waits {half:?}, p99 {most:?}; first come, first served {plain:?}"
        );
        assert!(plain > 4 * half, "seed {seed}: first come, first served waits {plain:?}, not {half:?}");
    }
}

/// Five seeds, or as many as `EVENKEEL_SIM_SEEDS` says: `cargo xtask deep soak` says two hundred.
fn seeds() -> std::ops::Range<u64> {
    let count = std::env::var("EVENKEEL_SIM_SEEDS").map(|count| count.parse().unwrap());
    1..1 + count.unwrap_or(5)
}

fn simulate(scenario: &Scenario) -> SimRun {
    let _seed = SeedIfPanicking(scenario.seed);
    run(scenario).unwrap()
}

/// Says which seed a simulation that panics was run with.
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
