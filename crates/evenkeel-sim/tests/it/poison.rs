//! Poison requests harm only their sender; engines at their limit and outages.

use evenkeel_pipeline::Rejection;
use evenkeel_policy::time::Duration;
use evenkeel_sim::poison::{
    Fault, PoisonPlan, PoisonRun, at_the_limit, measure_poison_cell, outage, poison_cells, refusing,
    run_poison,
};

use crate::seeds;

#[test]
fn poison_of_status_500_harms_only_its_sender() {
    assert_unharmed(Fault::ServerError);
}

#[test]
fn poison_that_closes_connections_harms_only_its_sender() {
    assert_unharmed(Fault::Close);
}

#[test]
fn poison_that_hangs_harms_only_its_sender() {
    assert_unharmed(Fault::Hang);
}

#[test]
fn poison_of_status_429_harms_only_its_sender() {
    assert_unharmed(Fault::Refuse);
}

fn assert_unharmed(fault: Fault) {
    let mut harmed = vec![];
    for cell in poison_cells().into_iter().filter(|cell| cell.fault == fault) {
        let result = measure_poison_cell(&cell, 1).unwrap();
        println!("{cell:?}: {result:?}");
        // A tenant's own hanging requests hold most of the only node's slots: its others wait, but none is lost.
        let is_full = fault == Fault::Hang && cell.nodes == 1 && cell.is_busy && cell.is_one_tenant;
        if is_full && result.lost == 0 {
            continue;
        }
        if !result.is_unharmed() || cell.is_busy && result.throughput < 0.5 {
            harmed.push(format!("{cell:?}: {result:?}"));
        }
    }
    assert!(harmed.is_empty(), "{}", harmed.join("\n"));
}

#[test]
fn one_percent_of_refusals_costs_less_than_a_tenth_of_the_throughput() {
    for seed in seeds() {
        for nodes in [1, 3] {
            let served = |ratio| run(&refusing(seed, nodes, ratio)).load_served;
            let all = served(0.0);
            let some = served(0.01);
            println!("seed {seed}, {nodes} nodes: {some} of {all}");
            assert!(9 * all <= 10 * some, "seed {seed}, {nodes} nodes: {some} of {all}");
        }
    }
}

#[test]
fn a_pool_at_its_limit_queues_fairly_and_shows_no_refusal() {
    for seed in seeds() {
        for nodes in [1, 3] {
            for is_one_tenant in [false, true] {
                let run = run(&at_the_limit(seed, nodes, is_one_tenant));
                let p95 = run.p95();
                println!(
                    "seed {seed}, {nodes} nodes, one tenant {is_one_tenant}: {} served, {} refusals shown, p95 {p95:?}",
                    run.load_served, run.refusals_shown
                );
                assert_eq!((run.refusals_shown, run.load_rejected, run.lost()), (0, 0, 0), "seed {seed}");
            }
        }
    }
}

#[test]
fn a_restart_of_20_s_loses_no_request() {
    for seed in seeds() {
        for nodes in [1, 3] {
            let from = Duration::from_secs(30);
            let run = run(&outage(seed, nodes, from, from + Duration::from_secs(20)));
            let longest = run.victims.iter().map(|victim| victim.latency).max().unwrap();
            println!("seed {seed}, {nodes} nodes: {} lost, longest {longest:?}", run.lost());
            assert_eq!(run.lost(), 0, "seed {seed}");
            assert!(longest < Duration::from_secs(24), "seed {seed}: {longest:?}");
        }
    }
}

#[test]
fn an_outage_of_five_minutes_is_answered_at_once_after_the_hold() {
    for seed in seeds() {
        for nodes in [1, 3] {
            let from = Duration::from_secs(30);
            let to = from + Duration::from_secs(300);
            let run = run(&outage(seed, nodes, from, to));
            let held_until = from + Duration::from_secs(31);
            let late = run.victims.iter().filter(|victim| (held_until..to).contains(&victim.at));
            let slow = late.clone().filter(|victim| Duration::from_millis(50) <= victim.latency).count();
            let others = late.clone().filter(|victim| {
                !matches!(victim.rejection, Some(Rejection::Outage { retry_after }) if retry_after <= Duration::from_secs(31))
            });
            println!("seed {seed}, {nodes} nodes: {} after the hold, {slow} slow", late.clone().count());
            assert!(400 < late.clone().count(), "seed {seed}");
            assert_eq!((slow, others.count()), (0, 0), "seed {seed}");
            let back = to + Duration::from_secs(4);
            let after = run.victims.iter().filter(|victim| back <= victim.at && victim.rejection.is_some());
            assert_eq!(after.count(), 0, "seed {seed}: served again within two checks");
        }
    }
}

fn run(plan: &PoisonPlan) -> PoisonRun {
    run_poison(plan).unwrap()
}
