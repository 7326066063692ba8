//! Accepts connections up to a maximum, and drains them on graceful shutdown.
//!
//! Limits: at most `connections_max` connections are open; the next is accepted when one closes. Heads, headers, bodies,
//! streams and the time to receive them are limited. A graceful shutdown takes at most `drain_max`; the connections and
//! requests that it cuts off are counted.

use core::net::SocketAddr;
use core::pin::pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::io;
use std::sync::Arc;

use evenkeel_policy::time::Duration;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;

use crate::coalesce_wakes::CoalesceWakes;
use crate::connection::{InspectedStream, SmugglingSuspect, Version};
use crate::request_id::RequestIds;
use crate::route::{Encryption, Routes};
use crate::service::{BodyLength, RequestService};
use crate::tenant::{Authenticator, Exposure};
use crate::timer::ConnectionTimer;
use crate::tls::Tls;

/// Pause after `accept` failed, for example because the process has no free file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// hyper's minimum size of the buffer for heads.
const HEAD_BYTES_MIN: usize = 8 * 1024;
/// hyper's default header limit.
const HYPER_HEADERS_MAX: usize = 100;

/// Limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Maximum of open connections.
    pub connections_max: usize,
    /// Maximum size of a request's head; raised to 8 KiB if less.
    pub head_bytes_max: usize,
    /// Maximum of headers in a request (HTTP/1.1).
    pub headers_max: usize,
    /// Timeout for receiving a head and for a TLS handshake; also the idle timeout of a connection (HTTP/1.1).
    pub head_wait_max: Duration,
    /// Maximum size of a request's body.
    pub body_bytes_max: usize,
    /// Timeout for receiving a body.
    pub body_wait_max: Duration,
    /// Timeout of a write that is pending because the client does not read.
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
            head_bytes_max: 64 * 1024,
            headers_max: 100,
            head_wait_max: Duration::from_secs(30),
            body_bytes_max: 32 * 1024 * 1024,
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
}

impl Listener {
    pub async fn bind(
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
        mut limits: ListenerLimits,
    ) -> io::Result<Self> {
        limits.head_bytes_max = limits.head_bytes_max.max(HEAD_BYTES_MIN);
        Ok(Self { tcp: TcpListener::bind(address).await?, tls, limits })
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
            body_bytes_max: self.limits.body_bytes_max,
            body_wait_max: self.limits.body_wait_max,
            encryption: if self.tls.is_some() { Encryption::Tls } else { Encryption::None },
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
        let permits = Arc::new(Semaphore::new(self.limits.connections_max));
        let servers = Arc::new(Servers::new(&self.limits));
        loop {
            let (stream, peer, permit) = tokio::select! {
                biased;
                () = &mut stop => return,
                Some(_) = open.join_next() => continue,
                accepted = accept_one(&self.tcp, &permits) => accepted,
            };
            let connection = Connection {
                peer,
                service: service.clone(),
                servers: servers.clone(),
                stopped: stopped.clone(),
                head_wait_max: self.limits.head_wait_max,
                write_wait_max: self.limits.write_wait_max,
            };
            let tls = self.tls.as_ref().map(|tls| tls.config());
            open.spawn(async move {
                let _permit = permit;
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

async fn accept_one(
    tcp: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let permit = permits.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match tcp.accept().await {
            Ok((stream, peer)) => return (stream, peer, permit),
            Err(error) if is_peer_error(&error) => {}
            Err(_) => sleep(ACCEPT_PAUSE).await,
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
    http2: http2::Builder<TokioExecutor>,
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
        let mut http2 = http2::Builder::new(TokioExecutor::new());
        http2
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(limits.head_bytes_max).unwrap_or(u32::MAX))
            .max_concurrent_streams(limits.streams_max)
            .keep_alive_interval(limits.head_wait_max)
            .keep_alive_timeout(limits.head_wait_max);
        Self { http1, http2 }
    }
}

struct Connection {
    peer: SocketAddr,
    service: Arc<RequestService>,
    servers: Arc<Servers>,
    stopped: watch::Receiver<()>,
    head_wait_max: Duration,
    write_wait_max: Duration,
}

impl Connection {
    async fn serve_tls(mut self, acceptor: TlsAcceptor, stream: TcpStream) {
        let handshake = timeout(self.head_wait_max, acceptor.accept(stream));
        let result = tokio::select! {
            result = handshake => result,
            _ = self.stopped.changed() => return,
        };
        if let Ok(Ok(stream)) = result {
            self.serve(stream).await;
        }
    }

    async fn serve<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(mut self, stream: I) {
        let detection = timeout(self.head_wait_max, InspectedStream::begin(stream, self.write_wait_max));
        let detected = tokio::select! {
            detected = detection => detected,
            _ = self.stopped.changed() => return,
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
        let peer = self.peer;
        let number = AtomicU64::new(0);
        let service = service_fn(move |request| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let length = if suspect.reaches(number) { BodyLength::Ambiguous } else { BodyLength::Clear };
            let requests = requests.clone();
            async move { Ok::<_, core::convert::Infallible>(requests.handle(request, peer, length).await) }
        });
        let mut server = self.servers.http1.clone();
        server.timer(ConnectionTimer::default());
        let mut serving = CoalesceWakes::new(server.serve_connection(TokioIo::new(stream), service));
        // Polled only when it wakes: each poll of a watch channel takes a lock that all connections share.
        let mut stopped = CoalesceWakes::new(async move { self.stopped.changed().await.is_ok() });
        tokio::select! {
            biased;
            ended = &mut serving => return ended,
            _ = &mut stopped => serving.inner().graceful_shutdown(),
        }
        serving.await
    }

    async fn http2<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        mut self,
        stream: InspectedStream<I>,
    ) -> hyper::Result<()> {
        let requests = self.service;
        let peer = self.peer;
        let service = service_fn(move |request| {
            let requests = requests.clone();
            async move {
                Ok::<_, core::convert::Infallible>(requests.handle(request, peer, BodyLength::Clear).await)
            }
        });
        let mut serving = pin!(self.servers.http2.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = &mut serving => return ended,
            _ = self.stopped.changed() => serving.as_mut().graceful_shutdown(),
        }
        serving.await
    }
}
