//! Defence against HTTP request smuggling (CL.TE, TE.CL): finds HTTP/1.1 heads with an ambiguous body length.
//!
//! hyper obeys `Transfer-Encoding` over `Content-Length` and removes the latter, so that a handler cannot see the
//! conflict. A proxy before or behind this gateway may decide otherwise and see another request boundary. So this
//! parser reads the same bytes as hyper and reports the first head that states more than one length.
//!
//! Limits: buffers 128 bytes of a line and reads each byte once. Requests that hyper itself rejects need no check:
//! hyper parses nothing after them.

use core::mem;

use memchr::memchr;

const LINE_MAX: usize = 128;

#[derive(Debug)]
enum FramingState {
    Head(HeadFields),
    /// In a body of known length, or in a chunk and its line end.
    Body {
        left: u64,
        then: AfterBody,
    },
    ChunkSize,
    Trailers,
    /// Ignores all further bytes.
    Off,
}

#[derive(Clone, Copy, Debug)]
enum AfterBody {
    Head,
    ChunkSize,
}

#[derive(Debug, Default)]
struct HeadFields {
    lines: usize,
    lengths: usize,
    encodings: usize,
    length: u64,
    overlong: usize,
}

/// Checks the framing of one connection.
#[derive(Debug)]
pub(crate) struct FramingCheck {
    state: FramingState,
    line: Vec<u8>,
    heads: u64,
    suspect: Option<u64>,
}

impl FramingCheck {
    pub(crate) fn new() -> Self {
        Self { state: FramingState::Head(HeadFields::default()), line: Vec::new(), heads: 0, suspect: None }
    }

    /// Creates a check that never reports anything: HTTP/2 frames state their length once.
    pub(crate) fn disabled() -> Self {
        Self { state: FramingState::Off, ..Self::new() }
    }

    /// Returns the number of the first head with an ambiguous length, counted from 0.
    pub(crate) fn suspect(&self) -> Option<u64> {
        self.suspect
    }

    /// Reports whether a body has begun and not ended.
    pub(crate) fn is_inside_body(&self) -> bool {
        match self.state {
            FramingState::Body { .. } | FramingState::ChunkSize | FramingState::Trailers => true,
            FramingState::Head(_) | FramingState::Off => false,
        }
    }

    /// Reads the next bytes of the connection.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.state {
                FramingState::Off => return,
                FramingState::Body { left, then } => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[taken..];
                    *left -= taken as u64;
                    if *left == 0 {
                        self.state = after(*then);
                    }
                }
                FramingState::Head(_) | FramingState::ChunkSize | FramingState::Trailers => {
                    bytes = self.feed_line(bytes);
                }
            }
        }
    }

    /// Consumes bytes up to the end of the line and handles the line if it is complete; returns the rest.
    fn feed_line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr(b'\n', bytes);
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if end.is_some() && self.line.is_empty() {
            self.on_line(without_end(part));
            return rest;
        }
        // One byte more than the limit, so that a line over it is detected.
        let room = LINE_MAX + 1 - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        if end.is_some() {
            let mut line = mem::take(&mut self.line);
            self.on_line(without_end(&line));
            line.clear();
            self.line = line;
        }
        rest
    }

    fn on_line(&mut self, line: &[u8]) {
        if let FramingState::Head(head) = &mut self.state
            && !line.is_empty()
        {
            return head.read(line);
        }
        self.state = match mem::replace(&mut self.state, FramingState::Off) {
            FramingState::Head(head) => self.on_head_end(head),
            FramingState::ChunkSize => match chunk_size(line) {
                Some(0) => FramingState::Trailers,
                // A line end follows the data.
                Some(size) => FramingState::Body { left: size.saturating_add(2), then: AfterBody::ChunkSize },
                None => {
                    // The end of this request is unknown, so the next one cannot be trusted.
                    self.suspect = Some(self.heads);
                    FramingState::Off
                }
            },
            FramingState::Trailers if line.is_empty() => FramingState::Head(HeadFields::default()),
            same @ (FramingState::Trailers | FramingState::Body { .. } | FramingState::Off) => same,
        };
    }

    fn on_head_end(&mut self, head: HeadFields) -> FramingState {
        if head.lines == 0 {
            // Empty lines before a request are skipped.
            return FramingState::Head(head);
        }
        let number = self.heads;
        self.heads += 1;
        if head.lengths + head.encodings > 1 || head.overlong > 0 {
            self.suspect = Some(number);
            return FramingState::Off;
        }
        match (head.encodings, head.length) {
            (1, _) => FramingState::ChunkSize,
            (_, 0) => FramingState::Head(HeadFields::default()),
            (_, left) => FramingState::Body { left, then: AfterBody::Head },
        }
    }
}

/// Strips the line end and nothing else: padding counts towards the length limit of a line.
fn without_end(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

fn after(then: AfterBody) -> FramingState {
    match then {
        AfterBody::Head => FramingState::Head(HeadFields::default()),
        AfterBody::ChunkSize => FramingState::ChunkSize,
    }
}

impl HeadFields {
    fn read(&mut self, line: &[u8]) {
        self.lines += 1;
        // Most headers are skipped by their first letter.
        if !matches!(line[0], b'c' | b'C' | b't' | b'T') {
            return;
        }
        let mut parts = line.splitn(2, |byte| *byte == b':');
        let name = parts.next().unwrap_or_default();
        let value = parts.next().unwrap_or_default();
        let is_length = name.eq_ignore_ascii_case(b"content-length");
        let is_encoding = name.eq_ignore_ascii_case(b"transfer-encoding");
        self.lengths += usize::from(is_length);
        self.encodings += usize::from(is_encoding);
        if is_length {
            let digits = core::str::from_utf8(value.trim_ascii()).unwrap_or_default();
            // hyper rejects a value that is not a number.
            self.length = digits.parse().unwrap_or(0);
        }
        self.overlong += usize::from((is_length || is_encoding) && line.len() > LINE_MAX);
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    // Only the beginning of an overlong line is in the buffer.
    if line.len() > LINE_MAX {
        return None;
    }
    let digits = line.split(|byte| *byte == b';').next()?.trim_ascii();
    u64::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
    const BOTH: &str = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n";

    /// Feeds the text split at every position, checks that the result is the same, and returns it.
    fn suspect(text: &str) -> Option<u64> {
        let results: Vec<Option<u64>> = (0..text.len())
            .map(|at| {
                let mut framing = FramingCheck::new();
                framing.feed(&text.as_bytes()[..at]);
                framing.feed(&text.as_bytes()[at..]);
                framing.suspect()
            })
            .collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "depends on where the bytes are split");
        results[0]
    }

    #[test]
    fn content_length_with_transfer_encoding_is_suspect_in_either_order() {
        assert_eq!(suspect(BOTH), Some(0));
        assert_eq!(suspect("POST / HTTP/1.1\ncontent-length: 5\ntransfer-encoding: chunked\n\n"), Some(0));
    }

    #[test]
    fn a_repeated_length_header_is_suspect() {
        assert_eq!(suspect("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"), Some(0));
        assert_eq!(
            suspect("POST / HTTP/1.1\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Some(0)
        );
    }

    #[test]
    fn a_length_padded_beyond_the_line_limit_is_suspect() {
        let padded = format!("POST / HTTP/1.1\r\nContent-Length:{}5\r\n\r\n", " ".repeat(LINE_MAX));
        assert_eq!(suspect(&padded), Some(0));
    }

    #[test]
    fn a_chunk_size_padded_beyond_the_line_limit_is_suspect() {
        let padded = format!("{}5", "0".repeat(LINE_MAX));
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(suspect(&format!("{chunked}{padded}\r\nGET /\r\n0\r\n\r\n")), Some(1));
    }

    #[test]
    fn headers_inside_a_body_are_ignored() {
        let inside = "x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let sized = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{inside}", inside.len());
        assert_eq!(suspect(&format!("{sized}{GET}")), None);
        let chunk = format!("{:x};note=1\r\n{inside}\r\n0\r\nTrailer: 1\r\n\r\n", inside.len());
        let chunked = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
        assert_eq!(suspect(&format!("{chunked}{GET}")), None);
    }

    #[test]
    fn a_later_suspect_is_reported_by_its_number() {
        let sized = "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(suspect(&format!("{GET}{sized}\r\n{chunked}{BOTH}{GET}")), Some(3));
    }

    #[test]
    fn the_request_after_an_invalid_chunk_size_is_suspect() {
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n";
        assert_eq!(suspect(&format!("{GET}{chunked}{GET}")), Some(2));
    }

    #[test]
    fn a_disabled_check_reports_nothing() {
        let mut framing = FramingCheck::disabled();
        framing.feed(BOTH.as_bytes());
        assert_eq!(framing.suspect(), None);
    }
}
