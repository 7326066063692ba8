//! A running gateway: all APIs behind one listener, with reload and graceful shutdown.
//!
//! Guarantees: a reload with an invalid configuration changes nothing. One process at a time uses a data directory.
//!
//! Limits: shutdown rolls back SQL transactions that are still open after `unready_secs` plus `drain_secs`, and aborts
//! requests that are still in flight `drain_secs` after the last transaction ended; releasing jobs, closing databases and
//! exporting the last spans may take a few seconds more.

mod actor_metrics;
mod api;
mod cluster;
mod dispatch;
mod last_uses;
mod links;
mod listeners;
mod nodes;
mod preflight;
mod queue;
mod reload;
mod requests;
mod sql;
mod traces;
mod usage;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_cluster::{Cluster, ClusterSecretError, ClusterStartError};
use evenkeel_llm::{LlmApi, LlmError};
use evenkeel_pipeline::RegistryError;
use evenkeel_queue::Queues;
use evenkeel_queue::queues::OpenError;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::audit_trail::AuditNote;
use evenkeel_server::listener::DrainReport;
use evenkeel_server::metrics::ServerMetrics;
use evenkeel_server::route::{Readiness, RouteError, Routes};
use evenkeel_server::tenant::{Access, Authenticator, Tenants, TenantsError};
use evenkeel_server::tls::Tls;
use evenkeel_sql::datasource::postgres::PostgresDatasource;
use evenkeel_sql::{SqlApi, SqlStartError};
use evenkeel_telemetry::logs::StartupLine;
use evenkeel_telemetry::trace::Tracer;
use evenkeel_telemetry::{
    GenAiMetrics, MetricDesc, Observer, PathMetrics, RegisterError, Registry, RouterMetrics, Secret,
};
use evenkeel_upstream::{TlsRoots, Upstream};
use parking_lot::Mutex;
use serde_json::Value as Json;
use thiserror::Error;
use tokio::time::sleep;

use crate::admin_key::{self, AdminKeyError};
use crate::audit_file::AuditFile;
use crate::config::{Config, ConfigErrors};
use crate::data_dir::{DataDir, DataDirError, ServerUrls};
use crate::key_use::KeyUses;
use crate::node_store::NodeStore;
use crate::sqs_key::SqsKeyError;
use crate::tenant_store::{TenantChange, TenantStore, TenantStoreError};
use crate::usage_store::UsageStore;

use actor_metrics::ActorMetrics;
use cluster::SqlApiCell;
use dispatch::{Dispatcher, WebhookClient};
use links::GatewayLinks;
use listeners::{Listeners, ServingListeners};
use queue::QueueApi;
use sql::OpenedSql;

pub use links::LinkError;
pub use preflight::StartupFiles;
pub use reload::{ReloadError, ReloadReport};
use traces::Exporter;
use usage::BudgetMetrics;

const AUDIT_ERRORS_TOTAL: MetricDesc =
    MetricDesc::new("evenkeel_audit_errors_total", "audit records that could not be written to audit.log");
/// Queues that a warning names.
const SHARED_NAMED_MAX: usize = 10;

/// A running gateway.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    urls: ServerUrls,
    core: Arc<Core>,
    serving: ServingListeners,
    dispatcher: Dispatcher,
    exporter: Option<Exporter>,
    /// Datasources by name, to be checked once the start is logged.
    postgres: Vec<(String, Arc<PostgresDatasource>)>,
}

/// State shared by requests, admin commands and reloads.
struct Core {
    auth: Arc<Authenticator>,
    llm: Arc<LlmApi>,
    queue: QueueApi,
    sql: Arc<SqlApi>,
    cluster: Option<Arc<Cluster>>,
    links: GatewayLinks,
    registry: Registry,
    router: RouterMetrics,
    readiness: Readiness,
    tls: Option<Arc<Tls>>,
    audit: Arc<AuditFile>,
    usage: UsageStore,
    budget_metrics: BudgetMetrics,
    /// Locked for the duration of a change, so that changes are applied one at a time.
    state: Mutex<State>,
}

struct State {
    /// Configuration at startup, which the listener still uses.
    started: Config,
    /// Configuration of the last reload.
    config: Config,
    /// The configured admin keys, or the one in the data directory.
    admin_keys: Vec<KeyHash>,
    tenants: TenantStore,
    nodes: NodeStore,
    data_dir: DataDir,
}

impl Gateway {
    /// Starts the gateway on the current Tokio runtime. On return it listens, and its URL is in the data directory.
    pub async fn start(mut config: Config, mut data_dir: DataDir) -> Result<Self, StartError> {
        let server = config.server.clone();
        let StartupFiles { mut tenants, mut nodes, tls, roots, links: loaded_links, usage } =
            StartupFiles::load(&config)?;
        nodes::drop_overridden(&mut nodes, &config.llm.options.nodes);
        let mut listeners = Listeners::bind(&server, tls.as_ref()).await?;
        let address = listeners.address;
        let urls = listeners.urls.clone();
        let admin_keys = admin_key::hashes(&data_dir, &server.admin_key_hashes)?;
        tenants.update_accounts(&data_dir)?;
        tenants.warn_reserved_names();
        let tenant_table = Tenants::new(tenants.all(), admin_keys.clone())?;
        let auth = Authenticator::new(tenant_table, listeners.exposure, server.insecure)?;
        let auth = Arc::new(auth.with_sites(server.sites));

        let registry = Registry::new();
        listeners.set_metrics(&ServerMetrics::new(&registry)?);
        let audit = audit_file(&data_dir, &registry, &auth)?;
        let router = RouterMetrics::new(&registry)?;
        let path_metrics = PathMetrics::new(&registry)?;
        let (observer, exporter) = observer(&config, &registry, &router, &path_metrics, &roots)?;
        let links = GatewayLinks::new(&config, path_metrics);
        for link in loaded_links {
            links.start(link)?;
        }
        config.llm.options.pipeline.seed = random_seed();
        let pool = config.llm.options.pipeline.load.connection_pool;
        let client = |pool, roots| Upstream::new(pool, roots).with_link_local(server.link_local);
        let upstream = client(pool, roots.clone()).with_links(links.table());
        // Webhooks have their own pool, so that their connections do not count in the metrics of nodes.
        let webhooks = WebhookClient::new(client(pool, roots.clone()), pool.request_timeout);
        let llm = LlmApi::new(config.llm.options.clone(), upstream, Arc::new(observer))?;
        llm.set_tenants(&auth.tenants().all())?;
        llm.ledger().restore(&usage);
        let queue = QueueApi::open(&config, &data_dir, auth.clone(), &registry).await?;
        let sql_cell = SqlApiCell::default();
        let cluster = cluster::start(&config, roots, sql_cell.clone())?;
        let OpenedSql { api: sql, postgres } =
            sql::open(&config, &data_dir, auth.clone(), cluster.clone(), &registry).await?;
        sql_cell.get_or_init(|| Arc::downgrade(&sql));
        add_actor_metrics(&registry, &llm, &queue.queues, &sql, cluster.as_ref())?;
        data_dir.announce(&urls)?;
        let usage = UsageStore::new(data_dir.path());
        let telemetry = config.telemetry.clone();
        let state =
            Mutex::new(State { started: config.clone(), config, admin_keys, tenants, nodes, data_dir });
        let core = Arc::new(Core {
            auth,
            llm,
            queue,
            sql,
            cluster,
            links,
            budget_metrics: BudgetMetrics::new(&registry, telemetry.metric_limits.tenants_max)?,
            registry,
            router,
            readiness: Readiness::default(),
            tls,
            audit,
            usage,
            state,
        });
        core.restore_nodes();
        core.restore_last_uses();
        core.store_regularly();
        // Starts after the nodes are restored, because a job for a model that no node serves fails.
        let dispatcher = core.start_dispatcher(webhooks, telemetry.queues_max)?;
        let routes = core.routes(telemetry.metrics)?;
        let serving = listeners.serve(&core.auth, routes);
        list_unhealthy_nodes(&core);
        core.readiness.ready();
        Ok(Self { address, urls, core, serving, dispatcher, exporter, postgres })
    }

    /// Logs the startup line, and warnings: if there are no tenants, and, as soon as it is known, if a PostgreSQL server
    /// cannot be reached or its user is a superuser. Needs a Tokio runtime.
    pub fn log_startup(&self) {
        let store = self.core.state.lock().describe_store();
        let apis = &["llm", "sqs", "sql"];
        StartupLine { url: &self.urls.public, apis, store: &store, tenants: self.tenants() }.log();
        if self.urls.admin != self.urls.public {
            tracing::info!(target: "evenkeel", url = self.urls.admin, "the native API and the metrics are served here only");
        }
        self.core.warn_if_open();
        self.core.warn_if_shared();
        for (name, source) in &self.postgres {
            tokio::spawn(sql::check_postgres(name.clone(), source.clone()));
        }
    }

    /// Returns the address of the listener.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the URL for clients on this machine.
    pub fn url(&self) -> &str {
        &self.urls.public
    }

    pub fn tenants(&self) -> usize {
        self.core.auth.tenants().len()
    }

    pub fn nodes(&self) -> usize {
        self.core.llm.nodes_len()
    }

    /// Applies another configuration; on an error the current one is kept.
    pub fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        self.core.reload(config)
    }

    /// Records a reload, or why it was refused, in the audit log.
    pub fn record_reload(&self, result: Result<&ReloadReport, String>) {
        match result {
            Ok(report) => self.core.audit.record_local("signal", "reload", report.to_json(), None),
            Err(error) => self.core.audit.record_local("signal", "reload", Json::Null, Some(error)),
        }
    }

    /// Shuts down gracefully: reports "not ready", waits for open SQL transactions while their statements are still
    /// accepted, then closes the listener and drains requests in flight.
    pub async fn stop(self) -> io::Result<DrainReport> {
        self.core.readiness.unready();
        let server = self.core.state.lock().started.server.clone();
        sleep(server.unready).await;
        // The statements of an open transaction come over new connections too, so the listener closes afterwards.
        self.core.sql.drain(server.limits.drain_max).await;
        self.core.llm.shutdown();
        self.core.queue.sqs.shutdown();
        // Another process may take the port once the listener is closed, and must not get the admin key from the CLI.
        if let Err(error) = self.core.state.lock().data_dir.retract() {
            tracing::warn!(target: "evenkeel", %error, "could not remove the server's URL from the data directory");
        }
        let (report, ()) = tokio::join!(self.serving.stop(), self.dispatcher.stop(server.limits.drain_max));
        last_uses::store(self.core.clone(), KeyUses::default()).await;
        if let Err(error) = usage::store(self.core.clone()).await {
            tracing::error!(target: "evenkeel", %error, "could not store the latest usage of tenants; it is lost");
        }
        self.core.queue.queues.shutdown().await;
        self.core.sql.close().await;
        self.core.links.close().await;
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
        report
    }
}

impl State {
    fn describe_store(&self) -> String {
        let Self { data_dir, started, .. } = self;
        format!("{}, queues in {}", data_dir.path().display(), started.queue.store.as_str())
    }
}

/// Lets `/readyz` name the nodes whose health checks fail.
fn list_unhealthy_nodes(core: &Core) {
    let llm = Arc::downgrade(&core.llm);
    core.readiness.list_problems(move || {
        let unhealthy = llm.upgrade().map(|llm| llm.unhealthy_nodes()).unwrap_or_default();
        unhealthy.into_iter().map(|node| format!("node {node:?} is unhealthy")).collect()
    });
}

impl Core {
    fn routes(self: &Arc<Self>, metrics_access: Access) -> Result<Routes, RouteError> {
        let mut routes = Routes::new(self.readiness.clone());
        self.llm.add_routes(&mut routes)?;
        self.queue.sqs.add_native_routes(&mut routes)?;
        self.sql.add_routes(&mut routes)?;
        if let Some(cluster) = &self.cluster {
            evenkeel_server::cluster::add_routes(cluster, &mut routes)?;
        }
        api::add_routes(self, &mut routes, metrics_access)?;
        nodes::add_routes(self, &mut routes)?;
        links::add_routes(self, &mut routes)?;
        requests::add_routes(self, &mut routes)?;
        usage::add_routes(self, &mut routes)?;
        api::add_list(&mut routes)?;
        Ok(routes)
    }

    /// Stores what changes with each request, until the gateway is dropped.
    fn store_regularly(self: &Arc<Self>) {
        tokio::spawn(last_uses::store_regularly(Arc::downgrade(self)));
        tokio::spawn(usage::store_regularly(Arc::downgrade(self)));
    }

    fn start_dispatcher(
        &self,
        webhooks: WebhookClient,
        queues_max: usize,
    ) -> Result<Dispatcher, RegisterError> {
        let queues = self.queue.queues.clone();
        Dispatcher::start(queues, self.llm.clone(), self.auth.clone(), webhooks, &self.registry, queues_max)
    }

    /// Validates a change to the tenants, stores it, then applies it.
    fn change_tenants(
        &self,
        change: TenantChange,
        audit: &AuditNote,
    ) -> Result<Option<Secret<String>>, ChangeError> {
        let mut state = self.state.lock();
        if let Some(before) = state.tenants.describe_one(change.tenant()) {
            audit.set_before(before);
        }
        let summary = change.to_string();
        let was_open = self.auth.tenants().is_empty();
        let (next, key) = state.tenants.apply(change, &state.admin_keys)?;
        state.started.check_exposure(next.all().len())?;
        next.write(&state.data_dir)?;
        self.auth.reload(next.all(), state.admin_keys.clone()).map_err(TenantStoreError::Tenants)?;
        self.set_tenants()?;
        state.tenants = next;
        tracing::info!(target: "evenkeel", tenants = self.auth.tenants().len(), "{summary}");
        self.warn_if_open();
        if was_open {
            self.warn_if_shared();
        }
        Ok(key)
    }

    /// Passes the current tenants to the schedulers of all APIs.
    fn set_tenants(&self) -> Result<(), RegistryError> {
        let tenants = self.auth.tenants().all();
        let llm = self.llm.set_tenants(&tenants);
        self.sql.set_tenants(&tenants).and(llm)
    }

    /// Warns if there are no tenants, because then no API key is needed.
    fn warn_if_open(&self) {
        if self.auth.tenants().is_empty() {
            tracing::warn!(target: "evenkeel", "open: no tenants, so every client that reaches this server is served; `evenkeel tenant add NAME` requires API keys");
        }
    }

    /// Warns if there are tenants, and queues that all of them may use although nobody decided so.
    fn warn_if_shared(&self) {
        let queues = self.queue.sqs.queues_without_owner();
        if self.auth.tenants().is_empty() || queues.is_empty() {
            return;
        }
        let named = queues.iter().take(SHARED_NAMED_MAX).map(String::as_str).collect::<Vec<_>>().join(", ");
        tracing::warn!(target: "evenkeel", count = queues.len(), queues = named, "queues without an owner: every tenant can read, purge and delete them; `evenkeel queue assign QUEUE --owner TENANT` gives a queue an owner, `evenkeel queue assign QUEUE --shared` confirms that it is shared");
    }

    /// Renders the metrics in Prometheus' text format.
    fn metrics(&self) -> String {
        self.router.set_gauges(&self.llm.update_gauges());
        self.queue.sqs.update_metrics();
        self.sql.update_metrics();
        self.links.describe();
        self.update_budget_metrics();
        self.registry.render()
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

/// Opens the audit log, and records in it what the server audits.
fn audit_file(
    data_dir: &DataDir,
    registry: &Registry,
    auth: &Authenticator,
) -> Result<Arc<AuditFile>, RegisterError> {
    let audit = Arc::new(AuditFile::new(data_dir.path(), registry.counter(AUDIT_ERRORS_TOTAL)?));
    let sink = audit.clone();
    auth.set_audit_sink(Arc::new(move |record| sink.record(&record)));
    Ok(audit)
}

/// Adds the metrics of the actor systems of all APIs and of the cluster to the page of all metrics.
fn add_actor_metrics(
    registry: &Registry,
    llm: &Arc<LlmApi>,
    queues: &Arc<Queues>,
    sql: &Arc<SqlApi>,
    cluster: Option<&Arc<Cluster>>,
) -> Result<(), RegisterError> {
    let llm = Arc::downgrade(llm);
    let queues = Arc::downgrade(queues);
    let sql = Arc::downgrade(sql);
    let cluster = cluster.map(Arc::downgrade).unwrap_or_default();
    registry.add_source(move |out| {
        let mut metrics = ActorMetrics::default();
        if let Some(llm) = llm.upgrade() {
            metrics.add("llm", |page| llm.write_actor_metrics(page))?;
        }
        if let Some(queues) = queues.upgrade() {
            metrics.add("queue", |page| queues.write_actor_metrics(page))?;
        }
        if let Some(sql) = sql.upgrade() {
            metrics.add("sql", |page| sql.write_actor_metrics(page))?;
        }
        if let Some(cluster) = cluster.upgrade() {
            metrics.add("cluster", |page| cluster.write_actor_metrics(page))?;
        }
        metrics.write(out);
        Ok(())
    })
}

/// Returns an unpredictable seed, so that clients cannot predict random choices.
fn random_seed() -> u64 {
    RandomState::new().hash_one(0)
}

/// Creates the event sink of the LLM API, and the exporter of traces if one is configured.
fn observer(
    config: &Config,
    registry: &Registry,
    router: &RouterMetrics,
    paths: &PathMetrics,
    roots: &TlsRoots,
) -> Result<(Observer, Option<Exporter>), RegisterError> {
    let telemetry = &config.telemetry;
    let observer = Observer::new(registry, "llm", telemetry.metric_limits, telemetry.request_log)?;
    let observer = observer.with_router(router.clone()).with_paths(paths.clone());
    let observer = observer.with_gen_ai(GenAiMetrics::new(registry)?);
    let Some(traces) = telemetry.traces.clone() else { return Ok((observer, None)) };
    let tracer = Arc::new(Tracer::new(registry, traces.options)?);
    let observer = observer.with_tracer(tracer.clone());
    Ok((observer, Some(Exporter::start(tracer, traces, roots.clone(), config.server.link_local))))
}

/// Error when changing the tenants.
#[derive(Debug, Error)]
enum ChangeError {
    #[error(transparent)]
    Store(#[from] TenantStoreError),
    /// Other machines could use the gateway without an API key.
    #[error(transparent)]
    Exposed(#[from] ConfigErrors),
    #[error(transparent)]
    Pipeline(#[from] RegistryError),
}

/// Error that prevents a gateway from starting.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen on {address}: {error}")]
    Listen {
        address: SocketAddr,
        #[source]
        error: io::Error,
    },
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    #[error(transparent)]
    Tenants(#[from] TenantsError),
    #[error(transparent)]
    TenantStore(#[from] TenantStoreError),
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Llm(#[from] LlmError),
    #[error(transparent)]
    Queue(#[from] OpenError),
    #[error(transparent)]
    AdminKey(#[from] AdminKeyError),
    #[error(transparent)]
    SqsKey(#[from] SqsKeyError),
    #[error("datasource {name:?}: {reason}")]
    Datasource { name: String, reason: String },
    #[error(transparent)]
    Sql(#[from] SqlStartError),
    #[error(transparent)]
    Cluster(#[from] ClusterStartError),
    #[error(transparent)]
    ClusterSecret(#[from] ClusterSecretError),
    #[error(transparent)]
    Pipeline(#[from] RegistryError),
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error(transparent)]
    Route(#[from] RouteError),
    #[error(transparent)]
    Metric(#[from] RegisterError),
}
