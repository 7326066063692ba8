//! How far apart clients of one engine drift that all want more than their share: the workloads of the Virtual Token
//! Counter (VTC, "Fairness in Serving Large Language Models", 2024), on an engine like the one they were published for.
//!
//! An input token is one unit when its prompt is sent to be read, which is when VTC counts it, and an output token two when
//! it is said. The gap of two clients is the most that one of them got more than the other since both began to wait; a
//! workload's is that of the pair that drifted furthest.

mod dispatcher;
mod engine;
mod gap;
mod run;
mod vtc;

use evenkeel_policy::cost::Cost;
use evenkeel_policy::time::Duration;

pub use gap::Gap;
pub use run::{FairnessResult, measure};

/// Who is served next by the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SchedulingPolicy {
    /// Evenkeel's pipeline, as a door drives it.
    Evenkeel,
    /// Whoever has the smallest virtual counter, as published.
    Vtc,
    /// Whoever came first.
    Fifo,
}

/// Clients of one engine.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What reports call it.
    pub name: &'static str,
    /// Who asks.
    pub clients: Vec<ClientPlan>,
    /// How long they ask.
    pub duration: Duration,
    /// The gap that plain VTC is said to have, and that is not to be exceeded.
    pub vtc_gap: Cost,
}

/// One client: every request is like the other.
#[derive(Clone, Copy, Debug)]
pub struct ClientPlan {
    /// Tokens of its prompts.
    pub input: u64,
    /// Tokens of its answers, which is also the most that it asks for.
    pub output: u64,
    /// How many requests it sends a minute.
    pub rpm: u32,
    /// When it sends them.
    pub pattern: ArrivalPattern,
}

/// When a client sends its requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrivalPattern {
    /// As evenly as a clock.
    Even,
    /// At random.
    Random,
    /// Evenly for so long, then nothing for as long.
    OnOff(Duration),
}

impl ClientPlan {
    const fn even(rpm: u32, input: u64, output: u64) -> Self {
        Self { input, output, rpm, pattern: ArrivalPattern::Even }
    }

    const fn random(rpm: u32, input: u64, output: u64) -> Self {
        Self { input, output, rpm, pattern: ArrivalPattern::Random }
    }

    /// What one of its requests costs.
    pub fn cost(&self) -> Cost {
        Cost(self.input + 2 * self.output)
    }
}

/// The workloads of the paper in which every client wants more than its share.
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
