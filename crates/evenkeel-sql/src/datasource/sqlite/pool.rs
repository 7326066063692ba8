//! The connections of a SQLite datasource: one writer, and readers that are opened when they are needed.
//!
//! Callers wait in the order in which they came. The gauges change under one lock together with the lists they count,
//! so that `open` is always the sum of `idle` and `in_use`; a connection that is being opened is in use.

use std::sync::Arc;
use std::thread;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::exchange::Exchange;
use super::session::SqliteSession;
use super::worker::{STACK_BYTES, SqliteWorker};
use super::{OpenError, SqliteOptions};
use crate::datasource::{AccessMode, ConnectionGauges, ReleaseCallback};
use crate::error::DatabaseError;

/// Purpose of a thread; readers are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WorkerKind {
    Writer,
    Reader(u32),
}

impl WorkerKind {
    pub(super) fn access(self) -> AccessMode {
        match self {
            Self::Writer => AccessMode::ReadWrite,
            Self::Reader(_) => AccessMode::ReadOnly,
        }
    }

    fn thread_name(self) -> String {
        match self {
            Self::Writer => "sqlite-writer".to_owned(),
            Self::Reader(number) => format!("sqlite-reader-{number}"),
        }
    }
}

/// Everything that is freed when a connection is released; the callback comes last.
pub(super) struct Release {
    permit: Option<OwnedSemaphorePermit>,
    on_release: Option<ReleaseCallback>,
}

impl Drop for Release {
    fn drop(&mut self) {
        self.permit = None;
        self.on_release = None;
    }
}

/// A connection on loan.
pub(super) struct Loan {
    pub(super) kind: WorkerKind,
    pub(super) exchange: Arc<Exchange>,
    pub(super) release: Release,
}

/// Threads of a datasource.
pub(super) struct SqlitePool {
    options: SqliteOptions,
    writers: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    state: Mutex<State>,
    /// Signals the end of a thread.
    ended: Notify,
}

#[derive(Default)]
struct State {
    idle_writer: Option<Arc<Exchange>>,
    idle_readers: Vec<(u32, Arc<Exchange>)>,
    /// Numbers of readers that are not open.
    free_numbers: Vec<u32>,
    open_writers: u32,
    open_readers: u32,
    in_use: u32,
    waiting: u32,
    is_closed: bool,
}

impl SqlitePool {
    /// Opens the writer.
    pub(super) fn open(options: SqliteOptions) -> Result<Arc<Self>, OpenError> {
        let exchange = Arc::new(Exchange::ready());
        let session = SqliteSession::open(&options, AccessMode::ReadWrite, &exchange)?;
        let state = State {
            idle_writer: Some(Arc::clone(&exchange)),
            free_numbers: (0..options.readers_max).rev().collect(),
            open_writers: 1,
            ..State::default()
        };
        let pool = Arc::new(Self {
            writers: Arc::new(Semaphore::new(1)),
            readers: Arc::new(Semaphore::new(options.readers_max as usize)),
            state: Mutex::new(state),
            ended: Notify::new(),
            options,
        });
        pool.spawn(WorkerKind::Writer, exchange, Some(session)).map_err(OpenError::Thread)?;
        Ok(pool)
    }

    pub(super) fn options(&self) -> &SqliteOptions {
        &self.options
    }

    fn spawn(
        self: &Arc<Self>,
        kind: WorkerKind,
        exchange: Arc<Exchange>,
        session: Option<SqliteSession>,
    ) -> std::io::Result<()> {
        let worker = SqliteWorker::new(kind, exchange, Arc::clone(self), session);
        let thread = thread::Builder::new().name(kind.thread_name()).stack_size(STACK_BYTES);
        thread.spawn(move || worker.run()).map(drop)
    }

    /// Lends a connection; one that is not open yet is being opened when this returns.
    pub(super) async fn lend(
        self: &Arc<Self>,
        access: AccessMode,
        on_release: ReleaseCallback,
    ) -> Result<Loan, DatabaseError> {
        let permits = match access {
            AccessMode::ReadOnly => &self.readers,
            AccessMode::ReadWrite => &self.writers,
        };
        // Declared before the permit, so that a dropped caller frees the permit before its callback runs.
        let mut release = Release { permit: None, on_release: Some(on_release) };
        release.permit = Some(self.acquire(permits).await?);
        let (kind, exchange, is_new) = self.take(access)?;
        if is_new && let Err(error) = self.spawn(kind, Arc::clone(&exchange), None) {
            self.discard(kind);
            tracing::error!(%error, "cannot start a thread for a SQLite connection");
            return Err(DatabaseError::Unavailable { reason: "a thread cannot be started".to_owned() });
        }
        Ok(Loan { kind, exchange, release })
    }

    async fn acquire(&self, permits: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, DatabaseError> {
        if let Ok(permit) = Arc::clone(permits).try_acquire_owned() {
            return Ok(permit);
        }
        let _waiter = Waiter::new(&self.state);
        Arc::clone(permits).acquire_owned().await.map_err(|_| closed())
    }

    /// Takes an idle connection or makes room for a new one; the caller has a permit.
    fn take(&self, access: AccessMode) -> Result<(WorkerKind, Arc<Exchange>, bool), DatabaseError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(closed());
        }
        let idle = match access {
            AccessMode::ReadWrite => state.idle_writer.take().map(|exchange| (WorkerKind::Writer, exchange)),
            AccessMode::ReadOnly => {
                state.idle_readers.pop().map(|(number, exchange)| (WorkerKind::Reader(number), exchange))
            }
        };
        state.in_use += 1;
        if let Some((kind, exchange)) = idle {
            return Ok((kind, exchange, false));
        }
        let kind = match access {
            AccessMode::ReadWrite => {
                state.open_writers += 1;
                WorkerKind::Writer
            }
            AccessMode::ReadOnly => {
                state.open_readers += 1;
                WorkerKind::Reader(state.free_numbers.pop().unwrap_or_default())
            }
        };
        Ok((kind, Arc::new(Exchange::opening()), true))
    }

    /// Takes back a connection that can be lent again.
    pub(super) fn give_back(&self, kind: WorkerKind, exchange: &Arc<Exchange>) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        match kind {
            WorkerKind::Writer => state.idle_writer = Some(Arc::clone(exchange)),
            WorkerKind::Reader(number) => state.idle_readers.push((number, Arc::clone(exchange))),
        }
        if state.is_closed {
            state.end_idle();
        }
    }

    /// Forgets a lent connection, which is closed.
    pub(super) fn discard(&self, kind: WorkerKind) {
        let mut state = self.state.lock();
        state.in_use -= 1;
        self.end_in(state, kind);
    }

    /// Notes the end of a thread whose connection was idle.
    pub(super) fn end(&self, kind: WorkerKind) {
        self.end_in(self.state.lock(), kind);
    }

    fn end_in(&self, mut state: MutexGuard<'_, State>, kind: WorkerKind) {
        match kind {
            WorkerKind::Writer => state.open_writers -= 1,
            WorkerKind::Reader(number) => {
                state.open_readers -= 1;
                state.free_numbers.push(number);
            }
        }
        if state.is_closed {
            state.end_idle();
        }
        drop(state);
        self.ended.notify_waiters();
    }

    pub(super) fn gauges(&self) -> ConnectionGauges {
        let state = self.state.lock();
        let open = state.open_writers + state.open_readers;
        ConnectionGauges { open, idle: open - state.in_use, in_use: state.in_use, waiting: state.waiting }
    }

    /// Lends no more, and ends the threads of idle connections; the others end when they are released.
    pub(super) fn start_close(&self) {
        let mut state = self.state.lock();
        state.is_closed = true;
        state.end_idle();
        drop(state);
        self.readers.close();
        self.writers.close();
    }

    /// Waits until all threads have ended.
    pub(super) async fn closed(&self) {
        loop {
            let mut ended = core::pin::pin!(self.ended.notified());
            // Registers before the check, so that an end between the two is noticed.
            ended.as_mut().enable();
            if self.gauges().open == 0 {
                return;
            }
            ended.await;
        }
    }
}

impl State {
    /// Ends idle readers, then the writer: the last connection to close empties the write-ahead log, which a reader
    /// cannot.
    fn end_idle(&mut self) {
        for (_, exchange) in self.idle_readers.drain(..) {
            exchange.exit();
        }
        if self.open_readers == 0
            && let Some(writer) = self.idle_writer.take()
        {
            writer.exit();
        }
    }
}

/// A caller that waits for a connection.
struct Waiter<'a>(&'a Mutex<State>);

impl<'a> Waiter<'a> {
    fn new(state: &'a Mutex<State>) -> Self {
        state.lock().waiting += 1;
        Self(state)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting -= 1;
    }
}

fn closed() -> DatabaseError {
    DatabaseError::Unavailable { reason: "the datasource is closed".to_owned() }
}
