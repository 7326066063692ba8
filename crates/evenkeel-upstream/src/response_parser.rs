//! What a node says, read without a connection: as a connection reads it, for tests and fuzzing to look at.

use bytes::{Bytes, BytesMut};
use http::{Method, Response};

use super::UpstreamError;
use super::framing::{Framing, FramingError};
use super::head::{ConnectionReuse, HeadReader, ResponseHead};

/// What was understood of an answer.
#[derive(Debug)]
pub struct ParsedResponse {
    /// Its head, and as much of its body as came.
    pub response: Response<Bytes>,
    /// Whether all of it came; a body that ends with its connection never has.
    pub whole: bool,
    /// Whether its connection could be used again.
    pub stays: bool,
    /// What came behind it.
    pub behind: Bytes,
}

/// Reads an answer that comes in pieces; `None` if its head is not complete.
pub fn parse_response<'a>(
    method: &Method,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Option<ParsedResponse>, UpstreamError> {
    let mut input = BytesMut::new();
    let mut body = BytesMut::new();
    let (mut head, mut answer): (HeadReader, Option<ResponseHead>) = (HeadReader::default(), None);
    for piece in pieces {
        input.extend_from_slice(piece);
        if answer.is_none() && !input.is_empty() {
            answer = head.take(&mut input, method)?;
        }
        let Some(answer) = &mut answer else { continue };
        while let Some(part) = answer.body.take(&mut input).map_err(|FramingError| misframed())? {
            body.extend_from_slice(&part);
        }
    }
    Ok(answer.map(|answer| {
        let whole = answer.body == Framing::Done;
        let stays = whole && answer.afterwards == ConnectionReuse::KeepAlive && input.is_empty();
        ParsedResponse {
            response: answer.response.map(|()| body.freeze()),
            whole,
            stays,
            behind: input.freeze(),
        }
    }))
}

pub(super) fn misframed() -> UpstreamError {
    UpstreamError::Cut { error: "it is not framed as it says".to_owned() }
}
