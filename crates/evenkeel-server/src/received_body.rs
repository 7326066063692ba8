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
        let len = buffer.len() + chunk.len() as u64;
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

/// A body as far as it was received: one chunk as it is, or more joined.
///
/// Many small chunks would take more memory than their bytes, and than the budget counts.
#[derive(Default)]
enum BodyBuffer {
    #[default]
    Empty,
    Chunk(Bytes),
    Joined(Vec<u8>),
}

impl BodyBuffer {
    fn len(&self) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Chunk(chunk) => chunk.len() as u64,
            Self::Joined(bytes) => bytes.len() as u64,
        }
    }

    /// Appends a chunk, after which `rest` bytes follow at most.
    fn push(&mut self, chunk: Bytes, rest: Option<u64>) {
        *self = match core::mem::take(self) {
            Self::Empty => Self::Chunk(chunk),
            Self::Chunk(first) => {
                let mut joined = Vec::new();
                append(&mut joined, &first, None);
                append(&mut joined, &chunk, rest);
                Self::Joined(joined)
            }
            Self::Joined(mut joined) => {
                append(&mut joined, &chunk, rest);
                Self::Joined(joined)
            }
        };
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Empty => Bytes::new(),
            Self::Chunk(chunk) => chunk,
            Self::Joined(joined) => joined.into(),
        }
    }
}

/// Appends a chunk. The capacity doubles, but does not exceed the announced length: unused capacity is not counted.
fn append(joined: &mut Vec<u8>, chunk: &[u8], rest: Option<u64>) {
    let needed = joined.len() + chunk.len();
    if joined.capacity() < needed {
        let all = rest.and_then(|rest| usize::try_from(rest).ok()).map_or(usize::MAX, |rest| needed + rest);
        let capacity = joined.capacity().saturating_mul(2).min(all).max(needed);
        joined.reserve_exact(capacity - joined.len());
    }
    joined.extend_from_slice(chunk);
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
    fn the_capacity_of_joined_chunks_does_not_exceed_the_announced_length() {
        let mut buffer = BodyBuffer::default();
        for nth in 1..=10_u64 {
            buffer.push(Bytes::from(vec![7; 100]), Some(1_000 - nth * 100));
        }
        let BodyBuffer::Joined(joined) = buffer else { panic!("ten chunks are joined") };
        assert_eq!((joined.len(), joined.capacity()), (1_000, 1_000));
    }
}
