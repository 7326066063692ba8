//! Connecting side of a link: keeps every path connected, and starts a new session when one has ended.
//!
//! Each path has an actor ([`path_connector`]); the first to connect starts the session, the others join it. With
//! relays, a path is connected over a route of several hops ([`routes`]), and a better route may replace it. Neither the
//! session nor its schedulers know of routes.
//!
//! Limits: [`LINK_PATHS_MAX`] paths.

mod path_connector;
mod route_pool;
mod routes;

use core::num::NonZeroUsize;
use std::sync::{Arc, OnceLock};

use evenkeel_actor::guardian::{Backoff, Supervision};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::{ActorSystemConfig, ActorSystemRunner, Props, ReadyQueueScheduler};
use evenkeel_policy::id::PathId;
use evenkeel_policy::setting::SettingOutOfRange;
use evenkeel_policy::swrr::PATHS_MAX;
use evenkeel_policy::time::Duration;
use evenkeel_telemetry::{PathMetrics, RegisterError};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::driver::{AcceptedFlow, Driver, EndOfSession};
use crate::flow::{ResetCode, Side};
use crate::identity::{Fingerprint, Identity};
use crate::link::{Link, Links, halves};
use crate::metrics::SessionMetrics;
use crate::quic::{BindError, ConnectionConfig, LinkClock, PathEndpoint, PathTarget, SessionKey};
use crate::random;
use crate::relay::NotEd25519;
use crate::session::{LinkSession, SessionConfig};
use path_connector::PathConnector;
use routes::Routes;

pub use route_pool::RELAYS_MAX;
pub use routes::RouteSettings;

/// Maximum number of paths of a link.
pub const LINK_PATHS_MAX: usize = PATHS_MAX;

/// Longest wait for a connection to be closed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Error of a link that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum LinkStartError {
    #[error("a link has 1 to {LINK_PATHS_MAX} paths, not {paths}")]
    Paths { paths: usize },
    #[error("path {name} is given twice")]
    DuplicatePath { name: String },
    #[error("no path can be opened: {0}")]
    Bind(#[from] BindError),
    #[error(transparent)]
    Setting(#[from] SettingOutOfRange),
    #[error("a link has at most {RELAYS_MAX} relays, not {relays}")]
    TooManyRelays { relays: usize },
    #[error("relay {relay} has the address or the key of another relay")]
    DuplicateRelay { relay: String },
    #[error(
        "a route needs at least {hops_min} relays (hops_min), but the link has {relays}; add relays, or set hops_min in [link]"
    )]
    TooFewRelays { relays: usize, hops_min: u8 },
    #[error(transparent)]
    Key(#[from] NotEd25519),
    #[error("the metrics of the link cannot be registered: {0}")]
    Metrics(#[from] RegisterError),
    #[error("a link needs a Tokio runtime")]
    NoRuntime,
    #[error("could not start the actors of the paths: {0}")]
    Actors(String),
}

/// Settings of a link's connecting side.
#[derive(Clone, Debug)]
pub struct ConnectorSettings {
    /// Label of the link's metrics.
    pub name: String,
    /// Key that the other side must have.
    pub peer: Fingerprint,
    pub paths: Vec<PathTarget>,
    pub routes: RouteSettings,
    pub session: SessionConfig,
}

impl ConnectorSettings {
    /// Creates the settings of a link without relays.
    pub fn direct(name: &str, peer: Fingerprint, paths: Vec<PathTarget>, session: SessionConfig) -> Self {
        Self { name: name.to_owned(), peer, paths, routes: RouteSettings::default(), session }
    }
}

/// Connecting side of a link. Dropping it closes the link.
pub struct LinkConnector {
    shared: Arc<ConnectorShared>,
    actors: ReadyQueueScheduler,
    /// Sockets that could be opened at the start.
    endpoints: Vec<Option<Arc<PathEndpoint>>>,
    /// Set if no socket could be opened at the start.
    bind_error: Option<BindError>,
    renewal: JoinHandle<()>,
}

/// State that the actors of all paths share.
struct ConnectorShared {
    /// Label of the link's metrics.
    name: String,
    config: ConnectionConfig,
    session_config: SessionConfig,
    clock: LinkClock,
    metrics: PathMetrics,
    targets: Vec<PathTarget>,
    /// `None` if the paths are direct.
    routes: Option<Arc<Routes>>,
    link: Link,
    session: watch::Sender<Arc<CurrentSession>>,
}

/// Session, created before any path is connected.
struct CurrentSession {
    driver: Arc<Driver>,
    /// Set by the path that connects first; the others join.
    key: OnceLock<SessionKey>,
    /// Notified when the key is set.
    started: Notify,
}

impl LinkConnector {
    /// Starts a link, whose metrics have its name as a label; its paths connect in the background.
    ///
    /// A path whose socket cannot be opened is tried again later.
    pub fn start(
        identity: &Identity,
        settings: ConnectorSettings,
        metrics: PathMetrics,
    ) -> Result<Self, LinkStartError> {
        let ConnectorSettings { name, peer, paths: targets, routes, session: session_config } = settings;
        check_paths(&targets)?;
        let runtime = TokioRuntime::current().ok_or(LinkStartError::NoRuntime)?;
        let routes = Routes::new(routes, &name, identity, &metrics, targets.len())?;
        let (mut endpoints, bind_error) = open_endpoints(&targets);
        if routes.is_some() {
            // Each route has a socket of its own.
            endpoints.fill(None);
        }
        let clock = LinkClock::start();
        let config = ConnectionConfig::new(identity, peer, clock, session_config.flows_max);
        let first = start_session(&name, &session_config, clock, &metrics, &targets)?;
        let link = Link::new(first.driver.clone());
        let session = watch::Sender::new(first);
        let shared = Arc::new(ConnectorShared {
            name,
            config,
            session_config,
            clock,
            metrics,
            targets,
            routes,
            link,
            session,
        });
        let actors = start_actors(runtime, &shared, endpoints.clone())?;
        let renewal = tokio::spawn(renew_sessions(shared.clone()));
        Ok(Self { shared, actors, endpoints, bind_error, renewal })
    }

    /// Returns an error if no path's socket could be opened at the start.
    pub fn check_sockets(&mut self) -> Result<(), LinkStartError> {
        self.bind_error.take().map_or(Ok(()), |error| Err(error.into()))
    }

    /// Returns a handle that opens flows.
    pub fn link(&self) -> Link {
        self.shared.link.clone()
    }

    /// Ends the session and tells the other side, as far as possible.
    pub async fn close(self) {
        let endpoints = self.endpoints.clone();
        let routed = self.shared.routes.as_ref().map_or_else(Vec::new, |routes| routes.endpoints());
        drop(self);
        // An endpoint that cannot reach the other side gives up after a while.
        for endpoint in endpoints.iter().flatten() {
            let _ = timeout(CLOSE_TIMEOUT, endpoint.wait_closed()).await;
        }
        for endpoint in routed {
            let _ = timeout(CLOSE_TIMEOUT, endpoint.wait_closed()).await;
        }
    }

    /// Returns the source of this link's status.
    pub fn links(&self) -> Links {
        let shared = self.shared.clone();
        Links::new(move || vec![shared.link.clone()])
    }
}

impl Drop for LinkConnector {
    fn drop(&mut self) {
        self.renewal.abort();
        self.actors.force_stop();
        self.shared.session.borrow().driver.close(EndOfSession::Closed);
    }
}

fn check_paths(targets: &[PathTarget]) -> Result<(), LinkStartError> {
    if !(1..=LINK_PATHS_MAX).contains(&targets.len()) {
        return Err(LinkStartError::Paths { paths: targets.len() });
    }
    for (index, target) in targets.iter().enumerate() {
        if targets[..index].contains(target) {
            return Err(LinkStartError::DuplicatePath { name: target.to_string() });
        }
        if let Some(warning) = target.binding.warning() {
            tracing::warn!(path = %target, "{warning}");
        }
    }
    Ok(())
}

/// Opens the sockets of all paths; also returns the last error if none can be opened.
fn open_endpoints(targets: &[PathTarget]) -> (Vec<Option<Arc<PathEndpoint>>>, Option<BindError>) {
    let mut endpoints = Vec::new();
    let mut failure = None;
    for target in targets {
        match PathEndpoint::client(target.clone()) {
            Ok(endpoint) => endpoints.push(Some(Arc::new(endpoint))),
            Err(error) => {
                tracing::warn!(path = %target, %error, "could not open the socket of a path");
                failure = Some(error);
                endpoints.push(None);
            }
        }
    }
    let has_socket = endpoints.iter().any(Option::is_some);
    (endpoints, failure.filter(|_| !has_socket))
}

fn start_actors(
    runtime: TokioRuntime,
    shared: &Arc<ConnectorShared>,
    endpoints: Vec<Option<Arc<PathEndpoint>>>,
) -> Result<ReadyQueueScheduler, LinkStartError> {
    let to_error = |error: &dyn core::fmt::Display| LinkStartError::Actors(error.to_string());
    let config = ActorSystemConfig {
        workers_max: NonZeroUsize::MIN,
        actors_max: LINK_PATHS_MAX as u32 + 1,
        supervision: supervision(),
        ..ActorSystemConfig::with_workers(NonZeroUsize::MIN)
    };
    let system = ActorSystemRunner::new(config).start(runtime).map_err(|error| to_error(&error))?;
    for (index, endpoint) in endpoints.into_iter().enumerate() {
        let shared = shared.clone();
        let props = Props::new(move || PathConnector::new(shared.clone(), index as u8, endpoint.clone()));
        system.spawn(&props.supervise(supervision()).build()).map_err(|error| to_error(&error))?;
    }
    Ok(system)
}

/// Restarts a failing actor forever: ten delays take longer than the window of a minute, so the limit is never reached.
fn supervision() -> Supervision {
    let backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30), 2, 20);
    Supervision::default().with_backoff(backoff.unwrap_or(Backoff::DOUBLING))
}

/// Replaces every session that has ended with a new one.
async fn renew_sessions(shared: Arc<ConnectorShared>) {
    loop {
        let driver = shared.session.borrow().driver.clone();
        let end = driver.wait_for_end().await;
        tracing::warn!(link = shared.name, reason = %end, "the session of the link ended and its flows were reset; starting a new one");
        let ConnectorShared { name, session_config, clock, metrics, targets, .. } = &*shared;
        let next = start_session(name, session_config, *clock, metrics, targets);
        let next = match next {
            Ok(next) => next,
            Err(error) => {
                // Neither settings nor names of metrics have changed since the link started.
                tracing::error!(%error, "could not start a new session; restart the process");
                return;
            }
        };
        shared.link.replace(next.driver.clone());
        shared.session.send_replace(next);
    }
}

fn start_session(
    name: &str,
    config: &SessionConfig,
    clock: LinkClock,
    metrics: &PathMetrics,
    targets: &[PathTarget],
) -> Result<Arc<CurrentSession>, LinkStartError> {
    let mut session = LinkSession::new(Side::Connecting, config.clone(), clock.now(), random::draw())?;
    for (index, target) in targets.iter().enumerate() {
        session
            .add_path(clock.now(), PathId(index as u32), &target.to_string())
            .expect("the paths are distinct and not too many");
    }
    let (driver, flows) = Driver::start(session, clock, SessionMetrics::new(metrics, name)?);
    tokio::spawn(refuse_flows(driver.clone(), flows));
    Ok(Arc::new(CurrentSession { driver, key: OnceLock::new(), started: Notify::new() }))
}

/// Resets every flow that the listening side opens.
async fn refuse_flows(driver: Arc<Driver>, mut flows: mpsc::Receiver<AcceptedFlow>) {
    loop {
        let accepted = tokio::select! {
            accepted = flows.recv() => accepted,
            _ = driver.wait_for_end() => return,
        };
        let Some(accepted) = accepted else { return };
        let (send, _) = halves(driver.clone(), accepted.flow);
        send.reset(ResetCode::REFUSED, "the connecting side of a link accepts no flows");
    }
}
