//! Bodies of answers, made while they are sent.
//!
//! What makes a body lives inside it: when the client goes away the body is dropped, and with it the slot
//! that its maker holds.

use bytes::Bytes;
use hyper::body::{Body, Frame, SizeHint};
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::sync::mpsc::{self, error::TryRecvError};

pub(super) enum ResponseBody {
    /// Sent as it is, with its length.
    Whole(Option<Bytes>),
    /// Sent as it is made, of a length nobody knows before.
    Made { maker: Option<Pin<Box<dyn Future<Output = ()> + Send>>>, made: mpsc::Receiver<Bytes> },
}

impl ResponseBody {
    /// Prepares a body that `make` sends piece by piece, one ahead of the socket at most.
    pub(super) fn made<F>(make: impl FnOnce(mpsc::Sender<Bytes>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (sender, made) = mpsc::channel(1);
        Self::Made { maker: Some(Box::pin(make(sender))), made }
    }
}

impl Body for ResponseBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let frame = |piece: Bytes| Poll::Ready(Some(Ok(Frame::data(piece))));
        match self.get_mut() {
            Self::Whole(bytes) => bytes.take().map_or(Poll::Ready(None), frame),
            Self::Made { maker, made } => {
                if let Ok(piece) = made.try_recv() {
                    return frame(piece);
                }
                if maker.as_mut().is_some_and(|maker| maker.as_mut().poll(context).is_ready()) {
                    *maker = None;
                }
                // Whoever could send is in here, so an empty channel needs no waker of its own.
                match made.try_recv() {
                    Ok(piece) => frame(piece),
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
            Self::Made { .. } => SizeHint::default(),
        }
    }
}
