//! The bonded lane with a path that is not worth its delay, and paths that are.

use evenkeel_link::session::SessionConfig;
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{BondChangeKind, BondConfig, BondRule};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_sim::link::{LinkPlan, bad_path, link_plan, recovering_path, short_transfers, throughput};

use crate::link::simulate;
use crate::seeds;

#[test]
fn with_a_bad_second_path_a_bonded_flow_gets_what_the_best_path_alone_carries() {
    for seed in seeds() {
        let plan = bad_path(seed);
        let alone = goodput(&best_alone(&plan));
        let gated = goodput(&plan);
        let ungated = goodput(&without_gate(&plan));
        println!("seed {seed}: {alone:.1} Mbit/s alone, {gated:.1} with both, {ungated:.1} without the gate");
        assert!(gated >= 0.97 * alone, "seed {seed}: {gated} of {alone}");
        assert!(ungated < 0.8 * alone, "the scenario shows nothing: {ungated} of {alone}");
    }
}

#[test]
fn with_the_default_window_a_bad_second_path_costs_nothing_either() {
    let mut plan = bad_path(1);
    plan.config.credit_bonded = SessionConfig::default().credit_bonded;
    let alone = goodput(&best_alone(&plan));
    let run = simulate(&plan);
    let gated = run.goodput_mbit;
    println!("{alone:.1} Mbit/s alone, {gated:.1} with both");
    assert!(run.bonded_changes.iter().any(|change| change.event.kind == BondChangeKind::Left));
    assert!(gated >= 0.97 * alone, "{gated} of {alone}");
}

#[test]
fn short_bonded_transfers_do_not_wait_for_a_bad_second_path() {
    let plan = short_transfers(1);
    let alone = mean_time(&best_alone(&plan));
    let gated = mean_time(&plan);
    let ungated = mean_time(&without_gate(&plan));
    println!("{alone:?} alone, {gated:?} with both, {ungated:?} without the gate");
    assert!(gated < alone.mul_f64(1.1), "{gated:?}, {alone:?} alone");
    assert!(ungated > 2 * alone, "the scenario shows nothing: {ungated:?}, {alone:?} alone");
}

/// Rows A to D of the design page.
#[test]
fn paths_that_help_stay_in_the_bonded_lane() {
    for name in ["link-a", "link-b", "link-c", "link-d"] {
        let plan = link_plan(name, 1).unwrap();
        let run = simulate(&plan);
        let ungated = goodput(&without_gate(&plan));
        println!("{name}: {:.1} Mbit/s, {ungated:.1} without the gate", run.goodput_mbit);
        assert_eq!(run.bonded_changes, [], "{name}");
        assert!(run.goodput_mbit >= 0.99 * ungated, "{name}: {} of {ungated}", run.goodput_mbit);
    }
}

#[test]
fn a_slow_path_that_carries_as_much_as_the_fast_one_stays_in_the_bonded_lane() {
    let plan = throughput(1, &[(50.0, 10), (50.0, 400)]);
    let run = simulate(&LinkPlan { duration: Duration::from_secs(60), ..plan });
    assert_eq!(run.bonded_changes, []);
}

#[test]
fn a_path_that_gets_well_returns_to_the_bonded_lane_within_ten_seconds() {
    let run = simulate(&recovering_path(1));
    let last = run.bonded_changes.last().unwrap();
    assert_eq!((last.event.path, last.event.kind), (PathId(1), BondChangeKind::Returned));
    let at = last.at.since(Instant::from_secs(100));
    assert!((Duration::from_millis(1)..Duration::from_secs(10)).contains(&at), "after {at:?}");
    assert!(run.bonded_changes.iter().any(|change| change.event.kind == BondChangeKind::Left));
}

fn best_alone(plan: &LinkPlan) -> LinkPlan {
    LinkPlan { paths: plan.paths[..1].to_vec(), ..plan.clone() }
}

fn without_gate(plan: &LinkPlan) -> LinkPlan {
    let mut plan = plan.clone();
    plan.config.bond = BondRule::new(BondConfig { gain_min: 0.0, ..BondConfig::default() }).unwrap();
    plan
}

/// Returns the goodput of the last three quarters of a run in Mbit/s.
fn goodput(plan: &LinkPlan) -> f64 {
    simulate(plan).goodput_mbit
}

/// Returns the mean time of the transfers opened after the first ten seconds.
fn mean_time(plan: &LinkPlan) -> Duration {
    let run = simulate(plan);
    let flows = run.flows.iter().zip(&plan.flows).filter(|(_, plan)| Duration::from_secs(10) < plan.at);
    let end = Instant::ORIGIN + plan.duration;
    let times: Vec<Duration> =
        flows.map(|(flow, plan)| flow.completed_at.unwrap_or(end).since(Instant::ORIGIN + plan.at)).collect();
    times.iter().sum::<Duration>() / times.len() as u32
}
