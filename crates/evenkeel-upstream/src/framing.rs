//! Framing of a response body: by content length, by chunked encoding, or by connection close.
//!
//! Limits: does not copy or buffer; an incomplete line stays in the input. A chunk-size line has at most [`LINE_MAX`]
//! bytes, trailers have at most [`TRAILERS_MAX`].

use bytes::{Bytes, BytesMut};
use memchr::memchr;

/// Longest chunk-size line.
const LINE_MAX: usize = 4 * 1024;
/// Longest trailer section.
const TRAILERS_MAX: usize = 16 * 1024;

/// State of decoding a body; each variant is the part expected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    Done,
    /// The remaining bytes of a body with a content length.
    ContentLength(u64),
    /// Everything until the connection closes.
    UntilClose,
    /// A chunk-size line.
    ChunkSize,
    /// The remaining bytes of a chunk.
    Chunk(u64),
    /// The line end after a chunk.
    ChunkEnd,
    /// Trailers, with the bytes received so far.
    Trailers(usize),
}

/// Invalid chunked encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid chunked encoding")]
pub(super) struct FramingError;

impl Framing {
    pub(super) const CHUNKED: Self = Self::ChunkSize;

    pub(super) fn from_length(length: u64) -> Self {
        if length == 0 { Self::Done } else { Self::ContentLength(length) }
    }

    /// Takes the next part of the body from the input, without copying.
    ///
    /// Returns `None` if more input is needed or the body is complete.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FramingError> {
        self.skip_framing(input)?;
        let (Self::ContentLength(left) | Self::Chunk(left)) = *self else {
            return Ok((*self == Self::UntilClose && !input.is_empty()).then(|| input.split().freeze()));
        };
        if input.is_empty() {
            return Ok(None);
        }
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let part = input.split_to(len).freeze();
        *self = match (*self, left - len as u64) {
            (Self::ContentLength(_), 0) => Self::Done,
            (Self::ContentLength(_), left) => Self::ContentLength(left),
            (_, 0) => Self::ChunkEnd,
            (_, left) => Self::Chunk(left),
        };
        // The reader might stop polling after the last part, so detect the end of the body now.
        self.skip_framing(input)?;
        Ok(Some(part))
    }

    /// Skips chunk sizes, line ends and trailers.
    fn skip_framing(&mut self, input: &mut BytesMut) -> Result<(), FramingError> {
        loop {
            let line_max = match self {
                Self::Done | Self::ContentLength(_) | Self::UntilClose | Self::Chunk(_) => return Ok(()),
                Self::ChunkSize => LINE_MAX,
                Self::ChunkEnd => 2,
                Self::Trailers(so_far) => TRAILERS_MAX.saturating_sub(*so_far),
            };
            let Some(end) = memchr(b'\n', input) else {
                return if input.len() < line_max { Ok(()) } else { Err(FramingError) };
            };
            if end >= line_max {
                return Err(FramingError);
            }
            let line = input.split_to(end + 1);
            let line = line.strip_suffix(b"\r\n").ok_or(FramingError)?;
            // Some parsers treat a bare CR as a line end; accepting it would allow response smuggling.
            if line.contains(&b'\r') {
                return Err(FramingError);
            }
            *self = match *self {
                Self::ChunkSize => match parse_size(line)? {
                    0 => Self::Trailers(0),
                    size => Self::Chunk(size),
                },
                Self::ChunkEnd if line.is_empty() => Self::ChunkSize,
                Self::Trailers(_) if line.is_empty() => Self::Done,
                Self::Trailers(so_far) => Self::Trailers(so_far + end + 1),
                _ => return Err(FramingError),
            };
        }
    }
}

/// Parses a chunk's size and ignores chunk extensions.
fn parse_size(line: &[u8]) -> Result<u64, FramingError> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let extension = line[digits..].trim_ascii_start();
    if digits == 0 || !(extension.is_empty() || extension[0] == b';') {
        return Err(FramingError);
    }
    let digits = core::str::from_utf8(&line[..digits]).map_err(|_| FramingError)?;
    u64::from_str_radix(digits, 16).map_err(|_| FramingError)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKED: &str = "5;note=1\r\nfirst\r\nA \r\n, second, \r\n00004\r\nlast\r\n0\r\nx: y\r\n\r\n";

    #[test]
    fn a_chunked_body_is_the_same_wherever_the_input_is_cut() {
        for at in 0..=CHUNKED.len() {
            let read = read(Framing::CHUNKED, &[&CHUNKED[..at], &CHUNKED[at..]]);
            assert_eq!(read, Ok(("first, second, last".to_owned(), Framing::Done)), "cut at {at}");
        }
    }

    #[test]
    fn the_end_is_detected_with_the_last_part() {
        let mut framing = Framing::CHUNKED;
        let mut input = BytesMut::from("4\r\nlast\r\n0\r\n\r\nmore");
        assert_eq!(framing.take(&mut input), Ok(Some(Bytes::from("last"))));
        assert_eq!((framing, &input[..]), (Framing::Done, &b"more"[..]));
        assert_eq!(framing.take(&mut input), Ok(None));
    }

    #[test]
    fn no_more_than_the_content_length_is_taken() {
        let read = read(Framing::from_length(5), &["fir", "st, second"]);
        assert_eq!(read, Ok(("first".to_owned(), Framing::Done)));
        assert_eq!(Framing::from_length(0), Framing::Done);
    }

    #[test]
    fn invalid_chunked_encoding_is_rejected() {
        let long_line = format!("5;{}", "x".repeat(LINE_MAX));
        let long_trailers = format!("0\r\n{}", "x: y\r\n".repeat(TRAILERS_MAX / 6 + 1));
        for input in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "+1\r\n",
            "5 5\r\n",
            "5\n",
            "11111111111111111\r\n",
            "1\r\nab\r\n",
            "1\r\na\n",
            "1\r\nabc",
            "1;a\rb\r\na\r\n",
            "0\r\nx: y\rz\r\n\r\n",
            "0\r\nx: y\n\r\n",
            "0x5\r\n",
            " 5\r\n",
            "5\0\r\n",
            &long_line,
            &long_trailers,
        ] {
            for at in (0..=input.len()).take(64) {
                let read = read(Framing::CHUNKED, &[&input[..at], &input[at..]]);
                assert_eq!(read, Err(FramingError), "{input} cut at {at}");
            }
        }
    }

    /// Reads a body from parts; returns it and the final state.
    fn read(mut framing: Framing, parts: &[&str]) -> Result<(String, Framing), FramingError> {
        let mut input = BytesMut::new();
        let mut body = Vec::new();
        for part in parts {
            input.extend_from_slice(part.as_bytes());
            while let Some(part) = framing.take(&mut input)? {
                body.extend_from_slice(&part);
            }
        }
        Ok((String::from_utf8(body).unwrap(), framing))
    }
}
