//! Connection pool: keep-alive connections per origin (scheme, host and port), reused last in, first out.
//!
//! The idle reaper is one task. It closes connections that have been idle for `idle_timeout`, and those on which the
//! peer closed or sent unexpected bytes.
//!
//! Limits: at most `max_idle_per_host` idle connections per origin.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Wake, Waker};

use evenkeel_pipeline::PoolStats;
use evenkeel_policy::time::Duration;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::connection::Connection;
use super::{Origin, after};

/// Idle connections by origin.
pub(super) struct ConnectionPool {
    /// By [`Origin::key`].
    origins: RwLock<HashMap<Arc<str>, Arc<OriginPool>>>,
    max_idle_per_host: usize,
    idle_timeout: Duration,
    pub(super) counters: Arc<PoolCounters>,
    wakeup: Arc<ReaperWakeup>,
    /// Waker made of `wakeup`; registered with every idle connection.
    waker: Waker,
    reaper_spawned: AtomicBool,
}

/// Wake-up of the idle reaper.
#[derive(Default)]
struct ReaperWakeup(Notify);

impl Wake for ReaperWakeup {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// Idle connections to one origin, oldest first.
#[derive(Default)]
pub(super) struct OriginPool(Mutex<Vec<IdleConnection>>);

struct IdleConnection {
    connection: Box<Connection>,
    expires_at: Instant,
}

impl ConnectionPool {
    pub(super) fn new(max_idle_per_host: usize, idle_timeout: Duration) -> Self {
        let wakeup = Arc::<ReaperWakeup>::default();
        Self {
            origins: RwLock::default(),
            max_idle_per_host,
            idle_timeout,
            counters: Arc::default(),
            waker: Waker::from(wakeup.clone()),
            wakeup,
            reaper_spawned: AtomicBool::new(false),
        }
    }

    /// Returns the pool of an origin, and creates it on first use.
    pub(super) fn origin_pool(&self, origin: &Origin) -> Arc<OriginPool> {
        if let Some(pool) = self.origins.read().get(origin.key()) {
            return pool.clone();
        }
        self.origins.write().entry(origin.key().clone()).or_default().clone()
    }

    /// Takes the most recently used connection; `None` if there is none or it has expired.
    pub(super) fn take(&self, origin: &OriginPool) -> Option<Box<Connection>> {
        let mut idle = origin.0.lock();
        let last = idle.pop()?;
        if last.expires_at <= Instant::now() {
            // The others have been idle for longer, so they have expired too.
            let expired = std::mem::take(&mut *idle);
            self.counters.idle.fetch_sub(expired.len() + 1, Ordering::Relaxed);
            return None;
        }
        drop(idle);
        self.counters.idle.fetch_sub(1, Ordering::Relaxed);
        Some(last.connection)
    }

    /// Returns a connection to the pool, or closes it if it cannot be reused or the pool is full.
    pub(super) fn put(self: &Arc<Self>, origin: &OriginPool, mut connection: Box<Connection>) {
        if !connection.prepare_for_reuse(&self.waker) {
            return;
        }
        let expires_at = after(self.idle_timeout);
        let mut idle = origin.0.lock();
        if idle.len() >= self.max_idle_per_host {
            return;
        }
        idle.push(IdleConnection { connection, expires_at });
        drop(idle);
        self.counters.idle.fetch_add(1, Ordering::Relaxed);
        if !self.reaper_spawned.load(Ordering::Relaxed) && !self.reaper_spawned.swap(true, Ordering::Relaxed)
        {
            tokio::spawn(reap_idle(Arc::downgrade(self), self.wakeup.clone()));
        }
    }

    /// Closes idle connections that expired, that the peer closed, or on which it sent bytes; returns when to run next.
    fn close_unusable(&self) -> Instant {
        let now = Instant::now();
        let mut next = after(self.idle_timeout);
        let mut origins = self.origins.write();
        origins.retain(|_, origin| {
            let mut idle = origin.0.lock();
            let before = idle.len();
            idle.retain_mut(|entry| now < entry.expires_at && entry.connection.poll_idle(&self.waker));
            self.counters.idle.fetch_sub(before - idle.len(), Ordering::Relaxed);
            if let Some(oldest) = idle.first() {
                next = next.min(oldest.expires_at);
            }
            !idle.is_empty() || Arc::strong_count(origin) > 1
        });
        next
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.wakeup.0.notify_one();
    }
}

/// Runs the idle reaper until the pool is dropped.
async fn reap_idle(pool: Weak<ConnectionPool>, wakeup: Arc<ReaperWakeup>) {
    while let Some(next) = pool.upgrade().map(|pool| pool.close_unusable()) {
        tokio::select! {
            () = sleep_until(next) => {}
            () = wakeup.0.notified() => {}
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct PoolCounters {
    open: AtomicUsize,
    idle: AtomicUsize,
    created: AtomicU64,
    reused: AtomicU64,
}

impl PoolCounters {
    pub(super) fn count_reuse(&self) {
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn stats(&self) -> PoolStats {
        let idle = self.idle.load(Ordering::Relaxed);
        PoolStats {
            active_connections: self.open.load(Ordering::Relaxed).saturating_sub(idle),
            idle_connections: idle,
            connections_created: self.created.load(Ordering::Relaxed),
            connections_reused: self.reused.load(Ordering::Relaxed),
        }
    }
}

/// Drop guard that counts a connection as open.
#[derive(Debug)]
pub(super) struct OpenConnectionGuard(Arc<PoolCounters>);

impl OpenConnectionGuard {
    pub(super) fn new(counters: &Arc<PoolCounters>) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        counters.created.fetch_add(1, Ordering::Relaxed);
        Self(counters.clone())
    }
}

impl Drop for OpenConnectionGuard {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use core::future::Future;
    use core::task::Context;
    use std::pin::pin;

    use bytes::Bytes;
    use evenkeel_policy::backpressure::ConnectionPoolConfig;
    use http::Request;
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::{HeaderFilter, TlsRoots, Upstream};

    const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nbody";

    async fn send_one(upstream: &Upstream, origin: &Origin) {
        let response = upstream.send(origin, &Request::new(Bytes::new())).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "body");
    }

    /// Creates a client whose pool has no reaper task, so that tests can observe its wake-ups.
    fn without_reaper() -> Upstream {
        let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
        upstream.pool.reaper_spawned.store(true, Ordering::Relaxed);
        upstream
    }

    fn is_reaper_woken(upstream: &Upstream) -> bool {
        pin!(upstream.pool.wakeup.0.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    async fn bind_origin() -> (TcpListener, Origin) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let origin = Origin::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        (listener, origin)
    }

    #[tokio::test]
    async fn requests_on_reused_connections_do_not_wake_the_reaper() {
        let upstream = without_reaper();
        let (listener, origin) = bind_origin().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            while matches!(stream.read(&mut request).await, Ok(1..)) {
                stream.write_all(OK).await.unwrap();
            }
        });
        for _ in 0..100 {
            send_one(&upstream, &origin).await;
        }
        assert_eq!(upstream.stats().connections_reused, 99);
        assert!(!is_reaper_woken(&upstream));
    }

    #[tokio::test]
    async fn bytes_received_on_an_idle_connection_are_not_read_as_the_next_response() {
        let upstream = without_reaper();
        let (listener, origin) = bind_origin().await;
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(OK).await.unwrap();
            stream
        };
        let (mut stream, ()) = tokio::join!(serving, send_one(&upstream, &origin));
        stream.write_all(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        while !is_reaper_woken(&upstream) {
            tokio::task::yield_now().await;
        }
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(OK).await.unwrap();
        };
        tokio::join!(serving, send_one(&upstream, &origin));
        assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
    }

    #[tokio::test]
    async fn a_request_that_is_sent_once_uses_a_new_connection_if_nothing_was_written() {
        let upstream = without_reaper();
        let (listener, origin) = bind_origin().await;
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(OK).await.unwrap();
            stream
        };
        let (stream, ()) = tokio::join!(serving, send_one(&upstream, &origin));
        drop(stream);
        while !is_reaper_woken(&upstream) {
            tokio::task::yield_now().await;
        }
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(OK).await.unwrap();
        };
        let request = Request::new(Bytes::new());
        let filter = HeaderFilter { keep: |_| true, add: &[] };
        let ((), response) = tokio::join!(serving, upstream.send_once(&origin, &request, filter));
        assert_eq!(response.unwrap().status(), 200);
        assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
    }
}
