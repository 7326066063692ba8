//! Connection pool: lends each connection to one caller at a time and takes back only clean ones.
//!
//! Guarantees: at most `connections_max` connections, counted from the moment one is being opened until its process has
//! ended, or could not be ended in time, and one more that terminates a process; waiting callers are served first in, first
//! out; the gauges are exact. Limits: `waiting_max` callers wait, each for `acquire_timeout`; idle
//! connections are closed after `idle_max` by the idle reaper, a task that ends with the pool.

mod loan;
mod pooled;

use core::fmt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;
use tokio::time::{sleep, timeout};

use crate::config::ConnectConfig;
use crate::connection::ServerConnection;
use crate::counters::{DiscardReason, PoolCounters, PoolCounts, increment};
use crate::error::PgError;
use crate::session::{SETTINGS_MAX, Session};
use crate::startup::{self, CheckInterval};
use crate::statement::StatementLimits;
use loan::Loan;
pub use loan::Release;
pub use pooled::PooledConnection;

/// Settings of a pool.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    pub connect: ConnectConfig,
    pub connections_max: usize,
    /// Callers that may wait for a connection.
    pub waiting_max: usize,
    /// Time that a caller waits for a connection.
    pub acquire_timeout: Duration,
    /// Time after which an idle connection is closed.
    pub idle_max: Duration,
    /// Prepared statements that are kept per connection.
    pub statements_max: usize,
    pub sql_bytes_max: usize,
    /// Longest message of the server, and longest statement with its parameters.
    pub message_bytes_max: usize,
}

impl PoolConfig {
    /// Returns the default settings for a database.
    pub fn new(connect: ConnectConfig) -> Self {
        Self {
            connect,
            connections_max: 10,
            waiting_max: 10_000,
            acquire_timeout: Duration::from_secs(30),
            idle_max: Duration::from_secs(600),
            statements_max: 100,
            sql_bytes_max: 1 << 20,
            message_bytes_max: 64 << 20,
        }
    }
}

/// Numbers of connections and callers; `open` is the sum of `idle` and `in_use`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolGauges {
    pub open: usize,
    pub idle: usize,
    /// Lent, being opened, or being recovered.
    pub in_use: usize,
    pub waiting: usize,
}

/// Connections to one database.
pub struct Pool {
    config: PoolConfig,
    connect: Arc<ConnectConfig>,
    shared: Mutex<Shared>,
    counters: Arc<PoolCounters>,
    /// Set once the server has rejected `client_connection_check_interval`.
    omits_check_interval: AtomicBool,
    /// Runtime of the first caller; connections are recovered on it.
    runtime: OnceLock<Handle>,
    reaper: OnceLock<AbortHandle>,
    /// Held by the one connection, besides the pool's, that terminates a process.
    terminating: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Shared {
    /// Oldest first.
    #[allow(clippy::vec_box, reason = "a connection is lent and taken back without being copied")]
    idle: Vec<Box<ServerConnection>>,
    in_use: usize,
    /// By order of arrival.
    waiting: BTreeMap<u64, oneshot::Sender<Loan>>,
    arrivals: u64,
    is_closed: bool,
}

impl Pool {
    pub fn new(config: PoolConfig) -> Arc<Self> {
        Arc::new(Self {
            connect: Arc::new(config.connect.clone()),
            config,
            shared: Mutex::default(),
            counters: Arc::default(),
            omits_check_interval: AtomicBool::new(false),
            runtime: OnceLock::new(),
            reaper: OnceLock::new(),
            terminating: tokio::sync::Mutex::default(),
        })
    }

    /// Lends a connection for a session; opens one if none is idle, and waits if too many are in use.
    ///
    /// Nothing is sent on a reused connection: reset and setup precede its first statement.
    pub async fn get(self: &Arc<Self>, session: &Session) -> Result<PooledConnection, PgError> {
        if SETTINGS_MAX < session.settings.len() {
            let reason = format!("session has more than {SETTINGS_MAX} settings");
            return Err(PgError::InvalidStatement { reason, sqlstate: "54000" });
        }
        self.start_reaper();
        let mut loan = self.acquire(session.owner).await?;
        while loan.connection.as_ref().is_some_and(|connection| !connection.is_quiet()) {
            loan.replace(session.owner);
        }
        if loan.connection.is_none() {
            let connection = Box::new(self.open().await?);
            loan.connection = Some(connection);
        }
        if let Some(connection) = &mut loan.connection {
            connection.begin_session(session);
        }
        Ok(PooledConnection::new(loan))
    }

    /// Closes idle connections and rejects callers; connections in use are closed when they are released.
    pub fn close(&self) {
        let mut shared = self.shared.lock();
        shared.is_closed = true;
        let idle = std::mem::take(&mut shared.idle);
        let waiting = std::mem::take(&mut shared.waiting);
        drop(shared);
        drop(waiting);
        for connection in idle {
            self.discard(connection, DiscardReason::Closed);
        }
    }

    pub fn gauges(&self) -> PoolGauges {
        let shared = self.shared.lock();
        let idle = shared.idle.len();
        let in_use = shared.in_use;
        PoolGauges { open: idle + in_use, idle, in_use, waiting: shared.waiting.len() }
    }

    pub fn counts(&self) -> PoolCounts {
        self.counters.counts()
    }

    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Takes an idle connection or the right to open one; waits if there is neither.
    async fn acquire(self: &Arc<Self>, owner: u64) -> Result<Loan, PgError> {
        let (sender, receiver) = oneshot::channel();
        let place = {
            let mut shared = self.shared.lock();
            if shared.is_closed {
                return Err(PgError::Closed);
            }
            let connection = shared.take_idle(owner);
            if connection.is_some() || shared.in_use < self.config.connections_max {
                shared.in_use += 1;
                drop(shared);
                return Ok(Loan::new(self, connection));
            }
            if self.config.waiting_max <= shared.waiting.len() {
                return Err(PgError::PoolTimeout { waited: Duration::ZERO });
            }
            shared.arrivals += 1;
            let arrival = shared.arrivals;
            shared.waiting.insert(arrival, sender);
            WaitingPlace { pool: self, arrival }
        };
        let result = timeout(self.config.acquire_timeout, receiver).await;
        drop(place);
        match result {
            Ok(Ok(loan)) => Ok(loan),
            Ok(Err(_)) => Err(PgError::Closed),
            Err(_) => Err(PgError::PoolTimeout { waited: self.config.acquire_timeout }),
        }
    }

    async fn open(&self) -> Result<ServerConnection, PgError> {
        let omits = self.omits_check_interval.load(Ordering::Relaxed);
        let check_interval = if omits { CheckInterval::Omit } else { CheckInterval::Request };
        let message_bytes_max = self.config.message_bytes_max;
        let mut started = startup::start(&self.connect, check_interval, message_bytes_max).await;
        if let Err(error) = &started
            && startup::rejects_check_interval(error)
            && check_interval == CheckInterval::Request
        {
            self.omits_check_interval.store(true, Ordering::Relaxed);
            started = startup::start(&self.connect, CheckInterval::Omit, message_bytes_max).await;
        }
        let started = started?;
        increment(&self.counters.connections_opened);
        let limits = StatementLimits { sql_bytes_max: self.config.sql_bytes_max, message_bytes_max };
        Ok(ServerConnection::new(
            started,
            self.connect.clone(),
            limits,
            self.config.statements_max,
            self.counters.clone(),
        ))
    }

    /// Takes back a clean connection: the first waiting caller gets it, or it becomes idle.
    fn put(self: &Arc<Self>, mut connection: Box<ServerConnection>) -> Release {
        connection.rest();
        loop {
            let mut shared = self.shared.lock();
            if shared.is_closed {
                shared.in_use -= 1;
                drop(shared);
                self.discard(connection, DiscardReason::Closed);
                return Release::Discarded;
            }
            let Some((_, sender)) = shared.waiting.pop_first() else {
                shared.in_use -= 1;
                shared.idle.push(connection);
                return Release::Idle;
            };
            drop(shared);
            match sender.send(Loan::new(self, Some(connection))) {
                Ok(()) => return Release::Idle,
                Err(mut refused) => match refused.disarm() {
                    Some(returned) => connection = returned,
                    None => return Release::Discarded,
                },
            }
        }
    }

    /// Takes back the right to a connection: the first waiting caller may open one.
    fn put_permit(self: &Arc<Self>) {
        loop {
            let mut shared = self.shared.lock();
            let Some((_, sender)) = shared.waiting.pop_first() else {
                shared.in_use -= 1;
                return;
            };
            drop(shared);
            match sender.send(Loan::new(self, None)) {
                Ok(()) => return,
                Err(mut refused) => refused.disarm(),
            };
        }
    }

    fn discard(&self, connection: Box<ServerConnection>, reason: DiscardReason) {
        self.counters.count_discard(reason);
        connection.terminate();
    }

    fn start_reaper(self: &Arc<Self>) {
        self.runtime.get_or_init(Handle::current);
        self.reaper.get_or_init(|| tokio::spawn(reap_idle(Arc::downgrade(self))).abort_handle());
    }

    /// Closes idle connections that have expired or that the server closed; returns the time until the next may expire.
    fn close_expired(&self) -> Duration {
        let mut closed = Vec::new();
        let mut next = self.config.idle_max;
        let mut shared = self.shared.lock();
        for connection in std::mem::take(&mut shared.idle) {
            let idle = connection.idle_time();
            if self.config.idle_max <= idle {
                closed.push((connection, DiscardReason::Expired));
            } else if !connection.is_quiet() {
                closed.push((connection, DiscardReason::Stale));
            } else {
                next = next.min(self.config.idle_max - idle);
                shared.idle.push(connection);
            }
        }
        drop(shared);
        for (connection, reason) in closed {
            self.discard(connection, reason);
        }
        next
    }
}

impl Shared {
    /// Takes the connection that the owner used last, or else the one that anybody used last.
    fn take_idle(&mut self, owner: u64) -> Option<Box<ServerConnection>> {
        let own = self.idle.iter().rposition(|connection| connection.owner() == Some(owner));
        match own {
            Some(index) => Some(self.idle.remove(index)),
            None => self.idle.pop(),
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("config", &self.config).field("gauges", &self.gauges()).finish()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if let Some(reaper) = self.reaper.get() {
            reaper.abort();
        }
    }
}

/// Runs the idle reaper until the pool is dropped.
async fn reap_idle(pool: Weak<Pool>) {
    while let Some(next) = pool.upgrade().map(|pool| pool.close_expired()) {
        sleep(next).await;
    }
}

/// A place among the waiting callers; a caller that gives up leaves it.
struct WaitingPlace<'a> {
    pool: &'a Pool,
    arrival: u64,
}

impl Drop for WaitingPlace<'_> {
    fn drop(&mut self) {
        self.pool.shared.lock().waiting.remove(&self.arrival);
    }
}
