//! Numbers and texts: QUIC's variable-length integers (RFC 9000, section 16), always in their shortest form, and texts
//! behind a length byte.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{FrameError, HEADER_BYTES_MAX};

/// Largest value of a variable-length integer.
pub const NUMBER_MAX: u64 = (1 << 62) - 1;

/// Maximum length of an encoded number.
pub(super) const NUMBER_BYTES_MAX: usize = 8;

/// Appends a number; the caller ensures that it is at most [`NUMBER_MAX`].
pub(super) fn put_number(out: &mut BytesMut, number: u64) {
    debug_assert!(number <= NUMBER_MAX, "{number} has no encoding");
    match number {
        0..0x40 => out.put_u8(number as u8),
        0x40..0x4000 => out.put_u16(number as u16 | 0x4000),
        0x4000..0x4000_0000 => out.put_u32(number as u32 | 0x8000_0000),
        _ => out.put_u64(number | 0xc000_0000_0000_0000),
    }
}

/// Appends a text of at most 255 bytes.
pub(super) fn put_text(out: &mut BytesMut, text: &str) {
    debug_assert!(text.len() <= usize::from(u8::MAX), "text of {} bytes", text.len());
    out.put_u8(text.len() as u8);
    out.put_slice(text.as_bytes());
}

/// Reads from the front of a slice; [`FrameError::Truncated`] if it is too short.
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns everything that was not read.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(super) fn byte(&mut self) -> Result<u8, FrameError> {
        Ok(self.take(1)?[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, FrameError> {
        let first = *self.rest.first().ok_or(FrameError::Truncated)?;
        let len = 1 << (first >> 6);
        let mut number = u64::from(first & 0x3f);
        for byte in &self.take(len)?[1..] {
            number = number << 8 | u64::from(*byte);
        }
        let shorter_max = match len {
            1 => None,
            2 => Some(0x3f),
            4 => Some(0x3fff),
            _ => Some(0x3fff_ffff),
        };
        if shorter_max.is_some_and(|max| number <= max) {
            return Err(FrameError::LongNumber);
        }
        Ok(number)
    }

    pub(super) fn text(&mut self) -> Result<String, FrameError> {
        let len = usize::from(self.byte()?);
        let text = str::from_utf8(self.take(len)?).map_err(|_| FrameError::NotUtf8)?;
        Ok(text.to_owned())
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], FrameError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(FrameError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }
}

/// Parses values from a stream that arrives in pieces, and keeps the bytes of an incomplete value.
#[derive(Clone, Debug, Default)]
pub(super) struct Prefix {
    stored: Vec<u8>,
}

impl Prefix {
    pub(super) fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Parses the next value and removes its bytes from `input`; `None` if more input is needed.
    ///
    /// `parse` must not need more than [`HEADER_BYTES_MAX`] bytes.
    pub(super) fn parse<T>(
        &mut self,
        input: &mut Bytes,
        parse: impl Fn(&mut Reader<'_>) -> Result<T, FrameError>,
    ) -> Result<Option<T>, FrameError> {
        let stored = self.stored.len();
        let joined = input.len().min(HEADER_BYTES_MAX - stored);
        if stored > 0 {
            self.stored.extend_from_slice(&input[..joined]);
        }
        let bytes = if stored > 0 { &self.stored[..] } else { &input[..] };
        let mut reader = Reader::new(bytes);
        match parse(&mut reader) {
            Ok(value) => {
                let used = bytes.len() - reader.rest.len();
                input.advance(used - stored);
                self.stored.clear();
                Ok(Some(value))
            }
            Err(FrameError::Truncated) => {
                if stored == 0 {
                    self.stored.extend_from_slice(&input[..joined]);
                }
                input.clear();
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_the_lengths_of_rfc_9000() {
        for (number, len) in
            [(0, 1), (63, 1), (64, 2), (16_383, 2), (16_384, 4), (1_073_741_823, 4), (1_073_741_824, 8)]
        {
            let mut out = BytesMut::new();
            put_number(&mut out, number);
            assert_eq!(out.len(), len, "{number}");
            assert_eq!(Reader::new(&out).number(), Ok(number));
        }
    }

    /// The examples of RFC 9000, appendix A.1.
    #[test]
    fn the_examples_of_rfc_9000_are_read() {
        let read = |bytes: &[u8]| Reader::new(bytes).number();
        assert_eq!(read(&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c]), Ok(151_288_809_941_952_652));
        assert_eq!(read(&[0x9d, 0x7f, 0x3e, 0x7d]), Ok(494_878_333));
        assert_eq!(read(&[0x7b, 0xbd]), Ok(15_293));
        assert_eq!(read(&[0x25]), Ok(37));
        assert_eq!(read(&[0x40, 0x25]), Err(FrameError::LongNumber));
        assert_eq!(read(&[0x9d, 0x7f, 0x3e]), Err(FrameError::Truncated));
        assert_eq!(read(&[]), Err(FrameError::Truncated));
    }
}
