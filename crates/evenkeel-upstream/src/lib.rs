//! Requests to nodes over HTTP/1.1, on connections that are kept.
//!
//! Bounds: at most `max_idle_per_host` idle connections per host, each for `idle_timeout` at most; `connect_timeout` for
//! names, sockets and TLS together; `request_timeout` until the answer's head, and from then on between its chunks.
//!
//! A connection has no task of its own. Whoever waits for an answer, or reads its body, moves it on; whoever lets go of
//! either closes it, which an engine notices and stops generating.

mod body;
mod connect;
mod connection;
mod error;
mod framing;
mod head;
mod origin;
mod pool;
pub mod response_parser;
mod roots;

pub use body::UpstreamBody;
pub use error::UpstreamError;
pub use origin::{BadUrl, Origin};
pub use roots::{BadRoots, TlsRoots};

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_pipeline::PoolStats;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::time::Duration;
use http::{HeaderName, HeaderValue, Request, Response};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use connection::{Connection, ConnectionAge, ExchangeError, Progress};
use pool::ConnectionPool;

/// Sends requests to nodes; cheap to clone, and clones share their connections.
#[derive(Clone)]
pub struct Upstream {
    settings: ConnectionPoolConfig,
    tls: TlsConnector,
    pool: Arc<ConnectionPool>,
}

/// What a node gets of a request's headers, and what it gets besides.
#[derive(Clone, Copy)]
pub struct HeaderFilter<'a> {
    pub keeps: fn(&HeaderName) -> bool,
    pub adds: &'a [(&'static str, &'a HeaderValue)],
}

impl Upstream {
    /// Starts without connections.
    pub fn new(settings: ConnectionPoolConfig, roots: TlsRoots) -> Self {
        let pool = Arc::new(ConnectionPool::new(settings.max_idle_per_host, settings.idle_timeout));
        Self { settings, tls: TlsConnector::from(roots.into_config()), pool }
    }

    /// Sends a request, and waits for the head of its answer.
    pub async fn send(
        &self,
        origin: &Origin,
        request: &Request<Bytes>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        self.send_filtered(origin, request, HeaderFilter { keeps: |_| true, adds: &[] }).await
    }

    /// Sends a request with some of its headers and some others, and waits for the head of its answer.
    ///
    /// The request names a path, which the origin's base goes in front of; `Host` and the length are set here. A kept
    /// connection that turns out to be closed before any of the answer came is replaced by a new one, once. Dropping
    /// the future closes the connection.
    pub async fn send_filtered(
        &self,
        origin: &Origin,
        request: &Request<Bytes>,
        passed: HeaderFilter<'_>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        let host = self.pool.host(origin);
        if let Some(mut link) = self.pool.take(&host) {
            match link.exchange(origin, request, passed, ConnectionAge::Reused).await {
                Ok(response) => {
                    self.pool.counters.count_reuse();
                    return Ok(self.answered(response, link, host));
                }
                Err(failed) if !is_stale(&failed) => return Err(failed.error),
                Err(_) => {}
            }
        }
        let wire = connect::connect(origin, &self.settings, &self.tls).await?;
        let mut link = Box::new(Connection::new(wire, self.settings.request_timeout, &self.pool.counters));
        match link.exchange(origin, request, passed, ConnectionAge::New).await {
            Ok(response) => Ok(self.answered(response, link, host)),
            Err(failed) => Err(failed.error),
        }
    }

    fn answered(
        &self,
        response: Response<()>,
        link: Box<Connection>,
        host: Arc<pool::HostPool>,
    ) -> Response<UpstreamBody> {
        response.map(|()| UpstreamBody::new(link, host, self.pool.clone()))
    }

    /// Tells how many connections there are, and were.
    pub fn stats(&self) -> PoolStats {
        self.pool.counters.stats()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let settings = &self.settings;
        let stats = self.stats();
        f.debug_struct("Upstream").field("settings", settings).field("stats", &stats).finish_non_exhaustive()
    }
}

/// Whether a kept connection failed because its host had closed it.
fn is_stale(failed: &ExchangeError) -> bool {
    match failed.after {
        Progress::Unsent => true,
        Progress::Sent => matches!(failed.error, UpstreamError::Closed { .. }),
        Progress::Answered => false,
    }
}

/// Names the point a span from now; a span beyond what can be named ends in thirty years.
fn after(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
}
