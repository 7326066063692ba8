//! A running gateway: the doors behind one listener, reloaded and stopped without dropping anybody.
//!
//! Bound: a reload is refused as a whole or applied; stopping takes at most `unready_secs` and `drain_secs`. One
//! process at a time has a data folder.

/// Makes an error of each of its causes.
macro_rules! causes {
    ($error:ident: $($variant:ident($cause:ty),)*) => {
        $(impl From<$cause> for $error {
            fn from(cause: $cause) -> Self {
                Self::$variant(cause)
            }
        })*
    };
}

mod api;
mod dispatch;
mod nodes;
mod queue;
mod reload;
mod traces;

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use evenkeel_llm::{LlmApi, LlmError};
use evenkeel_pipeline::RegistryError;
use evenkeel_queue::queues::OpenError;
use evenkeel_server::listener::{DrainReport, Listener};
use evenkeel_server::route::{Readiness, RouteError, Routes};
use evenkeel_server::tenant::{Authenticator, Tenants, TenantsError};
use evenkeel_server::tls::{Tls, TlsError};
use evenkeel_telemetry::logs::StartupLine;
use evenkeel_telemetry::trace::Tracer;
use evenkeel_telemetry::{Observer, RegisterError, Registry, RouterMetrics, Secret};
use evenkeel_upstream::{TlsRoots, TlsRootsError, Upstream};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::config::{Config, ConfigErrors};
use crate::data_dir::{DataDir, DataDirError};
use crate::node_store::{NodeStore, NodeStoreError};
use crate::sqs_key::SqsKeyError;
use crate::tenant_store::{TenantChange, TenantStore, TenantStoreError};

use dispatch::{Dispatcher, WebhookClient};
use queue::QueueApi;

pub use reload::{ReloadError, ReloadReport};
use traces::Exporter;

/// A gateway that serves until it is stopped.
#[derive(Debug)]
pub struct Gateway {
    address: SocketAddr,
    url: String,
    core: Arc<Core>,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<io::Result<DrainReport>>,
    dispatcher: Dispatcher,
    exporter: Option<Exporter>,
}

/// What requests, commands and reloads share.
struct Core {
    gate: Arc<Authenticator>,
    llm: Arc<LlmApi>,
    queue: QueueApi,
    registry: Registry,
    router: RouterMetrics,
    readiness: Readiness,
    tls: Option<Arc<Tls>>,
    /// What is set up, changed by one at a time.
    state: Mutex<State>,
}

struct State {
    /// What it was started with: where it listens stays as it was then.
    started: Config,
    /// What it was told last.
    config: Config,
    book: TenantStore,
    nodes: NodeStore,
    folder: DataDir,
}

impl Gateway {
    /// Starts on the runtime this is called on; when it returns, the port is open and the folder says where.
    pub async fn start(mut config: Config, mut folder: DataDir) -> Result<Self, StartError> {
        let server = config.server.clone();
        let telemetry = config.telemetry.clone();
        let book = TenantStore::read(folder.path(), config.tenants.clone(), &server.admin)?;
        config.check_exposure(book.all().len())?;
        let mut added = NodeStore::read(folder.path())?;
        nodes::yield_to(&mut added, &config.llm.options.nodes);
        let tls =
            server.tls.as_ref().map(|files| Tls::load(&files.cert, &files.key)).transpose()?.map(Arc::new);
        let refused = |error| StartError::Listen { address: server.listen, error };
        let listener =
            Listener::bind(server.listen, tls.clone(), server.limits.clone()).await.map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let exposure = listener.exposure().map_err(refused)?;
        let tenants = Tenants::new(book.all(), server.admin.clone())?;
        let gate = Arc::new(Authenticator::new(tenants, exposure, server.unprotected)?);

        let registry = Registry::new();
        let router = RouterMetrics::new(&registry)?;
        let mut watch =
            Observer::new(&registry, "llm", telemetry.meters, telemetry.journal)?.with_router(router.clone());
        let mut exporter = None;
        if let Some(traces) = telemetry.traces {
            let tracer = Arc::new(Tracer::new(&registry, traces.options)?);
            watch = watch.with_tracer(tracer.clone());
            exporter = Some(Exporter::start(tracer, traces, roots(&config)?));
        }
        // Nobody outside may foresee what is drawn.
        config.llm.options.pipeline.seed = RandomState::new().hash_one(0);
        let pool = config.llm.options.pipeline.load.connection_pool;
        let upstream = Upstream::new(pool, roots(&config)?);
        // Its connections are no node's, and none of their figures.
        let poster = WebhookClient::new(Upstream::new(pool, roots(&config)?), pool.request_timeout);
        let llm = LlmApi::new(config.llm.options.clone(), upstream, Arc::new(watch))?;
        llm.set_tenants(&gate.tenants().all())?;
        let actors = Arc::downgrade(&llm);
        registry.add_source(move |out| match actors.upgrade() {
            Some(llm) => llm.write_actor_metrics(out),
            None => Ok(()),
        })?;

        let queue = QueueApi::open(&config, &folder, gate.clone(), &registry).await?;
        let queues_max = config.telemetry.queues_max;
        let url = url_of(address, tls.is_some());
        folder.announce(&url)?;
        let readiness = Readiness::default();
        let state = Mutex::new(State { started: config.clone(), config, book, nodes: added, folder });
        let core = Arc::new(Core { gate, llm, queue, registry, router, readiness, tls, state });
        core.restore_nodes();
        // Not before all nodes are known: a job for a model that nobody serves fails.
        let queues = core.queue.queues.clone();
        let llm = core.llm.clone();
        let gate = core.gate.clone();
        let dispatcher = Dispatcher::start(queues, llm, gate, poster, &core.registry, queues_max)?;
        let mut routes = Routes::new(core.readiness.clone());
        core.llm.add_routes(&mut routes)?;
        core.queue.sqs.add_routes(&mut routes)?;
        core.queue.sqs.add_native_routes(&mut routes)?;
        api::add_routes(&core, &mut routes, telemetry.metrics)?;
        nodes::add_routes(&core, &mut routes)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let gate = core.gate.clone();
        let serving = tokio::spawn(async move {
            // Whoever drops the gateway wants it to stop, too.
            listener.serve(gate, routes, async { stopped.await.unwrap_or_default() }).await
        });
        core.readiness.ready();
        Ok(Self { address, url, core, stop, serving, dispatcher, exporter })
    }

    /// Logs that it runs, in one line, and what a newcomer may not expect.
    pub fn tell(&self) {
        let store = self.core.state.lock().store();
        StartupLine { url: &self.url, apis: &["llm", "sqs"], store: &store, tenants: self.tenants() }.log();
        self.core.warn_if_open();
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it is reached from this machine.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// How many tenants there are.
    pub fn tenants(&self) -> usize {
        self.core.gate.tenants().len()
    }

    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.core.llm.nodes_len()
    }

    /// Puts another configuration to work; on an error the old one stays.
    pub fn reload(&self, config: Config) -> Result<ReloadReport, ReloadError> {
        self.core.reload(config)
    }

    /// Says that it is not ready, stops accepting, and lets requests in flight finish.
    pub async fn stop(self) -> io::Result<DrainReport> {
        self.core.readiness.unready();
        let server = self.core.state.lock().started.server.clone();
        sleep(server.unready).await;
        self.core.llm.shutdown();
        self.core.queue.sqs.shutdown();
        // A listener that has ended already needs no telling.
        let _ = self.stop.send(());
        let (drained, ()) = tokio::join!(self.serving, self.dispatcher.stop(server.limits.drain_max));
        let drained = drained.unwrap_or_else(|error| Err(io::Error::other(error)));
        self.core.queue.queues.shutdown().await;
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
        drained
    }
}

impl State {
    /// Says where things are kept.
    fn store(&self) -> String {
        let Self { folder, started, .. } = self;
        format!("{}, queues in {}", folder.path().display(), started.queue.store.as_str())
    }
}

impl Core {
    /// Changes who may ask: decided, written down, then in force.
    fn change_tenants(&self, change: TenantChange) -> Result<Option<Secret<String>>, ChangeError> {
        let mut state = self.state.lock();
        let admin = state.config.server.admin.clone();
        let told = change.to_string();
        let (next, key) = state.book.apply(change, &admin)?;
        state.started.check_exposure(next.all().len())?;
        next.write(&state.folder)?;
        self.gate.reload(next.all(), admin).map_err(TenantStoreError::Tenants)?;
        self.llm.set_tenants(&self.gate.tenants().all())?;
        state.book = next;
        tracing::info!(target: "evenkeel", tenants = self.gate.tenants().len(), "{told}");
        self.warn_if_open();
        Ok(key)
    }

    /// Says so when everybody is served, which nobody should find out by accident.
    fn warn_if_open(&self) {
        if self.gate.tenants().is_empty() {
            tracing::warn!(target: "evenkeel", "open: no tenants, everybody who reaches this is served; `evenkeel tenant add NAME` ends that");
        }
    }

    /// The page that Prometheus reads.
    fn metrics(&self) -> String {
        self.router.set_gauges(&self.llm.update_gauges());
        self.queue.sqs.update_metrics();
        self.registry.render()
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}

fn roots(config: &Config) -> Result<TlsRoots, TlsRootsError> {
    match &config.llm.ca_file {
        Some(file) => TlsRoots::public().with_file(file),
        None => Ok(TlsRoots::public()),
    }
}

fn url_of(address: SocketAddr, tls: bool) -> String {
    let here = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let scheme = if tls { "https" } else { "http" };
    format!("{scheme}://{}", SocketAddr::new(here, address.port()))
}

/// Why tenants stay as they were.
#[derive(Debug)]
enum ChangeError {
    /// The change cannot be made.
    Book(TenantStoreError),
    /// It would leave the listener unprotected.
    Exposed(ConfigErrors),
    /// The walk does not take it.
    Walk(RegistryError),
}

causes! { ChangeError: Book(TenantStoreError), Exposed(ConfigErrors), Walk(RegistryError), }

/// Why a gateway does not start.
#[derive(Debug)]
pub enum StartError {
    /// The address cannot be listened on.
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system says.
        error: io::Error,
    },
    /// The configuration and the folder together cannot be.
    Config(ConfigErrors),
    /// The tenants added at run time cannot be read.
    Book(TenantStoreError),
    /// The nodes added at run time cannot be read.
    Nodes(NodeStoreError),
    /// The tenants cannot all be at once.
    Tenants(TenantsError),
    /// Its certificate cannot be used.
    Tls(TlsError),
    /// The certificates to trust cannot be used.
    Roots(TlsRootsError),
    /// The LLM door cannot be set up.
    Llm(LlmError),
    /// Queues cannot be opened.
    Queue(OpenError),
    /// Secrets of SQS clients cannot be derived.
    SqsKey(SqsKeyError),
    /// The walk does not take the tenants.
    Walk(RegistryError),
    /// The folder does not do its part.
    Folder(DataDirError),
    /// Two parts answer the same path.
    Route(RouteError),
    /// Two parts count the same thing.
    Metric(RegisterError),
}

causes! { StartError:
    Config(ConfigErrors),
    Book(TenantStoreError),
    Nodes(NodeStoreError),
    Tenants(TenantsError),
    Tls(TlsError),
    Roots(TlsRootsError),
    Llm(LlmError),
    Queue(OpenError),
    SqsKey(SqsKeyError),
    Walk(RegistryError),
    Folder(DataDirError),
    Route(RouteError),
    Metric(RegisterError),
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen { address, error } => write!(f, "cannot listen on {address}: {error}"),
            Self::Config(error) => error.fmt(f),
            Self::Book(error) => error.fmt(f),
            Self::Nodes(error) => error.fmt(f),
            Self::Tenants(error) => error.fmt(f),
            Self::Tls(error) => error.fmt(f),
            Self::Roots(error) => error.fmt(f),
            Self::Llm(error) => error.fmt(f),
            Self::Queue(error) => error.fmt(f),
            Self::SqsKey(error) => error.fmt(f),
            Self::Walk(error) => error.fmt(f),
            Self::Folder(error) => error.fmt(f),
            Self::Route(error) => error.fmt(f),
            Self::Metric(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for StartError {}
