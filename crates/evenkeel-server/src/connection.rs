//! One connection: detects HTTP/1.1 or HTTP/2, inspects the bytes on their way to hyper, and times out slow writes.
//!
//! Limits: the connection closes when the client reads less than 1 KiB/s for `write_wait_max` while data waits for it.
//! A response to a request whose body was not read to its end is followed by a lingering close: it discards at most
//! [`LINGER_BYTES_MAX`] for [`LINGER_MAX`], because a client that is still sending would get a reset instead of the response.

use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering};
use core::task::{Context, Poll, ready};
use std::io;
use std::sync::Arc;

use evenkeel_policy::time::Duration;
use evenkeel_telemetry::Counter;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::framing::FramingCheck;
use crate::sending::ClientProgress;

/// Vectored writes up to this size are copied into one buffer, which is cheaper than a system call with a list.
const JOINED_MAX: usize = 4 * 1024;
pub(crate) const LINGER_BYTES_MAX: u64 = 64 * 1024 * 1024;
pub(crate) const LINGER_MAX: Duration = Duration::from_secs(5);
/// The HTTP/2 connection preface.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Number of the first request on a connection whose length is ambiguous; shared with the request service.
#[derive(Clone, Debug)]
pub(crate) struct SmugglingSuspect(Arc<AtomicU64>);

impl SmugglingSuspect {
    fn none() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Reports whether the request with this number, or one before it, is suspect.
    pub(crate) fn reaches(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) <= number
    }
}

/// HTTP version of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A stream whose version was detected from its first bytes, and whose framing is checked.
pub(crate) struct InspectedStream<I> {
    inner: I,
    /// Bytes read during detection that hyper has not read yet.
    start: Vec<u8>,
    framing: FramingCheck,
    suspect: SmugglingSuspect,
    writes: WriteLimits,
    /// Set while data waits for the client.
    progress: Option<ClientProgress>,
    linger: Option<Linger>,
    /// Buffer for short vectored writes.
    joined: Vec<u8>,
}

/// Limits of slow writes.
#[derive(Clone, Debug)]
pub(crate) struct WriteLimits {
    pub(crate) wait_max: Duration,
    /// Counts connections that were closed because the client reads too slowly.
    pub(crate) slow_readers: Counter,
}

/// A lingering close.
struct Linger {
    bytes_left: u64,
    timer: Pin<Box<Sleep>>,
}

impl<I: AsyncRead + AsyncWrite + Unpin> InspectedStream<I> {
    /// Detects the HTTP version from the first bytes, at most 24.
    pub(crate) async fn begin(
        mut inner: I,
        writes: WriteLimits,
    ) -> io::Result<(Self, Version, SmugglingSuspect)> {
        let mut start = Vec::with_capacity(PREFACE.len());
        let version = loop {
            let mut rest = [0; PREFACE.len()];
            let read = inner.read(&mut rest[start.len()..]).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let from = start.len();
            start.extend_from_slice(&rest[from..from + read]);
            if !PREFACE.starts_with(&start) {
                break Version::Http1;
            }
            if start.len() == PREFACE.len() {
                break Version::Http2;
            }
        };
        let framing = match version {
            Version::Http1 => FramingCheck::new(),
            Version::Http2 => FramingCheck::disabled(),
        };
        let suspect = SmugglingSuspect::none();
        let stream = Self {
            inner,
            start,
            framing,
            suspect: suspect.clone(),
            writes,
            progress: None,
            linger: None,
            joined: Vec::new(),
        };
        Ok((stream, version, suspect))
    }

    fn inspect(&mut self, bytes: &[u8]) {
        self.framing.feed(bytes);
        if let Some(number) = self.framing.suspect() {
            self.suspect.0.store(number, Ordering::Relaxed);
        }
    }
}

impl<I> InspectedStream<I> {
    /// Turns a write that makes too little progress into a timeout error.
    fn with_timeout<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let wait = self.writes.wait_max;
        ready!(self.progress.get_or_insert_with(|| ClientProgress::new(wait)).poll_slow(cx));
        self.writes.slow_readers.count();
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// Counts the bytes of a write.
    fn on_write(
        &mut self,
        cx: &mut Context<'_>,
        written: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(bytes)), Some(progress)) = (&written, &mut self.progress) {
            progress.add(*bytes as u64);
        }
        self.with_timeout(cx, written)
    }
}

impl<I: AsyncRead + Unpin> InspectedStream<I> {
    /// Discards the rest of a body that is still arriving.
    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let linger = self.linger.get_or_insert_with(|| Linger {
            bytes_left: LINGER_BYTES_MAX,
            timer: Box::pin(sleep(LINGER_MAX)),
        });
        let mut scratch = [0; 16 * 1024];
        while self.framing.is_inside_body() {
            let mut buf = ReadBuf::new(&mut scratch);
            let Poll::Ready(read) = Pin::new(&mut self.inner).poll_read(cx, &mut buf) else {
                return linger.timer.as_mut().poll(cx);
            };
            let bytes = buf.filled();
            if read.is_err() || bytes.is_empty() || linger.bytes_left < bytes.len() as u64 {
                break;
            }
            linger.bytes_left -= bytes.len() as u64;
            self.framing.feed(bytes);
        }
        Poll::Ready(())
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for InspectedStream<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        if self.start.is_empty() {
            ready!(Pin::new(&mut self.inner).poll_read(cx, buf))?;
        } else {
            let taken = self.start.len().min(buf.remaining());
            buf.put_slice(&self.start[..taken]);
            self.start.drain(..taken);
        }
        self.inspect(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for InspectedStream<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.inner).poll_write(cx, buf);
        self.on_write(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let written = Pin::new(&mut self.inner).poll_flush(cx);
        if written.is_ready() {
            self.progress = None;
        }
        self.with_timeout(cx, written)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.linger.is_none() {
            let written = Pin::new(&mut self.inner).poll_shutdown(cx);
            ready!(self.with_timeout(cx, written))?;
        }
        self.poll_linger(cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        let written = if bufs.iter().map(|buf| buf.len()).sum::<usize>() <= JOINED_MAX {
            this.joined.clear();
            bufs.iter().for_each(|buf| this.joined.extend_from_slice(buf));
            Pin::new(&mut this.inner).poll_write(cx, &this.joined)
        } else {
            Pin::new(&mut this.inner).poll_write_vectored(cx, bufs)
        };
        self.on_write(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
