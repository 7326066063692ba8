//! UDP forwards: one flow of datagrams per client address.
//!
//! Guarantees: answers go to the client whose datagrams they answer; an unreachable target or client ends no flow.
//!
//! Limits: [`Forward::connections_max`] clients per forward, of which the one that was idle longest makes room for a new one;
//! a flow ends after [`Forward::idle_max`] without datagrams. Datagrams have up to 65 507 bytes.

use std::collections::HashMap;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::net::{UdpSocket, lookup_host};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, interval, sleep};

use super::{AllowedTargets, Forward, ForwardProtocol};
use crate::datagram_flow::DatagramFlow;
use crate::flow::{DatagramMode, FlowLane, ResetCode};
use crate::link::Link;

/// Length of the longest UDP datagram.
const DATAGRAM_MAX: usize = 65_535;

/// Time between two looks for idle flows.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// Time after a refusal in which the datagrams of a client are dropped.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// Time in which the same refusal is not logged again.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Pause after a socket fails for another reason than an unreachable peer.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// Forwards the datagrams of a bound socket over the link, until the future is dropped.
pub async fn run(socket: UdpSocket, forward: Forward, mode: DatagramMode, link: Link) {
    let mut clients = ClientTable {
        socket: Arc::new(socket),
        forward,
        mode,
        link,
        flows: HashMap::new(),
        answers: JoinSet::new(),
        logged: None,
    };
    let mut buffer = vec![0; DATAGRAM_MAX];
    let mut sweep = interval(SWEEP_INTERVAL);
    let socket = clients.socket.clone();
    loop {
        tokio::select! {
            received = socket.recv_from(&mut buffer) => match received {
                Ok((len, client)) => clients.forward(client, Bytes::copy_from_slice(&buffer[..len])),
                Err(error) => {
                    tracing::debug!(listen = %clients.forward.listen, %error, "could not receive a datagram");
                    sleep(ERROR_PAUSE).await;
                }
            },
            Some(ended) = clients.answers.join_next() => {
                // Fails if the task was aborted because its flow was removed.
                if let Ok(ended) = ended {
                    clients.record_end(ended);
                }
            }
            _ = sweep.tick() => clients.remove_idle(),
        }
    }
}

/// The clients of a forward.
struct ClientTable {
    socket: Arc<UdpSocket>,
    forward: Forward,
    mode: DatagramMode,
    link: Link,
    flows: HashMap<SocketAddr, ClientFlow>,
    /// Tasks that pass answers to the clients.
    answers: JoinSet<EndedFlow>,
    /// Last refusal that was logged.
    logged: Option<(String, Instant)>,
}

/// Flow of one client.
struct ClientFlow {
    state: ClientState,
    used_at: Arc<Mutex<Instant>>,
}

enum ClientState {
    Open {
        flow: Arc<DatagramFlow>,
        answers: AbortHandle,
    },
    /// The flow was refused at this time.
    Refused(Instant),
}

/// End of a flow that this side did not end.
struct EndedFlow {
    client: SocketAddr,
    /// The table may have another flow of the client already.
    flow: Arc<DatagramFlow>,
    error: io::Error,
}

impl ClientTable {
    fn forward(&mut self, client: SocketAddr, data: Bytes) {
        let now = Instant::now();
        match self.flows.get(&client).map(|known| &known.state) {
            Some(ClientState::Open { .. }) => {}
            Some(ClientState::Refused(at)) if now < *at + REFUSED_PAUSE => return,
            Some(ClientState::Refused(_)) | None => self.open(client, now),
        }
        if let Some(ClientFlow { state: ClientState::Open { flow, .. }, used_at }) = self.flows.get(&client) {
            *used_at.lock() = now;
            // A flow that has ended is removed when its task ends.
            let _ = flow.send(data);
        }
    }

    fn open(&mut self, client: SocketAddr, now: Instant) {
        if self.forward.connections_max <= self.flows.len() && !self.flows.contains_key(&client) {
            let oldest = self.flows.iter().min_by_key(|(_, known)| *known.used_at.lock());
            if let Some(oldest) = oldest.map(|(client, _)| *client) {
                self.remove(oldest);
            }
        }
        let used_at = Arc::new(Mutex::new(now));
        let target = self.forward.target.to_string();
        let state = match self.link.open(FlowLane::Datagram(self.mode), &target) {
            Ok((send, recv)) => {
                let flow = Arc::new(DatagramFlow::new(send, recv));
                let answering = answer(self.socket.clone(), client, flow.clone(), used_at.clone());
                ClientState::Open { flow, answers: self.answers.spawn(answering) }
            }
            Err(error) => {
                self.log_refusal(now, error.to_string());
                ClientState::Refused(now)
            }
        };
        self.flows.insert(client, ClientFlow { state, used_at });
    }

    fn remove(&mut self, client: SocketAddr) {
        if let Some(ClientFlow { state: ClientState::Open { answers, .. }, .. }) = self.flows.remove(&client)
        {
            answers.abort();
        }
    }

    fn remove_idle(&mut self) {
        let now = Instant::now();
        let is_idle = |known: &ClientFlow| *known.used_at.lock() + self.forward.idle_max < now;
        let idle = self.flows.iter().filter(|(_, known)| is_idle(known)).map(|(client, _)| *client);
        for client in idle.collect::<Vec<_>>() {
            self.remove(client);
        }
    }

    /// Removes a flow that the other side or the link has ended; the next datagram opens another, after a pause if it was
    /// refused.
    fn record_end(&mut self, ended: EndedFlow) {
        let is_current = |known: &&mut ClientFlow| matches!(&known.state, ClientState::Open { flow, .. } if Arc::ptr_eq(flow, &ended.flow));
        let Some(known) = self.flows.get_mut(&ended.client).filter(is_current) else { return };
        if matches!(ended.error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::QuotaExceeded) {
            let now = Instant::now();
            known.state = ClientState::Refused(now);
            self.log_refusal(now, ended.error.to_string());
        } else {
            tracing::debug!(client = %ended.client, error = %ended.error, "the flow of a UDP client ended");
            self.flows.remove(&ended.client);
        }
    }

    fn log_refusal(&mut self, now: Instant, error: String) {
        let is_repeated = |(text, at): &(String, Instant)| *text == error && now < *at + LOG_INTERVAL;
        if !self.logged.as_ref().is_some_and(is_repeated) {
            tracing::warn!(to = %self.forward.target, error, "could not forward UDP datagrams");
            self.logged = Some((error, now));
        }
    }
}

/// Passes the answers of a flow to its client until the flow ends.
async fn answer(
    socket: Arc<UdpSocket>,
    client: SocketAddr,
    flow: Arc<DatagramFlow>,
    used_at: Arc<Mutex<Instant>>,
) -> EndedFlow {
    loop {
        match flow.receive().await {
            Ok(data) => {
                *used_at.lock() = Instant::now();
                if let Err(error) = socket.send_to(&data, client).await {
                    tracing::debug!(%client, %error, "could not pass a datagram to a client");
                }
            }
            Err(error) => return EndedFlow { client, flow, error },
        }
    }
}

/// Exchanges the datagrams of an accepted flow with its target, if that is allowed, until the flow ends.
pub async fn serve(flow: DatagramFlow, target: String, targets: &AllowedTargets) {
    if let Err(reason) = targets.check(ForwardProtocol::Udp, &target) {
        flow.reset(ResetCode::REFUSED, &reason);
        return;
    }
    let socket = match connect(&target).await {
        Ok(socket) => socket,
        Err(error) => {
            tracing::warn!(to = %target, %error, "could not open a socket for the target of a UDP forward");
            flow.reset(ResetCode::REFUSED, &format!("could not open a socket for {target}: {error}"));
            return;
        }
    };
    let mut buffer = vec![0; DATAGRAM_MAX];
    loop {
        tokio::select! {
            data = flow.receive() => match data {
                Ok(data) => {
                    if let Err(error) = socket.send(&data).await {
                        tracing::debug!(to = %target, %error, "could not pass a datagram to its target");
                    }
                }
                Err(_) => return,
            },
            received = socket.recv(&mut buffer) => match received {
                Ok(len) => {
                    if flow.send(Bytes::copy_from_slice(&buffer[..len])).is_err() {
                        return;
                    }
                }
                // The target does not listen at the moment.
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Err(error) => {
                    tracing::debug!(to = %target, %error, "could not receive from the target of a UDP forward");
                    sleep(ERROR_PAUSE).await;
                }
            },
        }
    }
}

/// Opens a socket that exchanges datagrams only with a target.
async fn connect(target: &str) -> io::Result<UdpSocket> {
    let address = lookup_host(target).await?.next();
    let address = address.ok_or_else(|| io::Error::other("the name has no address"))?;
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    Ok(socket)
}
