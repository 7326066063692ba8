//! Gaps between clients that all send more than their share, compared with plain VTC.

use evenkeel_policy::cost::Cost;
use evenkeel_sim::fairness::{ClientPlan, FairnessResult, SchedulingPolicy, Workload, measure, workloads};

use crate::seeds;

/// A published gap is the result of a single run. Ours is at most as large on average and in 19 of 20 runs. Of 200
/// seeds of "in, out", five exceed it, the worst with 2 860.
#[test]
fn once_the_engine_is_busy_the_gap_is_at_most_the_published_one_of_vtc() {
    for workload in workloads() {
        let name = workload.name;
        let published = workload.vtc_gap;
        let runs: Vec<_> =
            seeds().map(|seed| simulate(&workload, SchedulingPolicy::Evenkeel, seed)).collect();
        let mut gaps: Vec<_> = runs.iter().map(|run| run.gap.since_both_waited).collect();
        gaps.sort_unstable();
        let most = gaps[(gaps.len() * 19).div_ceil(20) - 1];
        let worst = gaps[gaps.len() - 1];
        let mean = Cost(gaps.iter().copied().sum::<Cost>().0 / gaps.len() as u64);
        println!("{name}: {mean} on average, {most} in 19 of 20, {worst} at worst; published: {published}");
        assert!(mean <= published && most <= published, "{name}: {gaps:?}");
        assert!(worst.0 <= 2 * published.0, "{name}: {worst} at worst, {gaps:?}");
        for run in runs {
            let least = run.service.iter().min().unwrap();
            let most = run.service.iter().max().unwrap();
            assert!(98 * most.0 <= 100 * least.0, "{name}: not within 2 %: {:?}", run.service);
        }
    }
}

/// Checks the median of eleven runs and the run that `evenkeel-sim fairness` prints. Measured from the start, a gap
/// includes requests that were in flight when both clients began to wait. Of 200 seeds of "in, out", 36 exceed the
/// published gap, the worst with 6 472; with plain VTC on the same engine it is 137 seeds, the worst with 19 836.
#[test]
fn from_the_start_the_median_gap_is_at_most_the_published_one_of_vtc() {
    for workload in workloads() {
        let name = workload.name;
        let published = workload.vtc_gap;
        let from_start =
            |seed| simulate(&workload, SchedulingPolicy::Evenkeel, seed).from_start.since_both_waited;
        let mut gaps: Vec<_> = (1..=11).map(from_start).collect();
        gaps.sort_unstable();
        println!("{name}: {} in half of the runs, {} at worst; published: {published}", gaps[5], gaps[10]);
        assert!(gaps[5] <= published && from_start(7) <= published, "{name}: {gaps:?}");
    }
}

/// Runs each policy with the same five seeds and compares the worst gaps.
#[test]
fn on_the_same_engine_the_worst_gap_is_at_most_that_of_plain_vtc_or_a_few_requests() {
    for workload in workloads() {
        let name = workload.name;
        let [ours, vtc, fifo] = [SchedulingPolicy::Evenkeel, SchedulingPolicy::Vtc, SchedulingPolicy::Fifo]
            .map(|policy| worst(&workload, policy));
        println!("{name}: {ours:?}, plain VTC {vtc:?}, FIFO {fifo:?}");
        let largest_request = workload.clients.iter().map(ClientPlan::cost).max().unwrap();
        assert!(ours[0] <= vtc[0].max(largest_request), "{name}: {ours:?}, plain VTC {vtc:?}");
        assert!(
            ours[1] <= vtc[1].max(largest_request + largest_request + largest_request),
            "{name}: {ours:?}, plain VTC {vtc:?}"
        );
        assert!(ours[1] <= workload.vtc_gap, "{name}: {ours:?}");
        assert!(fifo[0] > Cost(10_000), "{name}: FIFO {fifo:?}");
    }
}

/// Returns the worst gap of five runs, once after the warm-up and once from the start.
fn worst(workload: &Workload, policy: SchedulingPolicy) -> [Cost; 2] {
    let gaps = (1..=5).map(|seed| simulate(workload, policy, seed));
    let gaps: Vec<_> = gaps.map(|run| [run.gap, run.from_start].map(|gap| gap.since_both_waited)).collect();
    [0, 1].map(|which| gaps.iter().map(|gap| gap[which]).max().unwrap())
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let workload = &workloads()[1];
    let run = |seed| simulate(workload, SchedulingPolicy::Evenkeel, seed);
    assert_eq!(run(7), run(7));
    assert_ne!(run(7), run(8));
}

fn simulate(workload: &Workload, policy: SchedulingPolicy, seed: u64) -> FairnessResult {
    measure(workload, policy, seed).unwrap()
}
