//! Parses a response without a socket, with the parser that connections use, for tests and fuzzing; and the error for
//! invalid framing, which connections return too.

use bytes::{Bytes, BytesMut};
use http::{Method, Response};

use super::UpstreamError;
use super::framing::{Framing, FramingError};
use super::head::{ConnectionReuse, HeadReader, ResponseHead};

/// A parsed response.
#[derive(Debug)]
pub struct ParsedResponse {
    /// Head and the received part of the body.
    pub response: Response<Bytes>,
    /// Reports whether the whole body was received; always false for a body that ends when the connection closes.
    pub is_complete: bool,
    /// Reports whether the connection can be reused.
    pub is_reusable: bool,
    /// Input that was not consumed: bytes after a complete response, or an incomplete part of it.
    pub rest: Bytes,
}

/// Parses a response that arrives in chunks; `None` if its head is incomplete.
pub fn parse_response<'a>(
    method: &Method,
    chunks: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Option<ParsedResponse>, UpstreamError> {
    let mut input = BytesMut::new();
    let mut body = BytesMut::new();
    let mut reader = HeadReader::default();
    let mut head: Option<ResponseHead> = None;
    for chunk in chunks {
        input.extend_from_slice(chunk);
        if head.is_none() && !input.is_empty() {
            head = reader.take(&mut input, method)?;
        }
        let Some(head) = &mut head else { continue };
        while let Some(part) = head.body.take(&mut input).map_err(|FramingError| invalid_framing())? {
            body.extend_from_slice(&part);
        }
    }
    Ok(head.map(|head| {
        let is_complete = head.body == Framing::Done;
        let is_reusable = is_complete && head.reuse == ConnectionReuse::KeepAlive && input.is_empty();
        ParsedResponse {
            response: head.response.map(|()| body.freeze()),
            is_complete,
            is_reusable,
            rest: input.freeze(),
        }
    }))
}

pub(super) fn invalid_framing() -> UpstreamError {
    UpstreamError::Truncated { error: FramingError.to_string() }
}
