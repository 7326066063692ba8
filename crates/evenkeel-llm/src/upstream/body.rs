//! An answer's body, and the connection it comes over.

use core::fmt;
use core::pin::Pin;
use core::task::{Context, Poll};
use std::sync::Arc;

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

use super::SendError;
use super::link::Link;
use super::pool::{Host, Pool};

/// An answer's body: read to its end it gives the connection back, dropped before it closes the connection.
///
/// Whoever reads it moves the connection on; a body that nobody reads stops its node by back-pressure.
pub struct UpstreamBody {
    incoming: Incoming,
    /// `None` once the end has been read, or the connection is lost.
    using: Option<Using>,
}

struct Using {
    link: Box<Link>,
    host: Arc<Host>,
    pool: Arc<Pool>,
}

impl UpstreamBody {
    pub(super) fn new(incoming: Incoming, link: Box<Link>, host: Arc<Host>, pool: Arc<Pool>) -> Self {
        let mut body = Self { incoming, using: Some(Using { link, host, pool }) };
        body.release_at_end();
        body
    }

    /// Gives the connection back as soon as the end is known: who has read as much may not look for more.
    fn release_at_end(&mut self) {
        if self.incoming.is_end_stream() {
            self.release();
        }
    }

    fn release(&mut self) {
        if let Some(using) = self.using.take() {
            using.pool.give_back(&using.host, using.link);
        }
    }
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = SendError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, SendError>>> {
        let this = self.get_mut();
        let incoming = &mut this.incoming;
        let polled = match &mut this.using {
            Some(using) => using.link.drive(cx, |cx| Pin::new(&mut *incoming).poll_frame(cx)),
            None => Pin::new(incoming).poll_frame(cx).map(Ok),
        };
        let Poll::Ready(read) = polled else { return Poll::Pending };
        let frame = match read {
            Ok(Some(Ok(frame))) => frame,
            Ok(None) => {
                this.release();
                return Poll::Ready(None);
            }
            Ok(Some(Err(error))) => {
                this.using = None;
                return Poll::Ready(Some(Err(SendError::within_body(&error))));
            }
            Err(error) => {
                this.using = None;
                return Poll::Ready(Some(Err(error)));
            }
        };
        this.release_at_end();
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}

impl fmt::Debug for UpstreamBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpstreamBody").field("ended", &self.using.is_none()).finish_non_exhaustive()
    }
}
