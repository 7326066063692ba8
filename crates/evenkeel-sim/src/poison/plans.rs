//! Plans of poison requests and outages, and the matrix of cells in which the victim must be unharmed.

use std::fmt;

use evenkeel_policy::time::Duration;

use super::{Fault, PoisonPlan, run_poison};
use crate::simulation::SimError;

/// Delay of the victim that counts as harm, beyond twice the delay without poison.
const DELAY_MAX: Duration = Duration::from_millis(500);

/// One cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoisonCell {
    pub fault: Fault,
    pub nodes: u32,
    pub poison_every: Duration,
    /// Other requests keep all slots busy.
    pub is_busy: bool,
    pub is_one_tenant: bool,
}

/// Figures of a cell.
#[derive(Clone, Copy, Debug)]
pub struct PoisonCellResult {
    pub victims: usize,
    /// Requests of the victim that were not served.
    pub lost: usize,
    /// 95th percentile of the victim's times to the first token.
    pub p95: Duration,
    /// The same without poison.
    pub calm_p95: Duration,
    /// Responses to the other clients, relative to those without poison.
    pub throughput: f64,
    /// Poison requests that got their answer.
    pub poison_ended: u32,
}

impl PoisonCellResult {
    pub fn is_unharmed(&self) -> bool {
        self.lost == 0 && self.p95 <= 2 * self.calm_p95 + DELAY_MAX
    }
}

/// Returns all cells.
pub fn poison_cells() -> Vec<PoisonCell> {
    let mut cells = vec![];
    for fault in [Fault::ServerError, Fault::Close, Fault::Hang, Fault::Refuse] {
        for nodes in [1, 3] {
            for millis in [100, 500, 30_000] {
                for is_busy in [false, true] {
                    for is_one_tenant in [false, true] {
                        let poison_every = Duration::from_millis(millis);
                        cells.push(PoisonCell { fault, nodes, poison_every, is_busy, is_one_tenant });
                    }
                }
            }
        }
    }
    cells
}

/// Runs a cell with and without poison.
pub fn measure_poison_cell(cell: &PoisonCell, seed: u64) -> Result<PoisonCellResult, SimError> {
    let plan = cell.plan(seed);
    let calm = run_poison(&PoisonPlan { poison_every: None, ..plan.clone() })?;
    let run = run_poison(&plan)?;
    Ok(PoisonCellResult {
        victims: run.victims.len(),
        lost: run.lost(),
        p95: run.p95(),
        calm_p95: calm.p95(),
        throughput: f64::from(run.load_served) / f64::from(calm.load_served.max(1)),
        poison_ended: run.poison_ended,
    })
}

impl PoisonCell {
    fn plan(&self, seed: u64) -> PoisonPlan {
        PoisonPlan {
            nodes: self.nodes,
            fault: self.fault,
            poison_every: Some(self.poison_every),
            load_clients: if self.is_busy { 3 * 16 * self.nodes / 2 } else { 0 },
            is_one_tenant: self.is_one_tenant,
            duration: Duration::from_secs(120),
            ..plan(seed)
        }
    }
}

/// Creates a node beside two others that refuses a part of all requests, with all slots busy.
pub fn refusing(seed: u64, nodes: u32, refused_ratio: f64) -> PoisonPlan {
    PoisonPlan { nodes, refused_ratio, load_clients: 32 * nodes, ..plan(seed) }
}

/// Creates nodes with 16 slots of which their engines serve only four, and twice as many clients.
pub fn at_the_limit(seed: u64, nodes: u32, is_one_tenant: bool) -> PoisonPlan {
    let victim_every = Duration::from_millis(500);
    PoisonPlan { nodes, knee: 4, load_clients: 8 * nodes, is_one_tenant, victim_every, ..plan(seed) }
}

/// Creates nodes to which connections are refused for a while.
pub fn outage(seed: u64, nodes: u32, from: Duration, to: Duration) -> PoisonPlan {
    let duration = to + Duration::from_secs(60);
    PoisonPlan {
        nodes,
        down: Some((from, to)),
        duration,
        victim_every: Duration::from_millis(500),
        ..plan(seed)
    }
}

fn plan(seed: u64) -> PoisonPlan {
    PoisonPlan {
        seed,
        duration: Duration::from_secs(120),
        nodes: 1,
        slots: 16,
        knee: u32::MAX,
        fault: Fault::Refuse,
        poison_every: None,
        victim_every: Duration::from_millis(250),
        load_clients: 0,
        is_one_tenant: false,
        refused_ratio: 0.0,
        down: None,
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ServerError => "500",
            Self::Close => "close",
            Self::Hang => "hang",
            Self::Refuse => "429",
        })
    }
}
