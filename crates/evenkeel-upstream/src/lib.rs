//! HTTP/1.1 client with a connection pool, for requests to nodes, webhooks and collectors.
//!
//! A connection has no task of its own: the future of [`Upstream::send`] drives it until the response head, and the
//! reader of [`UpstreamBody`] from then on. Dropping either closes the connection, which tells a model server to stop
//! generating.
//!
//! An origin at the other side of a link is reached by a flow per request, which is not reused: the link picks a path for
//! every request.
//!
//! Guarantees: a request is resent at most once, and only on a reused connection that the peer had closed before
//! sending any part of a response; [`Upstream::send_once`] never resends. A response that two parsers could frame
//! differently is an error.
//!
//! Link-local and cloud metadata addresses are refused unless [`LinkLocalPolicy::Allow`] is set, whatever name leads there.
//! Redirects are not followed.
//!
//! Limits: at most `max_idle_per_host` idle connections per origin, each for at most `idle_timeout`; `connect_timeout`
//! for name resolution, TCP and TLS together; `request_timeout` until the response head, and then between two chunks.

mod body;
mod connect;
mod connection;
mod error;
mod framing;
mod head;
mod link_local;
mod link_table;
mod origin;
mod pool;
pub mod response_parser;
mod roots;

pub use body::UpstreamBody;
pub use error::{SendOnceError, UpstreamError};
pub use link_local::{LinkLocalError, LinkLocalPolicy, is_link_local_or_metadata};
pub use link_table::LinkTable;
pub use origin::{Origin, UrlError};
pub use roots::{TlsRoots, TlsRootsError};

use core::fmt;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_pipeline::PoolStats;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_policy::time::Duration;
use http::{HeaderName, HeaderValue, Request, Response};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;

use body::PoolPlace;
use connect::Transport;
use connection::{Connection, ConnectionAge, ExchangeError, Progress};
use pool::ConnectionPool;

/// HTTP client. Clones are cheap and share one connection pool.
#[derive(Clone)]
pub struct Upstream {
    settings: ConnectionPoolConfig,
    tls: TlsConnector,
    pool: Arc<ConnectionPool>,
    links: LinkTable,
    link_local: LinkLocalPolicy,
}

/// Filter that drops and adds headers of a request.
#[derive(Clone, Copy)]
pub struct HeaderFilter<'a> {
    /// Reports whether a header of the request is sent.
    pub keep: fn(&HeaderName) -> bool,
    /// Headers to add; each replaces the request's headers of the same name.
    pub add: &'a [(&'static str, &'a HeaderValue)],
}

impl Upstream {
    /// Creates a client without connections.
    pub fn new(settings: ConnectionPoolConfig, roots: TlsRoots) -> Self {
        let pool = Arc::new(ConnectionPool::new(settings.max_idle_per_host, settings.idle_timeout));
        let tls = TlsConnector::from(roots.into_client_config());
        Self { settings, tls, pool, links: LinkTable::default(), link_local: LinkLocalPolicy::default() }
    }

    /// Decides about connections to link-local and metadata addresses; the default is to refuse them.
    ///
    /// Origins over links are not affected: the other side of the link resolves them, and has a list of allowed targets.
    #[must_use]
    pub fn with_link_local(self, link_local: LinkLocalPolicy) -> Self {
        Self { link_local, ..self }
    }

    /// Reaches origins [over links](Origin::over_link) by these links.
    #[must_use]
    pub fn with_links(self, links: LinkTable) -> Self {
        Self { links, ..self }
    }

    /// Sends a request and waits for the response head.
    pub async fn send(
        &self,
        origin: &Origin,
        request: &Request<Bytes>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        self.send_filtered(origin, request, HeaderFilter { keep: |_| true, add: &[] }).await
    }

    /// Sends a request with filtered headers and waits for the response head.
    ///
    /// The request's URI is a path, to which the origin's base path is prepended; `Host` and `Content-Length` are set
    /// here. If a reused connection is closed before any part of a response arrives, the request is sent again, once,
    /// on a new connection. Dropping the future closes the connection.
    pub async fn send_filtered(
        &self,
        origin: &Origin,
        request: &Request<Bytes>,
        filter: HeaderFilter<'_>,
    ) -> Result<Response<UpstreamBody>, UpstreamError> {
        match self.exchange(origin, request, filter, is_stale).await {
            Ok(response) => Ok(response),
            Err(failure) => Err(failure.error),
        }
    }

    /// Sends a request that must not run twice, and waits for the response head.
    ///
    /// Like [`Self::send_filtered`], but once a byte may have been sent, the request is never sent again: a connection
    /// that closes without a response is [`SendOnceError::OutcomeUnknown`].
    pub async fn send_once(
        &self,
        origin: &Origin,
        request: &Request<Bytes>,
        filter: HeaderFilter<'_>,
    ) -> Result<Response<UpstreamBody>, SendOnceError> {
        self.exchange(origin, request, filter, is_unsent).await.map_err(|failure| match failure.progress {
            Progress::Unsent => SendOnceError::NotSent(failure.error),
            Progress::Sent | Progress::Received => SendOnceError::OutcomeUnknown(failure.error),
        })
    }

    /// Exchanges a request for a response head, on a reused connection or a new one.
    ///
    /// After a failure on a reused connection, `may_resend` decides about a second attempt on a new one.
    async fn exchange(
        &self,
        origin: &Origin,
        request: &Request<Bytes>,
        filter: HeaderFilter<'_>,
        may_resend: fn(&ExchangeError) -> bool,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        if let Some(link) = origin.link() {
            return self.exchange_over_link(link, origin, request, filter).await;
        }
        let origin_pool = self.pool.origin_pool(origin);
        if let Some(mut connection) = self.pool.take(&origin_pool) {
            match connection.exchange(origin, request, filter, ConnectionAge::Reused).await {
                Ok(response) => {
                    self.pool.counters.count_reuse();
                    let reuse = PoolPlace { origin: origin_pool, pool: self.pool.clone() };
                    return Ok(response.map(|()| UpstreamBody::new(connection, Some(reuse))));
                }
                Err(failure) if !may_resend(&failure) => return Err(failure),
                Err(_) => {}
            }
        }
        let transport = connect::connect(origin, &self.settings, self.link_local, &self.tls).await;
        let (response, connection) = self.exchange_once(transport, origin, request, filter).await?;
        let reuse = PoolPlace { origin: origin_pool, pool: self.pool.clone() };
        Ok(response.map(|()| UpstreamBody::new(connection, Some(reuse))))
    }

    /// Exchanges a request for a response head on a flow of its own, so that the link picks a path for every request.
    async fn exchange_over_link(
        &self,
        name: &str,
        origin: &Origin,
        request: &Request<Bytes>,
        filter: HeaderFilter<'_>,
    ) -> Result<Response<UpstreamBody>, ExchangeError> {
        let link = self.links.get(name);
        let transport = connect::connect_over_link(origin, link, &self.settings, &self.tls).await;
        match self.exchange_once(transport, origin, request, filter).await {
            Ok((response, connection)) => Ok(response.map(|()| UpstreamBody::new(connection, None))),
            Err(ExchangeError { error, progress }) => {
                let error = match error {
                    UpstreamError::Connect { error } => {
                        UpstreamError::Connect { error: format!("link {name:?}: {error}") }
                    }
                    UpstreamError::LinkBusy { error } => {
                        UpstreamError::LinkBusy { error: format!("link {name:?}: {error}") }
                    }
                    other => other,
                };
                Err(ExchangeError { error, progress })
            }
        }
    }

    /// Exchanges a request for a response head on a new connection.
    async fn exchange_once(
        &self,
        transport: Result<Transport, UpstreamError>,
        origin: &Origin,
        request: &Request<Bytes>,
        filter: HeaderFilter<'_>,
    ) -> Result<(Response<()>, Box<Connection>), ExchangeError> {
        let transport = transport.map_err(|error| ExchangeError { error, progress: Progress::Unsent })?;
        let timeout = self.settings.request_timeout;
        let mut connection = Box::new(Connection::new(transport, timeout, &self.pool.counters));
        let response = connection.exchange(origin, request, filter, ConnectionAge::New).await?;
        Ok((response, connection))
    }

    /// Returns the statistics of the connection pool.
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

/// Reports whether an exchange on a reused connection failed because the peer had closed it.
fn is_stale(failure: &ExchangeError) -> bool {
    match failure.progress {
        Progress::Unsent => true,
        Progress::Sent => matches!(failure.error, UpstreamError::Closed { .. }),
        Progress::Received => false,
    }
}

/// Reports whether an exchange failed before anything was sent.
fn is_unsent(failure: &ExchangeError) -> bool {
    failure.progress == Progress::Unsent
}

/// Returns the time `delay` from now; a delay that overflows the clock is capped at thirty years.
fn after(delay: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(delay).unwrap_or_else(|| now + Duration::from_secs(30 * 365 * 86_400))
}
