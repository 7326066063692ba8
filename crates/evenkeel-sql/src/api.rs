//! The SQL API: shared state and routes.

use core::fmt;
use core::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use evenkeel_pipeline::{InvalidOptions, RegistryError};
use evenkeel_policy::cost::Cost;
use evenkeel_policy::score::{GateRule, HotColdConfig, Limits, LimitsConfig, SelectionPolicy};
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_scheduler::RequestScheduler;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body::Response;
use evenkeel_server::origin::{Protection, check_origin};
use evenkeel_server::route::{Handler, RateLimit, Route, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::scheduling::ScheduledTenants;
use evenkeel_server::tenant::{Access, Authenticator, Caller, TENANTS_MAX, Tenant};
use evenkeel_telemetry::{Observer, RegisterError, Registry};
use http::Method;

use crate::database::Database;
use crate::datasource::{AccessMode, Datasource};
use crate::error::{SqlError, error_format};
use crate::held_slot::{HeldSlots, REPORT_INTERVAL};
use crate::idempotency::IdempotencyStore;
use crate::metrics::{Operation, SqlMetrics};
use crate::options::{SqlLimits, SqlOptions};
use crate::transaction::{Transactions, TransactionsError};
use crate::{health, hrana, neon, statement, transaction_routes};

/// Cost of a typical statement: a connection held for 20 ms. A round grants a twentieth of it.
const QUANTUM: Cost = Cost(20_000);
/// Time between two checks for transactions that hold more than their tenant's share.
const RECLAIM_INTERVAL: Duration = Duration::from_millis(250);

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
        observer: Arc<Observer>,
        registry: &Registry,
    ) -> Result<Arc<Self>, SqlStartError> {
        let mut pipeline = options.pipeline;
        pipeline.quantum = QUANTUM;
        // The gates of the specification choose among peers; they must not close the only node of a database.
        let limits = Limits::new(LimitsConfig { gates: GateRule::CapacityOnly, ..options.score })?;
        pipeline.selection = SelectionPolicy::HotCold(HotColdConfig { limits, ..HotColdConfig::default() });
        // A reload may replace all tenants, and the ids of removed tenants stay in use until the next reload.
        pipeline.limits.tenants_max = pipeline.limits.tenants_max.max(2 * TENANTS_MAX as u32 + 1);
        let score_limits = Limits::new(options.score)?;
        let scheduler = RequestScheduler::start(pipeline, observer)?;
        let held = Arc::new(HeldSlots::default());
        let mut databases = Vec::new();
        for (index, (datasource, source)) in (0..).zip(options.datasources.into_iter().zip(sources)) {
            let database =
                Database::new(index, datasource, source, scheduler.clone(), held.clone(), &score_limits)?;
            databases.push(Arc::new(database));
        }
        let transactions = Transactions::start(options.limits, &options.node, &options.signing_key)?;
        let api = Arc::new(Self {
            limits: options.limits,
            auth,
            scheduler,
            metrics: SqlMetrics::new(registry, &databases)?,
            databases,
            transactions,
            idempotency: IdempotencyStore::new(&options.limits),
            node: options.node,
            started_at: Instant::now(),
            tenants: ScheduledTenants::default(),
            held,
            draining: AtomicBool::new(false),
        });
        tokio::spawn(report_costs(Arc::downgrade(&api)));
        tokio::spawn(reclaim_transactions(Arc::downgrade(&api)));
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
                access: Access::Tenant,
                // A statement of an open transaction is served whatever the limits say, which only the body shows.
                rate_limit: RateLimit::Handler,
                handler,
                error_format,
            };
            routes.add_route(path, route)?;
        }
        let neon = Route {
            method: Method::POST,
            // The connection string has the API key.
            access: Access::Public,
            rate_limit: RateLimit::Handler,
            handler: self.handler_with_errors(Operation::Neon, neon::error_response, neon::serve),
            error_format: neon::error_format,
        };
        routes.add_route("/sql", neon)?;
        for path in hrana::POSTS {
            let route = Route {
                method: Method::POST,
                access: Access::Tenant,
                // As above: a request of an open transaction is always served.
                rate_limit: RateLimit::Handler,
                handler: self.handler_with_errors(Operation::Hrana, hrana::error_response, hrana::serve),
                error_format: hrana::error_format,
            };
            routes.add_route(path, route)?;
        }
        for path in hrana::GETS {
            routes.add(Method::GET, path, Access::Public, handler(hrana::version))?;
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
    fn handler_with_errors<F, A>(
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
        handler(move |call: ServerRequest| {
            let api = api.clone();
            async move {
                let started = Instant::now();
                let result = match api.check(&call) {
                    Ok(()) => serve(api.clone(), call).await,
                    Err(error) => Err(error.into()),
                };
                api.metrics.record(operation, &result, started.elapsed());
                Ok(result.unwrap_or_else(error_response))
            }
        })
    }

    /// Rejects requests of foreign web pages.
    fn check(&self, call: &ServerRequest) -> Result<(), ApiError> {
        let protection = if self.auth.tenants().is_empty() { Protection::None } else { Protection::ApiKey };
        check_origin(call.request.headers(), call.request.uri(), protection)
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

    /// Reports whether the server is shutting down.
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    pub(crate) fn check_draining(&self) -> Result<(), ApiError> {
        if self.is_draining() { Err(ApiError::Draining) } else { Ok(()) }
    }

    /// Accepts no new work, waits for open transactions up to `drain_max`, then rolls them back.
    pub async fn drain(&self, drain_max: Duration) {
        self.draining.store(true, Ordering::Relaxed);
        self.transactions.drain(drain_max).await;
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
            let stats = database.node_stats(self.started_at.elapsed().as_secs(), self.is_draining());
            self.metrics.set_gauges(&database.options.name, &stats);
        }
    }

    /// Writes the metrics of the transactions' actors in Prometheus' text format.
    pub fn write_actor_metrics(&self, out: &mut String) -> fmt::Result {
        self.transactions.write_actor_metrics(out)
    }
}

/// Returns the tenant of an authenticated request.
pub(crate) fn tenant_of(call: &ServerRequest) -> Result<Arc<Tenant>, ApiError> {
    match &call.caller {
        Caller::Tenant(tenant) => Ok(tenant.clone()),
        Caller::Public | Caller::Admin => Err(ApiError::Internal),
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
