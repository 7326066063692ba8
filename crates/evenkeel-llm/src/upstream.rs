//! Requests to nodes over HTTP/1.1, on connections that are kept.
//!
//! Bounds: at most `max_idle_per_host` idle connections per host, each for `idle_timeout` at most; `connect_timeout` for
//! names, sockets and TLS together; `request_timeout` until the answer's head, and from then on between its chunks.
//!
//! A connection has no task of its own. Whoever waits for an answer, or reads its body, moves it on; whoever lets go of
//! either closes it, which an engine notices and stops generating.

mod bell;
mod body;
mod connect;
mod error;
mod link;
mod origin;
mod pool;
mod roots;

pub use body::UpstreamBody;
pub use error::SendError;
pub use origin::{BadUrl, Origin};
pub use roots::{BadRoots, TlsRoots};

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_pipeline::PoolStats;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::time::Duration;
use http::{Request, Response, Version, header};
use http_body_util::Full;
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use link::{Answer, Failed, Link};
use pool::Pool;

/// Sends requests to nodes; cheap to clone, and clones share their connections.
#[derive(Clone)]
pub struct Upstream {
    settings: ConnectionPoolConfig,
    tls: TlsConnector,
    pool: Arc<Pool>,
}

impl Upstream {
    /// Starts without connections.
    pub fn new(settings: ConnectionPoolConfig, roots: TlsRoots) -> Self {
        let pool = Arc::new(Pool::new(settings.max_idle_per_host, settings.idle_timeout));
        Self { settings, tls: TlsConnector::from(roots.into_config()), pool }
    }

    /// Sends a request, and waits for the head of its answer; see [`send_made`](Self::send_made).
    pub async fn send(
        &self,
        origin: &Origin,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<UpstreamBody>, SendError> {
        self.send_made(origin, || request.clone()).await
    }

    /// Sends the request that `make` makes, and waits for the head of its answer.
    ///
    /// The request names a path, which the origin's base goes in front of; `Host` and the length are set here. A kept
    /// connection that turns out to be closed before any of the answer came is replaced by a new one, once, and the
    /// request is made again for it. Dropping the future closes the connection.
    pub async fn send_made(
        &self,
        origin: &Origin,
        make: impl Fn() -> Request<Full<Bytes>>,
    ) -> Result<Response<UpstreamBody>, SendError> {
        let mut request = addressed(make(), origin);
        let host = self.pool.host(origin);
        if let Some(mut link) = self.pool.take(&host) {
            match link.exchange(request).await {
                Ok(response) => {
                    self.pool.counters.count_reuse();
                    return Ok(self.answered(response, link, host));
                }
                Err(Failed { unsent: Some(unsent), .. }) => request = unsent,
                Err(failed) if failed.answer == Answer::None && is_stale(&failed.error) => {
                    request = addressed(make(), origin);
                }
                Err(failed) => return Err(failed.error),
            }
        }
        let wire = connect::connect(origin, &self.settings, &self.tls).await?;
        let keeper = self.pool.keeper.clone();
        let link = Link::open(wire, self.settings.request_timeout, keeper, &self.pool.counters).await?;
        let mut link = Box::new(link);
        match link.exchange(request).await {
            Ok(response) => Ok(self.answered(response, link, host)),
            Err(failed) => Err(failed.error),
        }
    }

    fn answered(
        &self,
        response: Response<hyper::body::Incoming>,
        link: Box<Link>,
        host: Arc<pool::Host>,
    ) -> Response<UpstreamBody> {
        response.map(|incoming| UpstreamBody::new(incoming, link, host, self.pool.clone()))
    }

    /// Tells how many connections there are, and were.
    pub fn stats(&self) -> PoolStats {
        self.pool.counters.stats()
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (settings, stats) = (&self.settings, self.stats());
        f.debug_struct("Upstream").field("settings", settings).field("stats", &stats).finish_non_exhaustive()
    }
}

fn addressed(mut request: Request<Full<Bytes>>, origin: &Origin) -> Request<Full<Bytes>> {
    let asked = core::mem::take(request.uri_mut());
    *request.uri_mut() = origin.target(asked);
    *request.version_mut() = Version::HTTP_11;
    let headers = request.headers_mut();
    headers.insert(header::HOST, origin.host_header());
    headers.remove(header::CONTENT_LENGTH);
    headers.remove(header::TRANSFER_ENCODING);
    request
}

/// Whether a kept connection failed because its host had closed it.
fn is_stale(error: &SendError) -> bool {
    matches!(error, SendError::Closed { .. })
}

/// Names the point a span from now; a span beyond what can be named ends in thirty years.
fn after(span: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(span).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
}
