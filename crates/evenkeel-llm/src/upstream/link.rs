//! One connection to a node, polled by whoever uses it: no task of its own, so no hop between tasks.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_policy::time::Duration;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::Notify;
use tokio::time::{Sleep, sleep};

use super::bell::Bell;
use super::connect::Wire;
use super::pool::{Counters, Open};
use super::{SendError, after};

/// How often a poll begins again because something happened meanwhile, before others get their turn.
const AGAIN_MAX: usize = 4;

/// A connection, its end for requests, and the time that its node has.
pub(super) struct Link {
    requests: http1::SendRequest<Full<Bytes>>,
    /// `None` once it has ended.
    connection: Option<http1::Connection<TokioIo<Wire>, Full<Bytes>>>,
    /// Whether it ended within an answer's head.
    head_begun: bool,
    bell: Arc<Bell>,
    waker: Waker,
    time_max: Duration,
    patience: Pin<Box<Sleep>>,
    /// Whether `patience` counts already.
    counting: bool,
    _open: Open,
}

/// Why an exchange came to nothing, and what is known of it.
pub(super) struct Failed {
    pub(super) error: SendError,
    /// Whether any of the answer came.
    pub(super) answer: Answer,
    /// The request, where none of it was sent.
    pub(super) unsent: Option<Request<Full<Bytes>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Begun,
    None,
}

impl Link {
    pub(super) async fn open(
        wire: Wire,
        time_max: Duration,
        keeper: Arc<Notify>,
        counters: &Arc<Counters>,
    ) -> Result<Self, SendError> {
        let (requests, connection) = http1::handshake(TokioIo::new(wire))
            .await
            .map_err(|error| SendError::Connect { error: error.to_string() })?;
        let bell = Arc::new(Bell::new(keeper));
        Ok(Self {
            requests,
            connection: Some(connection),
            head_begun: false,
            waker: Waker::from(bell.clone()),
            bell,
            time_max,
            patience: Box::pin(sleep(time_max)),
            counting: false,
            _open: Open::count(counters),
        })
    }

    /// Sends a request, and waits for the answer's head.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>, Failed> {
        self.bell.hush();
        let mut answer = pin!(self.requests.try_send_request(request));
        let answer = poll_fn(|cx| self.drive(cx, |cx| answer.as_mut().poll(cx))).await;
        match answer {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(mut refused)) => {
                let unsent = refused.take_message();
                let answer = if self.head_begun { Answer::Begun } else { Answer::None };
                Err(Failed { error: SendError::before_head(&refused.into_error()), answer, unsent })
            }
            Err(error) => Err(Failed { error, answer: Answer::None, unsent: None }),
        }
    }

    /// Moves the connection on until `take` has something, or the node's time is up.
    ///
    /// Nothing but the connection makes something for `take`, which needs no wake-up of its own therefore.
    pub(super) fn drive<T>(
        &mut self,
        cx: &mut Context<'_>,
        mut take: impl FnMut(&mut Context<'_>) -> Poll<T>,
    ) -> Poll<Result<T, SendError>> {
        let silent = &mut Context::from_waker(Waker::noop());
        if let Poll::Ready(taken) = take(silent) {
            self.counting = false;
            return Poll::Ready(Ok(taken));
        }
        for _ in 0..AGAIN_MAX {
            self.poll_connection();
            if let Poll::Ready(taken) = take(silent) {
                self.counting = false;
                return Poll::Ready(Ok(taken));
            }
            if self.bell.wait(cx.waker()) {
                return self.poll_patience(cx).map(|()| Err(SendError::Timeout));
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn poll_connection(&mut self) {
        let Some(connection) = &mut self.connection else { return };
        self.bell.hush();
        // How it ended is told to whoever waits for the answer or its body.
        let Poll::Ready(_) = Pin::new(connection).poll(&mut Context::from_waker(&self.waker)) else { return };
        let ended = self.connection.take().map(http1::Connection::into_parts);
        self.head_begun = ended.is_some_and(|parts| !parts.read_buf.is_empty());
    }

    /// Counts the time in which the node says nothing; not that in which nobody listens.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if !self.counting {
            self.patience.as_mut().reset(after(self.time_max));
            self.counting = true;
        }
        self.patience.as_mut().poll(cx)
    }

    /// Lets go of its user; `false` if it cannot be used again.
    pub(super) fn rest(&mut self) -> bool {
        self.counting = false;
        // A timer that runs on would hold its last user's task.
        let _ = self.patience.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.look_after()
    }

    /// Looks after an idle connection; `false` once it has ended.
    pub(super) fn look_after(&mut self) -> bool {
        self.poll_connection();
        self.bell.rest();
        self.requests.is_ready()
    }
}
