//! Detection of a client disconnect.
//!
//! On a client disconnect, hyper drops the handler's future or the response body, and with them everything they own. A
//! [`Disconnect`] signals it to tasks, actors and upstream requests that they do not own.
//!
//! Guarantees: a disconnect is signalled as soon as the socket reports it. A disconnect of an HTTP/1.1 client that pipelined another
//! request, or whose body is not read yet, is only detected at the next write: unread bytes precede the end of the stream.

use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::Notify;

use crate::body::{BodyError, Response};
use crate::connections::OpenConnection;
use crate::sending::{ReadAhead, ResponseStream};

/// Outcome of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The whole response was handed to the connection.
    Complete,
    /// The client disconnected, or the response failed midway.
    Aborted,
}

/// Signals the end of a request to every clone.
#[derive(Clone, Debug, Default)]
pub struct Disconnect(Arc<DisconnectState>);

/// Shared state of a request; small, because most requests have no observer.
#[derive(Debug, Default)]
struct DisconnectState {
    /// `RUNNING`, `COMPLETE` or `ABORTED`.
    end: AtomicU8,
    changed: Notify,
    body_read: AtomicBool,
}

const RUNNING: u8 = 0;
const COMPLETE: u8 = 1;
const ABORTED: u8 = 2;

impl Disconnect {
    /// Returns the outcome; `None` while the request runs.
    pub fn end(&self) -> Option<ResponseEnd> {
        match self.0.end.load(Ordering::Acquire) {
            COMPLETE => Some(ResponseEnd::Complete),
            ABORTED => Some(ResponseEnd::Aborted),
            _ => None,
        }
    }

    /// Records that the request's body was read to its end.
    pub(crate) fn on_body_read(&self) {
        self.0.body_read.store(true, Ordering::Relaxed);
    }

    /// Waits for the end of the request.
    pub async fn ended(&mut self) -> ResponseEnd {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Registered before the check, so that no notification after it is lost.
            changed.as_mut().enable();
            if let Some(end) = self.end() {
                return end;
            }
            changed.await;
        }
    }
}

/// The sending half of a [`Disconnect`]. Dropping it signals that the request was aborted.
pub(crate) struct RequestGuard {
    state: Arc<DisconnectState>,
    in_flight: Arc<AtomicUsize>,
    connection: Arc<OpenConnection>,
}

impl RequestGuard {
    pub(crate) fn new(in_flight: Arc<AtomicUsize>, connection: Arc<OpenConnection>) -> (Self, Disconnect) {
        in_flight.fetch_add(1, Ordering::Relaxed);
        connection.begin_request();
        let state = Arc::<DisconnectState>::default();
        (Self { state: state.clone(), in_flight, connection }, Disconnect(state))
    }

    /// Reports whether the request's body was read to its end.
    pub(crate) fn is_body_read(&self) -> bool {
        self.state.body_read.load(Ordering::Relaxed)
    }

    fn complete(self) {
        self.finish(COMPLETE);
    }

    /// Signals the outcome; only the first call has an effect.
    fn finish(&self, end: u8) {
        if self.state.end.compare_exchange(RUNNING, end, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.state.changed.notify_waiters();
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.connection.end_request();
        self.finish(ABORTED);
    }
}

/// A response body that holds its [`RequestGuard`] until the last byte.
pub(crate) struct TrackedBody {
    sending: ResponseStream,
    guard: Option<RequestGuard>,
    /// Remaining bytes of the declared length; hyper stops polling at 0.
    left: Option<u64>,
}

impl TrackedBody {
    /// Wraps a response's body. A response to `HEAD` is complete at once.
    pub(crate) fn wrap(
        response: Response,
        method: &http::Method,
        guard: RequestGuard,
        sending: ResponseStream,
    ) -> http::Response<Self> {
        let declared =
            response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let is_complete = method == http::Method::HEAD || response.body().is_end_stream();
        let guard = if is_complete {
            guard.complete();
            None
        } else {
            Some(guard)
        };
        let (mut head, body) = response.into_parts();
        sending.begin(body, head.extensions.remove::<ReadAhead>());
        http::Response::from_parts(head, Self { sending, guard, left: declared })
    }

    fn on_data(&mut self, bytes: usize) {
        self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
        if (self.left == Some(0) || self.sending.is_end_stream())
            && let Some(guard) = self.guard.take()
        {
            guard.complete();
        }
    }
}

impl http_body::Body for TrackedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let frame = ready!(self.sending.poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.on_data(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) => drop(self.guard.take()),
            None => self.guard.take().map_or((), RequestGuard::complete),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.sending.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.sending.size_hint()
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        self.sending.end();
    }
}
