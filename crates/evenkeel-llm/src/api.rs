//! The door: what its parts share, and the routes it answers.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_pipeline::{InvalidOptions, OptimizedLoadManager, RegistryError, TenantRule};
use evenkeel_policy::id::TenantId;
use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::route::{Handler, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::tenant::{Access, TENANTS_MAX, Tenant};
use evenkeel_telemetry::{EngineGauges, NodeGauges, Observer, RouterGauges};
use http::Method;
use parking_lot::{Mutex, RwLock};

use crate::error_format;
use crate::models;
use crate::monitor::{MonitorStartError, Monitors};
use crate::node_registry::{NodeError, NodeRegistry};
use crate::options::{LlmOptions, NodeOptions};
use crate::proxy::proxy;
use crate::request::Endpoint;
use crate::status;
use crate::usage::Forecast;
use evenkeel_scheduler::RequestScheduler;
use evenkeel_upstream::Upstream;

/// How many averages of answers' lengths are kept, of tenants and of models.
const FORECASTS_MAX: usize = 20_000;

/// The LLM door.
pub struct LlmApi {
    pub(crate) walk: Arc<RequestScheduler>,
    pub(crate) nodes: Arc<NodeRegistry>,
    monitors: Monitors,
    pub(crate) upstream: Upstream,
    pub(crate) forecast: Mutex<Forecast>,
    pub(crate) first_byte_max: Option<Duration>,
    /// How long a request waits for a slot that says nothing else.
    pub(crate) wait_max: Duration,
    pub(crate) tenants: RwLock<BTreeMap<TenantId, Arc<Tenant>>>,
    draining: AtomicBool,
}

impl LlmApi {
    /// Sets up the door with its first nodes; needs a Tokio runtime.
    pub fn new(options: LlmOptions, upstream: Upstream, watch: Arc<Observer>) -> Result<Arc<Self>, LlmError> {
        let mut pipeline = options.pipeline;
        // Ids of tenants that have left are held until the next reload.
        pipeline.limits.tenants_max = pipeline.limits.tenants_max.max(2 * TENANTS_MAX as u32 + 1);
        let models_max = pipeline.limits.models_max;
        let wait_max = pipeline.load.wait_queue.default_timeout;
        let walk = RequestScheduler::start(pipeline, watch)?;
        let nodes = Arc::new(NodeRegistry::new(walk.clone(), models_max, options.adaptive));
        let hearing = nodes.clone();
        let monitors =
            Monitors::start(upstream.clone(), options.health, move |report| hearing.apply_report(report))?;
        let llm = Arc::new(Self {
            walk,
            nodes,
            monitors,
            upstream,
            forecast: Mutex::new(Forecast::new(FORECASTS_MAX)),
            first_byte_max: options.first_byte_max,
            wait_max,
            tenants: RwLock::default(),
            draining: AtomicBool::new(false),
        });
        for node in options.nodes {
            llm.add_node(node)?;
        }
        Ok(llm)
    }

    /// Adds what the door answers to a table of routes.
    pub fn add_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        let forwarded = |endpoint| {
            let llm = self.clone();
            handler(move |call| proxy(llm.clone(), endpoint, call))
        };
        let routed = Endpoint::ALL.map(|endpoint| (endpoint.route(), endpoint));
        let translated = ("/v1/audio/translations", Endpoint::Transcription);
        for (path, endpoint) in routed.into_iter().chain([translated]) {
            let wording = error_format::of(endpoint);
            routes.add_with_error_format(Method::POST, path, Access::Tenant, forwarded(endpoint), wording)?;
        }
        for (path, answer) in
            [("/v1/models", self.answers(models::list)), ("/v1/models/*", self.answers(models::one))]
        {
            routes.add_with_error_format(Method::GET, path, Access::Tenant, answer, error_format::openai)?;
        }
        routes.add(Method::GET, "/api/load-status", Access::Admin, self.answers(status::load))?;
        routes.add(Method::GET, "/api/nodes", Access::Admin, self.answers(status::nodes))
    }

    fn answers(self: &Arc<Self>, answer: fn(&Self, &ServerRequest) -> Result<Response, ApiError>) -> Handler {
        let llm = self.clone();
        handler(move |call| {
            let answer = answer(&llm, &call);
            async { answer }
        })
    }

    /// Gives tenants their weights and caps, and forgets those that are not listed.
    pub fn set_tenants(&self, tenants: &[Arc<Tenant>]) -> Result<(), RegistryError> {
        let mut known = self.tenants.write();
        let next: BTreeMap<_, _> = tenants.iter().map(|tenant| (tenant.id, tenant.clone())).collect();
        for left in known.keys().filter(|id| !next.contains_key(id)) {
            self.walk.update(|machine, now| machine.set_tenant(now, *left, TenantRule::default()))?;
            self.forecast.lock().forget_tenant(*left);
        }
        for (id, tenant) in &next {
            let concurrency_max = tenant.settings.concurrency_max.unwrap_or(u32::MAX);
            let rule = TenantRule { weight: tenant.settings.weight, concurrency_max };
            self.walk.update(|machine, now| machine.set_tenant(now, *id, rule))?;
            self.walk.watch().metrics().name_tenant(*id, &tenant.settings.name);
        }
        *known = next;
        Ok(())
    }

    /// Adds a node, which takes work at once.
    pub fn add_node(&self, options: NodeOptions) -> Result<(), NodeError> {
        let node = self.nodes.add(options)?;
        let watched = self.monitors.watch(node.watched());
        if watched.is_err() {
            self.nodes.remove(&node.options.name)?;
        }
        Ok(watched?)
    }

    /// Tells whether there is a node of this name.
    pub fn has_node(&self, name: &str) -> bool {
        self.nodes.has(name)
    }

    /// Counts the nodes, those that leave excepted.
    pub fn nodes_len(&self) -> usize {
        self.nodes.len()
    }

    /// Lets a node finish what it has and take nothing new.
    pub fn drain_node(&self, name: &str) -> Result<(), NodeError> {
        self.nodes.drain(name)
    }

    /// Lets a drained node take work again.
    pub fn resume_node(&self, name: &str) -> Result<(), NodeError> {
        self.nodes.resume(name)
    }

    /// Takes a node out; what it has is left to it.
    pub fn remove_node(&self, name: &str) -> Result<(), NodeError> {
        let node = self.nodes.remove(name)?;
        self.monitors.forget(node.id);
        Ok(())
    }

    /// Takes no new requests; those that wait or are on nodes go on.
    pub fn shutdown(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Prints what the actors that look after nodes count, as Prometheus reads it.
    pub fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.monitors.write_metrics(out)
    }

    /// The figures that a page of metrics shows; those of nodes are shown by this.
    pub fn figures(&self) -> RouterGauges {
        let status = self.walk.inspect(OptimizedLoadManager::status);
        for node in &status.nodes {
            let engine =
                node.engine.map(|load| EngineGauges { running: load.running, waiting: load.waiting });
            let figures = NodeGauges { slots: node.slots, busy: node.busy, engine };
            self.walk.watch().metrics().set_node_gauges(node.node, &figures);
        }
        let pool = self.upstream.stats();
        RouterGauges {
            queue_size: status.waiting,
            cache_hits: status.cache.hits,
            cache_misses: status.cache.misses,
            pool_connections: pool.active_connections + pool.idle_connections,
        }
    }
}

impl fmt::Debug for LlmApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Llm").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

/// Why the door cannot be set up.
#[derive(Clone, Debug, PartialEq)]
pub enum LlmError {
    /// The walk does not take its options.
    Options(InvalidOptions),
    /// A node is not as it should be.
    Node(NodeError),
    /// Nobody can look after nodes.
    Monitors(MonitorStartError),
}

impl fmt::Display for LlmError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Options(error) => error.fmt(f),
            Self::Node(error) => error.fmt(f),
            Self::Monitors(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for LlmError {}

impl From<InvalidOptions> for LlmError {
    fn from(error: InvalidOptions) -> Self {
        Self::Options(error)
    }
}

impl From<NodeError> for LlmError {
    fn from(error: NodeError) -> Self {
        Self::Node(error)
    }
}

impl From<MonitorStartError> for LlmError {
    fn from(error: MonitorStartError) -> Self {
        Self::Monitors(error)
    }
}
