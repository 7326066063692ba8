//! A flow as one byte stream with Tokio's traits.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::link::{RecvFlow, SendFlow};

/// Most bytes that one write copies.
const WRITE_BYTES_MAX: usize = 64 * 1024;

/// Both halves of a flow. Dropping it before both directions have ended resets the flow.
///
/// If the other side refuses the target, the first read or write fails with [`io::ErrorKind::ConnectionRefused`].
pub struct FlowStream {
    send: SendFlow,
    recv: RecvFlow,
}

impl FlowStream {
    pub(crate) fn new(send: SendFlow, recv: RecvFlow) -> Self {
        Self { send, recv }
    }
}

impl AsyncRead for FlowStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if let Some(bytes) = ready!(self.get_mut().recv.poll_read(context, buffer.remaining()))? {
            buffer.put_slice(&bytes);
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for FlowStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let part = Bytes::copy_from_slice(&bytes[..bytes.len().min(WRITE_BYTES_MAX)]);
        self.get_mut().send.poll_write(context, &part)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().send.finish();
        Poll::Ready(Ok(()))
    }
}
