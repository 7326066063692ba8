//! Measures fairness between clients of one engine that all send more than their share: the workloads of the Virtual
//! Token Counter (VTC, "Fairness in Serving Large Language Models", 2024), on an engine like the one in the paper.
//!
//! As in VTC, an input token costs one unit when its prompt is sent, and an output token two when it is generated.
//! The gap between two clients is the largest difference in service since both began to wait; a workload's gap is that
//! of its worst pair.

mod dispatcher;
mod engine;
mod gap;
mod run;
mod vtc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::time::Duration;

pub use gap::Gap;
pub use run::{FairnessResult, measure};

/// Policy that decides which request the engine gets next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// Evenkeel's pipeline, driven the way an API drives it.
    Evenkeel,
    /// The client with the smallest virtual counter, as published.
    Vtc,
    /// First come, first served.
    Fifo,
}

/// Clients of one engine.
#[derive(Clone, Debug)]
pub struct Workload {
    /// Name in reports.
    pub name: &'static str,
    pub clients: Vec<ClientPlan>,
    pub duration: Duration,
    /// Gap that the paper reports for VTC; Evenkeel's gap must not exceed it.
    pub vtc_gap: Cost,
}

/// One client; all its requests are alike.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// Tokens per prompt.
    pub input: u64,
    /// Tokens per response, which is also its `max_tokens`.
    pub output: u64,
    /// Requests per minute.
    pub rpm: u32,
    pub pattern: ArrivalPattern,
}

/// Arrival pattern of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalPattern {
    /// Constant intervals.
    Even,
    /// Random intervals.
    Random,
    /// Constant intervals for this duration, then none for as long.
    OnOff(Duration),
}

impl ClientPlan {
    const fn even(rpm: u32, input: u64, output: u64) -> Self {
        Self { input, output, rpm, pattern: ArrivalPattern::Even }
    }

    const fn random(rpm: u32, input: u64, output: u64) -> Self {
        Self { input, output, rpm, pattern: ArrivalPattern::Random }
    }

    /// Returns the cost of one request.
    pub fn cost(&self) -> Cost {
        Cost(self.input + 2 * self.output)
    }
}

/// Returns the paper's workloads in which every client sends more than its share.
pub fn workloads() -> Vec<Workload> {
    let workload = |name, clients: &[ClientPlan], vtc_gap| Workload {
        name,
        clients: clients.to_vec(),
        duration: Duration::from_secs(600),
        vtc_gap: Cost(vtc_gap),
    };
    let eight = [24, 24, 24, 36, 36, 36, 36, 36].map(|rpm| ClientPlan::even(rpm, 256, 256));
    let minute = ArrivalPattern::OnOff(Duration::from_secs(60));
    vec![
        workload("2 clients", &[ClientPlan::even(90, 256, 256), ClientPlan::even(180, 256, 256)], 7_878),
        workload("8 clients", &eight, 3_346),
        workload("short, long", &[ClientPlan::random(480, 64, 64), ClientPlan::random(90, 256, 256)], 6_598),
        workload("in, out", &[ClientPlan::random(480, 512, 32), ClientPlan::random(90, 32, 512)], 1_501),
        workload(
            "on and off",
            &[
                ClientPlan { pattern: minute, ..ClientPlan::even(120, 256, 256) },
                ClientPlan::even(180, 256, 256),
            ],
            9_975,
        ),
    ]
}
