//! How everything stands: what `GET /api/load-status` shows.
//!
//! Bound: one entry per model that was asked for, per node, and per tenant met.

use evenkeel_policy::backpressure::BackpressureState;
use evenkeel_policy::concurrency_limit::LimitStatus;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::Counts;
use crate::OptimizedLoadManager;
use crate::accept::{ModelId, ModelQueueId, Priority};
use crate::pick_node::{AdminState, BreakerState, CacheEntry, CacheStats, EngineLoad, Node};
use crate::pick_path::PathStatus;
use crate::queue::TenantEntry;

/// How a walk stands.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// How loaded the most loaded model's queue is.
    pub state: BackpressureState,
    /// Its waiting requests as a fraction of its places.
    pub load_ratio: f64,
    /// Requests that wait, for all models together.
    pub waiting: usize,
    /// Requests on nodes.
    pub in_flight: usize,
    /// Each model that was asked for.
    pub models: Vec<ModelStatus>,
    /// Each node.
    pub nodes: Vec<NodeStatus>,
    /// Each tenant met.
    pub tenants: Vec<TenantStatus>,
    /// How well remembering nodes does.
    pub cache: CacheStats,
    /// How often what happened.
    pub counts: Counts,
}

/// How one model's queue stands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelStatus {
    /// The model.
    pub model: ModelId,
    /// How loaded its queue is.
    pub state: BackpressureState,
    /// Its waiting requests as a fraction of its places.
    pub load_ratio: f64,
    /// Requests that wait, those in the background excepted.
    pub waiting: usize,
    /// Requests that wait in the background.
    pub background: usize,
    /// Units per second its nodes get done while there is a queue, once that is known.
    pub rate: Option<f64>,
}

/// How one node stands.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// How many requests it works on at once.
    pub slots: u32,
    /// How that was found, if it is.
    pub limit: Option<LimitStatus>,
    /// What it says of its load, if it does.
    pub engine: Option<EngineLoad>,
    /// How many requests of others it has, as far as it says so.
    pub elsewhere: u32,
    /// How many it has.
    pub busy: u32,
    /// What they are charged.
    pub in_flight: Cost,
    /// How much of the work it should get, relative to the others.
    pub weight: Weight,
    /// Whether it is to take new work.
    pub duty: AdminState,
    /// Whether it may be asked.
    pub breaker: BreakerState,
    /// Until when it is spared because it said it has no room.
    pub spared_until: Option<Instant>,
    /// How long 95 of 100 requests of the last minute waited for the beginning of an answer.
    pub p95: Option<Duration>,
    /// The part of the last minute's requests that went wrong; 0 until there are enough to say.
    pub error_rate: f64,
    /// What it serves.
    pub models: Vec<ModelId>,
    /// The ways to it.
    pub paths: Vec<PathStatus>,
}

/// How one tenant stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantStatus {
    /// The tenant.
    pub tenant: TenantId,
    /// Its weight.
    pub weight: Weight,
    /// How many of its requests may be on nodes at once.
    pub concurrency_max: u32,
    /// Its requests that wait.
    pub waiting: usize,
    /// Its requests on nodes.
    pub in_flight: u32,
    /// What they are charged.
    pub in_flight_cost: Cost,
    /// What its ended requests cost.
    pub served: Cost,
}

/// What a door's connection pool tells beside a [`Status`]; the walk itself opens no connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Connections in use.
    pub active_connections: usize,
    /// Connections kept for later.
    pub idle_connections: usize,
    /// Connections made so far.
    pub connections_created: u64,
    /// Times a kept connection was used again.
    pub connections_reused: u64,
}

impl OptimizedLoadManager {
    /// Tells how everything stands.
    pub fn status(&self) -> Status {
        let models: Vec<ModelStatus> = self.model_statuses().collect();
        let most = models.iter().max_by(|one, other| one.load_ratio.total_cmp(&other.load_ratio));
        Status {
            state: most.map_or(BackpressureState::Normal, |model| model.state),
            load_ratio: most.map_or(0.0, |model| model.load_ratio),
            waiting: models.iter().map(|model| model.waiting).sum(),
            in_flight: self.in_flight,
            models,
            nodes: self.nodes.iter().map(|(id, node)| self.node_status(id, node)).collect(),
            tenants: self.wait_queue.tenants().iter().map(|(id, it)| self.tenant_status(id, it)).collect(),
            cache: self.node_cache.stats(),
            counts: self.counts,
        }
    }

    /// Tells which node is remembered for a model and an affinity.
    pub fn cached(&self, model: ModelId, affinity: u64) -> Option<CacheEntry> {
        self.node_cache.entry((model, affinity))
    }

    fn model_statuses(&self) -> impl Iterator<Item = ModelStatus> {
        let with_somebody = self.wait_queue.rings().filter(|(line, _)| line.urgency == Priority::Interactive);
        with_somebody.map(|(line, ring)| {
            let pressure = ring.places.pressure();
            let behind = ModelQueueId { urgency: Priority::Background, ..line };
            ModelStatus {
                model: line.model,
                background: self.wait_queue.waiting(behind),
                state: pressure.state,
                load_ratio: pressure.load_ratio,
                waiting: ring.places.waiting(),
                rate: ring.rate(),
            }
        })
    }

    fn node_status(&self, id: NodeId, node: &Node) -> NodeStatus {
        NodeStatus {
            node: id,
            slots: node.slots(),
            limit: node.capacity.status(),
            engine: node.engine,
            elsewhere: node.external_load(),
            busy: node.busy,
            in_flight: node.in_flight,
            weight: node.weight(),
            duty: node.duty,
            breaker: node.breaker.state(),
            spared_until: node.rest.until(),
            p95: node.p95(self.now),
            error_rate: node.breaker.error_rate(self.now),
            models: node.models().to_vec(),
            paths: node.paths.statuses(),
        }
    }

    fn tenant_status(&self, id: TenantId, tenant: &TenantEntry) -> TenantStatus {
        TenantStatus {
            tenant: id,
            weight: tenant.rule.weight,
            concurrency_max: tenant.rule.concurrency_max,
            waiting: self.wait_queue.rings().map(|(_, ring)| ring.places.waiting_of(id)).sum(),
            in_flight: tenant.in_flight,
            in_flight_cost: tenant.in_flight_cost,
            served: tenant.served,
        }
    }
}
