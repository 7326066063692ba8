//! Socket and buffers of a connection.
//!
//! Every wait can be dropped: bytes that were not sent stay in `output`, bytes that were received stay in `input`.

use core::future::{Future, poll_fn};
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker, ready};
use std::io;

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWrite};

use crate::db_error::DbError;
use crate::error::PgError;
use crate::frame::{Frame, FrameBuffer, LengthError};
use crate::transport::Transport;

/// Largest output buffer that is kept for the next statement.
const KEPT_BYTES_MAX: usize = 64 * 1024;

pub(crate) struct Wire {
    pub(crate) transport: Transport,
    pub(crate) input: FrameBuffer,
    /// Messages to send.
    pub(crate) output: BytesMut,
    /// Bytes of the current output that were sent.
    sent: usize,
}

/// Amount of the output that has been sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    Nothing,
    Part,
    All,
}

impl Wire {
    pub(crate) fn new(transport: Transport, message_bytes_max: usize) -> Self {
        Self { transport, input: FrameBuffer::new(message_bytes_max), output: BytesMut::new(), sent: 0 }
    }

    pub(crate) fn sent(&self) -> Sent {
        match (self.output.is_empty(), self.sent) {
            (true, _) => Sent::All,
            (false, 0) => Sent::Nothing,
            (false, _) => Sent::Part,
        }
    }

    /// Drops output of which nothing was sent.
    pub(crate) fn discard_output(&mut self) {
        self.output.clear();
    }

    /// Sends the output.
    pub(crate) async fn flush(&mut self) -> Result<(), PgError> {
        match poll_fn(|cx| self.poll_flush(cx)).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.lost(&error)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.output.is_empty() {
            let count = ready!(Pin::new(&mut self.transport).poll_write(cx, &self.output))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.output.advance(count);
            self.sent += count;
        }
        if KEPT_BYTES_MAX < self.output.capacity() {
            self.output = BytesMut::new();
        }
        self.sent = 0;
        // Only TLS buffers; for the others this does nothing.
        Pin::new(&mut self.transport).poll_flush(cx)
    }

    /// Returns the next message if it has been received.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, PgError> {
        self.input.next().map_err(|error| match error {
            LengthError::AboveMax { bytes_max } => PgError::ResultTooLarge { bytes_max },
            LengthError::Invalid { .. } => PgError::Protocol { reason: error.to_string() },
        })
    }

    /// Reads once; waits until bytes arrive.
    pub(crate) async fn fill(&mut self) -> Result<(), PgError> {
        match self.transport.read_buf(self.input.space()).await {
            Ok(0) => Err(lost("the server closed the connection")),
            Ok(_) => Ok(()),
            Err(error) => Err(lost(&error.to_string())),
        }
    }

    /// Reads and drops everything until the server has closed the connection.
    pub(crate) async fn ended(&mut self) {
        let mut dropped = vec![0; 16 * 1024];
        while matches!(self.transport.read(&mut dropped).await, Ok(count) if 0 < count) {}
    }

    /// Waits for the next message and passes it to `handle`, until that returns a value.
    pub(crate) async fn read_until<T>(
        &mut self,
        mut handle: impl FnMut(Frame<'_>) -> Result<Option<T>, PgError>,
    ) -> Result<T, PgError> {
        loop {
            while let Some(frame) = self.next()? {
                if let Some(value) = handle(frame)? {
                    return Ok(value);
                }
            }
            self.fill().await?;
        }
    }

    /// Describes a failed write, with the error that the server may have sent before it closed the connection.
    fn lost(&mut self, error: &io::Error) -> PgError {
        let mut cx = Context::from_waker(Waker::noop());
        let reading = pin!(self.transport.read_buf(self.input.space()));
        let _ = reading.poll(&mut cx);
        while let Ok(Some(frame)) = self.input.next() {
            if frame.kind == b'E'
                && let Ok(error) = DbError::parse(frame.body)
            {
                return lost(&error.to_string());
            }
        }
        lost(&error.to_string())
    }
}

pub(crate) fn lost(reason: &str) -> PgError {
    PgError::ConnectionLost { reason: reason.to_owned() }
}
