//! Status of the whole pipeline, as `GET /api/load-status` reports it.
//!
//! Limits: one entry per requested model, per node, and per tenant seen.

use evenkeel_policy::backpressure::BackpressureState;
use evenkeel_policy::class::Class;
use evenkeel_policy::concurrency_limit::LimitStatus;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::{ModelId, NodeId, TenantId};
use evenkeel_policy::time::{Duration, Instant};
use evenkeel_policy::weight::Weight;

use super::Counts;
use crate::OptimizedLoadManager;
use crate::accept::{ModelQueueId, Priority};
use crate::pick_node::{AdminState, BreakerState, CacheEntry, CacheStats, EngineLoad, Node};
use crate::pick_path::{PathShares, PathStatus};
use crate::queue::TenantEntry;

/// Status of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// Backpressure of the fullest model queue.
    pub state: BackpressureState,
    /// Waiting requests of that queue as a fraction of its capacity.
    pub load_ratio: f64,
    /// Waiting interactive requests of all models.
    pub waiting: usize,
    /// Requests in flight.
    pub in_flight: usize,
    /// Models that have been requested.
    pub models: Vec<ModelStatus>,
    /// Nodes, including draining ones.
    pub nodes: Vec<NodeStatus>,
    /// Tenants seen so far.
    pub tenants: Vec<TenantStatus>,
    /// Statistics of the affinity cache.
    pub cache: CacheStats,
    /// Totals since the start.
    pub counts: Counts,
}

/// Status of one model's queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ModelStatus {
    /// The model.
    pub model: ModelId,
    /// Its backpressure.
    pub state: BackpressureState,
    /// Waiting requests as a fraction of its capacity.
    pub load_ratio: f64,
    /// Waiting interactive requests.
    pub waiting: usize,
    /// Waiting background requests.
    pub background: usize,
    /// Cost units per second that its nodes complete while requests are queued, once measured.
    pub rate: Option<f64>,
}

/// Status of one node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeStatus {
    /// The node.
    pub node: NodeId,
    /// Number of requests it serves at once.
    pub slots: u32,
    /// Status of its adaptive concurrency limit, if it has one.
    pub limit: Option<LimitStatus>,
    /// Load reported by its engine.
    pub engine: Option<EngineLoad>,
    /// Requests from other clients, according to its engine.
    pub external_load: u32,
    /// Slots in use.
    pub busy: u32,
    /// Estimated cost of its requests in flight.
    pub in_flight: Cost,
    /// Share of the work it should get, relative to the other nodes.
    pub weight: Weight,
    /// State set by the administrator.
    pub admin_state: AdminState,
    /// State of its circuit breaker.
    pub breaker: BreakerState,
    /// End of its cooldown, if it is overloaded.
    pub cooldown_until: Option<Instant>,
    /// Tenants to which it is closed because it failed or refused their requests.
    pub closed_to: Vec<TenantId>,
    /// Time since which it cannot be reached.
    pub unreachable_since: Option<Instant>,
    /// 95th percentile of the last minute's times to first byte.
    pub p95: Option<Duration>,
    /// Fraction of the last minute's requests that failed; 0 while there are too few.
    pub error_rate: f64,
    /// Models it serves.
    pub models: Vec<ModelId>,
    /// Its paths.
    pub paths: Vec<PathStatus>,
    /// Shares of its paths; `None` if it has only one.
    pub path_shares: Option<PathShares>,
}

/// Status of one tenant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TenantStatus {
    /// The tenant.
    pub tenant: TenantId,
    /// Its weight.
    pub weight: Weight,
    /// Maximum number of requests in flight.
    pub concurrency_max: u32,
    /// Waiting requests.
    pub waiting: usize,
    /// Requests in flight.
    pub in_flight: u32,
    /// Charges of its requests in flight.
    pub in_flight_cost: Cost,
    /// Total cost of its finished requests.
    pub served: Cost,
    /// Its interactive requests by class, lowest class first.
    pub classes: [ClassStatus; Class::COUNT],
    /// Its background requests.
    pub background: ClassStatus,
}

/// Status of one class of a tenant's requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassStatus {
    /// Waiting requests.
    pub waiting: usize,
    /// Total cost of its finished requests.
    pub served: Cost,
}

/// Statistics of the driver's connection pool, reported beside a [`Status`]; the pipeline opens no connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Connections in use.
    pub active_connections: usize,
    /// Idle connections.
    pub idle_connections: usize,
    /// Connections opened so far.
    pub connections_created: u64,
    /// Times an idle connection was reused.
    pub connections_reused: u64,
}

impl OptimizedLoadManager {
    /// Returns the status of the whole pipeline.
    pub fn status(&self) -> Status {
        let models: Vec<ModelStatus> = self.model_statuses().collect();
        let fullest = models.iter().max_by(|a, b| a.load_ratio.total_cmp(&b.load_ratio));
        Status {
            state: fullest.map_or(BackpressureState::Normal, |model| model.state),
            load_ratio: fullest.map_or(0.0, |model| model.load_ratio),
            waiting: models.iter().map(|model| model.waiting).sum(),
            in_flight: self.in_flight,
            models,
            nodes: self.nodes.iter().map(|(id, node)| self.node_status(id, node)).collect(),
            tenants: self
                .wait_queue
                .tenants()
                .iter()
                .map(|(id, tenant)| self.tenant_status(id, tenant))
                .collect(),
            cache: self.node_cache.stats(),
            counts: self.counts,
        }
    }

    /// Returns the cached node of a model and an affinity key.
    pub fn cached(&self, model: ModelId, affinity: u64) -> Option<CacheEntry> {
        self.node_cache.entry((model, affinity))
    }

    fn model_statuses(&self) -> impl Iterator<Item = ModelStatus> {
        let interactive =
            self.wait_queue.queues().filter(|(queue_id, _)| queue_id.priority == Priority::Interactive);
        interactive.map(|(queue_id, queue)| {
            let pressure = queue.admission.pressure();
            let background = ModelQueueId { priority: Priority::Background, ..queue_id };
            ModelStatus {
                model: queue_id.model,
                background: self.wait_queue.waiting(background),
                state: pressure.state,
                load_ratio: pressure.load_ratio,
                waiting: queue.admission.waiting(),
                rate: queue.rate(),
            }
        })
    }

    fn node_status(&self, id: NodeId, node: &Node) -> NodeStatus {
        NodeStatus {
            node: id,
            slots: node.slots(),
            limit: node.capacity.status(),
            engine: node.engine,
            external_load: node.external_load(),
            busy: node.busy,
            in_flight: node.in_flight,
            weight: node.weight(),
            admin_state: node.admin_state,
            breaker: node.breaker.state(),
            cooldown_until: node.cooldown.until(),
            closed_to: node.tenants.blocked_tenants().collect(),
            unreachable_since: node.unreachable.map(|unreachable| unreachable.since),
            p95: node.p95(self.now),
            error_rate: node.breaker.error_rate(self.now),
            models: node.models().to_vec(),
            paths: node.paths.statuses(),
            path_shares: node.paths.shares(),
        }
    }

    fn tenant_status(&self, id: TenantId, tenant: &TenantEntry) -> TenantStatus {
        let mut classes = tenant.served.map(|served| ClassStatus { waiting: 0, served });
        let mut background = ClassStatus { waiting: 0, served: tenant.served_background };
        for (queue_id, queue) in self.wait_queue.queues() {
            let Some(tenant_queue) = queue.tenant_queue(id) else { continue };
            match queue_id.priority {
                Priority::Interactive => {
                    for class in Class::ALL {
                        classes[class.index()].waiting += tenant_queue.waiting_of(class);
                    }
                }
                Priority::Background => background.waiting += tenant_queue.waiting().count(),
            }
        }
        TenantStatus {
            tenant: id,
            weight: tenant.rule.weight,
            concurrency_max: tenant.rule.concurrency_max,
            waiting: self.wait_queue.queues().map(|(_, queue)| queue.admission.waiting_of(id)).sum(),
            in_flight: tenant.in_flight,
            in_flight_cost: tenant.in_flight_cost,
            served: tenant.served.into_iter().fold(tenant.served_background, |sum, served| sum + served),
            classes,
            background,
        }
    }
}
