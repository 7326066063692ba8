//! The ideal: one queue over the slots of all gateways, which knows everything at once and needs no hops.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use evenkeel_policy::time::{Duration, Instant};

use super::RedirectPlan;
use super::gateway::{SLOTS, is_reachable, service_time};

/// Time from the start in which requests are not measured; figures may take 4 s to arrive.
const WARM_UP: Duration = Duration::from_secs(10);

/// A request as its client sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) at: Instant,
    /// Service time on a slot of a gateway that is not slow.
    pub(super) work: Duration,
}

impl Demand {
    /// Reports whether the request arrives after the gateways have exchanged their first figures.
    pub(super) fn is_measured(&self) -> bool {
        Instant::ORIGIN + WARM_UP <= self.at
    }
}

/// Serves the requests in order of arrival, each on the slot that ends it first; returns the sorted latencies.
///
/// A request starts on a gateway only while that is reachable.
pub(super) fn latencies(plan: &RedirectPlan, demands: &[Demand]) -> Vec<Duration> {
    let slots_of = |gateway: usize| (0..SLOTS).map(move |_| gateway);
    let mut slots: Vec<(usize, BinaryHeap<Reverse<Instant>>)> = (0..plan.gateways.len())
        .map(|gateway| (gateway, slots_of(gateway).map(|_| Reverse(Instant::ORIGIN)).collect()))
        .collect();
    let mut latencies = Vec::with_capacity(demands.len());
    for demand in demands {
        let ends_at = |gateway: usize, free: &BinaryHeap<Reverse<Instant>>| {
            let Reverse(free_at) = *free.peek()?;
            let starts_at = next_reachable(plan, gateway, free_at.max(demand.at));
            Some(starts_at + service_time(&plan.gateways[gateway], starts_at, demand.work))
        };
        let best = slots.iter_mut().filter_map(|(gateway, free)| Some((ends_at(*gateway, free)?, free)));
        if let Some((ends_at, free)) = best.min_by_key(|(ends_at, _)| *ends_at) {
            free.pop();
            free.push(Reverse(ends_at));
            if demand.is_measured() {
                latencies.push(ends_at.since(demand.at));
            }
        }
    }
    latencies.sort_unstable();
    latencies
}

fn next_reachable(plan: &RedirectPlan, gateway: usize, mut at: Instant) -> Instant {
    while !is_reachable(&plan.gateways[gateway], at) {
        at += Duration::from_millis(10);
    }
    at
}
