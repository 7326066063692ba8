//! Response bodies in chunks, so that a client disconnect during a large response is detected.

use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::Bytes;
use evenkeel_server::body::{self, Body};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

/// Bytes handed to the connection at once.
const CHUNK_BYTES: usize = 64 * 1024;

/// Creates a body that hands its bytes to the connection in chunks.
///
/// A response counts as complete once its last chunk is handed over; a single chunk would complete it immediately.
pub(crate) fn chunked(bytes: Vec<u8>) -> Body {
    if bytes.len() <= CHUNK_BYTES {
        return body::full(bytes);
    }
    ChunkedBody(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// The remaining bytes of a response.
struct ChunkedBody(Bytes);

impl http_body::Body for ChunkedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0.is_empty() {
            return Poll::Ready(None);
        }
        let len = self.0.len().min(CHUNK_BYTES);
        Poll::Ready(Some(Ok(Frame::data(self.0.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}
