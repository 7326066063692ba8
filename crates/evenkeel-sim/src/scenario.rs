//! Scenarios: tenants, nodes and policies of a simulation.

use evenkeel_pipeline::TenantFlow;
use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::{RequestKind, SelectionPolicy};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

/// A simulation's tenants, nodes and policies.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    /// Time during which requests arrive.
    pub duration: Duration,
    pub tenants: Vec<TenantPlan>,
    pub nodes: Vec<NodePlan>,
    pub admit: AdmitPolicy,
    pub order: ServiceOrder,
    /// DRR quantum of a tenant of weight 1.
    pub quantum: Cost,
    /// Kind of request, for node selection.
    pub request: RequestKind,
    /// Policy that picks a node.
    pub selection: SelectionPolicy,
    /// Changes of tenants, each with its time.
    pub changes: Vec<(Duration, TenantAction)>,
}

/// One tenant, or one member of a team that is a tenant, and its demand.
#[derive(Clone, Debug)]
pub struct TenantPlan {
    /// Name in reports.
    pub name: &'static str,
    /// Tenant whose requests these are; the plan's own unless it is one member of a team.
    pub team: Option<TenantId>,
    /// Class and session of its requests within the tenant; FIFO ignores them.
    pub flow: TenantFlow,
    pub weight: Weight,
    /// Number of affinity keys over which it spreads its requests; each is one conversation, which prefers one node.
    pub keys: u32,
    pub demand: Demand,
    /// Estimated cost of each request.
    pub estimate: Cost,
    /// Range of the actual cost of a request.
    pub actual: (Cost, Cost),
}

impl TenantPlan {
    /// Creates a tenant of weight 1 with one key and plain messages.
    pub fn new(name: &'static str, demand: Demand) -> Self {
        Self {
            name,
            team: None,
            flow: TenantFlow::default(),
            weight: Weight::ONE,
            keys: 1,
            demand,
            estimate: Cost::MESSAGE,
            actual: (Cost::MESSAGE, Cost::MESSAGE),
        }
    }
}

/// Arrival process of a tenant.
#[derive(Clone, Copy, Debug)]
pub enum Demand {
    /// Random arrivals with this mean interval.
    Every(Duration),
    /// A constant number of waiting requests.
    Backlog(u32),
}

/// One node and its paths.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// Number of requests it serves at once.
    pub slots: u32,
    /// Time to serve a plain message.
    pub message_time: Duration,
    /// Time to the first byte of a streamed response; zero if the response comes in one piece.
    pub first_byte: Duration,
    /// Paths to it; without paths, the network adds no latency.
    pub paths: Vec<PathPlan>,
}

/// One path to a node.
#[derive(Clone, Copy, Debug)]
pub struct PathPlan {
    pub rtt: Duration,
}

/// Admission policy.
#[derive(Clone, Copy, Debug)]
pub enum AdmitPolicy {
    /// Admits all requests, up to a queue capacity of 1000.
    All,
    /// Rejects arrivals when the queue is loaded.
    ByLoad(BackpressureConfig),
    /// Rejects tenants above their share of a loaded queue.
    ByShare(BackpressureConfig),
}

/// Order in which requests are served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOrder {
    /// First come, first served: the scheduler and admission treat all tenants as one.
    Fifo,
    /// Deficit round robin over tenants.
    Drr,
}

/// A change of a tenant.
#[derive(Clone, Copy, Debug)]
pub enum TenantAction {
    Weight(TenantId, Weight),
    /// Sets a random tenant's concurrency limit to 0.
    ParkSome,
    /// Wakes a random tenant, if it is parked.
    WakeSome,
    WakeAll,
}
