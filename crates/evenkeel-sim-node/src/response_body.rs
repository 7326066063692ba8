//! Response bodies that are generated while they are sent.
//!
//! The body owns the future that generates it: when the client disconnects, dropping the body drops the future and the slot
//! that it holds.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{self, error::TryRecvError};

pub(super) enum ResponseBody {
    /// A body of known length.
    Whole(Option<Bytes>),
    /// Streamed while it is generated.
    Generated { generator: Option<Pin<Box<dyn Future<Output = ()> + Send>>>, chunks: mpsc::Receiver<Bytes> },
}

impl ResponseBody {
    /// Creates a body from the chunks that `generate` sends; at most one chunk is buffered.
    pub(super) fn generated<F>(generate: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, chunks) = mpsc::channel(1);
        Self::Generated { generator: Some(Box::pin(generate(sender))), chunks }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |chunk: Bytes| Poll::Ready(Some(Ok(Frame::data(chunk))));
        match self.get_mut() {
            Self::Whole(bytes) => bytes.take().map_or(Poll::Ready(None), frame),
            Self::Generated { generator, chunks } => {
                if let Ok(chunk) = chunks.try_recv() {
                    return frame(chunk);
                }
                if generator.as_mut().is_some_and(|generator| generator.as_mut().poll(context).is_ready()) {
                    *generator = None;
                }
                // Only the generator sends, and polling it has registered the waker.
                match chunks.try_recv() {
                    Ok(chunk) => frame(chunk),
                    Err(TryRecvError::Empty) => Poll::Pending,
                    Err(TryRecvError::Disconnected) => Poll::Ready(None),
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Whole(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64)),
            Self::Generated { .. } => SizeHint::default(),
        }
    }
}
