//! Response body, which owns its connection until the last byte.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::UpstreamError;
use super::connection::Connection;
use super::framing::Framing;
use super::pool::{ConnectionPool, OriginPool};

/// Response body. Reading it to its end returns the connection to the pool, unless it is a flow of a link; dropping it
/// earlier closes the connection.
///
/// The reader drives the connection: a body that is not read slows the peer down (backpressure).
pub struct UpstreamBody {
    /// `None` once the end has been read or the connection has failed.
    active: Option<ActiveConnection>,
}

struct ActiveConnection {
    connection: Box<Connection>,
    /// `None` for a connection that is not reused.
    reuse: Option<PoolPlace>,
}

/// Place to which a connection returns.
pub(super) struct PoolPlace {
    pub(super) origin: Arc<OriginPool>,
    pub(super) pool: Arc<ConnectionPool>,
}

impl UpstreamBody {
    pub(super) fn new(connection: Box<Connection>, reuse: Option<PoolPlace>) -> Self {
        let mut body = Self { active: Some(ActiveConnection { connection, reuse }) };
        body.release_at_end();
        body
    }

    /// Returns or closes the connection as soon as the body is complete, because the reader may not poll again.
    fn release_at_end(&mut self) {
        let is_done = |active: &mut ActiveConnection| active.connection.framing() == Framing::Done;
        let Some(active) = self.active.take_if(is_done) else { return };
        if let Some(PoolPlace { origin, pool }) = active.reuse {
            pool.put(&origin, active.connection);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = UpstreamError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, UpstreamError>>> {
        let this = self.get_mut();
        let Some(active) = &mut this.active else { return Poll::Ready(None) };
        let part = ready!(active.connection.poll_body(cx));
        match part {
            Ok(part) => {
                this.release_at_end();
                Poll::Ready(part.map(|part| Ok(Frame::data(part))))
            }
            Err(error) => {
                this.active = None;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.active.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.active.as_ref().map_or(Framing::Done, |active| active.connection.framing()) {
            Framing::Done => SizeHint::with_exact(0),
            Framing::ContentLength(left) => SizeHint::with_exact(left),
            Framing::UntilClose
            | Framing::ChunkSize
            | Framing::Chunk(_)
            | Framing::ChunkEnd
            | Framing::Trailers(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody").field("ended", &self.active.is_none()).finish_non_exhaustive()
    }
}
