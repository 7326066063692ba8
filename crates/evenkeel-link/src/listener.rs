//! Listening side of links: accepts paths and joins them into sessions.
//!
//! Limits: [`SESSIONS_MAX`] sessions. A session that never gets a path, or loses all of them, ends after
//! `session_timeout`.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};

use evenkeel_telemetry::PathMetrics;
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::driver::{AcceptedFlow, CLOSE_ENDED, Driver, EndOfSession};
use crate::flow::{FlowLane, Side};
use crate::identity::{Fingerprint, Identity};
use crate::link::{Link, Links, RecvFlow, SendFlow, halves};
use crate::metrics::SessionMetrics;
use crate::quic::{
    BindError, ConnectionConfig, LinkClock, PathConnection, PathListener, PathRejection, RejectionCode,
    SessionDirectory, SessionId, SessionKey,
};
use crate::random;
use crate::session::{LinkSession, SessionConfig};

/// Maximum number of sessions at once. A peer usually has one; that of a restarted peer stays until it times out.
pub const SESSIONS_MAX: usize = 8;

/// Label of the metrics of a link's listening side.
const LINK_NAME: &str = "listen";

/// Accepts the paths of links. Dropping it ends all sessions.
pub struct LinkListener {
    addresses: Vec<SocketAddr>,
    sessions: Arc<Sessions>,
    accepted: mpsc::UnboundedReceiver<AcceptedLink>,
    /// Dropped to stop accepting paths.
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<()>,
}

/// A session that a peer started.
pub struct AcceptedLink {
    /// Handle of the session.
    pub link: Link,
    /// Flows that the peer opens.
    pub flows: IncomingFlows,
}

/// Queue of the flows that the peer opens.
pub struct IncomingFlows {
    driver: Arc<Driver>,
    flows: mpsc::Receiver<AcceptedFlow>,
}

/// A flow that the peer opened.
pub struct IncomingFlow {
    pub send: SendFlow,
    pub recv: RecvFlow,
    pub lane: FlowLane,
    /// Target that the peer asks for.
    pub target: String,
}

struct Sessions {
    config: SessionConfig,
    clock: LinkClock,
    metrics: PathMetrics,
    open: Mutex<HashMap<SessionId, OpenSession>>,
    accepted: mpsc::UnboundedSender<AcceptedLink>,
    this: Weak<Sessions>,
}

struct OpenSession {
    key: SessionKey,
    driver: Arc<Driver>,
}

impl LinkListener {
    /// Opens a UDP socket per address; needs a Tokio runtime.
    pub fn bind(
        identity: &Identity,
        peer: Fingerprint,
        addresses: &[SocketAddr],
        config: SessionConfig,
        metrics: PathMetrics,
    ) -> Result<Self, BindError> {
        let clock = LinkClock::start();
        let connections = ConnectionConfig::new(identity, peer, clock, config.flows_max);
        let (links, accepted) = mpsc::unbounded_channel();
        let sessions = Arc::new_cyclic(|this: &Weak<Sessions>| Sessions {
            config,
            clock,
            metrics,
            open: Mutex::default(),
            accepted: links,
            this: this.clone(),
        });
        let paths = PathListener::bind(addresses, &connections, sessions.clone())?;
        let addresses = paths.local_addresses().map_err(|source| BindError::Address {
            address: addresses.first().copied().unwrap_or(SocketAddr::from(([0, 0, 0, 0], 0))),
            source,
        })?;
        let (stop, stopped) = oneshot::channel();
        let accepting = tokio::spawn(accept_paths(paths, sessions.clone(), stopped));
        Ok(Self { addresses, sessions, accepted, stop, accepting })
    }

    /// Returns the addresses of the sockets, with the ports that the system chose.
    pub fn local_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Waits until a peer starts a session.
    pub async fn accept(&mut self) -> Option<AcceptedLink> {
        self.accepted.recv().await
    }

    /// Returns a handle that takes snapshots of all open sessions.
    pub fn links(&self) -> Links {
        let sessions = self.sessions.clone();
        Links::new(move || {
            sessions.open.lock().values().map(|session| Link::new(session.driver.clone())).collect()
        })
    }

    /// Ends all sessions and tells the peers, as far as possible.
    pub async fn close(self) {
        drop(self.stop);
        // Fails only if the task panicked; then its sockets are closed too.
        let _ = self.accepting.await;
    }
}

/// Passes the connections of paths to their sessions until the listener is dropped; then ends all sessions.
async fn accept_paths(mut paths: PathListener, sessions: Arc<Sessions>, mut stopped: oneshot::Receiver<()>) {
    loop {
        tokio::select! {
            Some(path) = paths.accept() => sessions.join(path),
            _ = &mut stopped => break,
        }
    }
    for session in std::mem::take(&mut *sessions.open.lock()).into_values() {
        session.driver.close(EndOfSession::Closed);
    }
    paths.close(CLOSE_ENDED, "the listening side shut down").await;
}

impl IncomingFlows {
    /// Waits for the next flow; `None` once the session has ended.
    pub async fn next(&mut self) -> Option<IncomingFlow> {
        let accepted = tokio::select! {
            accepted = self.flows.recv() => accepted?,
            _ = self.driver.wait_for_end() => return None,
        };
        let (send, recv) = halves(self.driver.clone(), accepted.flow);
        Some(IncomingFlow { send, recv, lane: accepted.lane, target: accepted.target })
    }
}

impl Sessions {
    /// Passes a connection to its session.
    fn join(&self, connection: PathConnection) {
        let id = connection.session().id();
        let driver = self.open.lock().get(&id).map(|session| session.driver.clone());
        let Some(driver) = driver else {
            connection.close(CLOSE_ENDED, "the session has ended");
            return;
        };
        let remote = connection.remote_address().map_or_else(String::new, |address| address.to_string());
        tracing::info!(path = connection.name(), remote, session = %id, "path connected");
        driver.add_connection(connection);
    }

    /// Starts a session that ends by itself when no path answers for `session_timeout`.
    fn create(&self, key: &SessionKey) -> Result<(Arc<Driver>, AcceptedLink), PathRejection> {
        let session =
            LinkSession::new(Side::Listening, self.config.clone(), self.clock.now(), random::draw())
                .map_err(busy)?;
        let metrics = SessionMetrics::new(&self.metrics, LINK_NAME).map_err(busy)?;
        let (driver, flows) = Driver::start(session, self.clock, metrics);
        let sessions = self.this.clone();
        let id = key.id();
        let ended = driver.clone();
        tokio::spawn(async move {
            let end = ended.wait_for_end().await;
            tracing::info!(session = %id, reason = %end, "the session of a link ended");
            if let Some(sessions) = sessions.upgrade() {
                sessions.open.lock().remove(&id);
            }
        });
        let link = Link::new(driver.clone());
        let flows = IncomingFlows { driver: driver.clone(), flows };
        Ok((driver, AcceptedLink { link, flows }))
    }
}

fn busy(error: impl ToString) -> PathRejection {
    PathRejection::new(RejectionCode::Busy, error.to_string())
}

impl SessionDirectory for Sessions {
    fn start(&self, key: &SessionKey) -> Result<(), PathRejection> {
        let mut open = self.open.lock();
        if open.len() >= SESSIONS_MAX {
            return Err(PathRejection::new(RejectionCode::Busy, format!("{SESSIONS_MAX} sessions are open")));
        }
        let (driver, link) = self.create(key)?;
        open.insert(key.id(), OpenSession { key: key.clone(), driver });
        self.accepted.send(link).map_err(|_| {
            PathRejection::new(RejectionCode::ShuttingDown, "the listening side is shutting down")
        })
    }

    fn find(&self, id: SessionId) -> Result<SessionKey, PathRejection> {
        let open = self.open.lock();
        open.get(&id).map(|session| session.key.clone()).ok_or_else(|| PathRejection::unknown_session(id))
    }
}
