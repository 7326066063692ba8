//! Incremental decoder of the frames on one stream.

use bytes::Bytes;

use super::reader::Prefix;
use super::{Chunk, Frame, FrameError, Header};
use crate::flow::FlowId;

/// Decodes the frames of one stream.
///
/// A chunk is returned in as many parts as its bytes arrive in, so its data is never copied or stored.
#[derive(Clone, Debug, Default)]
pub struct FrameDecoder {
    prefix: Prefix,
    chunk: Option<PartialChunk>,
}

/// Rest of a chunk whose header has been read.
#[derive(Clone, Copy, Debug)]
struct PartialChunk {
    flow: FlowId,
    offset: u64,
    left: usize,
    fin: bool,
}

impl FrameDecoder {
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the next frame, or part of a chunk, from `input`; `None` once `input` is used up.
    ///
    /// After an error the stream cannot be decoded further.
    pub fn decode(&mut self, input: &mut Bytes) -> Result<Option<Frame>, FrameError> {
        loop {
            if let Some(chunk) = &mut self.chunk {
                if input.is_empty() && chunk.left > 0 {
                    return Ok(None);
                }
                let data = input.split_to(chunk.left.min(input.len()));
                chunk.left -= data.len();
                let part =
                    Chunk { flow: chunk.flow, offset: chunk.offset, fin: chunk.fin && chunk.left == 0, data };
                chunk.offset += part.data.len() as u64;
                if chunk.left == 0 {
                    self.chunk = None;
                }
                return Ok(Some(Frame::Chunk(part)));
            }
            match self.prefix.parse(input, Header::parse)? {
                None => return Ok(None),
                Some(Header::Open { flow, lane, target }) => {
                    return Ok(Some(Frame::Open { flow, lane, target }));
                }
                Some(Header::Chunk { flow, offset, len, fin }) => {
                    self.chunk = Some(PartialChunk { flow, offset, left: len, fin });
                }
            }
        }
    }

    /// Reports whether the input so far ends between two frames.
    pub fn is_between_frames(&self) -> bool {
        self.chunk.is_none() && self.prefix.is_empty()
    }
}
