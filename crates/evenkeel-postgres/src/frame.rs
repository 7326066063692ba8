//! Read buffer that is cut into protocol messages.
//!
//! Limits: a message is at most `message_bytes_max` long; a longer one is reported once, and its bytes are dropped as they
//! arrive. The buffer grows with a long message, by doubling, and is replaced by a small one once it is empty.

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

/// Messages whose length depends on the statement: rows, notices, errors, parameters, COPY data.
const UNBOUNDED_KINDS: [u8; 5] = [b'D', b'N', b'E', b'S', b'd'];

/// The length of a message is below the minimum or above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LengthError {
    #[error("message of type {:?} has length {length}", char::from(*kind))]
    Invalid { kind: u8, length: usize },
    /// A statement's message is above the limit; the messages after it can be read.
    #[error("message is longer than {bytes_max} bytes")]
    AboveMax { bytes_max: usize },
}

pub(crate) struct FrameBuffer {
    bytes: BytesMut,
    /// Length of the message that was returned last.
    consumed: usize,
    /// Bytes that the current message still needs.
    missing: usize,
    /// Bytes to drop, of a message above the limit.
    skipping: usize,
    message_bytes_max: usize,
}

impl FrameBuffer {
    pub(crate) fn new(message_bytes_max: usize) -> Self {
        Self { bytes: BytesMut::new(), consumed: 0, missing: 0, skipping: 0, message_bytes_max }
    }

    /// Returns the next complete message; `None` if more bytes are needed.
    pub(crate) fn next(&mut self) -> Result<Option<Frame<'_>>, LengthError> {
        self.bytes.advance(self.consumed);
        self.consumed = 0;
        self.missing = 0;
        self.skip();
        let Some(&[kind, a, b, c, d]) = self.bytes.first_chunk::<5>() else { return Ok(None) };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        let is_long = self.message_bytes_max < length;
        if length < 4 || (is_long && !UNBOUNDED_KINDS.contains(&kind)) {
            return Err(LengthError::Invalid { kind, length });
        }
        let total = length + 1;
        if is_long {
            self.skipping = total;
            self.skip();
            return Err(LengthError::AboveMax { bytes_max: self.message_bytes_max });
        }
        if self.bytes.len() < total {
            self.missing = total - self.bytes.len();
            return Ok(None);
        }
        self.consumed = total;
        Ok(Some(Frame { kind, body: &self.bytes[5..total] }))
    }

    fn skip(&mut self) {
        let count = self.skipping.min(self.bytes.len());
        self.bytes.advance(count);
        self.skipping -= count;
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

    /// Reports whether no unread byte is buffered, and no byte of a message above the limit is expected.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() == self.consumed && self.skipping == 0
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
        assert_eq!(buffer.next().err(), Some(LengthError::AboveMax { bytes_max: 100 }));
        let mut buffer = FrameBuffer::new(100);
        received(&mut buffer, &message(b'D', &[0; 96]));
        assert!(buffer.next().unwrap().is_some());
        let mut buffer = FrameBuffer::new(100);
        received(&mut buffer, &[b'D', 0, 0, 0, 3]);
        assert_eq!(buffer.next().err(), Some(LengthError::Invalid { kind: b'D', length: 3 }));
        let mut buffer = FrameBuffer::new(100);
        received(&mut buffer, &[b'Z', 0, 0, 0, 101]);
        assert_eq!(buffer.next().err(), Some(LengthError::Invalid { kind: b'Z', length: 101 }));
    }

    #[test]
    fn a_message_above_the_limit_is_reported_once_and_the_next_one_is_read() {
        let stream = [message(b'D', &[0; 200]), message(b'Z', b"I")].concat();
        for cut in 0..=stream.len() {
            let mut buffer = FrameBuffer::new(100);
            let mut reports = 0;
            let mut kinds = Vec::new();
            for part in [&stream[..cut], &stream[cut..]] {
                received(&mut buffer, part);
                loop {
                    match buffer.next() {
                        Ok(Some(frame)) => kinds.push(frame.kind),
                        Ok(None) => break,
                        Err(error) => {
                            assert_eq!(error, LengthError::AboveMax { bytes_max: 100 });
                            reports += 1;
                        }
                    }
                }
            }
            assert_eq!((reports, &kinds[..]), (1, &b"Z"[..]), "{cut}");
            assert!(buffer.is_empty());
        }
    }

    #[test]
    fn the_buffer_is_not_empty_while_the_rest_of_a_message_above_the_limit_is_expected() {
        let mut buffer = FrameBuffer::new(100);
        let long = message(b'D', &[0; 200]);
        received(&mut buffer, &long[..150]);
        assert!(buffer.next().is_err());
        assert!(!buffer.is_empty());
        received(&mut buffer, &long[150..]);
        assert!(buffer.next().unwrap().is_none());
        assert!(buffer.is_empty());
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
