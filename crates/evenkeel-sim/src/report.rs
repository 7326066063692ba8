//! What a run adds up to, for people.

use std::time::Duration;

use evenkeel_policy::id::TenantId;
use evenkeel_sim::{Event, Run, Scenario, Share, Stamped, TenantSummary};

/// Prints a table of the tenants and one of the nodes.
pub(crate) fn table(scenario: &Scenario, done: &Run) {
    let tenants = summaries(scenario, done);
    let total: u64 = tenants.iter().map(|(_, tenant)| tenant.service.0).sum();
    println!(
        "  {:<9} {:>6} {:>7} {:>7} {:>8} {:>11} {:>10} {:>10}",
        "tenant", "weight", "asked", "served", "refused", "of service", "wait p50", "wait p99"
    );
    for (name, tenant) in &tenants {
        let plan = scenario.tenants.iter().find(|plan| plan.name == *name);
        println!(
            "  {:<9} {:>6} {:>7} {:>7} {:>8} {:>11} {:>10} {:>10}",
            name,
            plan.map_or(String::new(), |plan| plan.weight.to_string()),
            tenant.arrived,
            tenant.dispatched,
            tenant.rejected,
            Share(tenant.service.0 as f64 / total.max(1) as f64).to_string(),
            millis(tenant.wait_percentile(50)),
            millis(tenant.wait_percentile(99)),
        );
    }
    nodes(scenario, done);
}

/// Prints one line: what was served, refused and waited for, per tenant.
pub(crate) fn line(scenario: &Scenario, done: &Run) {
    let said = |(name, tenant): (&str, TenantSummary)| {
        let wait = millis(tenant.wait_percentile(99));
        format!("{name}: {} served, {} refused, wait p99 {wait}", tenant.dispatched, tenant.rejected)
    };
    let tenants: Vec<_> = summaries(scenario, done).into_iter().map(said).collect();
    println!("seed {}; {}", scenario.seed, tenants.join("; "));
}

/// Prints every event.
pub(crate) fn events(done: &Run) {
    for Stamped { at, event } in &done.events {
        println!("{:>14.6} {event:?}", at.as_nanos() as f64 / 1e9);
    }
}

fn nodes(scenario: &Scenario, done: &Run) {
    for (id, node) in (0..).zip(&scenario.nodes) {
        let (mut sent, mut by_path) = (0_usize, vec![0_usize; node.paths.len()]);
        for Stamped { event, .. } in &done.events {
            if let Event::Dispatched { node, path, .. } = event
                && node.0 == id
            {
                sent += 1;
                if let Some(path) = path {
                    by_path[path.index()] += 1;
                }
            }
        }
        let paths = by_path.iter().zip(&node.paths).map(|(count, path)| {
            let share = Share(*count as f64 / sent.max(1) as f64);
            format!("{share} over the {} ms path", path.rtt.as_millis())
        });
        let paths: Vec<_> = paths.collect();
        println!(
            "  node {id}: {sent} requests at {} ms a message{}{}",
            node.message_time.as_millis(),
            if paths.is_empty() { "" } else { "; " },
            paths.join(", ")
        );
    }
}

fn summaries<'a>(scenario: &'a Scenario, done: &Run) -> Vec<(&'a str, TenantSummary)> {
    (0..).zip(&scenario.tenants).map(|(id, plan)| (plan.name, done.tenant(TenantId(id)))).collect()
}

fn millis(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1_000.0)
}
