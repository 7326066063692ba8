//! Accepts connections up to a maximum, and drains them on graceful shutdown.
//!
//! Limits: at most `connections_max` connections are open, plus a few for probes and administrators (`connections`); the
//! next takes the place of an idle one. Heads, headers, bodies, streams and the time to receive them are limited. A graceful shutdown takes at most `drain_max`; the connections and
//! requests that it cuts off are counted.

use core::net::SocketAddr;
use core::pin::{self, pin};
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::io;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_policy::time::Duration;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::body_budget::BodyBudget;
use crate::coalesce_wakes::CoalesceWakes;
use crate::connection::{InspectedStream, SmugglingSuspect, Version, WriteLimits};
use crate::connections::{ConnectionGuard, ConnectionLimits, Connections, OpenConnection};
use crate::metrics::ServerMetrics;
use crate::received_body::BodyLimits;
use crate::request_id::RequestIds;
use crate::route::{Encryption, Routes};
use crate::sending::{Http1Driver, ResponseStream, StreamExecutor};
use crate::service::{BodyLength, RequestOrigin, RequestService};
use crate::tenant::{Authenticator, Exposure};
use crate::timer::ConnectionTimer;
use crate::tls::Tls;

/// Pause after `accept` failed, for example because the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// Minimum interval between log lines about failures of `accept`.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// Time for an evicted connection to send the end of its last response.
const EVICTION_MAX: Duration = Duration::from_secs(1);
/// hyper's minimum size of the buffer for heads.
const HEAD_BYTES_MIN: usize = 8 * 1024;
/// hyper's default header limit.
const HYPER_HEADERS_MAX: usize = 100;

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Maximum of open connections; a few more are accepted for probes and administrators.
    pub connections_max: usize,
    /// Maximum of open connections of one address, of IPv6 a /64 network, plus a few for probes and administrators;
    /// `None` means no limit.
    pub connections_per_address_max: Option<usize>,
    /// Maximum size of a request's head; raised to 8 KiB if less.
    pub head_bytes_max: usize,
    /// Maximum of headers in a request (HTTP/1.1).
    pub headers_max: usize,
    /// Timeout for receiving a head and for a TLS handshake; also the idle timeout of a connection (HTTP/1.1).
    pub head_wait_max: Duration,
    /// Maximum size of a request's body.
    pub body_bytes_max: usize,
    /// Maximum size of all request bodies in memory.
    pub bodies_bytes_max: usize,
    /// Timeout for receiving a body.
    pub body_wait_max: Duration,
    /// Time after which a client that reads less than 1 KiB/s is disconnected.
    pub write_wait_max: Duration,
    /// Maximum of concurrent requests on one connection (HTTP/2).
    pub streams_max: u32,
    /// Time for requests in flight to finish on shutdown.
    pub drain_max: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            connections_max: 10_000,
            connections_per_address_max: None,
            head_bytes_max: 64 * 1024,
            headers_max: 100,
            head_wait_max: Duration::from_secs(30),
            body_bytes_max: 32 * 1024 * 1024,
            bodies_bytes_max: 256 * 1024 * 1024,
            body_wait_max: Duration::from_secs(60),
            write_wait_max: Duration::from_secs(60),
            streams_max: 200,
            drain_max: Duration::from_secs(30),
        }
    }
}

/// Connections and requests that a shutdown cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    pub connections_cut: usize,
    pub requests_cut: usize,
}

/// A bound port; it accepts no connections until [`Listener::serve`].
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Arc<Tls>>,
    limits: ListenerLimits,
    metrics: ServerMetrics,
}

impl Listener {
    pub async fn bind(
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
        mut limits: ListenerLimits,
    ) -> io::Result<Self> {
        limits.head_bytes_max = limits.head_bytes_max.max(HEAD_BYTES_MIN);
        let tcp = TcpListener::bind(address).await?;
        Ok(Self { tcp, tls, limits, metrics: ServerMetrics::default() })
    }

    /// Exports the server's metrics.
    pub fn set_metrics(&mut self, metrics: ServerMetrics) {
        self.metrics = metrics;
    }

    /// Returns the bound address, with the port that the system chose.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Returns the reachability of the listener: this machine only, or other machines with or without TLS.
    pub fn exposure(&self) -> io::Result<Exposure> {
        Ok(match &self.tls {
            _ if self.local_addr()?.ip().is_loopback() => Exposure::Loopback,
            Some(_) => Exposure::Tls,
            None => Exposure::Clear,
        })
    }

    /// Serves until `stop` resolves, then drains: requests in flight may finish within `drain_max`.
    pub async fn serve(
        self,
        auth: Arc<Authenticator>,
        routes: Routes,
        stop: impl Future<Output = ()>,
    ) -> io::Result<DrainReport> {
        let in_flight = Arc::new(AtomicUsize::new(0));
        let service = RequestService {
            auth,
            routes,
            ids: RequestIds::new()
                .map_err(|_| io::Error::other("the system's random number generator failed"))?,
            in_flight: in_flight.clone(),
            budget: BodyBudget::new(self.limits.bodies_bytes_max as u64, self.metrics.bodies.clone()),
            body_limits: BodyLimits {
                bytes_max: self.limits.body_bytes_max as u64,
                wait_max: self.limits.body_wait_max,
            },
            encryption: if self.tls.is_some() { Encryption::Tls } else { Encryption::None },
            responses: self.metrics.responses.clone(),
        };
        let drain_max = self.limits.drain_max;
        let (stopping, stopped) = watch::channel(());
        let mut open = JoinSet::new();
        self.accept(Arc::new(service), stopped, &mut open, stop).await;
        drop(stopping);
        let drained = async { while open.join_next().await.is_some() {} };
        if timeout(drain_max, drained).await.is_ok() {
            return Ok(DrainReport { connections_cut: 0, requests_cut: 0 });
        }
        while open.try_join_next().is_some() {}
        let cut =
            DrainReport { connections_cut: open.len(), requests_cut: in_flight.load(Ordering::Relaxed) };
        open.shutdown().await;
        Ok(cut)
    }

    /// Accepts connections until `stop` resolves, then closes the port.
    async fn accept(
        self,
        service: Arc<RequestService>,
        stopped: watch::Receiver<()>,
        open: &mut JoinSet<()>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = pin!(stop);
        let limits = ConnectionLimits {
            connections_max: self.limits.connections_max,
            per_address_max: self.limits.connections_per_address_max,
        };
        let connections = Connections::new(limits, self.metrics.connections.clone());
        let mut acceptor = Acceptor { tcp: self.tcp, connections, logged_at: None };
        let servers = Arc::new(Servers::new(&self.limits));
        loop {
            let Accepted { stream, peer, guard } = tokio::select! {
                biased;
                () = &mut stop => return,
                Some(_) = open.join_next() => continue,
                accepted = acceptor.accept() => accepted,
            };
            let connection = Connection {
                peer,
                service: service.clone(),
                servers: servers.clone(),
                close: CloseSignal { stopped: stopped.clone(), connection: guard.0.clone() },
                head_wait_max: self.limits.head_wait_max,
                writes: WriteLimits {
                    wait_max: self.limits.write_wait_max,
                    slow_readers: self.metrics.slow_readers.clone(),
                },
            };
            let tls = self.tls.as_ref().map(|tls| tls.config());
            open.spawn(async move {
                let _guard = guard;
                // Nagle's algorithm would delay small responses. An error means that the socket is closed.
                let _ = stream.set_nodelay(true);
                match tls {
                    Some(config) => connection.serve_tls(TlsAcceptor::from(config), stream).await,
                    None => connection.serve(stream).await,
                }
            });
        }
    }
}

/// A connection that was accepted.
struct Accepted {
    stream: TcpStream,
    peer: SocketAddr,
    guard: ConnectionGuard,
}

/// Accepts connections, and evicts idle ones to make room.
struct Acceptor {
    tcp: TcpListener,
    connections: Arc<Connections>,
    /// Time of the last log line about a failure.
    logged_at: Option<Instant>,
}

impl Acceptor {
    async fn accept(&mut self) -> Accepted {
        loop {
            match self.tcp.accept().await {
                Ok((stream, peer)) => {
                    if let Some(guard) = self.connections.admit(peer.ip(), Instant::now()) {
                        return Accepted { stream, peer, guard };
                    }
                }
                Err(error) if is_peer_error(&error) => {}
                Err(error) => {
                    self.on_failure(&error);
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Logs a failure, usually a lack of file descriptors, and closes an idle connection to get one back.
    fn on_failure(&mut self, error: &io::Error) {
        let now = Instant::now();
        self.connections.count_accept_error();
        self.connections.evict(now);
        if self.logged_at.is_none_or(|at| ACCEPT_LOG_INTERVAL <= now.duration_since(at)) {
            self.logged_at = Some(now);
            tracing::error!(target: "evenkeel", %error, "could not accept a connection; if the process has too few file descriptors, raise its limit (ulimit -n, LimitNOFILE)");
        }
    }
}

/// Reports whether an error of `accept` concerns one peer only, so that the next `accept` needs no pause.
fn is_peer_error(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// hyper's configured servers, shared by all connections.
struct Servers {
    http1: http1::Builder,
    limits: ListenerLimits,
}

impl Servers {
    fn new(limits: &ListenerLimits) -> Self {
        let mut http1 = http1::Builder::new();
        // Each connection sets its own timer.
        http1
            .header_read_timeout(limits.head_wait_max)
            .max_buf_size(limits.head_bytes_max)
            .max_header_size(limits.head_bytes_max);
        // With any limit but the default, hyper allocates a list for every request.
        if limits.headers_max != HYPER_HEADERS_MAX {
            http1.max_headers(limits.headers_max);
        }
        Self { http1, limits: limits.clone() }
    }

    fn http2(&self, streams: StreamExecutor) -> http2::Builder<StreamExecutor> {
        let mut http2 = http2::Builder::new(streams);
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(self.limits.head_bytes_max).unwrap_or(u32::MAX))
            .max_concurrent_streams(self.limits.streams_max)
            .keep_alive_interval(self.limits.head_wait_max)
            .keep_alive_timeout(self.limits.head_wait_max);
        http2
    }
}

struct Connection {
    peer: SocketAddr,
    service: Arc<RequestService>,
    servers: Arc<Servers>,
    close: CloseSignal,
    head_wait_max: Duration,
    writes: WriteLimits,
}

/// Signals that a connection must close.
struct CloseSignal {
    stopped: watch::Receiver<()>,
    connection: Arc<OpenConnection>,
}

/// Reason why a connection must close.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CloseReason {
    /// The server shuts down.
    Shutdown,
    /// Another connection needs the place.
    Evicted,
}

impl CloseSignal {
    async fn received(&mut self) -> CloseReason {
        tokio::select! {
            _ = self.stopped.changed() => CloseReason::Shutdown,
            () = self.connection.evicted() => CloseReason::Evicted,
        }
    }
}

/// Waits until a connection that was asked to close has sent its last response.
///
/// An evicted connection without a request in flight gets little time, and none if it never sent a request.
async fn finish(
    serving: impl Future<Output = hyper::Result<()>>,
    reason: CloseReason,
    connection: &OpenConnection,
) -> hyper::Result<()> {
    let mut serving = pin!(serving);
    if reason == CloseReason::Evicted {
        let time_max = if connection.has_received_request() { EVICTION_MAX } else { Duration::ZERO };
        match timeout(time_max, &mut serving).await {
            Ok(ended) => return ended,
            Err(_) if connection.is_idle() => return Ok(()),
            Err(_) => {}
        }
    }
    serving.await
}

impl Connection {
    async fn serve_tls(mut self, acceptor: TlsAcceptor, stream: TcpStream) {
        let handshake = timeout(self.head_wait_max, acceptor.accept(stream));
        let result = tokio::select! {
            result = handshake => result,
            _ = self.close.received() => return,
        };
        if let Ok(Ok(stream)) = result {
            self.serve(stream).await;
        }
    }

    async fn serve<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(mut self, stream: I) {
        let detection = timeout(self.head_wait_max, InspectedStream::begin(stream, self.writes.clone()));
        let detected = tokio::select! {
            detected = detection => detected,
            _ = self.close.received() => return,
        };
        let Ok(Ok((stream, version, suspect))) = detected else { return };
        // An error of the connection is ignored: `Disconnect` signals it to the requests that it concerns.
        let _ = match version {
            Version::Http1 => self.http1(stream, suspect).await,
            Version::Http2 => self.http2(stream).await,
        };
    }

    async fn http1<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        mut self,
        stream: InspectedStream<I>,
        suspect: SmugglingSuspect,
    ) -> hyper::Result<()> {
        let requests = self.service;
        let client = RequestOrigin { peer: self.peer, connection: self.close.connection.clone() };
        let open = client.connection.clone();
        let number = AtomicU64::new(0);
        let sending = ResponseStream::http1();
        let current = sending.clone();
        let service = service_fn(move |request| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let length = if suspect.reaches(number) { BodyLength::Ambiguous } else { BodyLength::Clear };
            let requests = requests.clone();
            let sending = current.clone();
            let client = client.clone();
            async move {
                let response = requests.handle(request, client, length, sending).await;
                Ok::<_, core::convert::Infallible>(response)
            }
        });
        let mut server = self.servers.http1.clone();
        server.timer(ConnectionTimer::default());
        let connection = server.serve_connection(TokioIo::new(stream), service);
        let mut serving = CoalesceWakes::new(Http1Driver { connection, sending });
        // Polled only when it wakes: each poll of a watch channel takes a lock that all connections share.
        let mut close = CoalesceWakes::new(async move { self.close.received().await });
        let reason = tokio::select! {
            biased;
            ended = &mut serving => return ended,
            reason = &mut close => reason,
        };
        pin::Pin::new(&mut serving.inner().connection).graceful_shutdown();
        finish(serving, reason, &open).await
    }

    async fn http2<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        mut self,
        stream: InspectedStream<I>,
    ) -> hyper::Result<()> {
        let requests = self.service;
        let client = RequestOrigin { peer: self.peer, connection: self.close.connection.clone() };
        let open = client.connection.clone();
        let streams = StreamExecutor::new(self.writes.wait_max, self.writes.slow_readers.clone());
        let server = self.servers.http2(streams.clone());
        let service = service_fn(move |request| {
            let requests = requests.clone();
            let sending = streams.next_stream();
            let client = client.clone();
            async move {
                let response = requests.handle(request, client, BodyLength::Clear, sending).await;
                Ok::<_, core::convert::Infallible>(response)
            }
        });
        let mut serving = pin!(server.serve_connection(TokioIo::new(stream), service));
        let reason = tokio::select! {
            ended = &mut serving => return ended,
            reason = self.close.received() => reason,
        };
        serving.as_mut().graceful_shutdown();
        finish(serving, reason, &open).await
    }
}
