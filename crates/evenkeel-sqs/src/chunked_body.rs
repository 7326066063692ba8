//! Large answers in pieces, so that it is known how far a client that left had got.

use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::Bytes;
use evenkeel_server::body::{self, Body};
use http_body::{Frame, SizeHint};
use http_body_util::BodyExt;

/// What is handed to a connection at once.
const PIECE: usize = 64 * 1024;

/// Makes a body of an answer.
///
/// An answer counts as served when its last piece was handed to the connection: in one piece, that would be at once.
pub(crate) fn body_of(answer: Vec<u8>) -> Body {
    if answer.len() <= PIECE {
        return body::full(answer);
    }
    ChunkedBody(answer.into()).map_err(|never| match never {}).boxed_unsync()
}

/// What is left of an answer.
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
        let len = self.0.len().min(PIECE);
        Poll::Ready(Some(Ok(Frame::data(self.0.split_to(len)))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0.len() as u64)
    }
}
