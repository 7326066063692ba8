//! One connection: which HTTP it speaks, and its bytes on their way to hyper.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::sync::Arc;

use core::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};

use crate::framing::Framing;

/// What every h2 connection begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The number of the first request on a connection whose length is in doubt, told to those who answer.
#[derive(Clone, Debug)]
pub(crate) struct Suspect(Arc<AtomicU64>);

impl Suspect {
    fn none() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    /// Tells whether the request with this number, or one before it, is in doubt.
    pub(crate) fn reaches(&self, number: u64) -> bool {
        self.0.load(Ordering::Relaxed) <= number
    }
}

/// Which HTTP a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    Http2,
}

/// A stream whose first bytes were read to tell its version, and whose framing is followed.
pub(crate) struct Watched<I> {
    inner: I,
    /// Read and not yet handed on.
    start: Vec<u8>,
    framing: Framing,
    suspect: Suspect,
}

impl<I: AsyncRead + AsyncWrite + Unpin> Watched<I> {
    /// Reads as much as it takes to tell the version.
    pub(crate) async fn begin(mut inner: I) -> io::Result<(Self, Version, Suspect)> {
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
            Version::Http1 => Framing::new(),
            Version::Http2 => Framing::blind(),
        };
        let suspect = Suspect::none();
        Ok((Self { inner, start, framing, suspect: suspect.clone() }, version, suspect))
    }

    fn saw(&mut self, bytes: &[u8]) {
        self.framing.feed(bytes);
        if let Some(number) = self.framing.suspect() {
            self.suspect.0.store(number, Ordering::Relaxed);
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncRead for Watched<I> {
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
        self.saw(&buf.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }
}
