//! Two link sessions over model paths: every byte arrives once and in order, whatever the paths do.

use evenkeel_link::flow::{FlowEnd, FlowLane};
use evenkeel_link::session::{SessionConfig, SessionError};
use evenkeel_policy::id::PathId;
use evenkeel_policy::path::{Cause, PathState};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_sim::link::{
    LinkPlan, LinkRun, TimedTransition, all_paths_down, black_hole, flapping, limping_path, link_plan,
    random_faults, run_link, shares, steady_slow_path, unhealthy_path,
};

use crate::{SeedIfPanicking, seeds};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn under_random_faults_every_byte_arrives_once_and_in_order_and_memory_stays_bounded() {
    for seed in seeds() {
        let plan = random_faults(seed);
        let run = simulate(&plan);
        for (flow, flow_plan) in run.flows.iter().zip(&plan.flows) {
            assert_eq!(flow.received, flow_plan.bytes, "seed {seed}: {flow_plan:?}");
            assert_eq!(flow.replied, flow_plan.reply, "seed {seed}: {flow_plan:?}");
            assert_eq!(flow.end, Some(FlowEnd::Finished), "seed {seed}: {flow_plan:?}");
        }
        let again = run.reinjected_bytes;
        println!("random faults, seed {seed}: {again} bytes sent again, {:?}", run.memory_max);
    }
}

#[test]
fn the_same_seed_gives_the_same_events_and_another_seed_others() {
    let fingerprint = |seed| simulate(&random_faults(seed)).fingerprint;
    assert_eq!(fingerprint(7), fingerprint(7));
    assert_ne!(fingerprint(7), fingerprint(8));
}

#[test]
fn flows_go_on_within_a_second_when_any_path_swallows_everything() {
    for lane in [FlowLane::Stream, FlowLane::Bonded] {
        for dead in 0..3 {
            let gaps = seeds().map(|seed| failover_gap(seed, dead, lane));
            println!("path {dead} dead, {lane} lane: longest pause {:?}", gaps.max());
        }
    }
}

/// The flows write every 50 ms, and the slowest path takes 50 ms; without copies, the pause is a probe timeout longer.
#[test]
fn redundant_flows_do_not_notice_that_a_path_swallows_everything() {
    for dead in 0..3 {
        for seed in seeds() {
            let run = simulate(&black_hole(seed, dead, FlowLane::Redundant));
            let gap = run.flows.iter().map(|flow| flow.gap_max).max().unwrap();
            assert!(gap < Duration::from_millis(110), "seed {seed}, path {dead}: {gap:?}");
        }
    }
}

#[test]
fn a_redundant_transfer_is_as_fast_as_its_best_path_and_goes_on_when_that_path_dies() {
    for seed in seeds() {
        let mut plan = black_hole(seed, 0, FlowLane::Bonded);
        plan.flows[0].lane = FlowLane::Redundant;
        let run = simulate(&plan);
        println!("seed {seed}: {:.1} Mbit/s, longest pause {:?}", run.goodput_mbit, run.flows[0].gap_max);
        assert!(run.goodput_mbit > 17.0, "seed {seed}: {:.1} of 20 Mbit/s", run.goodput_mbit);
        assert!(run.flows[0].gap_max < Duration::from_millis(150), "seed {seed}: {:?}", run.flows[0].gap_max);
    }
}

#[test]
fn under_random_faults_every_byte_of_redundant_flows_arrives_once_and_in_order() {
    for seed in seeds() {
        let mut plan = random_faults(seed);
        plan.flows.iter_mut().for_each(|flow| flow.lane = FlowLane::Redundant);
        let run = simulate(&plan);
        for (flow, flow_plan) in run.flows.iter().zip(&plan.flows) {
            let arrived = (flow.received, flow.replied, flow.end.clone());
            let expected = (flow_plan.bytes, flow_plan.reply, Some(FlowEnd::Finished));
            assert_eq!(arrived, expected, "seed {seed}: {flow_plan:?}");
        }
    }
}

/// Returns the longest pause of a flow when path `dead` swallows everything.
fn failover_gap(seed: u64, dead: usize, lane: FlowLane) -> Duration {
    let run = simulate(&black_hole(seed, dead, lane));
    let gap = run.flows.iter().map(|flow| flow.gap_max).max().unwrap();
    assert!(gap < SECOND, "seed {seed}, path {dead}, {lane} lane: {gap:?}");
    assert!(run.flow_picks[dead] > 0 || lane == FlowLane::Bonded, "no flow was on path {dead}");
    assert!(run.reinjected_bytes > 0, "seed {seed}, path {dead}, {lane} lane");
    let is_silence = |timed: &&TimedTransition| timed.transition.cause == Cause::Silent;
    let silent: Vec<usize> =
        run.transitions.iter().filter(is_silence).map(|timed| timed.path.index()).collect();
    assert_eq!(silent, [dead], "seed {seed}, {lane} lane");
    gap
}

#[test]
fn flows_survive_an_outage_of_all_paths_for_30_s() {
    let plan = all_paths_down(1, Duration::from_secs(30));
    let run = simulate(&plan);
    for (flow, flow_plan) in run.flows.iter().zip(&plan.flows) {
        assert_eq!((flow.received, &flow.end), (flow_plan.bytes, &Some(FlowEnd::Finished)));
        assert!(flow.gap_max > Duration::from_secs(29), "{:?}", flow.gap_max);
        assert!(flow.gap_max < Duration::from_secs(32), "{:?}", flow.gap_max);
    }
    assert_eq!(run.failure, None);
}

#[test]
fn an_outage_of_more_than_60_s_ends_the_session_and_its_flows() {
    let run = simulate(&all_paths_down(1, Duration::from_secs(70)));
    let failure = run.failure.unwrap();
    assert_eq!(failure.error, SessionError::Timeout { timeout: Duration::from_secs(60) });
    let at = failure.at.since(Instant::from_secs(5));
    assert!(
        (Duration::from_secs(60)..Duration::from_secs(61)).contains(&at),
        "{at:?} after the outage began"
    );
    for flow in run.flows {
        assert!(matches!(flow.end, Some(FlowEnd::Reset(_))), "{:?}", flow.end);
    }
}

#[test]
fn a_path_that_flaps_every_2_s_stalls_nothing_and_is_used_while_it_works() {
    let plan = flapping(1);
    let run = simulate(&plan);
    let gap = run.flows.iter().map(|flow| flow.gap_max).max().unwrap();
    println!("flapping: longest pause {gap:?}, {:.1} Mbit/s", run.goodput_mbit);
    assert!(gap < SECOND, "{gap:?}");
    assert!(run.goodput_mbit > 20.0, "less than the steady path alone carries: {:.1}", run.goodput_mbit);
    assert!(10 * run.path_bytes[1] > run.path_bytes[0], "the flapping path is hardly used");
}

#[test]
fn a_path_whose_round_trip_grows_to_37_s_is_left() {
    let run = simulate(&limping_path(1));
    let first = run.transitions.iter().find(|timed| timed.transition.to == PathState::Degraded).unwrap();
    assert_eq!(first.path, PathId(1));
    assert!(first.at < Instant::from_secs(15), "after {:?}", first.at);
    let gap = run.flows.iter().map(|flow| flow.gap_max).max().unwrap();
    println!("limping: degraded at {:?}, longest pause {gap:?}", first.at);
    assert!(gap < 2 * SECOND, "{gap:?}");
    assert!(run.path_bytes[1] * 10 < run.path_bytes[0]);
}

#[test]
fn a_steady_path_of_800_ms_stays_active_for_a_minute() {
    let run = simulate(&steady_slow_path(1));
    let states: Vec<PathState> = run
        .transitions
        .iter()
        .filter(|timed| timed.path == PathId(1))
        .map(|timed| timed.transition.to)
        .collect();
    assert_eq!(states, [PathState::Probing, PathState::Active]);
    assert!(run.path_bytes[1] > 0);
}

/// Rows A to D of the design page; the sums of the rates are 100, 70, 100 and 110 Mbit/s.
#[test]
fn a_bonded_flow_gets_at_least_85_percent_of_the_sum_of_the_paths() {
    for (name, sum) in [("link-a", 100.0), ("link-b", 70.0), ("link-c", 100.0), ("link-d", 110.0)] {
        let run = simulate(&link_plan(name, 1).unwrap());
        println!("{name}: {:.1} of {sum} Mbit/s", run.goodput_mbit);
        assert!(run.goodput_mbit >= 0.85 * sum, "{name}: {:.1} of {sum}", run.goodput_mbit);
    }
}

#[test]
fn of_1600_flows_each_path_gets_the_share_of_its_weight() {
    for seed in seeds() {
        let run = simulate(&shares(seed));
        let shares: Vec<f64> = run.flow_picks.iter().map(|picks| *picks as f64 / 16.0).collect();
        println!("shares on 10, 20 and 100 ms, seed {seed}: {shares:?} %");
        assert!((58.0..=67.0).contains(&shares[0]), "seed {seed}: {shares:?}");
        assert!((28.0..=35.0).contains(&shares[1]), "seed {seed}: {shares:?}");
        assert!((4.0..=9.0).contains(&shares[2]), "seed {seed}: {shares:?}");
        assert!(run.flows.iter().all(|flow| flow.end == Some(FlowEnd::Finished)), "seed {seed}");
    }
}

#[test]
fn a_slow_and_lossy_path_is_explored_but_hardly_used() {
    for seed in seeds() {
        let run = simulate(&unhealthy_path(seed));
        let picks = run.flow_picks[1];
        println!("unhealthy path, seed {seed}: {picks} of 1600 flows");
        assert!((1..160).contains(&picks), "seed {seed}: {picks} of 1600");
        assert!(run.flows.iter().all(|flow| flow.end == Some(FlowEnd::Finished)), "seed {seed}");
    }
}

/// Runs a plan and checks what every run must fulfil.
pub(crate) fn simulate(plan: &LinkPlan) -> LinkRun {
    let _seed = SeedIfPanicking(plan.seed);
    let run = run_link(plan).unwrap();
    let SessionConfig { receive_budget, send_budget, .. } = plan.config;
    assert_eq!(run.wrong_bytes, 0);
    assert!(run.memory_max.receive_buffered <= run.memory_max.receive_windows);
    assert!(run.memory_max.receive_windows <= receive_budget, "{:?}", run.memory_max);
    assert!(run.memory_max.send_retained <= send_budget, "{:?}", run.memory_max);
    run
}
