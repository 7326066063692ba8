//! Connections kept for later: per host, the last one used first, at most `max_idle_per_host`, none beyond its time.

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

/// The hosts that connections are kept to.
pub(super) struct ConnectionPool {
    hosts: RwLock<HashMap<Arc<str>, Arc<HostPool>>>,
    idle_max: usize,
    idle_time_max: Duration,
    pub(super) counters: Arc<Counters>,
    /// Wakes the keeper: the task that closes what is idle for too long, or was closed by its host.
    keeper: Arc<IdleReaper>,
    /// The same, for connections to wake it by.
    waker: Waker,
    kept: AtomicBool,
}

#[derive(Default)]
struct IdleReaper(Notify);

impl Wake for IdleReaper {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.notify_one();
    }
}

/// What is kept to one host, the oldest first.
#[derive(Default)]
pub(super) struct HostPool(Mutex<Vec<IdleConnection>>);

struct IdleConnection {
    link: Box<Connection>,
    until: Instant,
}

impl ConnectionPool {
    pub(super) fn new(idle_max: usize, idle_time_max: Duration) -> Self {
        let keeper = Arc::<IdleReaper>::default();
        Self {
            hosts: RwLock::default(),
            idle_max,
            idle_time_max,
            counters: Arc::default(),
            waker: Waker::from(keeper.clone()),
            keeper,
            kept: AtomicBool::new(false),
        }
    }

    pub(super) fn host(&self, origin: &Origin) -> Arc<HostPool> {
        if let Some(host) = self.hosts.read().get(origin.key()) {
            return host.clone();
        }
        self.hosts.write().entry(origin.key().clone()).or_default().clone()
    }

    /// Takes the connection that was used last; `None` if there is none.
    pub(super) fn take(&self, host: &HostPool) -> Option<Box<Connection>> {
        let mut idle = host.0.lock();
        let last = idle.pop()?;
        if last.until <= Instant::now() {
            // What was used last is the last to go: all others are beyond their time too.
            let old = std::mem::take(&mut *idle);
            self.counters.idle.fetch_sub(old.len() + 1, Ordering::Relaxed);
            return None;
        }
        drop(idle);
        self.counters.idle.fetch_sub(1, Ordering::Relaxed);
        Some(last.link)
    }

    /// Keeps a connection, if it can be used again and there is room.
    pub(super) fn give_back(self: &Arc<Self>, host: &HostPool, mut link: Box<Connection>) {
        if !link.park(&self.waker) {
            return;
        }
        let until = after(self.idle_time_max);
        let mut idle = host.0.lock();
        if self.idle_max <= idle.len() {
            return;
        }
        idle.push(IdleConnection { link, until });
        drop(idle);
        self.counters.idle.fetch_add(1, Ordering::Relaxed);
        if !self.kept.load(Ordering::Relaxed) && !self.kept.swap(true, Ordering::Relaxed) {
            tokio::spawn(reap_idle(Arc::downgrade(self), self.keeper.clone()));
        }
    }

    /// Closes what is beyond its time or was closed by its host, and says when to look again.
    fn close_expired(&self) -> Instant {
        let now = Instant::now();
        let mut next = after(self.idle_time_max);
        let mut hosts = self.hosts.write();
        hosts.retain(|_, host| {
            let mut idle = host.0.lock();
            let before = idle.len();
            idle.retain_mut(|idle| now < idle.until && idle.link.poll_idle(&self.waker));
            self.counters.idle.fetch_sub(before - idle.len(), Ordering::Relaxed);
            if let Some(oldest) = idle.first() {
                next = next.min(oldest.until);
            }
            !idle.is_empty() || 1 < Arc::strong_count(host)
        });
        next
    }
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.keeper.0.notify_one();
    }
}

async fn reap_idle(pool: Weak<ConnectionPool>, keeper: Arc<IdleReaper>) {
    while let Some(next) = pool.upgrade().map(|pool| pool.close_expired()) {
        tokio::select! {
            () = sleep_until(next) => {}
            () = keeper.0.notified() => {}
        }
    }
}

/// What the pool has done.
#[derive(Debug, Default)]
pub(super) struct Counters {
    open: AtomicUsize,
    idle: AtomicUsize,
    created: AtomicU64,
    reused: AtomicU64,
}

impl Counters {
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

/// Counts a connection for as long as it is there.
#[derive(Debug)]
pub(super) struct ConnectionCount(Arc<Counters>);

impl ConnectionCount {
    pub(super) fn count(counters: &Arc<Counters>) -> Self {
        counters.open.fetch_add(1, Ordering::Relaxed);
        counters.created.fetch_add(1, Ordering::Relaxed);
        Self(counters.clone())
    }
}

impl Drop for ConnectionCount {
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
    use crate::{TlsRoots, Upstream};

    const WELL: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nwell";

    async fn ask(upstream: &Upstream, origin: &Origin) {
        let response = upstream.send(origin, &Request::new(Bytes::new())).await.unwrap();
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "well");
    }

    /// A pool that nobody looks after, so that what wakes its keeper can be seen.
    fn unkept() -> Upstream {
        let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::default());
        upstream.pool.kept.store(true, Ordering::Relaxed);
        upstream
    }

    fn is_keeper_woken(upstream: &Upstream) -> bool {
        pin!(upstream.pool.keeper.0.notified()).poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    async fn host() -> (TcpListener, Origin) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let origin = Origin::parse(&format!("http://{}", listener.local_addr().unwrap())).unwrap();
        (listener, origin)
    }

    #[tokio::test]
    async fn requests_on_kept_connections_wake_no_keeper() {
        let upstream = unkept();
        let (listener, origin) = host().await;
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            while matches!(stream.read(&mut request).await, Ok(1..)) {
                stream.write_all(WELL).await.unwrap();
            }
        });
        for _ in 0..100 {
            ask(&upstream, &origin).await;
        }
        assert_eq!(upstream.stats().connections_reused, 99);
        assert!(!is_keeper_woken(&upstream));
    }

    #[tokio::test]
    async fn a_node_that_takes_its_leave_in_words_is_not_heard_as_an_answer() {
        let upstream = unkept();
        let (listener, origin) = host().await;
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(WELL).await.unwrap();
            stream
        };
        let (mut stream, ()) = tokio::join!(serving, ask(&upstream, &origin));
        stream.write_all(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        while !is_keeper_woken(&upstream) {
            tokio::task::yield_now().await;
        }
        let serving = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 4096]).await.unwrap();
            stream.write_all(WELL).await.unwrap();
        };
        tokio::join!(serving, ask(&upstream, &origin));
        assert_eq!((upstream.stats().connections_created, upstream.stats().connections_reused), (2, 0));
    }
}
