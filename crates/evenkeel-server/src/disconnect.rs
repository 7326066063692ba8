//! Whether the client is still there.
//!
//! When it leaves, hyper drops the handler's future or the response body, which is the signal for everything they own;
//! a [`Disconnect`] carries it to what they do not own: spawned tasks, actors, requests to nodes.
//!
//! Bound: told as soon as the socket says so. An HTTP/1.1 client that pipelined a further request, or whose body is not
//! yet read, is noticed at the next write instead, because bytes of its own stand before the end.

use core::pin::{Pin, pin};
use core::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::Notify;

use crate::body::{Body, BodyError, Response};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseEnd {
    /// The whole response was handed to the connection.
    Complete,
    /// The client left, or the response broke off.
    Aborted,
}

/// Tells how a request ended, to whoever holds a copy.
#[derive(Clone, Debug)]
pub struct Disconnect(Arc<DisconnectState>);

/// What became of a request; most are watched by nobody, so that this is small.
#[derive(Debug, Default)]
struct DisconnectState {
    /// 0 while it has not ended.
    ending: AtomicU8,
    changed: Notify,
}

const SERVED: u8 = 1;
const GONE: u8 = 2;

impl Disconnect {
    /// How it ended; `None` while it has not.
    pub fn ending(&self) -> Option<ResponseEnd> {
        match self.0.ending.load(Ordering::Acquire) {
            SERVED => Some(ResponseEnd::Complete),
            GONE => Some(ResponseEnd::Aborted),
            _ => None,
        }
    }

    /// Waits for the end.
    pub async fn ended(&mut self) -> ResponseEnd {
        loop {
            let mut changed = pin!(self.0.changed.notified());
            // Whatever is told after the look is heard.
            changed.as_mut().enable();
            if let Some(ending) = self.ending() {
                return ending;
            }
            changed.await;
        }
    }
}

/// The other side of a [`Disconnect`]: while it lives, the request does.
pub(crate) struct RequestGuard {
    told: Arc<DisconnectState>,
    in_flight: Arc<AtomicUsize>,
}

impl RequestGuard {
    pub(crate) fn new(in_flight: Arc<AtomicUsize>) -> (Self, Disconnect) {
        in_flight.fetch_add(1, Ordering::Relaxed);
        let told = Arc::<DisconnectState>::default();
        (Self { told: told.clone(), in_flight }, Disconnect(told))
    }

    fn served(self) {
        self.tell(SERVED);
    }

    /// Tells how it ended, unless that is told.
    fn tell(&self, ending: u8) {
        if self.told.ending.compare_exchange(0, ending, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            self.told.changed.notify_waiters();
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.tell(GONE);
    }
}

/// A response body that keeps its request's [`Presence`] until its last byte.
pub(crate) struct TrackedBody {
    inner: Body,
    presence: Option<RequestGuard>,
    /// What is missing of the declared length; hyper stops asking there.
    left: Option<u64>,
}

impl TrackedBody {
    /// Watches a response's body; `Method::HEAD` has none to wait for.
    pub(crate) fn watch(
        response: Response,
        method: &http::Method,
        presence: RequestGuard,
    ) -> http::Response<Self> {
        let declared =
            response.headers().get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        let is_over = method == http::Method::HEAD || response.body().is_end_stream();
        let presence = if is_over {
            presence.served();
            None
        } else {
            Some(presence)
        };
        response.map(|inner| Self { inner, presence, left: declared })
    }

    fn passed(&mut self, bytes: usize) {
        self.left = self.left.map(|left| left.saturating_sub(bytes as u64));
        if (self.left == Some(0) || self.inner.is_end_stream())
            && let Some(presence) = self.presence.take()
        {
            presence.served();
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
        let frame = ready!(Pin::new(&mut self.inner).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => self.passed(frame.data_ref().map_or(0, Bytes::len)),
            Some(Err(_)) => drop(self.presence.take()),
            None => self.presence.take().map_or((), RequestGuard::served),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
