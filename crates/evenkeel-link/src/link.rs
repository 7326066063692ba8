//! A link: opens flows over the current session.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, Bytes};
use parking_lot::RwLock;
use tokio::time::{sleep, timeout};

use crate::driver::{Direction, Driver};
use crate::flow::{FlowEnd, FlowId, FlowLane, ResetCode, ResetReason};
use crate::flow_stream::FlowStream;
use crate::session::{FlowStatus, OpenFlowError, Read, SessionStatus};

/// Time between two looks at the paths of a link that is down.
const UP_POLL: Duration = Duration::from_millis(20);

/// Time between two looks at the open flows of a link that is about to close.
const IDLE_POLL: Duration = Duration::from_millis(100);

/// One side of a link.
///
/// On the connecting side the link outlives its session: if the session ends, the next one takes its place.
#[derive(Clone)]
pub struct Link {
    current: Arc<RwLock<Arc<Driver>>>,
}

impl Link {
    pub(crate) fn new(driver: Arc<Driver>) -> Self {
        Self { current: Arc::new(RwLock::new(driver)) }
    }

    pub(crate) fn driver(&self) -> Arc<Driver> {
        self.current.read().clone()
    }

    pub(crate) fn replace(&self, driver: Arc<Driver>) {
        *self.current.write() = driver;
    }

    /// Opens a flow to `target`, which the other side connects to.
    ///
    /// Data may be written at once. While no path is usable, it waits.
    pub fn open(&self, lane: FlowLane, target: &str) -> Result<(SendFlow, RecvFlow), OpenFlowError> {
        let driver = self.driver();
        let flow = driver.with(|session, now| session.open(now, lane, target))?;
        Ok(halves(driver, flow))
    }

    /// Opens a flow of the stream lane to `target` as one byte stream.
    pub fn open_stream(&self, target: &str) -> Result<FlowStream, OpenFlowError> {
        let (send, recv) = self.open(FlowLane::Stream, target)?;
        Ok(FlowStream::new(send, recv))
    }

    /// Reports whether a path is connected and answers.
    pub fn is_up(&self) -> bool {
        self.driver().with(|session, now| session.has_answering_path(now))
    }

    /// Waits until the link is up, for at most `wait_max`; returns false if it is still down.
    pub async fn wait_up(&self, wait_max: Duration) -> bool {
        let up = async {
            while !self.is_up() {
                sleep(UP_POLL).await;
            }
        };
        timeout(wait_max, up).await.is_ok()
    }

    /// Reports whether both are handles of the same link.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.current, &other.current)
    }

    /// Returns a snapshot of the session, its paths and its flows.
    pub fn status(&self) -> SessionStatus {
        self.driver().update_metrics()
    }
}

/// Source of snapshots of all links of a process.
#[derive(Clone)]
pub struct Links(Arc<dyn Fn() -> Vec<Link> + Send + Sync>);

impl Links {
    pub(crate) fn new(links: impl Fn() -> Vec<Link> + Send + Sync + 'static) -> Self {
        Self(Arc::new(links))
    }

    /// Waits until no flow is open that carries a connection.
    pub async fn wait_idle(&self) {
        let is_connection = |flow: &FlowStatus| flow.datagrams.is_none();
        while self.status().iter().any(|session| session.flows.iter().any(is_connection)) {
            sleep(IDLE_POLL).await;
        }
    }

    /// Returns a snapshot of every session, and brings its metrics up to date.
    pub fn status(&self) -> Vec<SessionStatus> {
        (self.0)().iter().map(|link| link.driver().update_metrics()).collect()
    }
}

/// Creates the two halves of a flow.
pub(crate) fn halves(driver: Arc<Driver>, flow: FlowId) -> (SendFlow, RecvFlow) {
    let handle = Arc::new(FlowHandle {
        driver,
        flow,
        is_finished: AtomicBool::new(false),
        is_read: AtomicBool::new(false),
    });
    (SendFlow { handle: handle.clone() }, RecvFlow { handle })
}

/// Resets the flow when both halves are dropped, unless both directions have ended.
///
/// Data of a finished flow that is not acknowledged yet is still delivered.
pub(crate) struct FlowHandle {
    pub(crate) driver: Arc<Driver>,
    pub(crate) flow: FlowId,
    /// Set when `finish` was called.
    is_finished: AtomicBool,
    /// Set when all data of the other side has been read.
    is_read: AtomicBool,
}

impl FlowHandle {
    /// Aborts both directions.
    pub(crate) fn reset(&self, code: ResetCode, text: &str) {
        let reason = ResetReason::new(code, text);
        self.driver.with(|session, now| session.reset(now, self.flow, reason));
    }
}

impl Drop for FlowHandle {
    fn drop(&mut self) {
        if !(self.is_finished.load(Ordering::Relaxed) && self.is_read.load(Ordering::Relaxed)) {
            self.reset(ResetCode::ABORTED, "the application dropped the flow");
        }
        self.driver.forget_wakers(self.flow);
    }
}

/// Sending half of a flow.
pub struct SendFlow {
    handle: Arc<FlowHandle>,
}

impl SendFlow {
    /// Writes all bytes; waits while the receiver is behind.
    pub async fn write(&mut self, mut bytes: Bytes) -> io::Result<()> {
        while !bytes.is_empty() {
            let taken = poll_fn(|context| self.poll_write(context, &bytes)).await?;
            bytes.advance(taken);
        }
        Ok(())
    }

    /// Writes the first bytes and returns their number; bytes must not be empty.
    pub(crate) fn poll_write(&mut self, context: &Context<'_>, bytes: &Bytes) -> Poll<io::Result<usize>> {
        let FlowHandle { driver, flow, .. } = &*self.handle;
        driver.poll_flow(*flow, Direction::Write, context, |session, now| {
            match session.write(now, *flow, bytes.clone()) {
                Ok(0) => Poll::Pending,
                Ok(taken) => Poll::Ready(Ok(taken)),
                Err(end) => Poll::Ready(Err(to_io_error(end))),
            }
        })
    }

    /// Closes the sending direction; the other one stays open.
    pub fn finish(&mut self) {
        self.handle.is_finished.store(true, Ordering::Relaxed);
        self.handle.driver.with(|session, _| session.finish(self.handle.flow));
    }

    /// Aborts both directions.
    pub fn reset(&self, code: ResetCode, text: &str) {
        self.handle.reset(code, text);
    }

    pub(crate) fn into_handle(self) -> Arc<FlowHandle> {
        self.handle
    }
}

/// Receiving half of a flow.
pub struct RecvFlow {
    handle: Arc<FlowHandle>,
}

impl RecvFlow {
    /// Returns the next bytes, at most `max`; `None` once the other side has finished.
    pub async fn read(&mut self, max: usize) -> io::Result<Option<Bytes>> {
        poll_fn(|context| self.poll_read(context, max)).await
    }

    pub(crate) fn poll_read(&mut self, context: &Context<'_>, max: usize) -> Poll<io::Result<Option<Bytes>>> {
        let FlowHandle { driver, flow, is_read, .. } = &*self.handle;
        driver.poll_flow(*flow, Direction::Read, context, |session, now| {
            match session.read(now, *flow, max) {
                Read::Data(bytes) => Poll::Ready(Ok(Some(bytes))),
                Read::Pending => Poll::Pending,
                Read::Finished => {
                    is_read.store(true, Ordering::Relaxed);
                    Poll::Ready(Ok(None))
                }
                Read::Reset(reason) => Poll::Ready(Err(reset_error(reason))),
            }
        })
    }

    /// Waits until the flow is reset; data that arrives stays unread.
    pub async fn wait_until_reset(&mut self) {
        let FlowHandle { driver, flow, .. } = &*self.handle;
        poll_fn(|context| {
            driver.poll_flow(*flow, Direction::Read, context, |session, now| {
                match session.read(now, *flow, 0) {
                    Read::Reset(_) => Poll::Ready(()),
                    Read::Data(_) | Read::Pending | Read::Finished => Poll::Pending,
                }
            })
        })
        .await;
    }
}

pub(crate) fn to_io_error(end: FlowEnd) -> io::Error {
    match end {
        FlowEnd::Finished => io::ErrorKind::BrokenPipe.into(),
        FlowEnd::Reset(reason) => reset_error(reason),
    }
}

pub(crate) fn reset_error(reason: ResetReason) -> io::Error {
    let kind = match reason.code {
        ResetCode::REFUSED => io::ErrorKind::ConnectionRefused,
        ResetCode::TOO_MANY_FLOWS => io::ErrorKind::QuotaExceeded,
        _ => io::ErrorKind::ConnectionReset,
    };
    io::Error::new(kind, reason)
}
