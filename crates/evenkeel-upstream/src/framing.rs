//! Where the body of an answer ends, and what of it has come.
//!
//! Bound: keeps nothing but a place; a line between chunks has at most [`LINE_MAX`] bytes, trailers [`TRAILERS_MAX`].

use bytes::{Bytes, BytesMut};
use memchr::memchr;

/// How long the line with a chunk's size may be.
const LINE_MAX: usize = 4 * 1024;
/// How long everything behind the last chunk may be.
const TRAILERS_MAX: usize = 16 * 1024;

/// What of a body is still to come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Framing {
    /// Nothing.
    Done,
    /// So many bytes.
    Bytes(u64),
    /// Everything until the connection ends.
    UntilClose,
    /// The size of a chunk.
    Size,
    /// So many bytes of a chunk.
    Chunk(u64),
    /// The end of the line behind a chunk.
    ChunkEnd,
    /// What follows the last chunk, of which so many bytes have come.
    Trailers(usize),
}

/// A body that is not framed as it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FramingError;

impl Framing {
    pub(super) const CHUNKED: Self = Self::Size;

    pub(super) fn of_length(length: u64) -> Self {
        if length == 0 { Self::Done } else { Self::Bytes(length) }
    }

    /// Takes the next part of the body from what was read, as it lies there; `None` if there is none.
    pub(super) fn take(&mut self, input: &mut BytesMut) -> Result<Option<Bytes>, FramingError> {
        self.pass(input)?;
        let (Self::Bytes(left) | Self::Chunk(left)) = *self else {
            return Ok((*self == Self::UntilClose && !input.is_empty()).then(|| input.split().freeze()));
        };
        if input.is_empty() {
            return Ok(None);
        }
        let here = usize::try_from(left).unwrap_or(usize::MAX).min(input.len());
        let part = input.split_to(here).freeze();
        *self = match (*self, left - here as u64) {
            (Self::Bytes(_), 0) => Self::Done,
            (Self::Bytes(_), left) => Self::Bytes(left),
            (_, 0) => Self::ChunkEnd,
            (_, left) => Self::Chunk(left),
        };
        // Whoever has the last part may not ask for more: the end is found while it is handed out.
        self.pass(input)?;
        Ok(Some(part))
    }

    /// Passes over everything that is not of the body itself.
    fn pass(&mut self, input: &mut BytesMut) -> Result<(), FramingError> {
        loop {
            let most = match self {
                Self::Done | Self::Bytes(_) | Self::UntilClose | Self::Chunk(_) => return Ok(()),
                Self::Size => LINE_MAX,
                Self::ChunkEnd => 2,
                Self::Trailers(so_far) => TRAILERS_MAX.saturating_sub(*so_far),
            };
            let Some(end) = memchr(b'\n', input) else {
                return if input.len() < most { Ok(()) } else { Err(FramingError) };
            };
            if most <= end {
                return Err(FramingError);
            }
            let line = input.split_to(end + 1);
            let line = line.strip_suffix(b"\r\n").ok_or(FramingError)?;
            // Some take it for the end of a line, and see another chunk.
            if line.contains(&b'\r') {
                return Err(FramingError);
            }
            *self = match *self {
                Self::Size => match size(line)? {
                    0 => Self::Trailers(0),
                    size => Self::Chunk(size),
                },
                Self::ChunkEnd if line.is_empty() => Self::Size,
                Self::Trailers(_) if line.is_empty() => Self::Done,
                Self::Trailers(so_far) => Self::Trailers(so_far + end + 1),
                _ => return Err(FramingError),
            };
        }
    }
}

/// Reads a chunk's size; what may stand behind it is for nobody.
fn size(line: &[u8]) -> Result<u64, FramingError> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let behind = line[digits..].trim_ascii_start();
    if digits == 0 || !(behind.is_empty() || behind[0] == b';') {
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
    fn chunks_are_the_same_wherever_they_are_cut() {
        for at in 0..=CHUNKED.len() {
            let read = read(Framing::CHUNKED, &[&CHUNKED[..at], &CHUNKED[at..]]);
            assert_eq!(read, Ok(("first, second, last".to_owned(), Framing::Done)), "cut at {at}");
        }
    }

    #[test]
    fn the_end_is_known_with_the_last_part() {
        let mut framing = Framing::CHUNKED;
        let mut input = BytesMut::from("4\r\nlast\r\n0\r\n\r\nmore");
        assert_eq!(framing.take(&mut input), Ok(Some(Bytes::from("last"))));
        assert_eq!((framing, &input[..]), (Framing::Done, &b"more"[..]));
        assert_eq!(framing.take(&mut input), Ok(None));
    }

    #[test]
    fn a_length_is_all_that_is_taken() {
        let read = read(Framing::of_length(5), &["fir", "st, second"]);
        assert_eq!(read, Ok(("first".to_owned(), Framing::Done)));
        assert_eq!(Framing::of_length(0), Framing::Done);
    }

    #[test]
    fn what_is_not_framed_is_refused() {
        let endless = format!("5;{}", "x".repeat(LINE_MAX));
        let trailers = format!("0\r\n{}", "x: y\r\n".repeat(TRAILERS_MAX / 6 + 1));
        for said in [
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
            &endless,
            &trailers,
        ] {
            for at in (0..=said.len()).take(64) {
                let read = read(Framing::CHUNKED, &[&said[..at], &said[at..]]);
                assert_eq!(read, Err(FramingError), "{said} cut at {at}");
            }
        }
    }

    /// Reads parts as they come, and tells what they say and what is missing.
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
