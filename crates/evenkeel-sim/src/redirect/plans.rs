//! Predefined plans of several gateways.

use evenkeel_pipeline::{RedirectMode, RedirectOptions};
use evenkeel_policy::time::Duration;

use super::{GatewayLife, GatewayPlan, RedirectPlan};

/// Creates a plan from a seed.
type PlanFn = fn(u64) -> RedirectPlan;

const ALL: [(&str, PlanFn); 7] = [
    ("redirect-one-entry", one_entry),
    ("redirect-stale", stale_figures),
    ("redirect-stale-uneven", stale_figures_uneven),
    ("redirect-herding", herding),
    ("redirect-flapping", flapping_peer),
    ("redirect-restart", restarted_peer),
    ("redirect-slow", slow_peer),
];

/// Returns the names of all plans.
pub fn redirect_names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|(name, _)| *name)
}

/// Creates a plan by name.
pub fn redirect_plan(name: &str, seed: u64) -> Option<RedirectPlan> {
    let (name, make) = ALL.iter().find(|(other, _)| *other == name)?;
    Some(RedirectPlan { name, ..make(seed) })
}

fn one_entry(seed: u64) -> RedirectPlan {
    plan(seed, "all clients know only the first of three gateways; load 80 %", [2.4, 0.0, 0.0])
}

fn stale_figures(seed: u64) -> RedirectPlan {
    let options = RedirectOptions { down_after: Duration::from_secs(10), ..RedirectOptions::default() };
    let plan = plan(seed, "figures are 4 s old; each gateway has its own clients; load 80 %", [0.8; 3]);
    RedirectPlan { report_delay: Duration::from_secs(4), options, ..plan }
}

/// Creates a plan with more to hand over than the default budget for stale figures allows.
fn stale_figures_uneven(seed: u64) -> RedirectPlan {
    let mut plan = RedirectPlan {
        about: "figures are 4 s old; loads 120 %, 60 % and 60 %; budget 100 %",
        ..stale_figures(seed)
    };
    plan.options.budget = 1.0;
    for (gateway, load) in plan.gateways.iter_mut().zip([1.2, 0.6, 0.6]) {
        gateway.load = load;
    }
    plan
}

fn herding(seed: u64) -> RedirectPlan {
    plan(seed, "two gateways with more than they can serve, and one without clients", [1.15, 1.15, 0.0])
}

fn flapping_peer(seed: u64) -> RedirectPlan {
    let mut plan = plan(
        seed,
        "the third gateway is unreachable every other 5 s; load 80 % of the rest",
        [1.2, 0.4, 0.0],
    );
    plan.gateways[2].life = GatewayLife::Flapping(Duration::from_secs(5));
    plan
}

fn restarted_peer(seed: u64) -> RedirectPlan {
    let mut plan =
        plan(seed, "the third gateway restarts with cold caches; load 70 % of the rest", [1.2, 0.2, 0.0]);
    plan.gateways[2].life = GatewayLife::Restarted(Duration::from_secs(10));
    plan
}

fn slow_peer(seed: u64) -> RedirectPlan {
    let mut plan = plan(seed, "the third gateway is three times as slow", [1.4, 0.4, 0.0]);
    plan.gateways[2].slowness = 3.0;
    plan
}

fn plan(seed: u64, about: &'static str, loads: [f64; 3]) -> RedirectPlan {
    let gateway = |load| GatewayPlan { load, slowness: 1.0, life: GatewayLife::Steady };
    RedirectPlan {
        name: "",
        about,
        seed,
        duration: Duration::from_secs(60),
        gateways: loads.map(gateway).to_vec(),
        report_delay: Duration::from_millis(1),
        options: RedirectOptions::default(),
        mode: RedirectMode::Forward,
    }
}
