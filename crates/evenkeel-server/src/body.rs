//! Bodies as doors see them: requests that cannot exceed their limit, responses of any kind.

use core::error::Error;

use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;

/// What a response body ends with when it is cut short.
pub type BodyError = Box<dyn Error + Send + Sync>;
/// A response body.
pub type Body = UnsyncBoxBody<Bytes, BodyError>;
/// What a handler answers.
pub type Response = http::Response<Body>;
/// A request body that ends with an error once it exceeds the listener's limit.
pub type RequestBody = Limited<Incoming>;

/// Makes a body of bytes at hand.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never| match never {}).boxed_unsync()
}
