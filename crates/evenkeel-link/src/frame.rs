//! Encoding of everything that travels on the connections of a link.
//!
//! A unidirectional stream holds a sequence of [`Frame`]s, read by [`FrameDecoder`]. A datagram holds one
//! [`DatagramFrame`]. The control flow's data is a sequence of [`ControlMessage`]s.
//!
//! Guarantees: a value has exactly one encoding; decoding rejects every other, never panics, and stores at most
//! [`HEADER_BYTES_MAX`] bytes between two inputs.
//!
//! Limits: a chunk has at most [`CHUNK_BYTES_MAX`] bytes, a datagram [`DATAGRAM_BYTES_MAX`] (or what the path carries, if
//! it is part of a flow's datagram), an acknowledgement [`ACK_RANGES_MAX`] ranges, a flow's datagram [`FRAGMENTS_MAX`]
//! fragments; numbers are below 2^62.

mod control;
mod datagram;
mod decoder;
mod reader;

pub use control::{ControlDecoder, ControlMessage};
pub use datagram::{
    AckEntry, AckState, AcksWriter, DatagramFrame, FlowAck, Fragment, Message, OffsetRange, SendTime,
    encode_message, encode_probe,
};
pub use decoder::FrameDecoder;
pub use reader::NUMBER_MAX;

use bytes::{BufMut, Bytes, BytesMut};

use crate::flow::{DatagramMode, FlowId, FlowLane, TARGET_BYTES_MAX};
use reader::{NUMBER_BYTES_MAX, Reader, put_number};

/// Maximum number of data bytes in a chunk.
pub const CHUNK_BYTES_MAX: usize = 16 * 1024;

/// Maximum length of a datagram; it fits into a packet of 1200 bytes, which every path carries.
pub const DATAGRAM_BYTES_MAX: usize = 1_100;

/// Maximum number of ranges in the acknowledgement of one flow.
pub const ACK_RANGES_MAX: usize = 61;

/// Maximum number of fragments of a flow's datagram.
pub const FRAGMENTS_MAX: u8 = 64;

/// Maximum length of the header of a [`Message`].
pub const MESSAGE_HEADER_BYTES_MAX: usize = 1 + 3 * NUMBER_BYTES_MAX + 2;

/// Maximum length of a [`Message`] with its header: that of a UDP datagram.
const MESSAGE_BYTES_MAX: usize = 65_535;

/// Maximum length of a chunk's header.
pub const CHUNK_HEADER_BYTES_MAX: usize = 1 + 3 * NUMBER_BYTES_MAX;

/// Maximum length of a frame header or a control message.
pub const HEADER_BYTES_MAX: usize = 2 + 2 * NUMBER_BYTES_MAX + TARGET_BYTES_MAX;

const OPEN_STREAM: u8 = 1;
const OPEN_BONDED: u8 = 2;
const CHUNK: u8 = 3;
const LAST_CHUNK: u8 = 4;
const OPEN_REDUNDANT: u8 = 5;
const OPEN_STRIPE: u8 = 6;
const OPEN_PIN: u8 = 7;
const OPEN_DUPLICATE: u8 = 8;

/// Frame on a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Opens a flow.
    Open { flow: FlowId, lane: FlowLane, target: String },
    /// Carries data of a flow.
    Chunk(Chunk),
}

/// Data of a flow, or the part of a chunk that has arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    pub flow: FlowId,
    /// Offset of the first byte in the flow.
    pub offset: u64,
    /// Marks the end of the flow's data, which occupies one offset after the last byte.
    pub fin: bool,
    pub data: Bytes,
}

/// Encodes a frame that opens a flow; the target must not exceed [`TARGET_BYTES_MAX`].
pub fn encode_open(flow: FlowId, lane: FlowLane, target: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(2 + NUMBER_BYTES_MAX + target.len());
    out.put_u8(match lane {
        FlowLane::Stream => OPEN_STREAM,
        FlowLane::Bonded => OPEN_BONDED,
        FlowLane::Redundant => OPEN_REDUNDANT,
        FlowLane::Datagram(DatagramMode::Stripe) => OPEN_STRIPE,
        FlowLane::Datagram(DatagramMode::Pin) => OPEN_PIN,
        FlowLane::Datagram(DatagramMode::Duplicate) => OPEN_DUPLICATE,
    });
    put_number(&mut out, flow.0);
    reader::put_text(&mut out, target);
    out.freeze()
}

/// Encodes the header of a chunk; its data follows.
pub fn encode_chunk_header(chunk: &Chunk) -> Bytes {
    let mut out = BytesMut::with_capacity(CHUNK_HEADER_BYTES_MAX);
    out.put_u8(if chunk.fin { LAST_CHUNK } else { CHUNK });
    put_number(&mut out, chunk.flow.0);
    put_number(&mut out, chunk.offset);
    put_number(&mut out, chunk.data.len() as u64);
    out.freeze()
}

/// Everything of a frame but a chunk's data.
enum Header {
    Open { flow: FlowId, lane: FlowLane, target: String },
    Chunk { flow: FlowId, offset: u64, len: usize, fin: bool },
}

impl Header {
    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        let kind = reader.byte()?;
        if let Some(lane) = opened_lane(kind) {
            return Ok(Self::Open { flow: FlowId(reader.number()?), lane, target: reader.text()? });
        }
        match kind {
            CHUNK | LAST_CHUNK => {
                let flow = FlowId(reader.number()?);
                let offset = reader.number()?;
                let len = reader.number()?;
                let fin = kind == LAST_CHUNK;
                if (CHUNK_BYTES_MAX as u64) < len {
                    return Err(FrameError::ChunkTooLong { len });
                }
                if len == 0 && !fin {
                    return Err(FrameError::EmptyChunk);
                }
                if NUMBER_MAX - len <= offset {
                    return Err(FrameError::NumberTooLarge);
                }
                Ok(Self::Chunk { flow, offset, len: len as usize, fin })
            }
            _ => Err(FrameError::UnknownType { kind }),
        }
    }
}

/// Returns the lane of the flow that a frame of this type opens; `None` if it opens none.
fn opened_lane(kind: u8) -> Option<FlowLane> {
    match kind {
        OPEN_STREAM => Some(FlowLane::Stream),
        OPEN_BONDED => Some(FlowLane::Bonded),
        OPEN_REDUNDANT => Some(FlowLane::Redundant),
        OPEN_STRIPE => Some(FlowLane::Datagram(DatagramMode::Stripe)),
        OPEN_PIN => Some(FlowLane::Datagram(DatagramMode::Pin)),
        OPEN_DUPLICATE => Some(FlowLane::Datagram(DatagramMode::Duplicate)),
        _ => None,
    }
}

/// Error for bytes that no peer of this version sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("unknown frame type {kind}")]
    UnknownType { kind: u8 },
    #[error("a number is not in its shortest encoding")]
    LongNumber,
    #[error("chunk of {len} bytes is longer than {CHUNK_BYTES_MAX}")]
    ChunkTooLong { len: u64 },
    #[error("chunk without data")]
    EmptyChunk,
    #[error("a number is too large")]
    NumberTooLarge,
    #[error("a text is not valid UTF-8")]
    NotUtf8,
    #[error("datagram of {len} bytes is longer than {len_max}")]
    DatagramTooLong { len: usize, len_max: usize },
    #[error("fragment {index} of {count}")]
    BadFragment { index: u8, count: u8 },
    #[error("acknowledgement of {count} ranges, the limit is {ACK_RANGES_MAX}")]
    TooManyRanges { count: usize },
    #[error("an acknowledged range is empty, adjacent to the previous one, or beyond the largest offset")]
    BadRange,
    #[error("bytes follow the end of a datagram's content")]
    TrailingBytes,
    #[error("the input ends within a value")]
    Truncated,
}
