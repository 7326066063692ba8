//! Two sites on loopback, and a client that sends what it likes.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use noq::{Connection, Endpoint, EndpointConfig};
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::identity::{ExistingKey, Identity};
use crate::quic::clock::LinkClock;
use crate::quic::config::ConnectionConfig;
use crate::quic::connection::PathConnection;
use crate::quic::controller::SignalCell;
use crate::quic::endpoint::{PathEndpoint, PathRequest};
use crate::quic::error::ConnectError;
use crate::quic::hello::{Answer, MESSAGE_LEN_MAX, PathPurpose, PathRejection};
use crate::quic::listener::{PathListener, SessionDirectory};
use crate::quic::runtime::PathRuntime;
use crate::quic::session_key::{SessionId, SessionKey};
use crate::quic::socket;

pub(super) const FLOWS_MAX: u32 = 100;

/// Creates an identity that exists in memory only.
pub(super) fn identity() -> Identity {
    let dir = TempDir::new().unwrap();
    Identity::create(dir.path(), ExistingKey::Keep).unwrap()
}

pub(super) fn config(own: &Identity, peer: &Identity) -> ConnectionConfig {
    ConnectionConfig::new(own, peer.fingerprint(), LinkClock::start(), FLOWS_MAX)
}

/// Sessions of an accepting site.
#[derive(Default)]
pub(super) struct Sessions(pub(super) Mutex<HashMap<SessionId, SessionKey>>);

impl SessionDirectory for Sessions {
    fn start(&self, session: &SessionKey) -> Result<(), PathRejection> {
        self.0.lock().insert(session.id(), session.clone());
        Ok(())
    }

    fn find(&self, session: SessionId) -> Result<SessionKey, PathRejection> {
        self.0.lock().get(&session).cloned().ok_or_else(|| PathRejection::unknown_session(session))
    }
}

/// An accepting site and the keys of a connecting one that trust each other.
pub(in crate::quic) struct Sites {
    pub(super) edge: Identity,
    pub(super) core: Identity,
    pub(in crate::quic) edge_config: ConnectionConfig,
    pub(super) sessions: Arc<Sessions>,
    pub(super) listener: PathListener,
    pub(in crate::quic) address: SocketAddr,
}

impl Sites {
    pub(in crate::quic) fn start() -> Self {
        let edge = identity();
        let core = identity();
        let edge_config = config(&edge, &core);
        let core_config = config(&core, &edge);
        let sessions = Arc::new(Sessions::default());
        let listener = PathListener::bind(&[any_port()], &core_config, sessions.clone()).unwrap();
        let address = listener.local_addresses().unwrap()[0];
        Self { edge, core, edge_config, sessions, listener, address }
    }

    /// Connects a path and returns both ends.
    pub(super) async fn connect(
        &mut self,
        request: PathRequest<'_>,
    ) -> Result<(PathConnection, PathConnection), ConnectError> {
        let near = connect(self.address, &self.edge_config, request).await?;
        Ok((near, self.listener.accept().await.unwrap()))
    }

    /// Completes the TLS handshake without a hello.
    pub(super) async fn connect_raw(&self) -> RawClient {
        RawClient::connect(self.address, &self.edge_config).await.unwrap()
    }
}

pub(super) fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

pub(super) fn new_session(path: u8) -> PathRequest<'static> {
    PathRequest { path, name: "wan", session: None, purpose: PathPurpose::Traffic }
}

pub(super) async fn connect(
    address: SocketAddr,
    config: &ConnectionConfig,
    request: PathRequest<'_>,
) -> Result<PathConnection, ConnectError> {
    endpoint(address).connect(config, &request).await
}

pub(super) fn endpoint(address: SocketAddr) -> PathEndpoint {
    PathEndpoint::client(address.to_string().parse().unwrap()).unwrap()
}

/// Client that speaks TLS as configured, and then sends what it likes.
pub(in crate::quic) struct RawClient {
    pub(super) connection: Connection,
}

impl RawClient {
    pub(super) async fn connect(
        address: SocketAddr,
        config: &ConnectionConfig,
    ) -> Result<Self, noq::ConnectionError> {
        let signals = Arc::new(SignalCell::new(config.clock));
        Self::connect_with(address, config.outgoing(&signals)).await
    }

    pub(in crate::quic) async fn connect_with(
        address: SocketAddr,
        config: noq::ClientConfig,
    ) -> Result<Self, noq::ConnectionError> {
        let endpoint = raw_endpoint(None);
        let connection = endpoint.connect_with(config, address, "raw").unwrap().await?;
        Ok(Self { connection })
    }

    /// Sends a hello and returns the answer.
    pub(super) async fn exchange(&self, hello: &[u8]) -> Answer {
        let (mut send, mut recv) = self.connection.open_bi().await.unwrap();
        // The peer may stop reading early.
        let _ = send.write_all(hello).await;
        let _ = send.finish();
        Answer::decode(&recv.read_to_end(MESSAGE_LEN_MAX).await.unwrap()).unwrap()
    }

    pub(super) async fn rejection(&self, hello: &[u8]) -> PathRejection {
        match self.exchange(hello).await {
            Answer::Refused(rejection) => rejection,
            Answer::Welcome(welcome) => panic!("{welcome:?}"),
        }
    }
}

pub(super) fn raw_endpoint(server: Option<noq::ServerConfig>) -> Endpoint {
    let (socket, _) = socket::bind_listener(any_port()).unwrap();
    Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(PathRuntime)).unwrap()
}

/// Shortens the handshake timeout, for a peer that will not answer.
pub(super) fn impatient(config: &ConnectionConfig, timeout: Duration) -> ConnectionConfig {
    let mut config = config.clone();
    config.handshake_timeout = timeout;
    config
}
