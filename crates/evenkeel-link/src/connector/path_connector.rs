//! Actor that keeps one path connected.
//!
//! A path whose connection falls silent is probed by a new connection: on the old one, probes wait behind a full window
//! and back off. The old connection stays until a new one replaces it. A path over relays then takes another route, and
//! while it is connected, the actor looks for a better route.

mod route_search;

use std::pin::pin;
use std::sync::Arc;

use evenkeel_actor::{Actor, ActorError, Context, Flow, HandlerResult, Repeat, Signal, TimerId};
use evenkeel_policy::id::PathId;
use evenkeel_policy::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::routes::{OpenRoute, Routes};
use super::{ConnectorShared, CurrentSession};
use crate::driver::{CLOSE_ENDED, EndOfSession};
use crate::quic::{
    ConnectError, PathConnection, PathEndpoint, PathPurpose, PathRequest, PathTarget, RejectionCode,
};

const RETRY: TimerId = TimerId(0);

/// Pause after the first failed attempt; doubles with each further one.
const RETRY_MIN: Duration = Duration::from_millis(250);
/// Longest pause between two attempts.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Head start of each path over the next one in starting the session.
const HEAD_START: Duration = Duration::from_millis(300);
/// Longest head start, however many paths there are.
const HEAD_START_MAX: Duration = Duration::from_secs(3);
/// Time for which a connection must have lived for the next attempt to follow at once.
const LIFETIME_MIN: Duration = Duration::from_secs(2);
/// Shortest time limit of an attempt to reconnect a silent path; the limit is five round trips if that is longer.
///
/// A lost first packet is sent again after longer and longer pauses, so short attempts find a path that works again
/// sooner than long ones.
const REVIVAL_TIMEOUT_MIN: Duration = Duration::from_millis(1_500);

/// Number of rounds without probes after a swap: the load of a path follows it to the new route, which must not make the
/// old one look better.
const PAUSE_AFTER_SWAP: u32 = 6;

/// Actor of one path of the connecting side.
pub(super) struct PathConnector {
    attempt: Attempt,
    /// Failed attempts since the last connection.
    failures: u32,
    /// Last failure that was logged.
    logged: Option<String>,
}

impl PathConnector {
    pub(super) fn new(shared: Arc<ConnectorShared>, path: u8, endpoint: Option<Arc<PathEndpoint>>) -> Self {
        Self { attempt: Attempt { shared, path, endpoint, silent: None }, failures: 0, logged: None }
    }

    fn start_attempt(&self) -> HandlerResult<AttemptOutcome> {
        Ok(Flow::wait(self.attempt.clone().run()))
    }

    /// Logs a failure unless it is the same as before.
    fn log(&mut self, error: String) {
        if self.logged.as_ref() != Some(&error) {
            let path = self.attempt.name();
            tracing::warn!(path, error, "could not connect a path; retrying");
            self.logged = Some(error);
        }
    }
}

impl Actor for PathConnector {
    type Msg = AttemptOutcome;

    fn started(&mut self, _ctx: &mut Context<'_, Self>) -> HandlerResult<AttemptOutcome> {
        self.start_attempt()
    }

    fn receive(
        &mut self,
        outcome: AttemptOutcome,
        ctx: &mut Context<'_, Self>,
    ) -> HandlerResult<AttemptOutcome> {
        self.attempt = outcome.attempt;
        let Some(error) = outcome.error else {
            self.failures = 0;
            self.logged = None;
            return self.start_attempt();
        };
        self.log(error);
        let pause = RETRY_MIN.saturating_mul(1 << self.failures.min(10)).min(RETRY_MAX);
        // Revival attempts are frequent, so that a path that flaps comes back soon.
        let pause = if self.attempt.silent.is_some() { RETRY_MIN } else { pause };
        self.failures = self.failures.saturating_add(1);
        if ctx.set_timer(RETRY, pause, Repeat::Once) {
            return Ok(Flow::Continue);
        }
        Err(ActorError::new("no timer left for the actor"))
    }

    fn signal(&mut self, signal: Signal, _ctx: &mut Context<'_, Self>) -> HandlerResult<AttemptOutcome> {
        if signal == Signal::Timer(RETRY) { self.start_attempt() } else { Ok(Flow::Continue) }
    }
}

/// Attempt to connect a path, which then keeps the connection until it is lost or silent.
#[derive(Clone)]
struct Attempt {
    shared: Arc<ConnectorShared>,
    path: u8,
    /// `None` if the socket could not be opened.
    endpoint: Option<Arc<PathEndpoint>>,
    /// The current connection, if it has fallen silent.
    silent: Option<HeldConnection>,
}

/// End of an [`Attempt`].
pub(super) struct AttemptOutcome {
    attempt: Attempt,
    /// Set if no connection was established, or it was lost within [`LIFETIME_MIN`].
    error: Option<String>,
}

/// Error of an attempt to connect.
#[derive(Debug, thiserror::Error)]
enum AttemptError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The relays were set up.
    #[error("{}", explain_over(relays, error))]
    ConnectOver { relays: Vec<String>, error: ConnectError },
    #[error("{0}")]
    Other(String),
}

/// Connection of the path in a session.
#[derive(Clone)]
struct HeldConnection {
    current: Arc<CurrentSession>,
    connection: PathConnection,
    /// `None` if the path is direct.
    route: Option<OpenRoute>,
    /// Time before the first round of probes.
    probe_pause: Duration,
    /// Notified when nothing was acknowledged for two probe timeouts.
    fell_silent: Arc<Notify>,
    /// Time at which that happened last.
    silent_at: Option<Instant>,
}

impl HeldConnection {
    fn answers_again(&self) -> bool {
        self.connection.close_reason().is_none() && self.silent_at < self.connection.signals().acked_at
    }
}

impl Attempt {
    fn name(&self) -> String {
        self.target().to_string()
    }

    async fn run(mut self) -> AttemptOutcome {
        let connected = self.connect().await;
        let held = match (connected, self.silent.take()) {
            (Ok(Some(held)), _) => held,
            // The next attempt joins.
            (Ok(None), _) => return AttemptOutcome { attempt: self, error: None },
            (Err(_), Some(silent)) if silent.answers_again() => {
                // Discards reports of the silence that has ended.
                let _ = timeout(Duration::ZERO, silent.fell_silent.notified()).await;
                silent
            }
            (Err(error), silent) => {
                self.silent = silent.filter(|silent| silent.connection.close_reason().is_none());
                return AttemptOutcome { attempt: self, error: Some(error) };
            }
        };
        let connected_at = self.shared.clock.now();
        self.silent = self.hold(held).await;
        if let Some((routes, silent)) = self.shared.routes.as_ref().zip(self.silent.as_ref())
            && let Some(route) = &silent.route
        {
            routes.record_silence(self.shared.clock.now(), route);
        }
        let lifetime = self.shared.clock.now().since(connected_at);
        let is_short = lifetime < LIFETIME_MIN && self.silent.is_none();
        let error = is_short.then(|| format!("the connection was lost within {LIFETIME_MIN:?}"));
        AttemptOutcome { attempt: self, error }
    }

    /// Waits until the connection is lost or silent; returns it in the latter case. Meanwhile, a connection over a better
    /// route may replace it.
    async fn hold(&self, mut held: HeldConnection) -> Option<HeldConnection> {
        loop {
            let (trial, round) = tokio::select! {
                _ = held.connection.closed() => return None,
                _ = held.current.driver.wait_for_end() => return None,
                () = held.fell_silent.notified() => {
                    let silent_at = Some(self.shared.clock.now());
                    return Some(HeldConnection { silent_at, ..held });
                }
                better = self.find_better_route(&held) => better,
            };
            // Nothing ends this attempt: when the peer accepts the new connection, it closes the old one.
            match self.swap(&held, trial, &round).await {
                Some((connection, route)) => {
                    held = self.join(held.current, connection, Some(route))?;
                    held.probe_pause *= PAUSE_AFTER_SWAP;
                }
                None => held.probe_pause = self.probe_interval(),
            }
        }
    }

    async fn connect(&mut self) -> Result<Option<HeldConnection>, String> {
        if self.shared.routes.is_none() {
            self.open_endpoint()?;
        }
        let current = self.shared.session.borrow().clone();
        let mut started = pin!(current.started.notified());
        // From here on a notification counts, also one before the wait.
        started.as_mut().enable();
        if self.path > 0 && current.key.get().is_none() {
            let head_start = (HEAD_START * u32::from(self.path)).min(HEAD_START_MAX);
            // After the wait, this path starts the session if none has been started.
            let _ = timeout(head_start, started).await;
        }
        let name = self.name();
        let session = current.key.get();
        let request = PathRequest { path: self.path, name: &name, session, purpose: PathPurpose::Traffic };
        let connected = match self.shared.routes.clone() {
            None => self.connect_directly(&request).await.map(|connection| (connection, None)),
            Some(routes) => self
                .connect_over(&routes, &request)
                .await
                .map(|(connection, route)| (connection, Some(route))),
        };
        match connected {
            Ok((connection, route)) => Ok(self.join(current.clone(), connection, route)),
            Err(error) => Err(self.handle_connect_error(&current, error)),
        }
    }

    async fn connect_directly(&mut self, request: &PathRequest<'_>) -> Result<PathConnection, AttemptError> {
        let endpoint = self.open_endpoint().map_err(AttemptError::Other)?;
        let connecting = endpoint.connect(&self.shared.config, request);
        let Some(limit) = self.revival_timeout() else { return Ok(connecting.await?) };
        match timeout(limit, connecting).await {
            Ok(connected) => Ok(connected?),
            Err(_) => {
                endpoint.mark_silent();
                let text = format!("the path is silent, and a new connection got no answer within {limit:?}");
                Err(AttemptError::Other(text))
            }
        }
    }

    /// Connects over a route that avoids relays which failed.
    async fn connect_over(
        &self,
        routes: &Routes,
        request: &PathRequest<'_>,
    ) -> Result<(PathConnection, OpenRoute), AttemptError> {
        let clock = self.shared.clock;
        let opened = routes.open(clock.now(), self.path.into(), self.target()).await;
        let route = opened.map_err(AttemptError::Other)?;
        match route.endpoint.connect(&self.shared.config, request).await {
            Ok(connection) => Ok((connection, route)),
            Err(error) => {
                routes.record_connect_error(clock.now(), &route, &error);
                Err(AttemptError::ConnectOver { relays: route.endpoint.relays().to_vec(), error })
            }
        }
    }

    fn target(&self) -> &PathTarget {
        &self.shared.targets[usize::from(self.path)]
    }

    fn open_endpoint(&mut self) -> Result<Arc<PathEndpoint>, String> {
        if let Some(endpoint) = &self.endpoint {
            return Ok(endpoint.clone());
        }
        let endpoint = PathEndpoint::client(self.target().clone()).map_err(|error| error.to_string())?;
        let endpoint = Arc::new(endpoint);
        self.endpoint = Some(endpoint.clone());
        Ok(endpoint)
    }

    /// Returns the time limit of an attempt to revive a silent path; `None` for any other attempt.
    fn revival_timeout(&self) -> Option<Duration> {
        let silent = self.silent.as_ref()?;
        let rtt = silent.connection.signals().rtt_min.unwrap_or_default();
        Some(REVIVAL_TIMEOUT_MIN.max(rtt * 5))
    }

    /// Passes a new connection to its session; `None` if it started a session although another path was faster.
    fn join(
        &self,
        current: Arc<CurrentSession>,
        connection: PathConnection,
        route: Option<OpenRoute>,
    ) -> Option<HeldConnection> {
        let key = current.key.get_or_init(|| connection.session().clone());
        if key.id() != connection.session().id() {
            connection.close(CLOSE_ENDED, "another path started the session at the same time");
            return None;
        }
        current.started.notify_waiters();
        let mut probe_pause = Duration::ZERO;
        if let Some((routes, route)) = self.shared.routes.as_ref().zip(route.as_ref()) {
            tracing::info!(path = self.name(), route = route_text(&connection), "path connected");
            routes.adopt(self.path.into(), &self.name(), route);
            probe_pause = routes.probe_interval;
        } else {
            tracing::info!(path = self.name(), "path connected");
        }
        let fell_silent = current.driver.add_connection(connection.clone());
        Some(HeldConnection { current, connection, route, probe_pause, fell_silent, silent_at: None })
    }

    /// Records a failure in the session, ends a session that the peer does not know, and returns the message.
    fn handle_connect_error(&self, current: &CurrentSession, error: AttemptError) -> String {
        let rejection = match &error {
            AttemptError::Connect(error) | AttemptError::ConnectOver { error, .. } => error.rejection(),
            AttemptError::Other(_) => None,
        };
        let is_unknown = rejection.is_some_and(|rejection| rejection.code == RejectionCode::UnknownSession);
        // A peer that was killed leaves connections behind that are silent until their idle timeout.
        let is_answered = || current.driver.with(|session, now| session.has_answering_path(now));
        if is_unknown && !is_answered() {
            current.driver.close(EndOfSession::UnknownToPeer);
        }
        current.driver.with(|session, now| session.handle_failure(now, PathId(self.path.into())));
        error.to_string()
    }
}

fn route_text(connection: &PathConnection) -> String {
    connection.relays().unwrap_or_default().join(", ")
}

/// Explains an error of connecting over relays that have been set up.
fn explain_over(relays: &[String], error: &ConnectError) -> String {
    let route = relays.join(", ");
    match (error, relays.last()) {
        (ConnectError::NoAnswer { address, timeout }, Some(last)) => format!(
            "no answer from {address} over relays {route} within {timeout:?}; check that it runs and that UDP from {last} reaches it"
        ),
        _ => format!("over relays {route}: {error}"),
    }
}
