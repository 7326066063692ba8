//! Events as metrics: one walk's, by tenant and by node.
//!
//! Bound: an event costs one look into a table and one to three atomic steps, for a node also a lock that only coming
//! and going nodes hold for long; a tenant or node beyond the limits, or one that nobody named, counts as `other`.

mod paths;
mod router;

use std::collections::HashMap;
use std::iter::repeat_with;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use evenkeel_policy::id::{NodeId, TenantId};
use evenkeel_policy::path::PathState;
use parking_lot::RwLock;

use crate::event::{AttemptFailure, Event, NodeEvent, RejectReason, RequestOutcome, Step};
use crate::family::{Family, Label, OTHER};
use crate::metric::{Counter, Gauge, Histogram};
use crate::metric_names;
use crate::registry::{RegisterError, Registry};

pub use paths::PathMetrics;
pub use router::{RouterGauges, RouterMetrics};

/// How many pools of nodes one process may watch.
pub const POOLS_MAX: usize = 16;

/// The place of a tenant that has none.
const NOWHERE: usize = usize::MAX;

/// The buckets of everything that takes as long as a request.
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

/// How many tenants and nodes have metrics of their own; all walks of a registry have the same limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricLimits {
    /// How many tenants; the ids from here on are `other`.
    pub tenants_max: usize,
    /// How many nodes at a time; further ones are `other`.
    pub nodes_max: usize,
}

impl Default for MetricLimits {
    fn default() -> Self {
        Self { tenants_max: 256, nodes_max: 256 }
    }
}

/// How a node stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeGauges {
    /// How many requests it may have at once.
    pub slots: u32,
    /// How many it has from here.
    pub busy: u32,
    /// What its engine says, if it says so.
    pub engine: Option<EngineGauges>,
}

/// What an engine says of its load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EngineGauges {
    /// Requests it works on, whoever's they are.
    pub running: u32,
    /// Requests that wait inside of it.
    pub waiting: u32,
}

/// The metrics of one walk.
#[derive(Debug)]
pub struct PipelineMetrics {
    pool: String,
    families: Families,
    tenants: Box<[OnceLock<TenantMetrics>]>,
    /// By id, which of `tenants`; ids are given again, to others.
    tenant_places: Box<[AtomicUsize]>,
    other_tenant: TenantMetrics,
    /// Those that are there; ids are never given again.
    nodes: RwLock<HashMap<NodeId, NodeMetrics>>,
    nodes_max: usize,
    other_node: NodeMetrics,
    /// One per [`Failure`].
    failed_over: Vec<Counter>,
    /// One per state in [`PATH_STATES`].
    path_changes: [Counter; PATH_STATES.len()],
}

#[derive(Debug)]
struct Families {
    accepted: Family<Counter, 2>,
    admitted: Family<Counter, 2>,
    delayed: Family<Counter, 2>,
    rejected: Family<Counter, 3>,
    pushed_out: Family<Counter, 2>,
    cancelled: Family<Counter, 2>,
    wait: Family<Histogram, 2>,
    finished: Family<Counter, 3>,
    cost: Family<Counter, 2>,
    dispatched: Family<Counter, 2>,
    first_byte: Family<Histogram, 2>,
    node_changes: Family<Counter, 3>,
    slots: Family<Gauge, 2>,
    busy: Family<Gauge, 2>,
    engine_running: Family<Gauge, 2>,
    engine_waiting: Family<Gauge, 2>,
}

#[derive(Debug)]
struct TenantMetrics {
    name: String,
    accepted: Counter,
    admitted: Counter,
    delayed: Counter,
    /// One per [`Reason`].
    rejected: Vec<Counter>,
    pushed_out: Counter,
    cancelled: Counter,
    wait: Histogram,
    /// One per [`Ending`].
    finished: Vec<Counter>,
    cost: Counter,
}

#[derive(Debug)]
struct NodeMetrics {
    name: Arc<str>,
    dispatched: Counter,
    first_byte: Histogram,
    /// One per [`NodeChange`].
    changes: Vec<Counter>,
}

impl PipelineMetrics {
    /// Registers the metrics of the walk over one pool of nodes.
    pub fn new(registry: &Registry, pool: &str, limits: MetricLimits) -> Result<Self, RegisterError> {
        let families = Families::new(registry, limits)?;
        let pool_label = Label { name: "pool", values_max: POOLS_MAX };
        let failure = Label { name: "failure", values_max: AttemptFailure::WORDS.len() };
        let failed_over = registry.counters(metric_names::FAILED_OVER_TOTAL, [pool_label, failure])?;
        let to = Label { name: "to", values_max: PATH_STATES.len() };
        let path_changes = registry.counters(metric_names::PATH_CHANGES_TOTAL, [pool_label, to])?;
        Ok(Self {
            tenants: places(limits.tenants_max),
            tenant_places: repeat_with(|| AtomicUsize::new(NOWHERE)).take(limits.tenants_max).collect(),
            other_tenant: families.tenant(pool, OTHER),
            nodes: RwLock::default(),
            nodes_max: limits.nodes_max,
            other_node: families.node(pool, OTHER),
            failed_over: AttemptFailure::WORDS.iter().map(|word| failed_over.with([pool, word])).collect(),
            path_changes: PATH_STATES.map(|word| path_changes.with([pool, word])),
            pool: pool.to_owned(),
            families,
        })
    }

    /// Names a tenant on the page, in place of whoever had its id before.
    ///
    /// Whoever comes back under its name finds its numbers again. A name that is one too many is `other`.
    pub fn name_tenant(&self, tenant: TenantId, name: &str) {
        let Some(at) = self.tenant_places.get(tenant.index()) else {
            return self.families.accepted.count_over();
        };
        if self.tenant_name(tenant) == Some(name) {
            return;
        }
        let named = |place: &OnceLock<TenantMetrics>| {
            place.get_or_init(|| self.families.tenant(&self.pool, name)).name == name
        };
        let found = self.tenants.iter().position(named);
        if found.is_none() {
            self.families.accepted.count_over();
        }
        at.store(found.unwrap_or(NOWHERE), Ordering::Release);
    }

    /// Names a node on the page; an id keeps its first name.
    pub fn name_node(&self, node: NodeId, name: &str) {
        let mut nodes = self.nodes.write();
        if nodes.contains_key(&node) {
            return;
        }
        if self.nodes_max <= nodes.len() {
            return self.families.dispatched.count_over();
        }
        nodes.insert(node, self.families.node(&self.pool, name));
    }

    /// Takes a node that is gone off the page, and gives its place to others.
    pub fn forget_node(&self, node: NodeId) {
        let mut nodes = self.nodes.write();
        let Some(gone) = nodes.remove(&node) else { return };
        // One that replaces it has its name while it finishes what it has.
        if nodes.values().all(|other| other.name != gone.name) {
            self.families.forget_node(&self.pool, &gone.name);
        }
    }

    /// Shows how a node stands; called before a page is printed. One that has no name of its own is not shown.
    pub fn show_node(&self, node: NodeId, figures: &NodeGauges) {
        let Some(name) = self.node_name(node) else { return };
        let families = &self.families;
        let labels = [self.pool.as_str(), &*name];
        families.slots.with(labels).set(figures.slots.into());
        families.busy.with(labels).set(figures.busy.into());
        match figures.engine {
            Some(EngineGauges { running, waiting }) => {
                families.engine_running.with(labels).set(running.into());
                families.engine_waiting.with(labels).set(waiting.into());
            }
            None => families.forget_engine(&self.pool, &name),
        }
    }

    /// The pool of nodes the walk is over.
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// The name a tenant was given, if it has a place.
    pub fn tenant_name(&self, tenant: TenantId) -> Option<&str> {
        self.named_tenant(tenant).map(|tenant| tenant.name.as_str())
    }

    /// The name a node was given, if it has a place.
    pub fn node_name(&self, node: NodeId) -> Option<Arc<str>> {
        self.nodes.read().get(&node).map(|node| node.name.clone())
    }

    /// Counts an event.
    pub fn tell(&self, event: &Event) {
        match event {
            Event::Request { tenant, step, .. } => self.tell_step(*tenant, step),
            Event::Node { node, change } => self.tell_change(*node, change),
        }
    }

    fn tell_step(&self, tenant: TenantId, step: &Step) {
        let tenant = self.tenant(tenant);
        match step {
            Step::Accepted { .. } => tenant.accepted.count(),
            Step::Admitted { .. } => tenant.admitted.count(),
            Step::Delayed { .. } => tenant.delayed.count(),
            Step::Rejected { reason } => tenant.rejected[reason.index()].count(),
            Step::Evicted { .. } => tenant.pushed_out.count(),
            Step::Cancelled => tenant.cancelled.count(),
            Step::Dispatched { node, waited, .. } => {
                tenant.wait.record(*waited);
                self.with_node(*node, |node| node.dispatched.count());
            }
            Step::FirstByte { node, after } => self.with_node(*node, |node| node.first_byte.record(*after)),
            Step::FailedOver { failure, .. } => self.failed_over[failure.index()].count(),
            Step::Finished { actual, ending, .. } => {
                tenant.finished[ending.index()].count();
                tenant.cost.add(actual.0);
            }
        }
    }

    fn tell_change(&self, node: NodeId, change: &NodeEvent) {
        self.with_node(node, |node| node.changes[change.index()].count());
        if let NodeEvent::Path { transition, .. } = change {
            self.path_changes[path_state(transition.to)].count();
        }
    }

    fn tenant(&self, tenant: TenantId) -> &TenantMetrics {
        self.named_tenant(tenant).unwrap_or(&self.other_tenant)
    }

    fn named_tenant(&self, tenant: TenantId) -> Option<&TenantMetrics> {
        let place = self.tenant_places.get(tenant.index())?.load(Ordering::Acquire);
        self.tenants.get(place)?.get()
    }

    fn with_node(&self, node: NodeId, count: impl FnOnce(&NodeMetrics)) {
        count(self.nodes.read().get(&node).unwrap_or(&self.other_node));
    }
}

fn places<T>(max: usize) -> Box<[OnceLock<T>]> {
    repeat_with(OnceLock::new).take(max).collect()
}

impl Families {
    fn new(registry: &Registry, limits: MetricLimits) -> Result<Self, RegisterError> {
        let pool = Label { name: "pool", values_max: POOLS_MAX };
        let tenant = Label { name: "tenant", values_max: limits.tenants_max };
        let node = Label { name: "node", values_max: limits.nodes_max };
        let reason = Label { name: "reason", values_max: RejectReason::WORDS.len() };
        let ending = Label { name: "ending", values_max: RequestOutcome::WORDS.len() };
        let to = Label { name: "to", values_max: NodeEvent::WORDS.len() };
        Ok(Self {
            accepted: registry.counters(metric_names::ACCEPTED_TOTAL, [pool, tenant])?,
            admitted: registry.counters(metric_names::ADMITTED_TOTAL, [pool, tenant])?,
            delayed: registry.counters(metric_names::DELAYED_TOTAL, [pool, tenant])?,
            rejected: registry.counters(metric_names::REJECTED_TOTAL, [pool, tenant, reason])?,
            pushed_out: registry.counters(metric_names::PUSHED_OUT_TOTAL, [pool, tenant])?,
            cancelled: registry.counters(metric_names::CANCELLED_TOTAL, [pool, tenant])?,
            wait: registry.histograms(metric_names::WAIT_SECONDS, [pool, tenant], DURATION_BOUNDS)?,
            finished: registry.counters(metric_names::FINISHED_TOTAL, [pool, tenant, ending])?,
            cost: registry.counters(metric_names::COST_UNITS_TOTAL, [pool, tenant])?,
            dispatched: registry.counters(metric_names::DISPATCHED_TOTAL, [pool, node])?,
            first_byte: registry.histograms(
                metric_names::FIRST_BYTE_SECONDS,
                [pool, node],
                DURATION_BOUNDS,
            )?,
            node_changes: registry.counters(metric_names::NODE_CHANGES_TOTAL, [pool, node, to])?,
            slots: registry.gauges(metric_names::NODE_SLOTS, [pool, node])?,
            busy: registry.gauges(metric_names::NODE_BUSY, [pool, node])?,
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
            rejected: RejectReason::WORDS
                .iter()
                .map(|word| self.rejected.with([pool, tenant, word]))
                .collect(),
            pushed_out: self.pushed_out.with([pool, tenant]),
            cancelled: self.cancelled.with([pool, tenant]),
            wait: self.wait.with([pool, tenant]),
            finished: RequestOutcome::WORDS
                .iter()
                .map(|word| self.finished.with([pool, tenant, word]))
                .collect(),
            cost: self.cost.with([pool, tenant]),
        }
    }

    fn node(&self, pool: &str, node: &str) -> NodeMetrics {
        NodeMetrics {
            name: node.into(),
            dispatched: self.dispatched.with([pool, node]),
            first_byte: self.first_byte.with([pool, node]),
            changes: NodeEvent::WORDS.iter().map(|word| self.node_changes.with([pool, node, word])).collect(),
        }
    }
}

impl Families {
    fn forget_node(&self, pool: &str, node: &str) {
        self.dispatched.forget(&[pool, node]);
        self.first_byte.forget(&[pool, node]);
        self.node_changes.forget(&[pool, node]);
        self.slots.forget(&[pool, node]);
        self.busy.forget(&[pool, node]);
        self.forget_engine(pool, node);
    }

    fn forget_engine(&self, pool: &str, node: &str) {
        self.engine_running.forget(&[pool, node]);
        self.engine_waiting.forget(&[pool, node]);
    }
}

const PATH_STATES: [&str; 5] = ["inactive", "probing", "active", "degraded", "recovery"];

/// The place of a state in [`PATH_STATES`].
const fn path_state(state: PathState) -> usize {
    match state {
        PathState::Inactive => 0,
        PathState::Probing => 1,
        PathState::Active => 2,
        PathState::Degraded => 3,
        PathState::Recovery => 4,
    }
}
