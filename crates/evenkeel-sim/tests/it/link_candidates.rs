//! Candidates replace active paths that are worse or dead, and nothing is lost.

use evenkeel_link::flow::FlowEnd;
use evenkeel_link::session::ReplacementCause;
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_sim::link::{better_candidate, candidate_takeover, similar_candidate};

use crate::link::simulate;
use crate::seeds;

#[test]
fn a_candidate_that_becomes_faster_replaces_the_slower_path_and_nothing_is_lost() {
    for seed in seeds() {
        let plan = better_candidate(seed);
        let run = simulate(&plan);
        let [swap] = &run.replacements[..] else { panic!("seed {seed}: {:?}", run.replacements) };
        assert_eq!((swap.event.removed, swap.event.added), (Some(PathId(1)), PathId(2)), "seed {seed}");
        assert!(matches!(swap.event.cause, ReplacementCause::Slower { .. }), "{swap:?}");
        // The p95 of 20 probes falls after 19 of them, one per 200 ms; then ten samples of 100 ms or more are compared.
        let after = swap.at.since(Instant::from_secs(20));
        println!("seed {seed}: swapped after {after:?}, {:?}", swap.event.cause);
        assert!((Duration::from_millis(4_500)..Duration::from_secs(9)).contains(&after), "{after:?}");
        for (flow, flow_plan) in run.flows.iter().zip(&plan.flows) {
            assert_eq!(
                (flow.received, &flow.end),
                (flow_plan.bytes, &Some(FlowEnd::Finished)),
                "seed {seed}"
            );
        }
        assert!(run.path_bytes[2] > 1_000_000, "the added path carries traffic: {:?}", run.path_bytes);
    }
}

#[test]
fn a_candidate_carries_nothing_while_active_paths_are_healthy() {
    let mut plan = better_candidate(1);
    plan.paths[2].faults[0].until = plan.duration;
    let run = simulate(&plan);
    assert_eq!((run.replacements.len(), run.path_bytes[2]), (0, 0));
}

#[test]
fn a_candidate_takes_over_within_a_second_when_the_only_active_path_dies() {
    for seed in seeds() {
        let run = simulate(&candidate_takeover(seed));
        let gap = run.flows.iter().map(|flow| flow.gap_max).max().unwrap();
        println!("seed {seed}: longest pause {gap:?}");
        assert!(gap < Duration::from_secs(1), "seed {seed}: {gap:?}");
        let [replacement] = &run.replacements[..] else { panic!("seed {seed}: {:?}", run.replacements) };
        assert_eq!(replacement.event.cause, ReplacementCause::Unusable);
    }
}

#[test]
fn similar_paths_do_not_replace_each_other_for_ten_minutes_under_full_load() {
    let run = simulate(&similar_candidate(1));
    assert_eq!(run.replacements, []);
    assert_eq!(run.path_bytes[1], 0);
}

/// The queue is longer than the allowance for it, so an idle candidate seems better than a busy path. The memory of the
/// pruned path's p95 ends that after one swap.
#[test]
fn similar_paths_with_long_queues_swap_once_in_ten_minutes() {
    let mut plan = similar_candidate(1);
    for path in &mut plan.paths {
        path.delay *= 2;
        path.queue = Duration::from_millis(150);
    }
    assert_eq!(simulate(&plan).replacements.len(), 1);
}
