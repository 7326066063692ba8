//! An answer's body, and the connection it comes over.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::sync::Arc;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use super::UpstreamError;
use super::connection::Connection;
use super::framing::Framing;
use super::pool::{ConnectionPool, HostPool};

/// An answer's body: read to its end it gives the connection back, dropped before it closes the connection.
///
/// Whoever reads it moves the connection on; a body that nobody reads stops its node by back-pressure.
pub struct UpstreamBody {
    /// `None` once the end has been read, or the connection is lost.
    using: Option<ActiveConnection>,
}

struct ActiveConnection {
    link: Box<Connection>,
    host: Arc<HostPool>,
    pool: Arc<ConnectionPool>,
}

impl UpstreamBody {
    pub(super) fn new(link: Box<Connection>, host: Arc<HostPool>, pool: Arc<ConnectionPool>) -> Self {
        let mut body = Self { using: Some(ActiveConnection { link, host, pool }) };
        body.release_at_end();
        body
    }

    /// Gives the connection back as soon as the end is known: who has read as much may not look for more.
    fn release_at_end(&mut self) {
        let ended = |using: &mut ActiveConnection| using.link.framing() == Framing::Done;
        if let Some(using) = self.using.take_if(ended) {
            using.pool.give_back(&using.host, using.link);
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
        let Some(using) = &mut this.using else { return Poll::Ready(None) };
        let part = ready!(using.link.poll_part(cx));
        match part {
            Ok(part) => {
                this.release_at_end();
                Poll::Ready(part.map(|part| Ok(Frame::data(part))))
            }
            Err(error) => {
                this.using = None;
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.using.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        match self.using.as_ref().map_or(Framing::Done, |using| using.link.framing()) {
            Framing::Done => SizeHint::with_exact(0),
            Framing::Bytes(left) => SizeHint::with_exact(left),
            Framing::UntilClose
            | Framing::Size
            | Framing::Chunk(_)
            | Framing::ChunkEnd
            | Framing::Trailers(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody").field("ended", &self.using.is_none()).finish_non_exhaustive()
    }
}
