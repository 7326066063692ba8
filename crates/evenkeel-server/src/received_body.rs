//! Reads a request's body within the limits of its size and time, and within the budget of all bodies.

use bytes::Bytes;
use evenkeel_policy::time::Duration;
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;

use crate::api_error::ApiError;
use crate::body_budget::{BodyPermit, BodyRest, BudgetFull, Upload};

/// A whole request body. Its bytes count in the budget until the permit is dropped.
#[derive(Debug)]
pub struct ReceivedBody {
    pub bytes: Bytes,
    pub permit: BodyPermit,
}

/// Limits of one body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimits {
    pub(crate) bytes_max: u64,
    pub(crate) wait_max: Duration,
}

/// Reads a body to its end; fails as soon as it is evicted.
pub(crate) async fn receive(
    body: &mut Incoming,
    mut upload: Upload,
    limits: BodyLimits,
) -> Result<ReceivedBody, ApiError> {
    if limits.bytes_max < body.size_hint().lower() {
        return Err(ApiError::BodyTooLarge { bytes_max: limits.bytes_max });
    }
    let mut buffer = BodyBuffer::default();
    let deadline = tokio::time::sleep(limits.wait_max);
    let mut deadline = core::pin::pin!(deadline);
    while !body.is_end_stream() {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = upload.evicted() => return Err(BudgetFull.into()),
            () = &mut deadline => return Err(ApiError::BodyTimeout),
        };
        let Some(frame) = frame else { break };
        let frame = frame.map_err(|_| ApiError::invalid("could not read the body"))?;
        // Trailers are dropped.
        let Ok(chunk) = frame.into_data() else { continue };
        let len = (buffer.len() + chunk.len()) as u64;
        if limits.bytes_max < len {
            return Err(ApiError::BodyTooLarge { bytes_max: limits.bytes_max });
        }
        let rest = if body.is_end_stream() { BodyRest::None } else { BodyRest::Expected };
        upload.receive(chunk.len() as u64, rest)?;
        buffer.push(chunk, body.size_hint().upper());
    }
    Ok(ReceivedBody { bytes: buffer.into_bytes(), permit: upload.finish()? })
}

impl From<BudgetFull> for ApiError {
    fn from(_: BudgetFull) -> Self {
        Self::BodiesFull
    }
}

/// Size of the segments in which a body is received.
const SEGMENT_MIN: usize = 16 * 1024;
const SEGMENT_MAX: usize = 256 * 1024;

/// A body as far as it was received: one chunk as it is, or more in segments.
///
/// A list of small chunks would take more memory than the budget counts, and so would one buffer that doubles.
#[derive(Default)]
enum BodyBuffer {
    #[default]
    Empty,
    Chunk(Bytes),
    Segments {
        segments: Vec<Vec<u8>>,
        len: usize,
    },
}

impl BodyBuffer {
    fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::Chunk(chunk) => chunk.len(),
            Self::Segments { len, .. } => *len,
        }
    }

    /// Appends a chunk, after which `rest` bytes follow at most.
    fn push(&mut self, chunk: Bytes, rest: Option<u64>) {
        let rest = rest.and_then(|rest| usize::try_from(rest).ok()).unwrap_or(usize::MAX);
        *self = match core::mem::take(self) {
            Self::Empty => Self::Chunk(chunk),
            Self::Chunk(first) => {
                let mut segments = Vec::new();
                append(&mut segments, 0, &first, rest.saturating_add(chunk.len()));
                append(&mut segments, first.len(), &chunk, rest);
                Self::Segments { segments, len: first.len() + chunk.len() }
            }
            Self::Segments { mut segments, len } => {
                append(&mut segments, len, &chunk, rest);
                Self::Segments { segments, len: len + chunk.len() }
            }
        };
    }

    /// Returns the body in one piece.
    fn into_bytes(self) -> Bytes {
        match self {
            Self::Empty => Bytes::new(),
            Self::Chunk(chunk) => chunk,
            Self::Segments { mut segments, .. } if segments.len() == 1 => segments.remove(0).into(),
            Self::Segments { segments, len } => {
                let mut joined = Vec::with_capacity(len);
                // Each segment is freed as soon as it was copied.
                segments.into_iter().for_each(|segment| joined.extend_from_slice(&segment));
                joined.into()
            }
        }
    }
}

/// Appends a chunk to a body of `len` bytes, after which `rest` bytes follow at most.
fn append(segments: &mut Vec<Vec<u8>>, mut len: usize, mut chunk: &[u8], rest: usize) {
    while !chunk.is_empty() {
        let room = segments.last().map_or(0, |last| last.capacity() - last.len());
        if room == 0 {
            let left = rest.saturating_add(chunk.len());
            // An announced length up to one segment is allocated at once; otherwise the segments grow with the body.
            let capacity = if left <= SEGMENT_MAX { left } else { len.clamp(SEGMENT_MIN, SEGMENT_MAX) };
            segments.push(Vec::with_capacity(capacity));
            continue;
        }
        let (part, after) = chunk.split_at(room.min(chunk.len()));
        if let Some(last) = segments.last_mut() {
            last.extend_from_slice(part);
        }
        len += part.len();
        chunk = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_chunk_is_not_copied() {
        let chunk = Bytes::from(vec![1; 100]);
        let mut buffer = BodyBuffer::default();
        buffer.push(chunk.clone(), None);
        assert_eq!(buffer.into_bytes().as_ptr(), chunk.as_ptr());
    }

    #[test]
    fn a_short_body_of_known_length_is_received_in_one_buffer() {
        let mut buffer = BodyBuffer::default();
        for nth in 1..=10_u64 {
            buffer.push(Bytes::from(vec![7; 100]), Some(1_000 - nth * 100));
        }
        let BodyBuffer::Segments { segments, .. } = &buffer else { panic!("chunks are copied") };
        assert_eq!((segments.len(), segments[0].capacity()), (1, 1_000));
        assert_eq!(buffer.into_bytes(), vec![7; 1_000]);
    }

    #[test]
    fn a_body_of_unknown_length_takes_little_more_memory_than_it_has_bytes() {
        let mut buffer = BodyBuffer::default();
        let mut expected = Vec::new();
        for nth in 0..3_000_u32 {
            let chunk = nth.to_le_bytes().repeat(250);
            expected.extend_from_slice(&chunk);
            buffer.push(chunk.into(), None);
        }
        let BodyBuffer::Segments { segments, len } = &buffer else { panic!("chunks are copied") };
        let capacity: usize = segments.iter().map(Vec::capacity).sum();
        assert_eq!(*len, expected.len());
        assert!(capacity < expected.len() + SEGMENT_MAX, "{capacity} bytes for {}", expected.len());
        assert_eq!(buffer.into_bytes(), expected);
    }
}
