//! Classes and sessions within a tenant.

use evenkeel_sim::{Scenario, ServiceOrder, TenantSummary, agent_loop, classes, invented_sessions, run};

use crate::{MESSAGE_TIME, seeds, tenants};

/// The agent always has 100 requests waiting, and its nine colleagues send five requests a second each. Compared with
/// the same demand where every member is a tenant of its own (the fair wait), and with one queue for all.
#[test]
fn an_agent_loop_delays_its_colleagues_no_more_than_if_each_had_a_tenant() {
    for seed in seeds() {
        let team = agent_loop(seed);
        let mut apart = team.clone();
        for plan in &mut apart.tenants {
            plan.team = None;
            plan.flow.session = None;
        }
        let one_queue = Scenario { order: ServiceOrder::Fifo, ..team.clone() };
        let [in_team, fair, fifo] = [team, apart, one_queue].map(|scenario| median_wait(&scenario));
        println!(
            "agent loop, seed {seed}: median wait {in_team:?} in the team, {fair:?} apart, {fifo:?} in one queue"
        );
        assert!(in_team <= fair + MESSAGE_TIME, "seed {seed}: {in_team:?}, apart {fair:?}");
        assert!(fifo > 20 * in_team, "seed {seed}: {in_team:?}, FIFO {fifo:?}");
    }
}

fn median_wait(scenario: &Scenario) -> evenkeel_policy::time::Duration {
    let all: [TenantSummary; 11] = tenants(&run(scenario).unwrap());
    let mut waits: Vec<_> = all[1..10].iter().map(|member| member.wait_percentile(50)).collect();
    waits.sort_unstable();
    waits[waits.len() / 2]
}

#[test]
fn under_a_flood_of_high_requests_every_class_gets_its_minimum_share() {
    for seed in seeds() {
        let windows = run(&classes(seed)).unwrap().window_shares(3, 500);
        assert!(windows.len() > 50, "seed {seed}: {} windows", windows.len());
        for shares in windows {
            let got = shares.iter().map(|share| share.0);
            let close = got.zip([0.6, 0.3, 0.1]).all(|(got, expected)| (got - expected).abs() < 0.01);
            assert!(close, "seed {seed}: {shares:?}");
        }
    }
}

#[test]
fn a_tenant_gains_nothing_by_inventing_sessions_and_classes() {
    for seed in seeds() {
        let windows = run(&invented_sessions(seed)).unwrap().window_shares(10, 300);
        assert!(windows.len() > 100, "seed {seed}");
        for shares in windows {
            assert!((shares[9].0 - 0.5).abs() < 0.01, "seed {seed}: the plain tenant got {}", shares[9]);
        }
    }
}
