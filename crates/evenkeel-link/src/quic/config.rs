//! Configuration of connections.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use noq::crypto::rustls::QuicClientConfig;
use noq::{AckFrequencyConfig, ClientConfig, ServerConfig, TransportConfig, VarInt};

use super::clock::LinkClock;
use super::controller::{GatedCubicFactory, INITIAL_WINDOW, SignalCell};
use super::listener::PENDING_MAX;
use super::tls;
use crate::identity::{Fingerprint, Identity};

/// Time for the handshake, and for the hello after it.
pub(super) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Packets by which a packet may be overtaken before it counts as lost; 3 halves goodput at 5 ms of reordering.
const PACKET_THRESHOLD: u32 = 32;
/// noq closes a stream with more than about 1000 gaps, and a gap is at least two packets apart from the next.
const STREAM_RECEIVE_WINDOW: u32 = 2_400_000;
/// 1 Gbit/s × 134 ms.
const RECEIVE_WINDOW: u32 = 16 << 20;
/// A peer that has not been welcomed needs to send no more than its hello.
const RECEIVE_WINDOW_BEFORE_WELCOME: u32 = 16 << 10;
const DATAGRAM_RECEIVE_BUFFER: usize = 256 << 10;
/// Acknowledgements wait behind the datagrams of flows in this buffer, so it is short; the largest batch of them fits.
const DATAGRAM_SEND_BUFFER: usize = 32 << 10;
const IDLE_TIMEOUT_MS: u32 = 30_000;
/// First retransmission of the handshake after 0.3 s instead of the standard's 1 s.
const INITIAL_RTT: Duration = Duration::from_millis(100);
const INITIAL_MTU: u16 = 1200;
/// Packets that the peer may receive before it acknowledges at once; each acknowledgement costs both sides CPU time.
const PACKETS_PER_ACK: u32 = 4;
/// Delay by which the peer may hold back the acknowledgement of a single packet; it is part of every measured RTT.
///
/// With the default of 25 ms, an idle path of 10 ms would seem to take 35 ms and lose a third of its share.
const ACK_DELAY_MAX: Duration = Duration::from_millis(1);
/// Streams beyond one per flow: bonded chunks and control.
const STREAMS_BESIDE_FLOWS: u32 = 8;
/// Bytes that are buffered of a connection attempt until it is looked at.
const INCOMING_BUFFER: u64 = 16 << 10;

/// Keys, limits and clock that all connections of one link share.
#[derive(Clone)]
pub struct ConnectionConfig {
    pub(super) clock: LinkClock,
    pub(super) own: Fingerprint,
    pub(super) handshake_timeout: Duration,
    client: Arc<QuicClientConfig>,
    server: ServerConfig,
    streams_max: u32,
}

impl ConnectionConfig {
    /// Creates the configuration of a link whose other side has the key `peer`, with at most `flows_max` flows.
    pub fn new(identity: &Identity, peer: Fingerprint, clock: LinkClock, flows_max: u32) -> Self {
        const CHECKED: &str = "the key pair was checked when it was loaded";
        let mut server = ServerConfig::with_crypto(tls::server(identity, peer).expect(CHECKED));
        server
            .max_incoming(PENDING_MAX)
            .incoming_buffer_size(INCOMING_BUFFER)
            .incoming_buffer_size_total(INCOMING_BUFFER * PENDING_MAX as u64);
        Self {
            clock,
            own: identity.fingerprint(),
            handshake_timeout: HANDSHAKE_TIMEOUT,
            client: tls::client(identity, peer).expect(CHECKED),
            server,
            streams_max: flows_max.saturating_add(STREAMS_BESIDE_FLOWS),
        }
    }

    /// Returns the configuration of an endpoint that accepts connections.
    pub(super) fn endpoint(&self) -> ServerConfig {
        self.server.clone()
    }

    /// Returns the configuration of one outgoing connection, whose controller writes to `signals`.
    pub(super) fn outgoing(&self, signals: &Arc<SignalCell>) -> ClientConfig {
        let mut transport = transport(signals);
        transport
            .receive_window(RECEIVE_WINDOW.into())
            .max_concurrent_uni_streams(self.streams_max.into())
            .max_concurrent_bidi_streams(VarInt::from_u32(0));
        let mut config = ClientConfig::new(self.client.clone());
        config.transport_config(Arc::new(transport));
        config
    }

    /// Returns the configuration of one incoming connection, whose controller writes to `signals`.
    ///
    /// The peer can send its hello and nothing else, until [`Self::open_windows`].
    pub(super) fn incoming(&self, signals: &Arc<SignalCell>) -> Arc<ServerConfig> {
        let mut transport = transport(signals);
        transport
            .receive_window(RECEIVE_WINDOW_BEFORE_WELCOME.into())
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .max_concurrent_bidi_streams(VarInt::from_u32(1));
        let mut config = self.server.clone();
        config.transport_config(Arc::new(transport));
        Arc::new(config)
    }

    /// Lets a welcomed peer send flow data.
    pub(super) fn open_windows(&self, connection: &noq::Connection) {
        connection.set_max_concurrent_bi_streams(VarInt::from_u32(0));
        connection.set_receive_window(RECEIVE_WINDOW.into());
        connection.set_max_concurrent_uni_streams(self.streams_max.into());
    }
}

impl fmt::Debug for ConnectionConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionConfig").field("own", &self.own).finish_non_exhaustive()
    }
}

fn transport(signals: &Arc<SignalCell>) -> TransportConfig {
    let mut acks = AckFrequencyConfig::default();
    acks.max_ack_delay(Some(ACK_DELAY_MAX))
        .ack_eliciting_threshold(VarInt::from_u32(PACKETS_PER_ACK))
        .reordering_threshold(VarInt::from_u32(PACKET_THRESHOLD - 1));
    let mut transport = TransportConfig::default();
    transport
        .ack_frequency_config(Some(acks))
        .packet_threshold(PACKET_THRESHOLD)
        .congestion_controller_factory(Arc::new(GatedCubicFactory::new(signals.clone())))
        .stream_receive_window(STREAM_RECEIVE_WINDOW.into())
        .send_window(send_window(INITIAL_WINDOW))
        .datagram_receive_buffer_size(Some(DATAGRAM_RECEIVE_BUFFER))
        .datagram_send_buffer_size(DATAGRAM_SEND_BUFFER)
        .max_idle_timeout(Some(VarInt::from_u32(IDLE_TIMEOUT_MS).into()))
        .keep_alive_interval(None)
        .initial_rtt(INITIAL_RTT)
        .initial_mtu(INITIAL_MTU);
    transport
}

/// Returns the bytes that streams may have unacknowledged or queued at a congestion window of `window` bytes.
///
/// 5 % more than the window keeps the connection busy between two updates without a long queue.
pub(super) fn send_window(window: u64) -> u64 {
    window.saturating_add(window / 20)
}
