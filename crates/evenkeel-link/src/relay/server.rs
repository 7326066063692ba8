//! Sockets of a relay.
//!
//! One task receives from clients; each association has a task that receives from its next hop.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use evenkeel_policy::time::{Duration, Instant};
use evenkeel_telemetry::{Counter, ForwardedTraffic, RelayMetrics};
use parking_lot::Mutex;
use ring::hmac;
use ring::rand::SystemRandom;
use socket2::SockRef;
use tokio::net::UdpSocket;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::timeout;

use super::associations::{Association, Associations, RelayLimits};
use super::gate::{GateAnswer, RefusalReason, RelayGate, SetupRefusal, ValidToken};
use super::message::SetupMessage;
use super::setup_key::{NotEd25519, SetupKey};
use crate::identity::{Fingerprint, Identity};
use crate::quic::{BindError, FailureLog, LinkClock, SourceNetwork, bind_listener, canonical};

/// Longest packet that is forwarded; a connection's packets have at most 1452 bytes.
pub const PACKET_LEN_MAX: usize = 2048;

/// Interval at which idle associations are removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Requested receive buffer of an association's socket, in bytes.
const BUFFER_LEN: usize = 512 << 10;

/// Settings of a relay.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// UDP address for clients and earlier relays.
    pub listen: SocketAddr,
    /// Addresses to which it may forward.
    pub next: Vec<SocketAddr>,
    /// Keys that may use it.
    pub peers: Vec<Fingerprint>,
    pub limits: RelayLimits,
}

/// Error of a relay that cannot start.
#[derive(Debug, thiserror::Error)]
pub enum RelayStartError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Key(#[from] NotEd25519),
    #[error("the relay may not forward to its own address {address}; remove it from --next")]
    OwnAddress { address: SocketAddr },
    #[error("could not read random numbers from the system")]
    NoRandomNumbers,
}

/// A running relay. Dropping it stops forwarding at once.
pub struct RelayServer {
    address: SocketAddr,
    shared: Arc<RelayShared>,
    task: JoinHandle<()>,
}

struct RelayShared {
    associations: Mutex<Associations<NextHop>>,
    metrics: RelayMetrics,
    fingerprint: Fingerprint,
    peers: Vec<Fingerprint>,
}

/// Socket to the next hop of an association; dropping it ends the task that receives from it.
struct NextHop {
    socket: Arc<UdpSocket>,
    receiving: AbortHandle,
}

impl Drop for NextHop {
    fn drop(&mut self) {
        self.receiving.abort();
    }
}

/// Snapshot of a relay.
#[derive(Clone, Debug)]
pub struct RelayStatus {
    pub listen: SocketAddr,
    pub fingerprint: Fingerprint,
    /// Allowed keys with their numbers of associations.
    pub peers: Vec<(Fingerprint, usize)>,
    pub to_next: ForwardedTraffic,
    pub to_client: ForwardedTraffic,
    /// Numbers of refused packets and set-ups.
    pub refused: Vec<(RefusalReason, u64)>,
}

impl RelayServer {
    /// Opens the socket and starts forwarding; needs a Tokio runtime.
    pub fn bind(
        identity: &Identity,
        config: RelayConfig,
        metrics: RelayMetrics,
    ) -> Result<Self, RelayStartError> {
        let key = SetupKey::new(identity)?;
        let secret = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new())
            .map_err(|_| RelayStartError::NoRandomNumbers)?;
        let (socket, wanted) = bind_listener(config.listen)?;
        let failed = |source| BindError::Address { address: wanted, source };
        let socket = Arc::new(UdpSocket::from_std(socket).map_err(failed)?);
        let address = socket.local_addr().map_err(failed)?;
        if config.next.contains(&address) {
            return Err(RelayStartError::OwnAddress { address });
        }
        let shared = Arc::new(RelayShared {
            associations: Mutex::new(Associations::new(config.limits, config.peers.len())),
            metrics,
            fingerprint: key.fingerprint(),
            peers: config.peers.clone(),
        });
        let gate = RelayGate::new(key, secret, config.peers, config.next);
        let clock = LinkClock::start();
        let clients =
            ClientSide { socket, gate, shared: shared.clone(), clock, failures: FailureLog::default() };
        Ok(Self { address, shared, task: tokio::spawn(clients.run()) })
    }

    /// Returns the address of the socket, with the port that the system chose.
    pub fn local_address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a function that takes snapshots.
    pub fn status(&self) -> impl Fn() -> RelayStatus + Send + Sync + 'static {
        let shared = self.shared.clone();
        let listen = self.address;
        move || shared.status(listen)
    }
}

impl Drop for RelayServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl RelayShared {
    fn status(&self, listen: SocketAddr) -> RelayStatus {
        let counts = self.associations.lock().per_peer().to_vec();
        let refused = |reason: RefusalReason| (reason, self.metrics.refused(reason.label()).get());
        RelayStatus {
            listen,
            fingerprint: self.fingerprint,
            peers: self.peers.iter().copied().zip(counts).collect(),
            to_next: self.metrics.to_next.clone(),
            to_client: self.metrics.to_client.clone(),
            refused: RefusalReason::ALL.map(refused).to_vec(),
        }
    }
}

/// Receives from clients.
struct ClientSide {
    socket: Arc<UdpSocket>,
    gate: RelayGate,
    shared: Arc<RelayShared>,
    clock: LinkClock,
    failures: FailureLog,
}

impl ClientSide {
    async fn run(mut self) {
        // A packet that fills the buffer may have been cut.
        let mut buffer = [0; PACKET_LEN_MAX + 1];
        let mut sweep_at = self.clock.now() + SWEEP_INTERVAL;
        loop {
            let wait = sweep_at.since(self.clock.now());
            if let Ok(Ok(())) = timeout(wait, self.socket.readable()).await {
                self.receive(&mut buffer);
            }
            let now = self.clock.now();
            if sweep_at <= now {
                sweep_at = now + SWEEP_INTERVAL;
                let mut associations = self.shared.associations.lock();
                let ended = associations.remove_idle(now);
                self.shared.metrics.associations.set(associations.len() as i64);
                if ended > 0 {
                    tracing::debug!(
                        ended,
                        open = associations.len(),
                        "associations ended: their clients are idle"
                    );
                }
            }
        }
    }

    /// Handles the packets that have arrived, a bounded number at a time.
    fn receive(&mut self, buffer: &mut [u8]) {
        const PACKETS_MAX: usize = 256;
        let now = self.clock.now();
        for _ in 0..PACKETS_MAX {
            match self.socket.try_recv_from(buffer) {
                Ok((len, _)) if PACKET_LEN_MAX < len => self.shared.metrics.to_next.dropped.count(),
                Ok((len, client)) => self.handle(now, client, &buffer[..len]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The system reports errors of earlier packets.
                Err(_) => {}
            }
        }
    }

    fn handle(&mut self, now: Instant, client: SocketAddr, packet: &[u8]) {
        let is_setup = SetupMessage::is_addressed_to(packet, self.shared.fingerprint);
        {
            let mut associations = self.shared.associations.lock();
            if !is_setup && let Some(association) = associations.touch(now, client) {
                // Tokio would not send on a new socket before it has polled it.
                let sent = SockRef::from(&*association.socket.socket).send(packet);
                count(&self.shared.metrics.to_next, packet, sent);
                return;
            }
            if let Some(acceptance) = associations.acceptance(client, packet) {
                answer(&self.socket, client, acceptance);
                return;
            }
        }
        match self.gate.answer(now, client, packet) {
            GateAnswer::Reply(reply) => answer(&self.socket, client, &reply),
            GateAnswer::Open(token) => self.open(now, client, packet, token),
            GateAnswer::Refuse(refusal) => self.refuse(now, client, refusal),
        }
    }

    fn open(&mut self, now: Instant, client: SocketAddr, packet: &[u8], token: ValidToken) {
        let room = self.shared.associations.lock().check_room(client, token.peer);
        let opened = room.and_then(|()| {
            self.connect(client, token.next).map_err(|error| {
                tracing::warn!(next = %token.next, %error, "could not open the socket of an association");
                RefusalReason::NoSocket
            })
        });
        let socket = match opened {
            Ok(socket) => socket,
            Err(reason) => {
                let refusal = self.gate.refuse_token(&token, reason);
                return self.refuse(now, client, refusal);
            }
        };
        let ValidToken { peer, next, acceptance, .. } = token;
        answer(&self.socket, client, &acceptance);
        tracing::debug!(client = %canonical(client), peer = %self.gate.peers()[peer], %next, "association opened");
        let association =
            Association { peer, next, socket, token: packet.to_vec(), acceptance, used_at: now };
        let mut associations = self.shared.associations.lock();
        if let Some(replaced) = associations.insert(client, association) {
            tracing::debug!(client = %canonical(client), next = %replaced.next, "association replaced");
        }
        self.shared.metrics.associations.set(associations.len() as i64);
    }

    fn connect(&self, client: SocketAddr, next: SocketAddr) -> io::Result<NextHop> {
        let any: SocketAddr = match next {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = std::net::UdpSocket::bind(any)?;
        socket.connect(next)?;
        socket.set_nonblocking(true)?;
        // A smaller buffer costs throughput only.
        let _ = SockRef::from(&socket).set_recv_buffer_size(BUFFER_LEN);
        let socket = Arc::new(UdpSocket::from_std(socket)?);
        let RelayMetrics { to_client, to_next, .. } = &self.shared.metrics;
        let rejected = to_next.dropped.clone();
        let returning =
            return_packets(socket.clone(), self.socket.clone(), client, to_client.clone(), rejected);
        let receiving = tokio::spawn(returning).abort_handle();
        Ok(NextHop { socket, receiving })
    }

    fn refuse(&mut self, now: Instant, client: SocketAddr, refusal: SetupRefusal) {
        let SetupRefusal { reason, reply } = refusal;
        self.shared.metrics.refused(reason.label()).count();
        if let Some(reply) = reply {
            answer(&self.socket, client, &reply);
        }
        if let Some(unlogged) = self.failures.record(now, SourceNetwork::of(client.ip())) {
            tracing::warn!(client = %canonical(client), %reason, unlogged, "the relay refused a packet");
        }
    }
}

/// Sends the packets of a next hop to the client, until the task is aborted; `rejected` counts packets that the next hop
/// rejected.
async fn return_packets(
    next: Arc<UdpSocket>,
    clients: Arc<UdpSocket>,
    client: SocketAddr,
    traffic: ForwardedTraffic,
    rejected: Counter,
) {
    let mut buffer = [0; PACKET_LEN_MAX + 1];
    loop {
        match next.recv(&mut buffer).await {
            Ok(len) if PACKET_LEN_MAX < len => traffic.dropped.count(),
            Ok(len) => count(&traffic, &buffer[..len], send(&clients, client, &buffer[..len])),
            // An earlier packet did not reach the next hop (ICMP).
            Err(_) => rejected.count(),
        }
    }
}

fn count(traffic: &ForwardedTraffic, packet: &[u8], sent: io::Result<usize>) {
    match sent {
        Ok(_) => traffic.count(packet.len()),
        Err(_) => traffic.dropped.count(),
    }
}

/// Sends an answer; the client repeats its message if the answer is lost.
fn answer(socket: &UdpSocket, client: SocketAddr, reply: &[u8]) {
    let _ = send(socket, client, reply);
}

fn send(socket: &UdpSocket, client: SocketAddr, packet: &[u8]) -> io::Result<usize> {
    SockRef::from(socket).send_to(packet, &client.into())
}
