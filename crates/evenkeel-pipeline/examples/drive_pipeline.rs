//! Drives the pipeline by hand: one node with one slot, a flood of one tenant, and one request of another.
//!
//! Run it with `cargo run -p evenkeel-pipeline --example drive_pipeline`.

use std::collections::VecDeque;

use evenkeel_pipeline::{
    Arrival, Event, ModelId, NodeSpec, OptimizedLoadManager, OutageRule, PipelineOptions, Priority,
    RequestEnd, RequestId, Slots, TenantFlow,
};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::estimate::Outcome;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::RequestKind;
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

const FLOOD: TenantId = TenantId(0);
const QUIET: TenantId = TenantId(1);
const MODEL: ModelId = ModelId(0);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut now = Instant::ORIGIN;
    let mut pipeline = OptimizedLoadManager::new(PipelineOptions::default())?;
    pipeline.add_node(
        now,
        &NodeSpec {
            slots: Slots::Fixed(1),
            transactions_max: None,
            weight: Weight::ONE,
            models: vec![MODEL],
            paths: vec![],
        },
    )?;

    for _ in 0..5 {
        pipeline.handle_arrival(now, arrival(FLOOD));
    }
    pipeline.handle_arrival(now, arrival(QUIET));

    // A real driver would send the request; this one pretends that every response takes 100 ms.
    let mut in_flight = VecDeque::new();
    loop {
        take_events(&mut pipeline, now, &mut in_flight);
        let Some(request) = in_flight.pop_front() else { break };
        now += Duration::from_millis(100);
        pipeline.handle_end(now, request, RequestEnd { actual: Cost(500), outcome: Outcome::Good });
    }
    Ok(())
}

fn take_events(pipeline: &mut OptimizedLoadManager, now: Instant, in_flight: &mut VecDeque<RequestId>) {
    while let Some(event) = pipeline.poll_event() {
        match event {
            Event::Dispatch { request, tenant, node, waited, reason, .. } => {
                println!(
                    "{:>4} ms  {} -> node {} after {waited:?} ({reason})",
                    millis(now),
                    name(tenant),
                    node.0
                );
                in_flight.push_back(request);
            }
            Event::Done { tenant, actual, .. } => {
                println!("{:>4} ms  {} done, cost {actual}", millis(now), name(tenant));
            }
            Event::Reject { tenant, rejection, .. } => {
                println!("{:>4} ms  {} rejected: {rejection}", millis(now), name(tenant));
            }
            _ => {}
        }
    }
}

fn arrival(tenant: TenantId) -> Arrival {
    Arrival {
        tenant,
        model: MODEL,
        cost: Cost(500),
        upfront: Cost(500),
        affinity: None,
        deadline: None,
        request: RequestKind::Infer,
        priority: Priority::Interactive,
        flow: TenantFlow::default(),
        outage: OutageRule::Hold,
    }
}

fn name(tenant: TenantId) -> &'static str {
    if tenant == QUIET { "quiet" } else { "flood" }
}

fn millis(now: Instant) -> u64 {
    now.as_nanos() / 1_000_000
}
