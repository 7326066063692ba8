//! Accepts connections, bounded in number, and lets them finish when it stops.
//!
//! Bound: at most `connections_max` are open; the next is not accepted before one ends. Heads, headers, bodies, streams
//! and the waits for them have limits. Stopping takes at most `drain_max`, and what it cut is counted.

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
use crate::route::Routes;
use crate::service::{BodyLength, RequestService};
use crate::tenant::{Authenticator, Exposure};
use crate::timer::ConnectionTimer;
use crate::tls::Tls;

/// How long accepting pauses when the system has no descriptors to give.
const ACCEPT_PAUSE: Duration = Duration::from_millis(20);
/// hyper needs that much to read heads.
const HEAD_BYTES_MIN: usize = 8 * 1024;
/// How many headers hyper takes unless it is told otherwise.
const HEADERS_MAX_OF_HYPER: usize = 100;

/// The limits of a listener.
#[derive(Clone, Debug)]
pub struct ListenerLimits {
    /// Connections open at once.
    pub connections_max: usize,
    /// Bytes of a request's head, 8 KiB or more.
    pub head_bytes_max: usize,
    /// Headers of a request (HTTP/1.1).
    pub headers_max: usize,
    /// How long a head may take, a handshake too; also how long a connection may be idle (HTTP/1.1).
    pub head_wait_max: Duration,
    /// Bytes of a request's body.
    pub body_bytes_max: usize,
    /// How long a body may take.
    pub body_wait_max: Duration,
    /// How long a client may take nothing of what is sent to it.
    pub write_wait_max: Duration,
    /// Requests at once on one connection (h2).
    pub streams_max: u32,
    /// How long requests in flight may take once it stops.
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

/// What was cut when a listener stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that had not ended by themselves.
    pub connections_cut: usize,
    /// Requests that had not been answered in full.
    pub requests_cut: usize,
}

/// A bound port, not yet serving.
pub struct Listener {
    tcp: TcpListener,
    tls: Option<Arc<Tls>>,
    limits: ListenerLimits,
}

impl Listener {
    /// Binds a port.
    pub async fn bind(
        address: SocketAddr,
        tls: Option<Arc<Tls>>,
        mut limits: ListenerLimits,
    ) -> io::Result<Self> {
        limits.head_bytes_max = limits.head_bytes_max.max(HEAD_BYTES_MIN);
        Ok(Self { tcp: TcpListener::bind(address).await?, tls, limits })
    }

    /// The address it has, with the port the system picked.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }

    /// Who can reach it.
    pub fn exposure(&self) -> io::Result<Exposure> {
        Ok(match &self.tls {
            _ if self.local_addr()?.ip().is_loopback() => Exposure::Loopback,
            Some(_) => Exposure::Tls,
            None => Exposure::Clear,
        })
    }

    /// Serves until `stop` is ready, then lets requests in flight finish.
    pub async fn serve(
        self,
        gate: Arc<Authenticator>,
        routes: Routes,
        stop: impl Future<Output = ()>,
    ) -> io::Result<DrainReport> {
        let in_flight = Arc::new(AtomicUsize::new(0));
        let walk = RequestService {
            gate,
            routes,
            ids: RequestIds::new().map_err(|_| io::Error::other("no randomness"))?,
            in_flight: in_flight.clone(),
            body_bytes_max: self.limits.body_bytes_max,
            body_wait_max: self.limits.body_wait_max,
        };
        let drain_max = self.limits.drain_max;
        let (stopping, stopped) = watch::channel(());
        let mut open = JoinSet::new();
        self.accept(Arc::new(walk), stopped, &mut open, stop).await;
        drop(stopping);
        let all_end = async { while open.join_next().await.is_some() {} };
        if timeout(drain_max, all_end).await.is_ok() {
            return Ok(DrainReport { connections_cut: 0, requests_cut: 0 });
        }
        while open.try_join_next().is_some() {}
        let cut =
            DrainReport { connections_cut: open.len(), requests_cut: in_flight.load(Ordering::Relaxed) };
        open.shutdown().await;
        Ok(cut)
    }

    /// Accepts until `stop` is ready; the port is closed after that.
    async fn accept(
        self,
        walk: Arc<RequestService>,
        stopped: watch::Receiver<()>,
        open: &mut JoinSet<()>,
        stop: impl Future<Output = ()>,
    ) {
        let mut stop = pin!(stop);
        let places = Arc::new(Semaphore::new(self.limits.connections_max));
        let servers = Arc::new(Servers::new(&self.limits));
        loop {
            let (stream, peer, place) = tokio::select! {
                biased;
                () = &mut stop => return,
                Some(_) = open.join_next() => continue,
                accepted = accept_one(&self.tcp, &places) => accepted,
            };
            let connection = Connection {
                peer,
                walk: walk.clone(),
                servers: servers.clone(),
                stopped: stopped.clone(),
                head_wait_max: self.limits.head_wait_max,
                write_wait_max: self.limits.write_wait_max,
            };
            let tls = self.tls.as_ref().map(|tls| tls.config());
            open.spawn(async move {
                let _place = place;
                // A small answer must not wait for an acknowledgement; a socket that refuses is gone anyway.
                let _ = stream.set_nodelay(true);
                match tls {
                    Some(config) => connection.over_tls(TlsAcceptor::from(config), stream).await,
                    None => connection.over(stream).await,
                }
            });
        }
    }
}

async fn accept_one(
    tcp: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, SocketAddr, OwnedSemaphorePermit) {
    let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
    loop {
        match tcp.accept().await {
            Ok((stream, peer)) => return (stream, peer, place),
            Err(error) if is_of_one_peer(&error) => {}
            Err(_) => sleep(ACCEPT_PAUSE).await,
        }
    }
}

fn is_of_one_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

/// hyper's servers, set up once.
struct Servers {
    http1: http1::Builder,
    http2: http2::Builder<TokioExecutor>,
}

impl Servers {
    fn new(limits: &ListenerLimits) -> Self {
        let mut http1 = http1::Builder::new();
        // Every connection brings a timer of its own.
        http1
            .header_read_timeout(limits.head_wait_max)
            .max_buf_size(limits.head_bytes_max)
            .max_header_size(limits.head_bytes_max);
        // Its own limit costs hyper nothing; any other, a list made for each request.
        if limits.headers_max != HEADERS_MAX_OF_HYPER {
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
    walk: Arc<RequestService>,
    servers: Arc<Servers>,
    stopped: watch::Receiver<()>,
    head_wait_max: Duration,
    write_wait_max: Duration,
}

impl Connection {
    async fn over_tls(mut self, acceptor: TlsAcceptor, stream: TcpStream) {
        let handshake = timeout(self.head_wait_max, acceptor.accept(stream));
        let shaken = tokio::select! {
            shaken = handshake => shaken,
            _ = self.stopped.changed() => return,
        };
        if let Ok(Ok(stream)) = shaken {
            self.over(stream).await;
        }
    }

    async fn over<I: AsyncRead + AsyncWrite + Unpin + Send + 'static>(mut self, stream: I) {
        let begun = tokio::select! {
            begun = timeout(self.head_wait_max, InspectedStream::begin(stream, self.write_wait_max)) => begun,
            _ = self.stopped.changed() => return,
        };
        let Ok(Ok((stream, version, suspect))) = begun else { return };
        // How a connection ends is the client's affair: whoever was being answered is told by `Disconnect`.
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
        let walk = self.walk;
        let peer = self.peer;
        let number = AtomicU64::new(0);
        let service = service_fn(move |request| {
            let number = number.fetch_add(1, Ordering::Relaxed);
            let length = if suspect.reaches(number) { BodyLength::Doubtful } else { BodyLength::Clear };
            let walk = walk.clone();
            async move { Ok::<_, core::convert::Infallible>(walk.answer(request, peer, length).await) }
        });
        let mut server = self.servers.http1.clone();
        server.timer(ConnectionTimer::default());
        let mut serving = CoalesceWakes::new(server.serve_connection(TokioIo::new(stream), service));
        // To be asked whether it is over takes a lock that all connections share.
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
        let walk = self.walk;
        let peer = self.peer;
        let service = service_fn(move |request| {
            let walk = walk.clone();
            async move { Ok::<_, core::convert::Infallible>(walk.answer(request, peer, BodyLength::Clear).await) }
        });
        let mut serving = pin!(self.servers.http2.serve_connection(TokioIo::new(stream), service));
        tokio::select! {
            ended = &mut serving => return ended,
            _ = self.stopped.changed() => serving.as_mut().graceful_shutdown(),
        }
        serving.await
    }
}
