//! Established connection of one path.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use noq::{Connection, ConnectionError, RecvStream, SendDatagramError, SendStream, VarInt};

use super::config::send_window;
use super::controller::SignalCell;
use super::hello::Hello;
use super::session_key::SessionKey;
use super::socket::canonical;
use super::tls;
use crate::flow::LaneSupport;
use crate::path_signals::PathSignals;

/// Authenticated connection of one path of a session.
///
/// Clones share the connection; it is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct PathConnection {
    connection: Connection,
    context: Arc<ConnectionContext>,
}

#[derive(Debug)]
struct ConnectionContext {
    session: SessionKey,
    path: u8,
    name: String,
    signals: Arc<SignalCell>,
    relays: Option<Arc<[String]>>,
    peer_lanes: LaneSupport,
    /// Send window in force.
    send_window: AtomicU64,
}

impl PathConnection {
    pub(super) fn new(
        connection: Connection,
        session: SessionKey,
        hello: Hello,
        signals: Arc<SignalCell>,
        relays: Option<Arc<[String]>>,
    ) -> Self {
        let Hello { path, name, .. } = hello;
        let context = ConnectionContext {
            session,
            path,
            name,
            signals,
            relays,
            peer_lanes: tls::lanes_of_peer(&connection),
            send_window: AtomicU64::new(0),
        };
        Self { connection, context: Arc::new(context) }
    }

    /// Returns the key of the path's session.
    pub fn session(&self) -> &SessionKey {
        &self.context.session
    }

    /// Returns the path's number within its session, as the connecting side gave it.
    pub fn path(&self) -> u8 {
        self.context.path
    }

    /// Returns the path's name, as the connecting side gave it.
    pub fn name(&self) -> &str {
        &self.context.name
    }

    /// Returns the relays on the way, the first hop first; `None` on the accepting side, which does not know them.
    pub fn relays(&self) -> Option<&[String]> {
        self.context.relays.as_deref()
    }

    /// Returns the peer's address.
    ///
    /// It changes when the peer's NAT assigns another port.
    pub fn remote_address(&self) -> Option<SocketAddr> {
        let path = self.connection.path(noq::PathId::ZERO)?;
        path.remote_address().ok().map(canonical)
    }

    /// Opens a stream to the peer; waits while the peer's limit is reached.
    pub async fn open_stream(&self) -> Result<SendStream, ConnectionError> {
        self.connection.open_uni().await
    }

    /// Waits for the next stream from the peer.
    pub async fn accept_stream(&self) -> Result<RecvStream, ConnectionError> {
        self.connection.accept_uni().await
    }

    /// Queues a datagram; drops the oldest ones if the buffer is full.
    pub fn send_datagram(&self, datagram: Bytes) -> Result<(), SendDatagramError> {
        self.connection.send_datagram(datagram)
    }

    /// Queues a datagram once the buffer has room for it.
    pub async fn send_datagram_wait(&self, datagram: Bytes) -> Result<(), SendDatagramError> {
        self.connection.send_datagram_wait(datagram).await
    }

    /// Waits for the next datagram from the peer.
    pub async fn read_datagram(&self) -> Result<Bytes, ConnectionError> {
        self.connection.read_datagram().await
    }

    /// Returns the lanes that the peer's version has.
    pub fn peer_lanes(&self) -> LaneSupport {
        self.context.peer_lanes
    }

    /// Returns the measurements of the congestion controller, and the length of the longest datagram.
    pub fn signals(&self) -> PathSignals {
        let datagram_max = self.connection.max_datagram_size().unwrap_or_default();
        PathSignals { datagram_max, ..self.context.signals.read() }
    }

    /// Sets the send window to 1.05 × the congestion window; to be called every 10 ms.
    pub fn follow_window(&self) {
        let window = send_window(self.context.signals.read().window);
        // Setting it wakes the connection's task.
        if self.context.send_window.swap(window, Ordering::Relaxed) != window {
            self.connection.set_send_window(window);
        }
    }

    /// Returns the code with which the peer closed the connection; `None` if it ended otherwise.
    pub fn close_code(error: &ConnectionError) -> Option<u32> {
        match error {
            ConnectionError::ApplicationClosed(close) => u32::try_from(close.error_code.into_inner()).ok(),
            _ => None,
        }
    }

    /// Waits until the connection is closed, by either side or by a timeout.
    pub async fn closed(&self) -> ConnectionError {
        self.connection.closed().await
    }

    /// Returns why the connection is closed; `None` while it is open.
    pub fn close_reason(&self) -> Option<ConnectionError> {
        self.connection.close_reason()
    }

    /// Closes the connection at once; unsent and unread data is lost.
    pub fn close(&self, code: u32, reason: &str) {
        self.connection.close(VarInt::from_u32(code), reason.as_bytes());
    }
}
