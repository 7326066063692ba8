//! Whether the client is still there.
//!
//! When it leaves, hyper drops the handler's future or the response body, which is the signal for everything they own;
//! a [`Disconnect`] carries it to what they do not own: spawned tasks, actors, requests to nodes.
//!
//! Bound: told as soon as the socket says so. An HTTP/1.1 client that pipelined a further request, or whose body is not
//! yet read, is noticed at the next write instead, because bytes of its own stand before the end.

use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::watch;

use crate::body::{Body, BodyError, Response};

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The whole response was handed to the connection.
    Served,
    /// The client left, or the response broke off.
    Gone,
}

/// Tells how a request ended, to whoever holds a copy.
#[derive(Clone, Debug)]
pub struct Disconnect(watch::Receiver<Option<Ending>>);

impl Disconnect {
    /// How it ended; `None` while it has not.
    pub fn ending(&self) -> Option<Ending> {
        *self.0.borrow()
    }

    /// Waits for the end.
    pub async fn ended(&mut self) -> Ending {
        match self.0.wait_for(Option::is_some).await {
            Ok(ending) => ending.unwrap_or(Ending::Gone),
            Err(_) => Ending::Gone,
        }
    }
}

/// The other side of a [`Disconnect`]: while it lives, the request does.
pub(crate) struct Presence {
    sender: watch::Sender<Option<Ending>>,
    in_flight: Arc<AtomicUsize>,
}

impl Presence {
    pub(crate) fn new(in_flight: Arc<AtomicUsize>) -> (Self, Disconnect) {
        in_flight.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = watch::channel(None);
        (Self { sender, in_flight }, Disconnect(receiver))
    }

    fn served(self) {
        self.tell(Ending::Served);
    }

    /// Tells how it ended, unless that is told or nobody listens.
    fn tell(&self, ending: Ending) {
        if !self.sender.is_closed() {
            self.sender.send_if_modified(|told| told.replace(told.unwrap_or(ending)).is_none());
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.tell(Ending::Gone);
    }
}

/// A response body that keeps its request's [`Presence`] until its last byte.
pub(crate) struct WatchedBody {
    inner: Body,
    presence: Option<Presence>,
    /// What is missing of the declared length; hyper stops asking there.
    left: Option<u64>,
}

impl WatchedBody {
    /// Watches a response's body; `Method::HEAD` has none to wait for.
    pub(crate) fn watch(
        response: Response,
        method: &http::Method,
        presence: Presence,
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

impl http_body::Body for WatchedBody {
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
            None => self.presence.take().map_or((), Presence::served),
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
