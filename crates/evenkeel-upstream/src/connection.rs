//! One HTTP/1.1 connection, driven by the task that uses it, without a task or a channel in between.
//!
//! Limits: reads only when polled, at most [`READ_BYTES`] ahead. While the connection is polled, the peer may be silent
//! for at most `silence_max`.

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

use super::connect::{Transport, flow_refusal};
use super::framing::{Framing, FramingError};
use super::head::{self, ConnectionReuse, HeadReader};
use super::pool::{OpenConnectionGuard, PoolCounters};
use super::response_parser::invalid_framing;
use super::{HeaderFilter, Origin, UpstreamError, after};

/// Size of the read buffer.
const READ_BYTES: usize = 16 * 1024;
/// Free space below which a new read buffer is allocated.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Largest request body that is copied behind its head: one plain write is cheaper than a vectored one.
const COALESCED_BODY_MAX: usize = 4 * 1024;

/// A connection and its current request and response.
pub(super) struct Connection {
    transport: Transport,
    /// Received bytes that are not consumed yet.
    input: BytesMut,
    /// Request head, followed by a short body; the buffer is reused.
    head: Vec<u8>,
    head_sent: usize,
    body: Bytes,
    sending: SendState,
    method: Method,
    head_reader: HeadReader,
    framing: Framing,
    reuse: ConnectionReuse,
    silence_max: Duration,
    timer: Pin<Box<Sleep>>,
    /// Deadline for the peer's next bytes, while the connection is polled.
    silence_deadline: Option<Instant>,
    _open: OpenConnectionGuard,
}

/// Distinguishes new connections from reused ones, which the peer may have closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ConnectionAge {
    New,
    Reused,
}

/// Progress of sending the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// Nothing was sent yet on a reused connection, which the peer may have closed.
    Unchecked,
    Started,
    Done,
    /// The peer accepts no more bytes, but may have sent a response.
    Failed,
}

/// Failure of an exchange, and the progress it had made.
#[derive(Debug)]
pub(super) struct ExchangeError {
    pub(super) error: UpstreamError,
    pub(super) progress: Progress,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Nothing was sent.
    Unsent,
    /// Something was sent, nothing received.
    Sent,
    /// Something was received.
    Received,
}

impl Connection {
    pub(super) fn new(transport: Transport, silence_max: Duration, counters: &Arc<PoolCounters>) -> Self {
        Self {
            transport,
            input: BytesMut::new(),
            head: Vec::new(),
            head_sent: 0,
            body: Bytes::new(),
            sending: SendState::Done,
            method: Method::GET,
            head_reader: HeadReader::default(),
            framing: Framing::Done,
            reuse: ConnectionReuse::KeepAlive,
            silence_max,
            timer: Box::pin(sleep(silence_max)),
            silence_deadline: None,
            _open: OpenConnectionGuard::new(counters),
        }
    }

    /// Sends a request and waits for the response head.
    pub(super) async fn exchange(
        &mut self,
        origin: &Origin,
        request: &Request<Bytes>,
        filter: HeaderFilter<'_>,
        age: ConnectionAge,
    ) -> Result<Response<()>, ExchangeError> {
        self.head.clear();
        self.head_sent = 0;
        head::write(&mut self.head, origin, request, filter);
        if request.body().len() <= COALESCED_BODY_MAX {
            self.head.extend_from_slice(request.body());
        } else {
            self.body = request.body().clone();
        }
        self.method.clone_from(request.method());
        self.head_reader = HeadReader::default();
        self.sending = match age {
            ConnectionAge::Reused => SendState::Unchecked,
            ConnectionAge::New => SendState::Started,
        };
        poll_fn(|cx| self.poll_exchange(cx)).await
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<Result<Response<()>, ExchangeError>> {
        if self.sending == SendState::Unchecked {
            // Bytes received before the request was sent are not its response. This poll also replaces the
            // reaper's waker with the caller's.
            if let Poll::Ready(read) = self.poll_read(cx) {
                return Poll::Ready(Err(ExchangeError {
                    error: closed(read.err()),
                    progress: Progress::Unsent,
                }));
            }
            self.sending = SendState::Started;
        }
        self.send(cx);
        loop {
            if !self.input.is_empty() {
                match self.head_reader.take(&mut self.input, &self.method) {
                    Ok(Some(head)) => {
                        self.silence_deadline = None;
                        self.framing = head.body;
                        self.reuse = head.reuse;
                        return Poll::Ready(Ok(head.response));
                    }
                    Ok(None) => {}
                    Err(error) => {
                        return Poll::Ready(Err(ExchangeError { error, progress: Progress::Received }));
                    }
                }
            }
            let error = match self.poll_read(cx) {
                Poll::Ready(Ok(1..)) => continue,
                Poll::Ready(read) => {
                    let error = read.err();
                    if let Some(error) = error.as_ref().and_then(flow_refusal) {
                        return Poll::Ready(Err(ExchangeError { error, progress: Progress::Unsent }));
                    }
                    closed(error)
                }
                Poll::Pending => {
                    ready!(self.poll_silence(cx));
                    UpstreamError::Timeout
                }
            };
            let is_unstarted = self.head_reader.is_unstarted(&self.input);
            let progress = if is_unstarted { Progress::Sent } else { Progress::Received };
            return Poll::Ready(Err(ExchangeError { error, progress }));
        }
    }

    /// Reads the next part of the response body; `None` at its end.
    pub(super) fn poll_body(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Bytes>, UpstreamError>> {
        loop {
            match self.framing.take(&mut self.input) {
                Ok(Some(part)) => {
                    self.silence_deadline = None;
                    return Poll::Ready(Ok(Some(part)));
                }
                Ok(None) if self.framing == Framing::Done => return Poll::Ready(Ok(None)),
                Ok(None) => {}
                Err(FramingError) => return Poll::Ready(Err(invalid_framing())),
            }
            // The peer may still be reading the request while it responds.
            self.send(cx);
            match self.poll_read(cx) {
                Poll::Ready(Ok(1..)) => {}
                Poll::Ready(Ok(0)) if self.framing == Framing::UntilClose => self.framing = Framing::Done,
                Poll::Ready(Ok(_)) => return Poll::Ready(Err(truncated("connection closed by peer"))),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(truncated(error))),
                Poll::Pending => {
                    ready!(self.poll_silence(cx));
                    return Poll::Ready(Err(UpstreamError::Timeout));
                }
            }
        }
    }

    /// Returns the framing state of the response body.
    pub(super) fn framing(&self) -> Framing {
        self.framing
    }

    /// Sends as much of the request as the peer accepts.
    fn send(&mut self, cx: &mut Context<'_>) {
        if self.sending == SendState::Started
            && let Poll::Ready(sent) = self.poll_send(cx)
        {
            self.sending = if sent.is_ok() { SendState::Done } else { SendState::Failed };
            self.body = Bytes::new();
        }
    }

    fn poll_send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let head = &self.head[self.head_sent..];
            if head.is_empty() && self.body.is_empty() {
                return Pin::new(&mut self.transport).poll_flush(cx);
            }
            let transport = Pin::new(&mut self.transport);
            let sent = match (head, &self.body[..]) {
                (one, []) | ([], one) => transport.poll_write(cx, one),
                (head, body) => {
                    transport.poll_write_vectored(cx, &[io::IoSlice::new(head), io::IoSlice::new(body)])
                }
            };
            let sent = ready!(sent)?;
            if sent == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            let head_bytes = sent.min(head.len());
            self.head_sent += head_bytes;
            self.body.advance(sent - head_bytes);
        }
    }

    fn poll_read(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if self.input.capacity() - self.input.len() < READ_BYTES_MIN {
            self.input.reserve(READ_BYTES);
        }
        pin!(self.transport.read_buf(&mut self.input)).poll(cx)
    }

    /// Completes once the peer has been silent for too long; time in which the connection is not polled does not count.
    fn poll_silence(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let until = *self.silence_deadline.get_or_insert_with(|| after(self.silence_max));
        // A timer that fires too early is reset when it fires, which is cheaper than a reset for every request.
        if until < self.timer.deadline() || self.timer.is_elapsed() {
            self.timer.as_mut().reset(until);
        }
        loop {
            ready!(self.timer.as_mut().poll(cx));
            if until <= Instant::now() {
                return Poll::Ready(());
            }
            self.timer.as_mut().reset(until);
        }
    }

    /// Registers the reaper's waker instead of the caller's; returns false if the connection cannot be reused.
    pub(super) fn prepare_for_reuse(&mut self, reaper: &Waker) -> bool {
        self.silence_deadline = None;
        let is_complete =
            self.sending == SendState::Done && self.framing == Framing::Done && self.input.is_empty();
        if !is_complete || self.reuse == ConnectionReuse::Close {
            return false;
        }
        // Replaces the last caller's waker, which the running timer would otherwise keep.
        let _ = self.timer.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        self.poll_idle(reaper)
    }

    /// Polls an idle connection; returns false once the peer has closed it or sent unexpected bytes.
    pub(super) fn poll_idle(&mut self, reaper: &Waker) -> bool {
        self.poll_read(&mut Context::from_waker(reaper)).is_pending()
    }
}

fn closed(error: Option<io::Error>) -> UpstreamError {
    let error = error.map_or("end of stream".to_owned(), |error| error.to_string());
    UpstreamError::Closed { error }
}

fn truncated(error: impl ToString) -> UpstreamError {
    UpstreamError::Truncated { error: error.to_string() }
}
