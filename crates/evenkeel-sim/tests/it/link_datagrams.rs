//! Flows of datagrams: order, copies, losses and the time that datagrams wait for each other.

use evenkeel_link::flow::DatagramMode;
use evenkeel_policy::time::Duration;
use evenkeel_sim::link::{
    DatagramRun, LinkPlan, LinkRun, PathFault, PathFaultKind, datagrams, random_faults,
};

use crate::link::simulate;
use crate::seeds;

/// Datagrams of the flow.
const SENT: u64 = 4_000;
const MS: Duration = Duration::from_millis(1);

#[test]
fn striped_datagrams_use_both_paths_and_arrive_in_order_although_one_path_is_slower() {
    for seed in seeds() {
        let mut plan = datagrams(seed, DatagramMode::Stripe);
        plan.paths.iter_mut().for_each(|path| path.loss = 0.0);
        let run = simulate(&plan);
        let flow = arrived(&run);
        assert_eq!((flow.received.len() as u64, flow.disordered, flow.repeated), (SENT, 0, 0), "seed {seed}");
        assert!(run.path_bytes.iter().all(|bytes| 400_000 < *bytes), "seed {seed}: {:?}", run.path_bytes);
        assert_eq!((run.datagrams.lost, run.datagrams.late), (0, 0), "seed {seed}");
    }
}

#[test]
fn a_lost_datagram_delays_a_striped_flow_by_no_more_than_the_deadline() {
    for seed in seeds() {
        let run = simulate(&datagrams(seed, DatagramMode::Stripe));
        let flow = arrived(&run);
        let lost = SENT - flow.received.len() as u64;
        println!("stripe, seed {seed}: {lost} lost, delay up to {:?}, {:?}", flow.delay_max, run.datagrams);
        assert_eq!((flow.disordered, flow.repeated), (0, 0), "seed {seed}");
        assert!((15..=80).contains(&lost), "seed {seed}: {lost} of {SENT}, 1 % per path");
        assert_eq!(run.datagrams.lost, lost, "seed {seed}");
        // The slow path takes 20 ms; the delays differ by 15 ms and hardly vary.
        assert!(flow.delay_max < 50 * MS, "seed {seed}: {:?}", flow.delay_max);
    }
}

#[test]
fn duplicated_datagrams_survive_losses_that_a_pinned_flow_suffers() {
    for seed in seeds() {
        let pinned = simulate(&datagrams(seed, DatagramMode::Pin));
        let duplicated = simulate(&datagrams(seed, DatagramMode::Duplicate));
        let lost = |run: &LinkRun| SENT - arrived(run).received.len() as u64;
        println!("seed {seed}: pinned {} lost, duplicated {}", lost(&pinned), lost(&duplicated));
        assert!((15..=80).contains(&lost(&pinned)), "seed {seed}: {}", lost(&pinned));
        assert!(10 * lost(&duplicated) < lost(&pinned), "seed {seed}: {}", lost(&duplicated));
        assert_eq!(arrived(&duplicated).repeated, 0, "seed {seed}");
        assert!(3_500 < duplicated.datagrams.duplicates, "seed {seed}: {:?}", duplicated.datagrams);
    }
}

#[test]
fn a_black_hole_costs_a_duplicated_flow_nothing_and_the_others_little() {
    for seed in seeds() {
        for dead in [0, 1] {
            let run = |mode| {
                let mut plan = datagrams(seed, mode);
                plan.paths.iter_mut().for_each(|path| path.loss = 0.0);
                let from = Duration::from_secs(5);
                let until = Duration::from_secs(10);
                plan.paths[dead].faults.push(PathFault { from, until, kind: PathFaultKind::BlackHole });
                simulate(&plan)
            };
            let duplicated = run(DatagramMode::Duplicate);
            let flow = arrived(&duplicated);
            assert_eq!(flow.received.len() as u64, SENT, "seed {seed}, path {dead}");
            assert!(flow.gap_max < 50 * MS, "seed {seed}, path {dead}: {:?}", flow.gap_max);
            for mode in [DatagramMode::Stripe, DatagramMode::Pin] {
                let run = run(mode);
                let flow = arrived(&run);
                let lost = SENT - flow.received.len() as u64;
                println!("{mode}, path {dead} dead: {lost} lost, gap {:?}", flow.gap_max);
                assert!(lost < 100, "seed {seed}, path {dead}, {mode}: {lost} of {SENT} in 16 s");
                assert!(flow.gap_max < 1_000 * MS, "seed {seed}, path {dead}, {mode}: {:?}", flow.gap_max);
                assert!(mode == DatagramMode::Pin || flow.disordered == 0, "seed {seed}, path {dead}");
            }
        }
    }
}

#[test]
fn a_flow_that_exceeds_a_path_takes_the_other_one_too() {
    let mut plan = datagrams(1, DatagramMode::Stripe);
    plan.paths.iter_mut().for_each(|path| path.loss = 0.0);
    // The fast path has the greater weight, but carries less than half of the 2 Mbit/s.
    plan.paths[0].mbit = 0.9;
    let run = simulate(&plan);
    println!("bytes by path: {:?}, {:?}", run.path_bytes, run.datagrams);
    assert!(run.path_bytes[0] < run.path_bytes[1], "{:?}", run.path_bytes);
    assert!(arrived(&run).received.len() as u64 > SENT * 9 / 10, "{:?}", run.datagrams);
}

#[test]
fn under_random_faults_datagrams_arrive_at_most_once_and_striped_ones_in_order() {
    for seed in seeds() {
        for mode in [DatagramMode::Stripe, DatagramMode::Pin, DatagramMode::Duplicate] {
            let LinkPlan { flows, .. } = datagrams(seed, mode);
            let run = simulate(&LinkPlan { flows, ..random_faults(seed) });
            let Some(flow) = &run.flows[0].datagrams else { continue };
            assert_eq!(flow.repeated, 0, "seed {seed}, {mode}");
            assert!(mode != DatagramMode::Stripe || flow.disordered == 0, "seed {seed}");
            assert!(run.datagrams.received <= SENT, "seed {seed}, {mode}: {:?}", run.datagrams);
        }
    }
}

fn arrived(run: &LinkRun) -> &DatagramRun {
    run.flows[0].datagrams.as_ref().unwrap()
}
