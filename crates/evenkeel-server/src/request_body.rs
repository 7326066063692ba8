//! A request's body, which is discarded if nobody reads it to its end.
//!
//! Over HTTP/2, dropping an unread body resets the stream, and clients that are still sending report an error instead of
//! the response that they have received. So the rest of the body is read and discarded in the background. Over HTTP/1.1,
//! a lingering close does that.
//!
//! Limits: discards at most `LINGER_BYTES_MAX` for `LINGER_MAX`.

use http::{Request, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::{Incoming, SizeHint};
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::connection::{LINGER_BYTES_MAX, LINGER_MAX};

/// Body of a request.
#[derive(Debug)]
pub struct RequestBody {
    /// `None` only while it is dropped.
    incoming: Option<Incoming>,
    version: Version,
}

impl RequestBody {
    pub(crate) fn wrap(request: Request<Incoming>) -> Request<Self> {
        let version = request.version();
        request.map(|body| Self { incoming: Some(body), version })
    }

    pub(crate) fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }

    pub(crate) fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    pub(crate) fn incoming(&mut self) -> Option<&mut Incoming> {
        self.incoming.as_mut()
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if self.version != Version::HTTP_2 || self.is_end_stream() {
            return;
        }
        // Without a runtime the connection is gone too.
        if let (Some(body), Ok(runtime)) = (self.incoming.take(), Handle::try_current()) {
            runtime.spawn(timeout(LINGER_MAX, discard(body)));
        }
    }
}

async fn discard(mut body: Incoming) {
    let mut left = LINGER_BYTES_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let bytes = frame.data_ref().map_or(0, |data| data.len() as u64);
        let Some(rest) = left.checked_sub(bytes) else { return };
        left = rest;
    }
}
