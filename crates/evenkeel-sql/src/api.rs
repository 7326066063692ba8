//! The SQL API: shared state and routes.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use evenkeel_cluster::{Cluster, NodeReport, PoolReport, REPORT_HEADER, Ticket};
use evenkeel_pipeline::{InvalidOptions, PeerId, RedirectMode, RedirectOptions, RegistryError};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::score::{
    GateRule, HotColdConfig, Limits, LimitsConfig, NodeStats, SelectionPolicy, Status,
};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_scheduler::RequestScheduler;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::audit_trail::AuditScope;
use evenkeel_server::body::Response;
use evenkeel_server::route::{Handler, RateLimit, Route, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::scheduling::ScheduledTenants;
use evenkeel_server::sigv4::SignatureVerifier;
use evenkeel_server::tenant::{Access, Authenticator, TENANTS_MAX, Tenant};
use evenkeel_telemetry::{ExplainNames, ExplainedRequest, Observer, RegisterError, Registry};
use http::{HeaderValue, Method};

use crate::database::Database;
use crate::datasource::{AccessMode, Datasource};
use crate::error::{SqlError, error_format};
use crate::held_slot::{HeldSlots, REPORT_INTERVAL};
use crate::idempotency::IdempotencyStore;
use crate::metrics::{Operation, SqlMetrics};
use crate::options::{SqlLimits, SqlOptions};
use crate::rds_data::StartedCalls;
use crate::received::NOT_SERVED;
use crate::transaction::{Transactions, TransactionsError};
use crate::{health, hrana, neon, rds_data, received, statement, transaction_routes};

/// Cost of a typical statement: a connection held for 20 ms. A round grants a twentieth of it.
const QUANTUM: Cost = Cost(20_000);
/// Purpose of the cluster's key that signs transaction ids; another purpose would invalidate all ids.
const SIGNING_PURPOSE: &[u8] = b"evenkeel sql signing key";
/// Time between two attempts to find the identities of databases.
const IDENTIFY_INTERVAL: Duration = Duration::from_secs(1);
/// Time between two checks for transactions that hold more than their tenant's share.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);
/// Time for which a draining node answers at least: every peer polls it meanwhile, and sends it no new work afterwards.
const PEERS_NOTICE: Duration = Duration::from_secs(1);

/// The SQL API.
pub struct SqlApi {
    pub(crate) limits: SqlLimits,
    pub(crate) auth: Arc<Authenticator>,
    pub(crate) scheduler: Arc<RequestScheduler>,
    /// The first is the default.
    pub(crate) databases: Vec<Arc<Database>>,
    pub(crate) transactions: Arc<Transactions>,
    pub(crate) idempotency: IdempotencyStore,
    pub(crate) metrics: SqlMetrics,
    pub(crate) node: String,
    pub(crate) started_at: Instant,
    /// Other nodes that serve the same databases.
    pub(crate) cluster: Option<Arc<Cluster>>,
    pub(crate) redirect: RedirectMode,
    /// The start by the clock of the scheduler.
    pub(crate) started_at_scheduler: evenkeel_policy::time::Instant,
    pub(crate) rds_signatures: SignatureVerifier,
    pub(crate) rds_calls: StartedCalls,
    tenants: ScheduledTenants,
    held: Arc<HeldSlots>,
    draining: AtomicBool,
}

impl SqlApi {
    /// Starts the scheduler and adds the datasources, in the order of the options. Needs a Tokio runtime.
    pub fn new(
        options: SqlOptions,
        sources: Vec<Arc<dyn Datasource>>,
        auth: Arc<Authenticator>,
        cluster: Option<Arc<Cluster>>,
        observer: Arc<Observer>,
        registry: &Registry,
    ) -> Result<Arc<Self>, SqlStartError> {
        let mut pipeline = options.pipeline;
        pipeline.quantum = QUANTUM;
        // The gates of the specification choose among peers; they must not close the only node of a database.
        let own_limits = LimitsConfig { gates: GateRule::CapacityOnly, ..*options.score.limits.config() };
        let limits = Limits::new(own_limits)?;
        pipeline.selection = SelectionPolicy::HotCold(HotColdConfig { limits, ..HotColdConfig::default() });
        // A reload may replace all tenants, and the ids of removed tenants stay in use until the next reload.
        pipeline.limits.tenants_max = pipeline.limits.tenants_max.max(2 * TENANTS_MAX as u32 + 1);
        let scheduler = RequestScheduler::start(pipeline, observer)?;
        let held = Arc::new(HeldSlots::default());
        let mut databases = Vec::new();
        for (index, (datasource, source)) in (0..).zip(options.datasources.into_iter().zip(sources)) {
            let redirect = RedirectOptions { score: options.score, ..RedirectOptions::default() };
            let database =
                Database::new(index, datasource, source, scheduler.clone(), held.clone(), redirect)?;
            databases.push(Arc::new(database));
        }
        let (node, signing_key) = match &cluster {
            // Every node of the cluster reads the transaction ids of the others.
            Some(cluster) => (cluster.node().to_owned(), cluster.secret_key(SIGNING_PURPOSE)),
            None => (options.node, options.signing_key),
        };
        let transactions = Transactions::start(options.limits, &node, &signing_key)?;
        let started_at_scheduler = scheduler.now();
        let api = Arc::new(Self {
            limits: options.limits,
            rds_signatures: SignatureVerifier::new(auth.clone(), options.master_key, rds_data::SERVICE),
            rds_calls: StartedCalls::default(),
            auth,
            scheduler,
            metrics: SqlMetrics::new(registry, &databases)?,
            databases,
            transactions,
            idempotency: IdempotencyStore::new(&options.limits),
            node,
            started_at: Instant::now(),
            cluster,
            redirect: options.redirect,
            started_at_scheduler,
            tenants: ScheduledTenants::default(),
            held,
            draining: AtomicBool::new(false),
        });
        tokio::spawn(report_costs(Arc::downgrade(&api)));
        tokio::spawn(reclaim_transactions(Arc::downgrade(&api)));
        if let Some(cluster) = &api.cluster {
            for peer in cluster.peers() {
                api.scheduler.observer().metrics().name_peer(PeerId(peer.index as u32), &peer.name);
            }
            tokio::spawn(identify_databases(Arc::downgrade(&api)));
        }
        Ok(api)
    }

    /// Adds the API's routes.
    pub fn add_routes(self: &Arc<Self>, routes: &mut Routes) -> Result<(), RouteError> {
        let query =
            self.handler(Operation::Query, |api, call| statement::serve(api, AccessMode::ReadOnly, call));
        let execute =
            self.handler(Operation::Execute, |api, call| statement::serve(api, AccessMode::ReadWrite, call));
        let posts = [
            ("/query", query),
            ("/execute", execute),
            ("/tx/begin", self.handler(Operation::Begin, transaction_routes::begin)),
            ("/tx/commit", self.handler(Operation::Commit, transaction_routes::commit)),
            ("/tx/rollback", self.handler(Operation::Rollback, transaction_routes::rollback)),
        ];
        for (path, handler) in posts {
            let route = Route {
                method: Method::POST,
                // The handler authenticates: a ticket of a peer replaces the API key.
                access: Access::Unchecked,
                // A statement of an open transaction is served whatever the limits say, which only the body shows.
                rate_limit: RateLimit::Handler,
                handler,
                error_format,
                audit: AuditScope::All,
            };
            routes.add_route(path, route)?;
        }
        let neon = Route {
            method: Method::POST,
            // The connection string has the API key.
            access: Access::Unchecked,
            rate_limit: RateLimit::Handler,
            handler: self.handler_with_errors(Operation::Neon, neon::error_response, neon::serve),
            error_format: neon::error_format,
            audit: AuditScope::All,
        };
        routes.add_route("/sql", neon)?;
        rds_data::add_routes(self, routes)?;
        for path in hrana::POST_PATHS {
            let route = Route {
                method: Method::POST,
                // As above: the handler authenticates, and a request of an open transaction is always served.
                access: Access::Unchecked,
                rate_limit: RateLimit::Handler,
                handler: self.handler_with_errors(Operation::Hrana, hrana::error_response, hrana::serve),
                error_format: hrana::error_format,
                audit: AuditScope::All,
            };
            routes.add_route(path, route)?;
        }
        for path in hrana::GET_PATHS {
            routes.add(Method::GET, path, Access::Public, handler(hrana::serve_version))?;
        }
        let api = self.clone();
        routes.add(
            Method::GET,
            "/healthz",
            Access::Public,
            handler(move |_| health::healthz(api.clone())),
        )?;
        let api = self.clone();
        routes.add(Method::GET, "/api/sql", Access::Admin, handler(move |_| health::describe(api.clone())))
    }

    fn handler<F, A>(self: &Arc<Self>, operation: Operation, serve: F) -> Handler
    where
        F: Fn(Arc<Self>, ServerRequest) -> A + Send + Sync + Copy + 'static,
        A: Future<Output = Result<Response, SqlError>> + Send + 'static,
    {
        self.handler_with_errors(operation, SqlError::into_response, serve)
    }

    /// Creates the handler of an operation, which counts its errors and formats them with `error_response`.
    pub(crate) fn handler_with_errors<F, A>(
        self: &Arc<Self>,
        operation: Operation,
        error_response: fn(SqlError) -> Response,
        serve: F,
    ) -> Handler
    where
        F: Fn(Arc<Self>, ServerRequest) -> A + Send + Sync + Copy + 'static,
        A: Future<Output = Result<Response, SqlError>> + Send + 'static,
    {
        let api = self.clone();
        handler(move |mut call: ServerRequest| {
            let api = api.clone();
            async move {
                let started = Instant::now();
                let accepted = received::accept_ticket(&api, &mut call);
                let accepted = accepted.and_then(|ticket| api.check(&call).map(|()| ticket));
                let (result, ticket) = match accepted {
                    Ok(ticket) => (serve(api.clone(), call).await, ticket),
                    Err(error) => (Err(error.into()), None),
                };
                api.metrics.record(operation, &result, started.elapsed());
                let is_refused =
                    matches!(result, Err(SqlError::Api(ApiError::InvalidTicket { .. } | ApiError::Draining)));
                let mut response = result.unwrap_or_else(error_response);
                if is_refused {
                    response.headers_mut().insert(NOT_SERVED, HeaderValue::from_static("true"));
                }
                if let Some(ticket) = ticket {
                    api.add_report(&ticket, &mut response);
                }
                Ok(response)
            }
        })
    }

    /// Adds the figures of this node to the response to a forwarded request, which saves the forwarding node a poll.
    fn add_report(&self, ticket: &Ticket, response: &mut Response) {
        let report = self.cluster.as_ref().and_then(|cluster| cluster.report_header(ticket));
        if let Some(report) = report {
            response.headers_mut().insert(REPORT_HEADER, report);
        }
    }

    /// Rejects requests of foreign web pages in open mode, unless they have a ticket, which no page can make up.
    fn check(&self, call: &ServerRequest) -> Result<(), ApiError> {
        if call.request.extensions().get::<Ticket>().is_some() {
            return Ok(());
        }
        self.auth.check_request(call.request.headers(), call.request.uri(), call.peer)
    }

    /// Replaces all tenants: sets their weights and concurrency limits.
    pub fn set_tenants(&self, tenants: &[Arc<Tenant>]) -> Result<(), RegistryError> {
        self.tenants.replace(&self.scheduler, tenants).map(drop)
    }

    /// Finds a database that the tenant may use; `None` names the default.
    pub(crate) fn database(&self, name: Option<&str>, tenant: &Tenant) -> Result<&Arc<Database>, SqlError> {
        let found = match name {
            None => self.databases.first(),
            Some(name) => self.databases.iter().find(|database| database.options.name == name),
        };
        let unknown = || SqlError::UnknownDatabase { name: name.unwrap_or_default().to_owned() };
        let database = found.ok_or_else(unknown)?;
        tenant.check_datasource(&database.options.name)?;
        Ok(database)
    }

    /// Explains the requests with this id in the header `x-request-id`, latest first.
    pub fn explain(&self, request_id: &str) -> Vec<ExplainedRequest> {
        let observer = self.scheduler.observer();
        // Requests for the readers and the writer of SQLite have a model each.
        let datasource = |model| {
            let is_pool = |database: &&Arc<Database>| database.nodes().any(|pool| pool.model == model);
            self.databases.iter().find(is_pool).map(|database| Arc::from(database.options.name.as_str()))
        };
        let names = ExplainNames { model: &datasource, path: &|_, _| None };
        observer.explain(self.scheduler.now(), request_id, names)
    }

    /// Reports whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn check_draining(&self) -> Result<(), ApiError> {
        if self.is_draining() { Err(ApiError::Draining) } else { Ok(()) }
    }

    /// Accepts no new work, waits for open transactions up to `drain_max`, then rolls them back.
    ///
    /// With peers it takes at least a second, or `drain_max` if that is shorter, so that they learn of it.
    pub async fn drain(&self, drain_max: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        let notice = if self.cluster.is_some() { PEERS_NOTICE.min(drain_max) } else { Duration::ZERO };
        tokio::join!(self.transactions.drain(drain_max), tokio::time::sleep(notice));
    }

    /// Closes all connections.
    pub async fn close(&self) {
        for database in &self.databases {
            database.source.close().await;
        }
    }

    /// Returns the names of the datasources.
    pub fn datasources(&self) -> impl Iterator<Item = &str> {
        self.databases.iter().map(|database| database.options.name.as_str())
    }

    /// Updates the gauges; called before metrics are rendered.
    pub fn update_metrics(&self) {
        for database in &self.databases {
            self.metrics.set_gauges(&database.options.name, &self.node_stats(database));
        }
    }

    /// Returns the figures of this node for a database.
    pub(crate) fn node_stats(&self, database: &Database) -> NodeStats {
        database.node_stats(self.started_at.elapsed().as_secs(), self.is_draining())
    }

    /// Returns the figures that this node reports to its peers: those of every database that they can use too.
    pub fn report(&self) -> NodeReport {
        let pool = |database: &Arc<Database>| {
            Some(PoolReport {
                database_id: database.shared_id()?.to_owned(),
                name: database.options.name.clone(),
                stats: self.node_stats(database),
            })
        };
        let status = if self.is_draining() { Status::Draining } else { Status::Serving };
        NodeReport { status, pools: self.databases.iter().filter_map(pool).collect() }
    }

    /// Converts a time to the clock of the scheduler; a time before the start becomes the start.
    pub(crate) fn scheduler_time(&self, at: Instant) -> evenkeel_policy::time::Instant {
        self.started_at_scheduler + at.saturating_duration_since(self.started_at)
    }

    /// Writes the metrics of the transactions' actors in Prometheus' text format.
    pub fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.transactions.write_actor_metrics(out)
    }
}

/// Finds the identity of every database, so that peers can tell which databases they share.
async fn identify_databases(api: Weak<SqlApi>) {
    let mut interval = tokio::time::interval(IDENTIFY_INTERVAL);
    loop {
        interval.tick().await;
        let Some(api) = api.upgrade() else { return };
        let mut is_complete = true;
        for database in &api.databases {
            is_complete &= database.id().await.is_ok();
        }
        if is_complete {
            return;
        }
    }
}

async fn report_costs(api: Weak<SqlApi>) {
    let mut interval = tokio::time::interval(REPORT_INTERVAL);
    loop {
        interval.tick().await;
        let Some(api) = api.upgrade() else { return };
        api.held.report_costs();
    }
}

async fn reclaim_transactions(api: Weak<SqlApi>) {
    let mut interval = tokio::time::interval(RECLAIM_INTERVAL);
    loop {
        interval.tick().await;
        let Some(api) = api.upgrade() else { return };
        for database in &api.databases {
            for pool in database.nodes() {
                let (over_share, waiting) = api
                    .scheduler
                    .inspect(|pipeline| (pipeline.over_share(pool.node), pipeline.waiting(pool.model)));
                for (tenant, excess) in over_share {
                    api.transactions.reclaim(pool, Some(tenant), excess);
                }
                // SQLite has one writer, so that an idle transaction there holds up every write.
                if database.is_single_writer(pool) && waiting > 0 {
                    api.transactions.reclaim(pool, None, 1);
                }
            }
        }
    }
}

impl fmt::Debug for SqlApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqlApi").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Error that prevents the SQL API from starting.
#[derive(Debug, thiserror::Error)]
pub enum SqlStartError {
    #[error(transparent)]
    Options(#[from] InvalidOptions),
    #[error(transparent)]
    Score(#[from] SettingOutOfRange),
    #[error(transparent)]
    Registry(#[from] RegistryError),
    #[error(transparent)]
    Metric(#[from] RegisterError),
    #[error(transparent)]
    Transactions(#[from] TransactionsError),
}
