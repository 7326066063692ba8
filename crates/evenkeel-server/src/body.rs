//! Body types of responses, and JSON responses.

use core::error::Error;
use core::pin::Pin;
use core::task::{Context, Poll};

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use tokio::sync::{mpsc, oneshot};

/// Error that ends a response body early.
pub type BodyError = Box<dyn Error + Send + Sync>;
pub type Body = UnsyncBoxBody<Bytes, BodyError>;
/// Response of a handler.
pub type Response = http::Response<Body>;

/// Creates a body from bytes in memory.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Creates a body from the chunks of a channel; it ends when every sender is gone.
pub fn channel(chunks: mpsc::Receiver<Bytes>) -> Body {
    ChannelBody(chunks).boxed_unsync()
}

struct ChannelBody(mpsc::Receiver<Bytes>);

impl http_body::Body for ChannelBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Creates a body from the chunks of a channel, for formats that do not show their end.
///
/// When every sender is gone, the body is complete if `completed` was signalled; otherwise it ends with an error, so that
/// HTTP/1.1 and HTTP/2 clients notice the cut.
pub fn completed_channel(chunks: mpsc::Receiver<Bytes>, completed: oneshot::Receiver<()>) -> Body {
    CompletedBody { chunks, completed }.boxed_unsync()
}

struct CompletedBody {
    chunks: mpsc::Receiver<Bytes>,
    completed: oneshot::Receiver<()>,
}

impl http_body::Body for CompletedBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        self.chunks.poll_recv(cx).map(|chunk| match chunk {
            Some(chunk) => Some(Ok(Frame::data(chunk))),
            None if self.completed.try_recv().is_ok() => None,
            None => Some(Err("the response was cut".into())),
        })
    }
}

/// Creates a response with a JSON body.
pub fn json_response(status: StatusCode, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
