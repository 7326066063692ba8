//! One connection to a node: HTTP/1.1, spoken by whoever uses it, without a task or a channel in between.
//!
//! Bounds: reads when it is asked for more, and no more than [`READ_BYTES`] ahead; the node has `time_max` to say
//! something while somebody listens.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker, ready};
use std::io;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use evenkeel_policy::time::Duration;
use http::{Method, Request, Response};
use tokio::io::{AsyncReadExt, AsyncWrite};
use tokio::time::{Instant, Sleep, sleep};

use super::connect::Transport;
use super::framing::{Framing, FramingError};
use super::head::{self, ConnectionReuse, HeadReader, ResponseHead};
use super::pool::{ConnectionCount, Counters};
use super::response_parser::misframed;
use super::{HeaderFilter, Origin, UpstreamError, after};

/// How much room there is for what is read, and when it is made anew.
const READ_BYTES: usize = 16 * 1024;
const READ_BYTES_MIN: usize = 4 * 1024;
/// Up to how many bytes a body is copied behind its head: the kernel takes one piece with less ado than two.
const JOINED_MAX: usize = 4 * 1024;

/// A connection, what is on its way over it, and the time that its node has.
pub(super) struct Connection {
    wire: Transport,
    /// Read, and not yet used.
    input: BytesMut,
    /// What is still to be sent, a short body with its head; the buffer of the head is used again and again.
    head: Vec<u8>,
    head_sent: usize,
    body: Bytes,
    sending: SendState,
    method: Method,
    answer: HeadReader,
    framing: Framing,
    afterwards: ConnectionReuse,
    time_max: Duration,
    patience: Pin<Box<Sleep>>,
    /// When the node's time is up, if somebody waits.
    until: Option<Instant>,
    _open: ConnectionCount,
}

/// Whether a connection was used before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAge {
    New,
    Reused,
}

/// How far the request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// Nothing was sent on a connection that was kept: it may have ended meanwhile.
    Unsure,
    Begun,
    Done,
    /// The node takes no more; it may have answered all the same.
    Broken,
}

/// Why an exchange came to nothing, and how far it was.
#[derive(Debug)]
pub(super) struct ExchangeError {
    pub(super) error: UpstreamError,
    pub(super) after: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing was sent.
    Unsent,
    /// Something was sent, nothing came back.
    Sent,
    /// Something came back.
    Answered,
}

impl Connection {
    pub(super) fn new(wire: Transport, time_max: Duration, counters: &Arc<Counters>) -> Self {
        Self {
            wire,
            input: BytesMut::new(),
            head: Vec::new(),
            head_sent: 0,
            body: Bytes::new(),
            sending: SendState::Done,
            method: Method::GET,
            answer: HeadReader::default(),
            framing: Framing::Done,
            afterwards: ConnectionReuse::KeepAlive,
            time_max,
            patience: Box::pin(sleep(time_max)),
            until: None,
            _open: ConnectionCount::count(counters),
        }
    }

    /// Sends a request, and waits for the answer's head.
    pub(super) async fn exchange(
        &mut self,
        origin: &Origin,
        request: &Request<Bytes>,
        passed: HeaderFilter<'_>,
        age: ConnectionAge,
    ) -> Result<Response<()>, ExchangeError> {
        self.head.clear();
        self.head_sent = 0;
        head::write(&mut self.head, origin, request, passed);
        if request.body().len() <= JOINED_MAX {
            self.head.extend_from_slice(request.body());
        } else {
            self.body = request.body().clone();
        }
        self.method.clone_from(request.method());
        self.answer = HeadReader::default();
        self.sending = match age {
            ConnectionAge::Reused => SendState::Unsure,
            ConnectionAge::New => SendState::Begun,
        };
        poll_fn(|cx| self.poll_exchange(cx)).await
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, ExchangeError>> {
        if self.sending == SendState::Unsure {
            // Whatever comes before the question answers nobody. From here on its user is woken, not its keeper.
            if let Poll::Ready(read) = self.poll_read(cx) {
                return Poll::Ready(Err(ExchangeError {
                    error: closed(read.err()),
                    after: Progress::Unsent,
                }));
            }
            self.sending = SendState::Begun;
        }
        self.send(cx);
        loop {
            if !self.input.is_empty() {
                match self.answer.take(&mut self.input, &self.method) {
                    Ok(Some(head)) => return Poll::Ready(Ok(self.answered(head))),
                    Ok(None) => {}
                    Err(error) => {
                        return Poll::Ready(Err(ExchangeError { error, after: Progress::Answered }));
                    }
                }
            }
            let error = match self.poll_read(cx) {
                Poll::Ready(Ok(1..)) => continue,
                Poll::Ready(read) => closed(read.err()),
                Poll::Pending => {
                    ready!(self.poll_patience(cx));
                    UpstreamError::Timeout
                }
            };
            let after = if self.answer.is_unbegun(&self.input) { Progress::Sent } else { Progress::Answered };
            return Poll::Ready(Err(ExchangeError { error, after }));
        }
    }

    fn answered(&mut self, head: ResponseHead) -> Response<()> {
        self.until = None;
        self.framing = head.body;
        self.afterwards = head.afterwards;
        head.response
    }

    /// Reads the next part of the answer's body; `None` at its end.
    pub(super) fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, UpstreamError>> {
        loop {
            match self.framing.take(&mut self.input) {
                Ok(Some(part)) => {
                    self.until = None;
                    return Poll::Ready(Ok(Some(part)));
                }
                Ok(None) if self.framing == Framing::Done => return Poll::Ready(Ok(None)),
                Ok(None) => {}
                Err(FramingError) => return Poll::Ready(Err(misframed())),
            }
            // A node may read what is left of the request while it answers.
            self.send(cx);
            match self.poll_read(cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) if self.framing == Framing::UntilClose => self.framing = Framing::Done,
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(cut("the connection ended before it"))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(cut(error))),
                Poll::Pending => {
                    ready!(self.poll_patience(cx));
                    return Poll::Ready(Err(UpstreamError::Timeout));
                }
            }
        }
    }

    /// What of the answer's body is still to come.
    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    /// Sends as much as the node takes.
    fn send(&mut self, cx: &mut Context<'_>) {
        if self.sending == SendState::Begun
            && let Poll::Ready(sent) = self.poll_send(cx)
        {
            self.sending = if sent.is_ok() { SendState::Done } else { SendState::Broken };
            self.body = Bytes::new();
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let head = &self.head[self.head_sent..];
            if head.is_empty() && self.body.is_empty() {
                return Pin::new(&mut self.wire).poll_flush(cx);
            }
            let wire = Pin::new(&mut self.wire);
            let sent = match (head, &self.body[..]) {
                (one, []) | ([], one) => wire.poll_write(cx, one),
                (head, body) => {
                    wire.poll_write_vectored(cx, &[io::IoSlice::new(head), io::IoSlice::new(body)])
                }
            };
            let sent = ready!(sent)?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let of_head = sent.min(head.len());
            self.head_sent += of_head;
            self.body.advance(sent - of_head);
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < READ_BYTES_MIN {
            self.input.reserve(READ_BYTES);
        }
        pin!(self.wire.read_buf(&mut self.input)).poll(cx)
    }

    /// Counts the time in which the node says nothing; not that in which nobody listens.
    fn poll_patience(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = *self.until.get_or_insert_with(|| after(self.time_max));
        // A timer that goes off too early is moved then, which is once in many requests.
        if until < self.patience.deadline() || self.patience.is_elapsed() {
            self.patience.as_mut().reset(until);
        }
        loop {
            ready!(self.patience.as_mut().poll(cx));
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.patience.as_mut().reset(until);
        }
    }

    /// Lets go of its user, for `keeper` to be woken instead; `false` if it cannot be used again.
    pub(super) fn park(&mut self, keeper: &Waker) -> bool {
        self.until = None;
        let whole = self.sending == SendState::Done && self.framing == Framing::Done && self.input.is_empty();
        if !whole || self.afterwards == ConnectionReuse::Close {
            return false;
        }
        // A timer that runs on would hold its last user's task.
        let _ = self.patience.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.poll_idle(keeper)
    }

    /// Looks after an idle connection; `false` once it has ended, or said something unasked.
    pub(super) fn poll_idle(&mut self, keeper: &Waker) -> bool {
        self.poll_read(&mut Context::from_waker(keeper)).is_pending()
    }
}

fn closed(error: Option<io::Error>) -> UpstreamError {
    let error = error.map_or("it ended".to_owned(), |error| error.to_string());
    UpstreamError::Closed { error }
}

fn cut(error: impl ToString) -> UpstreamError {
    UpstreamError::Cut { error: error.to_string() }
}
