//! The LLM API: its shared state and its routes.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;

use evenkeel_pipeline::{
    BreakerState, Class, InvalidOptions, NodeStatus, OptimizedLoadManager, PathShares, RegistryError,
    TenantStatus,
};
use evenkeel_policy::time::Duration;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::audit_trail::AuditScope;
use evenkeel_server::body::Response;
use evenkeel_server::route::{
    ErrorFormat, Handler, RateLimit, Route, RouteError, Routes, ServerRequest, handler,
};
use evenkeel_server::scheduling::ScheduledTenants;
use evenkeel_server::tenant::{Access, TENANTS_MAX, Tenant};
use evenkeel_server::usage_ledger::UsageLedger;
use evenkeel_telemetry::{
    BreakerGauge, ClassGauges, EngineGauges, ExplainNames, ExplainedRequest, NodeGauges, Observer,
    PathGauges, RouterGauges,
};
use http::Method;
use parking_lot::{Mutex, RwLock};

use crate::error_format;
use crate::forwarding::PassOptions;
use crate::model_table::ModelTable;
use crate::models;
use crate::monitor::{MonitorStartError, Monitors};
use crate::node_registry::{ChangedNode, Monitoring, NodeError, NodeRegistry};
use crate::options::{LlmOptions, NodeOptions};
use crate::prices::{PriceTable, Prices};
use crate::proxy::{join_causes, proxy};
use crate::request::Endpoint;
use crate::status;
use crate::usage::{CachedCost, Forecast};
use evenkeel_scheduler::RequestScheduler;
use evenkeel_upstream::Upstream;

/// Maximum number of tenants and of models whose average output length is tracked.
const FORECASTS_MAX: usize = 20_000;

/// The LLM API. Create it once, add its routes to the server, and manage its nodes and tenants here.
pub struct LlmApi {
    pub(crate) scheduler: Arc<RequestScheduler>,
    pub(crate) nodes: Arc<NodeRegistry>,
    monitors: Monitors,
    pub(crate) upstream: Upstream,
    pub(crate) forecast: Mutex<Forecast>,
    pub(crate) first_byte_max: Option<Duration>,
    /// Longest time a request is queued unless its client sets a shorter one.
    pub(crate) wait_max: Duration,
    /// Time between health checks of a node.
    health_interval: Duration,
    pub(crate) tenants: ScheduledTenants,
    models: RwLock<Arc<ModelTable>>,
    pub(crate) pass: PassOptions,
    pub(crate) cached_cost: CachedCost,
    pub(crate) prices: Prices,
    pub(crate) ledger: UsageLedger,
    draining: AtomicBool,
}

impl LlmApi {
    /// Starts the scheduler and the monitors, and adds the configured nodes. Needs a Tokio runtime.
    pub fn new(
        options: LlmOptions,
        upstream: Upstream,
        observer: Arc<Observer>,
    ) -> Result<Arc<Self>, LlmError> {
        let mut pipeline = options.pipeline;
        // A reload may replace all tenants, and the IDs of removed tenants stay in use until the next reload.
        pipeline.limits.tenants_max = pipeline.limits.tenants_max.max(2 * TENANTS_MAX as u32 + 1);
        let models_max = pipeline.limits.models_max;
        let wait_max = pipeline.load.wait_queue.default_timeout;
        let scheduler = RequestScheduler::start(pipeline, observer)?;
        let nodes = Arc::new(NodeRegistry::new(scheduler.clone(), models_max, options.adaptive));
        let registry = nodes.clone();
        let monitors =
            Monitors::start(upstream.clone(), options.health, move |report| registry.apply_report(report))?;
        let llm = Arc::new(Self {
            scheduler,
            nodes,
            monitors,
            upstream,
            forecast: Mutex::new(Forecast::new(FORECASTS_MAX)),
            first_byte_max: options.first_byte_max,
            wait_max,
            health_interval: options.health.interval,
            tenants: ScheduledTenants::default(),
            models: RwLock::new(Arc::new(options.models)),
            pass: options.pass,
            cached_cost: options.cached_cost,
            prices: Prices::default(),
            ledger: UsageLedger::default(),
            draining: AtomicBool::new(false),
        });
        llm.set_prices(options.prices);
        for node in options.nodes {
            llm.add_node(node)?;
        }
        Ok(llm)
    }

    /// Returns the error for a model that no node is known to serve: 503 while a node that was never asked may serve it.
    pub(crate) fn unknown_model(&self, model: &str) -> ApiError {
        let Some(causes) = self.nodes.pending_discoveries() else {
            return ApiError::NoModel { model: model.to_owned() };
        };
        if causes.is_empty() {
            return ApiError::Unready;
        }
        let message = format!(
            "no node is known to serve model {model:?}; models could not be listed yet: {}",
            join_causes(&causes)
        );
        ApiError::Unavailable { message, retry_after: self.health_interval + Duration::from_secs(1) }
    }

    /// Adds the API's routes to a routing table.
    pub fn add_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        let proxied = |endpoint| {
            let llm = self.clone();
            handler(move |call| proxy(llm.clone(), endpoint, call))
        };
        let routed = Endpoint::ALL.map(|endpoint| (endpoint.route(), endpoint));
        let translated = ("/v1/audio/translations", Endpoint::Transcription);
        for (path, endpoint) in routed.into_iter().chain([translated]) {
            let format = error_format::for_endpoint(endpoint);
            routes.add_route(path, tenant_route(Method::POST, proxied(endpoint), format))?;
        }
        let lists = [("/v1/models", self.handler(models::list)), ("/v1/models/*", self.handler(models::one))];
        for (path, handler) in lists {
            routes.add_route(path, tenant_route(Method::GET, handler, error_format::openai))?;
        }
        routes.add(Method::GET, "/api/load-status", Access::Admin, self.handler(status::load))?;
        routes.add(Method::GET, "/api/nodes", Access::Admin, self.handler(status::nodes))
    }

    fn handler(
        self: &Arc<Self>,
        respond: fn(&Self, &ServerRequest) -> Result<Response, ApiError>,
    ) -> Handler {
        let llm = self.clone();
        handler(move |call| {
            let response = respond(&llm, &call);
            async { response }
        })
    }

    /// Replaces all tenants: sets their weights and concurrency limits, and forgets those that are not listed.
    pub fn set_tenants(&self, tenants: &[Arc<Tenant>]) -> Result<(), RegistryError> {
        for removed in self.tenants.replace(&self.scheduler, tenants)? {
            self.forecast.lock().forget_tenant(removed);
        }
        Ok(())
    }

    /// Replaces the aliases and fallbacks of models, for requests from now on.
    pub fn set_models(&self, models: ModelTable) {
        *self.models.write() = Arc::new(models);
    }

    pub(crate) fn model_table(&self) -> Arc<ModelTable> {
        self.models.read().clone()
    }

    /// Replaces the prices; usage that is already recorded keeps its cost.
    pub fn set_prices(&self, prices: PriceTable) {
        self.ledger.set_currency(&prices.currency);
        self.prices.replace(prices);
    }

    /// Returns the usage of the tenants.
    pub fn ledger(&self) -> &UsageLedger {
        &self.ledger
    }

    /// Adds a node, which can receive requests at once.
    pub fn add_node(&self, options: NodeOptions) -> Result<(), NodeError> {
        let node = self.nodes.add(options)?;
        let monitored = self.monitors.watch(node.monitor_target());
        if monitored.is_err() {
            self.nodes.remove(&node.options.name)?;
        }
        Ok(monitored?)
    }

    /// Changes the node of that name, in place unless its URLs change.
    pub fn change_node(&self, options: NodeOptions) -> Result<(), NodeError> {
        let ChangedNode { node, replaced, monitoring } = self.nodes.change_options(options)?;
        if let Some(replaced) = replaced {
            self.monitors.forget(replaced.id);
        }
        match monitoring {
            Monitoring::Unchanged => Ok(()),
            Monitoring::Restart => Ok(self.monitors.watch(node.monitor_target())?),
        }
    }

    /// Reports whether a node has this name.
    pub fn has_node(&self, name: &str) -> bool {
        self.nodes.has(name)
    }

    /// Counts the nodes, except those being removed.
    pub fn nodes_len(&self) -> usize {
        self.nodes.len()
    }

    /// Drains a node: no new requests, those in flight finish.
    pub fn drain_node(&self, name: &str) -> Result<(), NodeError> {
        self.nodes.drain(name)
    }

    /// Returns a drained node to service.
    pub fn resume_node(&self, name: &str) -> Result<(), NodeError> {
        self.nodes.resume(name)
    }

    /// Removes a node; its requests in flight are allowed to finish.
    pub fn remove_node(&self, name: &str) -> Result<(), NodeError> {
        let node = self.nodes.remove(name)?;
        self.monitors.forget(node.id);
        Ok(())
    }

    /// Explains the requests with this id in the header `x-request-id`, latest first.
    pub fn explain(&self, request_id: &str) -> Vec<ExplainedRequest> {
        let names = ExplainNames {
            model: &|model| self.nodes.model_name(model),
            path: &|node, path| Some(self.nodes.get(node)?.origin(Some(path)).to_string()),
        };
        self.scheduler.observer().explain(self.scheduler.now(), request_id, names)
    }

    /// Rejects new requests from now on; queued requests and those in flight continue.
    pub fn shutdown(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Writes the metrics of the monitors' actor system in Prometheus' text format.
    pub fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.monitors.write_metrics(out)
    }

    /// Names the nodes whose last health check failed.
    pub fn unhealthy_nodes(&self) -> Vec<String> {
        self.nodes.unhealthy().into_iter().map(|(name, _)| name).collect()
    }

    /// Describes the nodes with several paths as JSON.
    pub fn describe_paths(&self) -> Vec<serde_json::Value> {
        status::paths_json(self)
    }

    /// Updates the gauges of all nodes, and returns those of the router.
    pub fn update_gauges(&self) -> RouterGauges {
        let status = self.scheduler.inspect(OptimizedLoadManager::status);
        for node in &status.nodes {
            let engine =
                node.engine.map(|load| EngineGauges { running: load.running, waiting: load.waiting });
            let gauges = NodeGauges {
                slots: node.slots,
                busy: node.busy,
                is_healthy: self.nodes.health_error(node.node).is_none(),
                breaker: match node.breaker {
                    BreakerState::Closed => BreakerGauge::Closed,
                    BreakerState::HalfOpen => BreakerGauge::HalfOpen,
                    BreakerState::Open { .. } => BreakerGauge::Open,
                },
                engine,
            };
            let metrics = self.scheduler.observer().metrics();
            metrics.set_node_gauges(node.node, &gauges);
            if let Some(shares) = &node.path_shares {
                self.update_path_gauges(node, shares);
            }
        }
        let pool = self.upstream.stats();
        RouterGauges {
            queue_size: status.waiting,
            cache_hits: status.cache.hits,
            cache_misses: status.cache.misses,
            pool_connections: pool.active_connections + pool.idle_connections,
            classes: class_gauges(&status.tenants),
        }
    }

    fn update_path_gauges(&self, status: &NodeStatus, shares: &PathShares) {
        let gauges = PathGauges {
            active_paths: status.paths.iter().filter(|path| path.state.is_usable()).count(),
            window: shares.window.as_ref(),
            reweights: shares.reweights,
        };
        // A removed node has no paths to report.
        let Some(node) = self.nodes.get(status.node) else { return };
        let url = |path| node.origin(Some(path)).to_string();
        self.scheduler.observer().metrics().set_path_gauges(status.node, &gauges, url);
    }
}

fn tenant_route(method: Method, handler: Handler, error_format: ErrorFormat) -> Route {
    Route {
        method,
        access: Access::Tenant,
        rate_limit: RateLimit::Server,
        handler,
        error_format,
        audit: AuditScope::All,
    }
}

impl fmt::Debug for LlmApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LlmApi").field("upstream", &self.upstream).finish_non_exhaustive()
    }
}

/// Failure to set up the LLM API.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum LlmError {
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    #[error(transparent)]
    Node(#[from] NodeError),
    #[error(transparent)]
    Monitors(#[from] MonitorStartError),
}

/// Sums the classes of all tenants, lowest first; background requests are last.
fn class_gauges(tenants: &[TenantStatus]) -> [ClassGauges; Class::COUNT + 1] {
    let mut gauges = [ClassGauges::default(); Class::COUNT + 1];
    for tenant in tenants {
        for (gauges, class) in gauges.iter_mut().zip(tenant.classes.iter().chain([&tenant.background])) {
            gauges.waiting += class.waiting;
            gauges.cost += class.served.0;
        }
    }
    gauges
}
