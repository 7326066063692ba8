//! Read buffer that is cut into protocol messages.
//!
//! Limits: a message is at most `message_bytes_max` long; the buffer grows with a long message, by doubling, and is
//! replaced by a small one once it is empty.

use bytes::{Buf, BytesMut};

/// Bytes to read at once.
const READ_BYTES: usize = 16 * 1024;
/// Free space below which the buffer is extended.
const READ_BYTES_MIN: usize = 4 * 1024;
/// Largest buffer that is kept while it is empty.
const KEPT_BYTES_MAX: usize = 64 * 1024;

/// One message: its type and its body.
#[derive(Clone, Copy)]
pub(crate) struct Frame<'a> {
    pub(crate) kind: u8,
    pub(crate) body: &'a [u8],
}

/// The length of a message is below the minimum or above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message of type {:?} has length {length}", char::from(*kind))]
pub(crate) struct InvalidLength {
    kind: u8,
    length: usize,
}

pub(crate) struct FrameBuffer {
    bytes: BytesMut,
    /// Length of the message that was returned last.
    consumed: usize,
    /// Bytes that the current message still needs.
    missing: usize,
    message_bytes_max: usize,
}

impl FrameBuffer {
    pub(crate) fn new(message_bytes_max: usize) -> Self {
        Self { bytes: BytesMut::new(), consumed: 0, missing: 0, message_bytes_max }
    }

    /// Returns the next complete message; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, InvalidLength> {
        self.bytes.advance(self.consumed);
        self.consumed = 0;
        self.missing = 0;
        let Some(&[kind, a, b, c, d]) = self.bytes.first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        if length < 4 || self.message_bytes_max < length {
            return Err(InvalidLength { kind, length });
        }
        let total = length + 1;
        if self.bytes.len() < total {
            self.missing = total - self.bytes.len();
            return Ok(None);
        }
        self.consumed = total;
        Ok(Some(Frame { kind, body: &self.bytes[5..total] }))
    }

    /// Returns the buffer to read into, with free space.
    pub(crate) fn space(&mut self) -> &mut BytesMut {
        self.bytes.advance(self.consumed);
        self.consumed = 0;
        if self.bytes.is_empty() && KEPT_BYTES_MAX < self.bytes.capacity() {
            self.bytes = BytesMut::new();
        }
        if self.bytes.capacity() - self.bytes.len() < READ_BYTES_MIN.max(self.missing) {
            // A length that the server announces is not trusted: the buffer at most doubles.
            self.bytes.reserve(self.missing.clamp(READ_BYTES, READ_BYTES.max(self.bytes.len())));
        }
        &mut self.bytes
    }

    /// Reports whether no unread byte is buffered.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == self.consumed
    }

    /// Releases a large buffer.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && KEPT_BYTES_MAX < self.bytes.capacity() {
            self.consumed = 0;
            self.bytes = BytesMut::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind], &length[..], body].concat()
    }

    fn received(buffer: &mut FrameBuffer, bytes: &[u8]) {
        buffer.space().extend_from_slice(bytes);
    }

    #[test]
    fn messages_cut_at_any_byte_are_put_together() {
        let stream = [message(b'D', b"row"), message(b'Z', b"I"), message(b'1', b"")].concat();
        for cut in 0..=stream.len() {
            let mut buffer = FrameBuffer::new(100);
            let mut kinds = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                received(&mut buffer, part);
                while let Some(frame) = buffer.next().unwrap() {
                    kinds.push((frame.kind, frame.body.to_vec()));
                }
            }
            assert_eq!(kinds, [(b'D', b"row".to_vec()), (b'Z', b"I".to_vec()), (b'1', Vec::new())]);
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn a_message_above_the_limit_is_an_error_before_it_is_received() {
        let mut buffer = FrameBuffer::new(100);
        received(&mut buffer, &message(b'D', &[0; 97])[..5]);
        assert_eq!(buffer.next().err(), Some(InvalidLength { kind: b'D', length: 101 }));
        let mut buffer = FrameBuffer::new(100);
        received(&mut buffer, &message(b'D', &[0; 96]));
        assert!(buffer.next().unwrap().is_some());
        let mut buffer = FrameBuffer::new(100);
        received(&mut buffer, &[b'D', 0, 0, 0, 3]);
        assert!(buffer.next().is_err());
    }

    #[test]
    fn the_buffer_shrinks_after_a_long_message() {
        let mut buffer = FrameBuffer::new(10_000_000);
        received(&mut buffer, &message(b'D', &vec![0; 1_000_000]));
        assert!(buffer.next().unwrap().is_some());
        assert!(1_000_000 <= buffer.bytes.capacity());
        buffer.shrink();
        assert!(buffer.bytes.capacity() <= KEPT_BYTES_MAX);
        received(&mut buffer, &message(b'Z', b"I"));
        assert_eq!(buffer.next().unwrap().map(|frame| frame.kind), Some(b'Z'));
    }

    #[test]
    fn an_announced_length_alone_does_not_allocate() {
        let mut buffer = FrameBuffer::new(64 << 20);
        received(&mut buffer, &[b'D', 3, 0, 0, 0]);
        assert!(buffer.next().unwrap().is_none());
        buffer.space();
        assert!(buffer.bytes.capacity() <= KEPT_BYTES_MAX);
    }
}
