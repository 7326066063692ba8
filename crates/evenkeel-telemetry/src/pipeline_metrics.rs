//! Metrics of one pipeline, by tenant and by node, derived from its events.
//!
//! Cost: recording an event takes one lookup per tenant or node involved and a few atomic operations, and for a node
//! also a read lock that is contended only while nodes are added or removed.
//!
//! Limits: tenants and nodes that are not named, or are beyond [`MetricLimits`], are recorded under the label value
//! `other`.

mod router;

use std::collections::HashMap;
use std::iter::repeat_with;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evenkeel_policy::id::{NodeId, PathId, PeerId, TenantId};
use evenkeel_policy::outcome::{AttemptFailure, RequestOutcome};
use evenkeel_policy::path::PathState;
use evenkeel_policy::score::RequestKind;
use parking_lot::RwLock;

use crate::event::{Event, FallbackReason, LabelValue, NodeEvent, RejectReason, Step};
use crate::family::{Family, Label, OTHER};
use crate::metric::{Counter, Gauge, Histogram};
use crate::metric_names;
use crate::path_metrics::{PathGauges, PathMetrics, PathSource};
use crate::registry::{RegisterError, Registry};

pub use router::{ClassGauges, RouterGauges, RouterMetrics};

/// Maximum number of values of the `pool` label.
pub const POOLS_MAX: usize = 16;

/// Maximum number of peers with their own series; further ones are recorded as `other`.
pub const PEERS_MAX: usize = 64;

/// Maximum number of HTTP statuses with their own series; further ones are recorded as `other`.
const STATUSES_MAX: usize = 64;

/// Status of a successful response.
const OK: u16 = 200;

/// Index of a tenant that is recorded as `other`.
const NO_INDEX: usize = usize::MAX;

/// Upper bounds of the histogram buckets for request durations.
pub const DURATION_BOUNDS: &[Duration] = &[
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(10),
    Duration::from_millis(25),
    Duration::from_millis(50),
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_millis(2500),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
];

/// Maximum number of tenants and nodes with their own series; all pipelines of a registry must use the same limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricLimits {
    /// Tenant ids at or above this number are recorded as `other`, and so are names once this many different ones have
    /// been used since the start of the process.
    pub tenants_max: usize,
    /// Maximum number of nodes with their own series at a time; further ones are recorded as `other`.
    pub nodes_max: usize,
}

impl Default for MetricLimits {
    fn default() -> Self {
        Self { tenants_max: 256, nodes_max: 256 }
    }
}

/// Current values of one node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeGauges {
    /// Number of requests it may serve at once.
    pub slots: u32,
    /// Slots in use by this gateway.
    pub busy: u32,
    /// True if its last health check succeeded.
    pub is_healthy: bool,
    pub breaker: BreakerGauge,
    /// Load reported by its engine, if any.
    pub engine: Option<EngineGauges>,
}

/// State of a node's circuit breaker, as exported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BreakerGauge {
    #[default]
    Closed = 0,
    HalfOpen = 1,
    Open = 2,
}

/// Load that an engine reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineGauges {
    /// Requests being processed, including those of other clients.
    pub running: u32,
    /// Requests queued inside the engine.
    pub waiting: u32,
}

/// Metrics of one pipeline.
#[derive(Debug)]
pub struct PipelineMetrics {
    pool: String,
    families: Families,
    tenants: Box<[OnceLock<TenantMetrics>]>,
    /// Index into `tenants` by tenant id. It is indirect because another tenant may reuse an id.
    tenant_indices: Box<[AtomicUsize]>,
    other_tenant: TenantMetrics,
    /// Current nodes; node ids are never reused.
    nodes: RwLock<HashMap<NodeId, NodeMetrics>>,
    nodes_max: usize,
    other_node: NodeMetrics,
    peers: RwLock<HashMap<PeerId, PeerMetrics>>,
    /// Created by the first redirect to a peer without a name; most pools have no peers.
    other_peer: OnceLock<PeerMetrics>,
    /// One per [`AttemptFailure`].
    failed_over: Vec<Counter>,
    /// One per state in [`PATH_STATES`].
    path_changes: [Counter; PATH_STATES.len()],
    paths: Option<PathMetrics>,
}

#[derive(Debug)]
struct Families {
    accepted: Family<Counter, 2>,
    admitted: Family<Counter, 2>,
    delayed: Family<Counter, 2>,
    rejected: Family<Counter, 3>,
    redirected: Family<Counter, 3>,
    fallbacks: Family<Counter, 2>,
    evicted: Family<Counter, 2>,
    cancelled: Family<Counter, 2>,
    wait: Family<Histogram, 2>,
    finished: Family<Counter, 3>,
    cost: Family<Counter, 2>,
    dispatched: Family<Counter, 2>,
    first_byte: Family<Histogram, 2>,
    node_events: Family<Counter, 3>,
    slots: Family<Gauge, 2>,
    busy: Family<Gauge, 2>,
    up: Family<Gauge, 2>,
    breaker_state: Family<Gauge, 2>,
    responses: Family<Counter, 3>,
    engine_running: Family<Gauge, 2>,
    engine_waiting: Family<Gauge, 2>,
}

#[derive(Debug)]
struct TenantMetrics {
    name: String,
    accepted: Counter,
    admitted: Counter,
    delayed: Counter,
    /// One per [`RejectReason`].
    rejected: Vec<Counter>,
    evicted: Counter,
    cancelled: Counter,
    wait: Histogram,
    /// One per [`RequestOutcome`].
    finished: Vec<Counter>,
    cost: Counter,
}

#[derive(Debug)]
struct NodeMetrics {
    name: Arc<str>,
    dispatched: Counter,
    first_byte: Histogram,
    /// Responses with status 200; those with another status are rare, and their series are looked up.
    ok: Counter,
    /// One per [`NodeEvent`].
    events: Vec<Counter>,
    /// Only of a node with several paths.
    paths: Option<PathSource>,
}

#[derive(Debug)]
struct PeerMetrics {
    name: Arc<str>,
    /// One per [`RequestKind`].
    redirected: Vec<Counter>,
}

impl PipelineMetrics {
    /// Registers the metrics of the pipeline over one pool of nodes.
    pub fn new(registry: &Registry, pool: &str, limits: MetricLimits) -> Result<Self, RegisterError> {
        let families = Families::new(registry, limits)?;
        let pool_label = Label { name: "pool", values_max: POOLS_MAX };
        let failure = Label { name: "failure", values_max: AttemptFailure::NAMES.len() };
        let failed_over = registry.counters(metric_names::FAILED_OVER_TOTAL, [pool_label, failure])?;
        let to = Label { name: "to", values_max: PATH_STATES.len() };
        let path_changes = registry.counters(metric_names::PATH_CHANGES_TOTAL, [pool_label, to])?;
        Ok(Self {
            tenants: repeat_with(OnceLock::new).take(limits.tenants_max).collect(),
            tenant_indices: repeat_with(|| AtomicUsize::new(NO_INDEX)).take(limits.tenants_max).collect(),
            other_tenant: families.tenant(pool, OTHER),
            nodes: RwLock::default(),
            nodes_max: limits.nodes_max,
            other_node: families.node(pool, OTHER),
            peers: RwLock::default(),
            other_peer: OnceLock::new(),
            failed_over: AttemptFailure::NAMES.iter().map(|name| failed_over.with([pool, name])).collect(),
            path_changes: PATH_STATES.map(|name| path_changes.with([pool, name])),
            paths: None,
            pool: pool.to_owned(),
            families,
        })
    }

    #[must_use]
    pub(crate) fn with_paths(self, paths: PathMetrics) -> Self {
        Self { paths: Some(paths), ..self }
    }

    /// Names a tenant in the metrics, replacing the previous owner of its id.
    ///
    /// A tenant that returns with the same name continues its series. Names beyond the limit are recorded as `other`.
    pub fn name_tenant(&self, tenant: TenantId, name: &str) {
        let Some(index) = self.tenant_indices.get(tenant.index()) else {
            // Counted in only one of the tenant's families, so that each overflow counts once.
            return self.families.accepted.count_overflow();
        };
        if self.tenant_name(tenant) == Some(name) {
            return;
        }
        // Claims the first free entry if no earlier one has this name.
        let claim_or_match = |entry: &OnceLock<TenantMetrics>| {
            entry.get_or_init(|| self.families.tenant(&self.pool, name)).name == name
        };
        let found = self.tenants.iter().position(claim_or_match);
        if found.is_none() {
            self.families.accepted.count_overflow();
        }
        index.store(found.unwrap_or(NO_INDEX), Ordering::Release);
    }

    /// Names a node in the metrics; an id keeps its first name.
    pub fn name_node(&self, node: NodeId, name: &str) {
        let mut nodes = self.nodes.write();
        if nodes.contains_key(&node) {
            return;
        }
        if nodes.len() >= self.nodes_max {
            return self.families.dispatched.count_overflow();
        }
        nodes.insert(node, self.families.node(&self.pool, name));
    }

    /// Removes the series of a node that was removed from the pool.
    pub fn forget_node(&self, node: NodeId) {
        let mut nodes = self.nodes.write();
        let Some(removed) = nodes.remove(&node) else { return };
        // Keep the series if a replacement with the same name uses it.
        if nodes.values().all(|other| other.name != removed.name) {
            self.families.remove_node(&self.pool, &removed.name);
        }
    }

    /// Names a peer gateway in the metrics; an id keeps its first name.
    pub fn name_peer(&self, peer: PeerId, name: &str) {
        let mut peers = self.peers.write();
        if peers.contains_key(&peer) {
            return;
        }
        if peers.len() >= PEERS_MAX {
            return self.families.redirected.count_overflow();
        }
        peers.insert(peer, self.families.peer(&self.pool, name));
    }

    /// Sets the gauges of a node before a scrape; a node without a name is skipped.
    pub fn set_node_gauges(&self, node: NodeId, gauges: &NodeGauges) {
        let Some(name) = self.node_name(node) else { return };
        let families = &self.families;
        let labels = [self.pool.as_str(), &*name];
        families.slots.with(labels).set(gauges.slots.into());
        families.busy.with(labels).set(gauges.busy.into());
        let is_up = gauges.is_healthy && gauges.breaker != BreakerGauge::Open;
        families.up.with(labels).set(is_up.into());
        families.breaker_state.with(labels).set(gauges.breaker as i64);
        match gauges.engine {
            Some(EngineGauges { running, waiting }) => {
                families.engine_running.with(labels).set(running.into());
                families.engine_waiting.with(labels).set(waiting.into());
            }
            None => families.remove_engine_gauges(&self.pool, &name),
        }
    }

    /// Counts a response of a node by its HTTP status.
    pub fn record_response(&self, node: NodeId, status: u16) {
        self.with_node(node, |node| match status {
            OK => node.ok.count(),
            _ => self.families.responses.with([&self.pool, &node.name, &status.to_string()]).count(),
        });
    }

    /// Records the metrics of the paths of a node with several of them; a node without a name is skipped.
    pub fn add_paths(&self, node: NodeId) {
        let mut nodes = self.nodes.write();
        if let (Some(paths), Some(node)) = (&self.paths, nodes.get_mut(&node)) {
            node.paths = Some(paths.add_source(&node.name));
        }
    }

    /// Records a round trip of a node's path, if [`add_paths`](Self::add_paths) was called for the node.
    pub fn record_path_rtt(&self, node: NodeId, rtt: Duration) {
        self.with_paths_of(node, |paths| paths.record_rtt(rtt));
    }

    /// Sets the path gauges of a node before a scrape, if [`add_paths`](Self::add_paths) was called for it.
    pub fn set_path_gauges(
        &self,
        node: NodeId,
        gauges: &PathGauges<'_>,
        path_name: impl Fn(PathId) -> String,
    ) {
        self.with_paths_of(node, |paths| paths.update(gauges, path_name));
    }

    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns a tenant's name, if it has metrics of its own.
    pub fn tenant_name(&self, tenant: TenantId) -> Option<&str> {
        self.named_tenant(tenant).map(|tenant| tenant.name.as_str())
    }

    /// Returns a node's name, if it has metrics of its own.
    pub fn node_name(&self, node: NodeId) -> Option<Arc<str>> {
        self.nodes.read().get(&node).map(|node| node.name.clone())
    }

    /// Returns a peer's name, if it has metrics of its own.
    pub fn peer_name(&self, peer: PeerId) -> Option<Arc<str>> {
        self.peers.read().get(&peer).map(|peer| peer.name.clone())
    }

    /// Updates the metrics for an event.
    pub fn record(&self, event: &Event) {
        match event {
            Event::Request { tenant, step, .. } => self.record_step(*tenant, step),
            Event::Node { node, change } => self.record_node_event(*node, change),
        }
    }

    fn record_step(&self, tenant: TenantId, step: &Step) {
        let tenant = self.tenant(tenant);
        match step {
            Step::Accepted { .. } => tenant.accepted.count(),
            Step::Admitted { .. } => tenant.admitted.count(),
            Step::Delayed { .. } => tenant.delayed.count(),
            Step::Rejected { reason } => tenant.rejected[reason.index()].count(),
            Step::FellBack { reason, .. } => {
                self.families.fallbacks.with([&self.pool, reason.as_str()]).count();
            }
            Step::Redirected { peer, kind, .. } => {
                let peers = self.peers.read();
                let other = || self.other_peer.get_or_init(|| self.families.peer(&self.pool, OTHER));
                peers.get(peer).unwrap_or_else(other).redirected[kind.index()].count();
            }
            // The peer and the node count these requests in their own metrics.
            Step::SentToOwner { .. }
            | Step::PeerAnswered { .. }
            | Step::PeerFailed { .. }
            | Step::InTransaction { .. } => {}
            Step::Evicted { .. } => tenant.evicted.count(),
            Step::Cancelled => tenant.cancelled.count(),
            Step::Dispatched { node, waited, .. } => {
                tenant.wait.record(*waited);
                self.with_node(*node, |node| node.dispatched.count());
            }
            Step::FirstByte { node, after } => self.with_node(*node, |node| node.first_byte.record(*after)),
            Step::FailedOver { failure, .. } => self.failed_over[failure.index()].count(),
            Step::Finished { actual, outcome, .. } => {
                tenant.finished[outcome.index()].count();
                tenant.cost.add(actual.0);
            }
        }
    }

    fn record_node_event(&self, node: NodeId, event: &NodeEvent) {
        self.with_node(node, |node| node.events[event.index()].count());
        if let NodeEvent::Path { transition, .. } = event {
            self.path_changes[path_state_index(transition.to)].count();
            self.with_paths_of(node, |paths| paths.record_transition(transition));
        }
    }

    fn tenant(&self, tenant: TenantId) -> &TenantMetrics {
        self.named_tenant(tenant).unwrap_or(&self.other_tenant)
    }

    fn named_tenant(&self, tenant: TenantId) -> Option<&TenantMetrics> {
        let index = self.tenant_indices.get(tenant.index())?.load(Ordering::Acquire);
        self.tenants.get(index)?.get()
    }

    fn with_node(&self, node: NodeId, count: impl FnOnce(&NodeMetrics)) {
        count(self.nodes.read().get(&node).unwrap_or(&self.other_node));
    }

    fn with_paths_of(&self, node: NodeId, record: impl FnOnce(&PathSource)) {
        let nodes = self.nodes.read();
        if let Some(paths) = nodes.get(&node).and_then(|node| node.paths.as_ref()) {
            record(paths);
        }
    }
}

impl Families {
    fn new(registry: &Registry, limits: MetricLimits) -> Result<Self, RegisterError> {
        let pool = Label { name: "pool", values_max: POOLS_MAX };
        let tenant = Label { name: "tenant", values_max: limits.tenants_max };
        let node = Label { name: "node", values_max: limits.nodes_max };
        let peer = Label { name: "peer", values_max: PEERS_MAX };
        let kind = Label { name: "kind", values_max: RequestKind::NAMES.len() };
        let reason = Label { name: "reason", values_max: RejectReason::NAMES.len() };
        let fallback = Label { name: "reason", values_max: FallbackReason::NAMES.len() };
        let outcome = Label { name: "outcome", values_max: RequestOutcome::NAMES.len() };
        let to = Label { name: "to", values_max: NodeEvent::NAMES.len() };
        let status = Label { name: "status", values_max: STATUSES_MAX };
        Ok(Self {
            accepted: registry.counters(metric_names::ACCEPTED_TOTAL, [pool, tenant])?,
            admitted: registry.counters(metric_names::ADMITTED_TOTAL, [pool, tenant])?,
            delayed: registry.counters(metric_names::DELAYED_TOTAL, [pool, tenant])?,
            rejected: registry.counters(metric_names::REJECTED_TOTAL, [pool, tenant, reason])?,
            redirected: registry.counters(metric_names::REDIRECTED_TOTAL, [pool, peer, kind])?,
            fallbacks: registry.counters(metric_names::FALLBACKS_TOTAL, [pool, fallback])?,
            evicted: registry.counters(metric_names::EVICTED_TOTAL, [pool, tenant])?,
            cancelled: registry.counters(metric_names::CANCELLED_TOTAL, [pool, tenant])?,
            wait: registry.histograms(metric_names::WAIT_SECONDS, [pool, tenant], DURATION_BOUNDS)?,
            finished: registry.counters(metric_names::FINISHED_TOTAL, [pool, tenant, outcome])?,
            cost: registry.counters(metric_names::COST_UNITS_TOTAL, [pool, tenant])?,
            dispatched: registry.counters(metric_names::DISPATCHED_TOTAL, [pool, node])?,
            first_byte: registry.histograms(
                metric_names::FIRST_BYTE_SECONDS,
                [pool, node],
                DURATION_BOUNDS,
            )?,
            node_events: registry.counters(metric_names::NODE_CHANGES_TOTAL, [pool, node, to])?,
            slots: registry.gauges(metric_names::NODE_SLOTS, [pool, node])?,
            busy: registry.gauges(metric_names::NODE_BUSY, [pool, node])?,
            up: registry.gauges(metric_names::NODE_UP, [pool, node])?,
            breaker_state: registry.gauges(metric_names::NODE_BREAKER_STATE, [pool, node])?,
            responses: registry.counters(metric_names::NODE_RESPONSES_TOTAL, [pool, node, status])?,
            engine_running: registry.gauges(metric_names::NODE_ENGINE_RUNNING, [pool, node])?,
            engine_waiting: registry.gauges(metric_names::NODE_ENGINE_WAITING, [pool, node])?,
        })
    }

    fn tenant(&self, pool: &str, tenant: &str) -> TenantMetrics {
        TenantMetrics {
            name: tenant.to_owned(),
            accepted: self.accepted.with([pool, tenant]),
            admitted: self.admitted.with([pool, tenant]),
            delayed: self.delayed.with([pool, tenant]),
            rejected: RejectReason::NAMES
                .iter()
                .map(|name| self.rejected.with([pool, tenant, name]))
                .collect(),
            evicted: self.evicted.with([pool, tenant]),
            cancelled: self.cancelled.with([pool, tenant]),
            wait: self.wait.with([pool, tenant]),
            finished: RequestOutcome::NAMES
                .iter()
                .map(|name| self.finished.with([pool, tenant, name]))
                .collect(),
            cost: self.cost.with([pool, tenant]),
        }
    }

    fn node(&self, pool: &str, node: &str) -> NodeMetrics {
        NodeMetrics {
            name: node.into(),
            dispatched: self.dispatched.with([pool, node]),
            first_byte: self.first_byte.with([pool, node]),
            ok: self.responses.with([pool, node, "200"]),
            events: NodeEvent::NAMES.iter().map(|name| self.node_events.with([pool, node, name])).collect(),
            paths: None,
        }
    }

    fn peer(&self, pool: &str, peer: &str) -> PeerMetrics {
        let redirected = RequestKind::NAMES.iter().map(|name| self.redirected.with([pool, peer, name]));
        PeerMetrics { name: peer.into(), redirected: redirected.collect() }
    }

    fn remove_node(&self, pool: &str, node: &str) {
        self.dispatched.forget(&[pool, node]);
        self.first_byte.forget(&[pool, node]);
        self.node_events.forget(&[pool, node]);
        self.slots.forget(&[pool, node]);
        self.busy.forget(&[pool, node]);
        self.up.forget(&[pool, node]);
        self.breaker_state.forget(&[pool, node]);
        self.responses.forget(&[pool, node]);
        self.remove_engine_gauges(pool, node);
    }

    fn remove_engine_gauges(&self, pool: &str, node: &str) {
        self.engine_running.forget(&[pool, node]);
        self.engine_waiting.forget(&[pool, node]);
    }
}

const PATH_STATES: [&str; 5] = ["inactive", "probing", "active", "degraded", "recovery"];

/// Returns the index of a state in [`PATH_STATES`].
const fn path_state_index(state: PathState) -> usize {
    match state {
        PathState::Inactive => 0,
        PathState::Probing => 1,
        PathState::Active => 2,
        PathState::Degraded => 3,
        PathState::Recovery => 4,
    }
}
