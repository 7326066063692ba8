//! Connecting side of one path.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use noq::{
    Connection, ConnectionError, Endpoint, EndpointConfig, ReadError, ReadToEndError, VarInt, WriteError,
};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::config::ConnectionConfig;
use super::connection::PathConnection;
use super::controller::SignalCell;
use super::error::{BindError, ConnectError};
use super::hello::{Answer, Hello, Join, MESSAGE_LEN_MAX, PathPurpose, RejectionCode};
use super::runtime::PathRuntime;
use super::session_key::{PathExport, ProofSide, SessionKey};
use super::socket;
use super::target::{PathBinding, PathTarget, RemoteAddress};
use crate::identity::Fingerprint;

/// The certificate's name is not checked, but TLS wants one.
const SERVER_NAME: &str = "evenkeel-link";
/// Addresses of one name that are tried in turn.
const ADDRESSES_MAX: usize = 4;

/// Endpoint of the connecting side: one UDP socket, over which the path's connections run one after another.
///
/// After an attempt without an answer, the next one opens another socket: the interface may have been removed and added
/// again, or the mapping of a NAT may be stale. Connections over the old socket go on.
#[derive(Debug)]
pub struct PathEndpoint {
    target: PathTarget,
    endpoint: Mutex<Endpoint>,
    /// Set when nothing was heard through the socket.
    is_silent: AtomicBool,
}

/// Introduction of a path to the peer.
#[derive(Clone, Copy, Debug)]
pub struct PathRequest<'a> {
    /// Number of the path within its session, below 128.
    pub path: u8,
    /// Name of the path for logs and `status` of the peer; the first 64 bytes are sent.
    pub name: &'a str,
    /// Session to join; `None` starts a new one.
    pub session: Option<&'a SessionKey>,
    /// A probe needs a session.
    pub purpose: PathPurpose,
}

impl PathEndpoint {
    /// Opens the path's socket; needs a Tokio runtime.
    pub fn client(target: PathTarget) -> Result<Self, BindError> {
        let endpoint = Mutex::new(open(&target)?);
        Ok(Self { target, endpoint, is_silent: AtomicBool::new(false) })
    }

    /// Returns the path as it was configured.
    pub fn target(&self) -> &PathTarget {
        &self.target
    }

    /// Connects to the peer and introduces the path, within 5 s per address.
    ///
    /// The first path starts a session; the other paths, and all that reconnect, join it. After
    /// [`RejectionCode::UnknownSession`] the caller starts a new session.
    pub async fn connect(
        &self,
        config: &ConnectionConfig,
        request: &PathRequest<'_>,
    ) -> Result<PathConnection, ConnectError> {
        if self.is_silent.load(Ordering::Relaxed) {
            *self.endpoint.lock() = open(&self.target)?;
            self.is_silent.store(false, Ordering::Relaxed);
        }
        let mut failure = None;
        for address in self.resolve().await? {
            match self.connect_to(address, config, request).await {
                Ok(connection) => return Ok(connection),
                Err(error) => failure = Some(error),
            }
        }
        let host = self.target.remote.to_string();
        Err(failure.unwrap_or(ConnectError::NoAddress { host }))
    }

    /// Lets the next attempt open another socket, after a caller gave up an attempt that was not answered.
    pub(crate) fn mark_silent(&self) {
        self.is_silent.store(true, Ordering::Relaxed);
    }

    async fn resolve(&self) -> Result<Vec<SocketAddr>, ConnectError> {
        let remote = &self.target.remote;
        let found = remote.resolve().await?.into_iter();
        if let RemoteAddress::Socket(_) = remote {
            return Ok(found.collect());
        }
        Ok(found.filter(|address| self.can_reach(*address)).take(ADDRESSES_MAX).collect())
    }

    fn can_reach(&self, remote: SocketAddr) -> bool {
        match &self.target.binding {
            PathBinding::Local(local) => local.is_ipv4() == remote.is_ipv4(),
            // A socket for IPv6 serves both families.
            _ => remote.is_ipv4() || self.endpoint.lock().local_addr().is_ok_and(|local| local.is_ipv6()),
        }
    }

    async fn connect_to(
        &self,
        address: SocketAddr,
        config: &ConnectionConfig,
        request: &PathRequest<'_>,
    ) -> Result<PathConnection, ConnectError> {
        socket::check_route(&self.target.binding, address)
            .map_err(|source| ConnectError::NoRoute { address, source })?;
        let endpoint = self.endpoint.lock().clone();
        let connected = connect_over(&endpoint, address, config, request, Some([].into())).await;
        if let Err(ConnectError::Endpoint { .. } | ConnectError::NoAnswer { .. }) = connected {
            self.mark_silent();
        }
        connected
    }

    /// Closes the connections over the current socket, and the socket.
    pub fn close(&self, code: u32, reason: &str) {
        self.endpoint.lock().close(VarInt::from_u32(code), reason.as_bytes());
    }

    /// Waits until the peers have been told of closed connections, as far as possible.
    pub async fn wait_closed(&self) {
        let endpoint = self.endpoint.lock().clone();
        endpoint.wait_all_draining().await;
    }
}

/// Connects to the peer and introduces the path; `relays` are those of the endpoint's route.
pub(super) async fn connect_over(
    endpoint: &Endpoint,
    address: SocketAddr,
    config: &ConnectionConfig,
    request: &PathRequest<'_>,
    relays: Option<Arc<[String]>>,
) -> Result<PathConnection, ConnectError> {
    let signals = Arc::new(SignalCell::new(config.clock));
    let connecting = endpoint
        .connect_with(config.outgoing(&signals), address, SERVER_NAME)
        .map_err(|source| ConnectError::Endpoint { address, source })?;
    let wait = config.handshake_timeout;
    let deadline = Instant::now() + wait;
    let Ok(connected) = timeout_at(deadline, connecting).await else {
        return Err(ConnectError::NoAnswer { address, timeout: wait });
    };
    let connection = connected.map_err(|error| ConnectError::explain(error, address, config.own))?;
    let introduction = Introduction { connection, address, own: config.own, request };
    let introduced = timeout_at(deadline, introduction.run()).await;
    let (session, hello) = introduced.unwrap_or(Err(ConnectError::NoWelcome { address, timeout: wait }))?;
    Ok(PathConnection::new(introduction.connection, session, hello, signals, relays))
}

fn open(target: &PathTarget) -> Result<Endpoint, BindError> {
    let (socket, address) = socket::bind_path(target)?;
    Endpoint::new(EndpointConfig::default(), None, socket, Arc::new(PathRuntime))
        .map_err(|source| BindError::Address { address, source })
}

/// Exchange of hello and answer on a new connection.
struct Introduction<'a> {
    connection: Connection,
    address: SocketAddr,
    own: Fingerprint,
    request: &'a PathRequest<'a>,
}

impl Introduction<'_> {
    async fn run(&self) -> Result<(SessionKey, Hello), ConnectError> {
        let address = self.address;
        let PathRequest { path, name, session, purpose } = *self.request;
        let export = PathExport::new(&self.connection, path).map_err(|_| self.wrong("no key material"))?;
        let join = session.map(|session| Join {
            session: session.id(),
            proof: session.prove(ProofSide::Connecting, &export),
        });
        let hello = Hello { path, name: name.to_owned(), join, purpose };
        let answer = self.exchange(&hello).await?;
        let welcome = match Answer::decode(&answer) {
            Ok(Answer::Welcome(welcome)) => welcome,
            Ok(Answer::Refused(rejection)) if rejection.code == RejectionCode::Version => {
                return Err(ConnectError::Version { address, reason: rejection.text });
            }
            Ok(Answer::Refused(rejection)) => return Err(ConnectError::Refused { address, rejection }),
            Err(_) => return Err(self.wrong("the answer is malformed")),
        };
        let session = match session {
            Some(session) => session.clone(),
            None => SessionKey::derive(&self.connection, welcome.session)
                .map_err(|_| self.wrong("no key material"))?,
        };
        if welcome.session != session.id() {
            return Err(self.wrong("it named another session"));
        }
        if !session.verify(ProofSide::Accepting, &export, &welcome.proof) {
            return Err(self.wrong("it did not prove that it knows the session"));
        }
        Ok((session, hello))
    }

    async fn exchange(&self, hello: &Hello) -> Result<Vec<u8>, ConnectError> {
        let (mut send, mut recv) = self.connection.open_bi().await.map_err(|error| self.lost(error))?;
        if let Err(WriteError::ConnectionLost(error)) = send.write_all(&hello.encode()).await {
            return Err(self.lost(error));
        }
        // The peer may have answered already, and reset the stream.
        let _ = send.finish();
        recv.read_to_end(MESSAGE_LEN_MAX).await.map_err(|error| match error {
            ReadToEndError::Read(ReadError::ConnectionLost(error)) => self.lost(error),
            ReadToEndError::Read(_) => self.wrong("the answer was cut off"),
            ReadToEndError::TooLong => self.wrong("the answer is too long"),
        })
    }

    fn lost(&self, error: ConnectionError) -> ConnectError {
        ConnectError::explain(error, self.address, self.own)
    }

    fn wrong(&self, reason: &'static str) -> ConnectError {
        ConnectError::BadWelcome { address: self.address, reason }
    }
}
