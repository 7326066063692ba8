//! Accepting side of all paths.

mod admission;
mod failure_log;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use noq::{Connection, Endpoint, EndpointConfig, Incoming, ReadError, ReadToEndError, SendStream, VarInt};
use parking_lot::Mutex;
use ring::error::Unspecified;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::config::ConnectionConfig;
use super::connection::PathConnection;
use super::controller::SignalCell;
use super::error::{BindError, ConnectError};
use super::hello::{Answer, Hello, Join, MESSAGE_LEN_MAX, PathPurpose, PathRejection, RejectionCode};
use super::runtime::PathRuntime;
use super::session_key::{PathExport, ProofSide, SessionId, SessionKey};
use super::socket;
use admission::{Admission, PendingConnections, PendingGuard};

pub(crate) use admission::SourceNetwork;
pub(crate) use failure_log::FailureLog;

pub(super) use admission::PENDING_MAX;

/// Accepted paths that wait for the driver.
const ACCEPTED_MAX: usize = 16;
/// Probes of routes that may be connected at once.
const PROBES_MAX: usize = 64;
/// Longest time for which a probe stays connected.
const PROBE_LIFETIME_MAX: Duration = Duration::from_secs(120);
/// Close code of a connection whose hello was refused.
const REFUSED: VarInt = VarInt::from_u32(1);

/// Sessions of the accepting side, kept by the driver.
pub trait SessionDirectory: Send + Sync + 'static {
    /// Stores a new session, or refuses it.
    ///
    /// It is called before the peer learns the session's number, so that the peer's next path finds it. The session's
    /// first path may never arrive.
    fn start(&self, session: &SessionKey) -> Result<(), PathRejection>;

    /// Returns the key of a session that a path asks to join, or [`PathRejection::unknown_session`].
    fn find(&self, session: SessionId) -> Result<SessionKey, PathRejection>;
}

/// Endpoints on which paths are accepted.
///
/// Dropping it stops accepting; connections stay open.
#[derive(Debug)]
pub struct PathListener {
    endpoints: Vec<Endpoint>,
    accepted: mpsc::Receiver<PathConnection>,
    /// One task per endpoint, ended with the listener.
    _tasks: JoinSet<()>,
}

impl PathListener {
    /// Opens a UDP socket per address and accepts paths on all of them; needs a Tokio runtime.
    pub fn bind(
        addresses: &[SocketAddr],
        config: &ConnectionConfig,
        directory: Arc<dyn SessionDirectory>,
    ) -> Result<Self, BindError> {
        let (paths, accepted) = mpsc::channel(ACCEPTED_MAX);
        let pending = PendingConnections::default();
        let context = Arc::new(ListenerContext {
            config: config.clone(),
            directory,
            paths,
            probes: Arc::new(Semaphore::new(PROBES_MAX)),
            failures: Mutex::default(),
        });
        let mut tasks = JoinSet::new();
        let mut endpoints = Vec::new();
        for address in addresses {
            let (socket, address) = socket::bind_listener(*address)?;
            let server = Some(config.endpoint());
            let endpoint = Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(PathRuntime))
                .map_err(|source| BindError::Address { address, source })?;
            tasks.spawn(accept_on(endpoint.clone(), pending.clone(), context.clone()));
            endpoints.push(endpoint);
        }
        Ok(Self { endpoints, accepted, _tasks: tasks })
    }

    /// Returns the addresses of the sockets, with the ports that the system chose.
    pub fn local_addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.endpoints.iter().map(Endpoint::local_addr).collect()
    }

    /// Waits for the next path of any session; `None` once the listener is closed.
    pub async fn accept(&mut self) -> Option<PathConnection> {
        self.accepted.recv().await
    }

    /// Closes all connections and stops accepting; waits until the peers have been told, as far as possible.
    pub async fn close(&self, code: u32, reason: &str) {
        for endpoint in &self.endpoints {
            endpoint.close(VarInt::from_u32(code), reason.as_bytes());
        }
        for endpoint in &self.endpoints {
            endpoint.wait_all_draining().await;
        }
    }
}

struct ListenerContext {
    config: ConnectionConfig,
    directory: Arc<dyn SessionDirectory>,
    paths: mpsc::Sender<PathConnection>,
    probes: Arc<Semaphore>,
    failures: Mutex<FailureLog>,
}

async fn accept_on(endpoint: Endpoint, pending: PendingConnections, context: Arc<ListenerContext>) {
    // Dropping the set with this task ends handshakes that are under way.
    let mut handshakes = JoinSet::new();
    while let Some(incoming) = endpoint.accept().await {
        while handshakes.try_join_next().is_some() {}
        let source = SourceNetwork::of(incoming.remote_address().ip());
        match pending.admit(source, incoming.remote_address_validated()) {
            Admission::Accept(guard) => {
                handshakes.spawn(handshake(incoming, guard, context.clone()));
            }
            Admission::Retry => {
                // An unvalidated address may always be asked to retry.
                let _ = incoming.retry();
            }
            Admission::Refuse => incoming.refuse(),
        }
    }
}

async fn handshake(incoming: Incoming, pending: PendingGuard, context: Arc<ListenerContext>) {
    let address = socket::canonical(incoming.remote_address());
    let accepted = timeout(context.config.handshake_timeout, accept_path(incoming, &context)).await;
    let error = match accepted.unwrap_or(Err(AcceptError::Silent)) {
        Ok(Accepted::Path(path)) => {
            // Fails only if the listener is being dropped, which closes the path.
            let _ = context.paths.send(path).await;
            return;
        }
        Ok(Accepted::Probe(connection, _permit)) => {
            drop(pending);
            // The connection acknowledges packets by itself, and is closed when it is dropped.
            let _ = timeout(PROBE_LIFETIME_MAX, connection.closed()).await;
            return;
        }
        Err(error) => error,
    };
    let source = SourceNetwork::of(address.ip());
    let Some(unlogged) = context.failures.lock().record(context.config.clock.now(), source) else { return };
    tracing::warn!(%address, %error, unlogged, "an incoming connection of the link failed");
}

/// Connection whose hello was accepted.
enum Accepted {
    Path(PathConnection),
    Probe(Connection, OwnedSemaphorePermit),
}

async fn accept_path(incoming: Incoming, context: &ListenerContext) -> Result<Accepted, AcceptError> {
    let ListenerContext { config, directory, .. } = context;
    let address = socket::canonical(incoming.remote_address());
    let explain = |error| ConnectError::explain(error, address, config.own);
    let signals = Arc::new(SignalCell::new(config.clock));
    let connecting = incoming.accept_with(config.incoming(&signals)).map_err(explain)?;
    let connection = connecting.await.map_err(explain)?;
    let (send, mut recv) = connection.accept_bi().await.map_err(explain)?;
    let decision = match recv.read_to_end(MESSAGE_LEN_MAX).await {
        Ok(hello) => decide(&connection, &hello, directory.as_ref()).and_then(|welcome| {
            let permit = context.admit_probe(welcome.hello.purpose)?;
            Ok((welcome, permit))
        }),
        Err(ReadToEndError::TooLong) => {
            Err(PathRejection::new(RejectionCode::Malformed, "the hello is too long"))
        }
        Err(ReadToEndError::Read(ReadError::ConnectionLost(error))) => return Err(explain(error).into()),
        Err(ReadToEndError::Read(_)) => {
            Err(PathRejection::new(RejectionCode::Malformed, "the hello was cut off"))
        }
    };
    match decision {
        Ok((Welcome { answer, .. }, Some(permit))) => {
            reply(send, &Answer::Welcome(answer)).await?;
            Ok(Accepted::Probe(connection, permit))
        }
        Ok((Welcome { hello, session, answer }, None)) => {
            config.open_windows(&connection);
            reply(send, &Answer::Welcome(answer)).await?;
            Ok(Accepted::Path(PathConnection::new(connection, session, hello, signals, None)))
        }
        Err(rejection) => {
            let delivered = reply(send, &Answer::Refused(rejection.clone())).await?;
            // Closing discards what the peer has not acknowledged.
            let _ = delivered.await;
            connection.close(REFUSED, rejection.text.as_bytes());
            Err(AcceptError::Refused(rejection))
        }
    }
}

impl ListenerContext {
    /// Returns a permit for a probe; `None` for a path, which needs none.
    fn admit_probe(&self, purpose: PathPurpose) -> Result<Option<OwnedSemaphorePermit>, PathRejection> {
        match purpose {
            PathPurpose::Traffic => Ok(None),
            PathPurpose::Probe => self.probes.clone().try_acquire_owned().map(Some).map_err(|_| {
                PathRejection::new(RejectionCode::Busy, format!("{PROBES_MAX} probes are connected"))
            }),
        }
    }
}

/// Accepted hello, the path's session, and the answer.
struct Welcome {
    hello: Hello,
    session: SessionKey,
    answer: Join,
}

fn decide(
    connection: &Connection,
    hello: &[u8],
    directory: &dyn SessionDirectory,
) -> Result<Welcome, PathRejection> {
    let hello = Hello::decode(hello)?;
    let export = PathExport::new(connection, hello.path).map_err(no_key_material)?;
    let session = match hello.join {
        None => {
            let id = SessionId::random().map_err(no_key_material)?;
            let session = SessionKey::derive(connection, id).map_err(no_key_material)?;
            directory.start(&session)?;
            session
        }
        Some(Join { session, proof }) => {
            let key = directory.find(session)?;
            if !key.verify(ProofSide::Connecting, &export, &proof) {
                let text = format!("the proof for session {session} is wrong");
                return Err(PathRejection::new(RejectionCode::WrongProof, text));
            }
            key
        }
    };
    let proof = session.prove(ProofSide::Accepting, &export);
    let answer = Join { session: session.id(), proof };
    Ok(Welcome { hello, session, answer })
}

fn no_key_material(_: Unspecified) -> PathRejection {
    PathRejection::new(RejectionCode::Busy, "no key material")
}

async fn reply(mut send: SendStream, answer: &Answer) -> Result<noq::Stopped, AcceptError> {
    let written = send.write_all(&answer.encode()).await;
    let finished = send.finish();
    if written.is_err() || finished.is_err() {
        return Err(AcceptError::Unanswered);
    }
    Ok(send.stopped())
}

/// Error of accepting one connection, for the log.
#[derive(Debug, thiserror::Error)]
enum AcceptError {
    #[error("{0}")]
    Refused(PathRejection),
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error("the peer did not complete the handshake and its hello in time")]
    Silent,
    #[error("the peer did not wait for the answer to its hello")]
    Unanswered,
}
