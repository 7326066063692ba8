//! Where HTTP/1.1 requests end, seen from outside the parser, to find heads that two readers could read differently.
//!
//! hyper follows the rule that `Transfer-Encoding` wins over `Content-Length`, and hands a request on without a trace
//! of the latter. A gateway must not guess: whoever stands before or behind it may have guessed otherwise. So this
//! follows the same bytes and names the first head with more than one length.
//!
//! Bound: remembers 128 bytes of a line, and looks at each byte once. What hyper refuses by itself needs no answer
//! here: after it nothing is parsed.

use core::mem;

use memchr::memchr;

const LINE_MAX: usize = 128;

#[derive(Debug)]
enum FramingState {
    /// In a request's head.
    Head(HeadFields),
    /// In a body, or in what a chunk has left with its line end.
    Body {
        left: u64,
        then: AfterBody,
    },
    ChunkSize,
    Trailers,
    /// Nothing more is looked at.
    Blind,
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

/// Follows the bytes of one connection.
#[derive(Debug)]
pub(crate) struct FramingCheck {
    place: FramingState,
    line: Vec<u8>,
    heads: u64,
    suspect: Option<u64>,
}

impl FramingCheck {
    pub(crate) fn new() -> Self {
        Self { place: FramingState::Head(HeadFields::default()), line: Vec::new(), heads: 0, suspect: None }
    }

    /// Follows nothing: h2 has frames.
    pub(crate) fn blind() -> Self {
        Self { place: FramingState::Blind, ..Self::new() }
    }

    /// The number of the first head with more than one length, counted from 0.
    pub(crate) fn suspect(&self) -> Option<u64> {
        self.suspect
    }

    /// Looks at the next bytes.
    pub(crate) fn feed(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            match &mut self.place {
                FramingState::Blind => return,
                FramingState::Body { left, then } => {
                    let taken = usize::try_from(*left).unwrap_or(usize::MAX).min(bytes.len());
                    bytes = &bytes[taken..];
                    *left -= taken as u64;
                    if *left == 0 {
                        self.place = after(*then);
                    }
                }
                FramingState::Head(_) | FramingState::ChunkSize | FramingState::Trailers => {
                    bytes = self.line(bytes)
                }
            }
        }
    }

    /// Takes bytes up to the end of a line, and acts on it if it is complete.
    fn line<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let end = memchr(b'\n', bytes);
        let (part, rest) = bytes.split_at(end.map_or(bytes.len(), |end| end + 1));
        if end.is_some() && self.line.is_empty() {
            self.act(without_end(part));
            return rest;
        }
        // One more than the most, so that an overlong line can be told.
        let room = LINE_MAX + 1 - self.line.len();
        self.line.extend_from_slice(&part[..part.len().min(room)]);
        if end.is_some() {
            let mut line = mem::take(&mut self.line);
            self.act(without_end(&line));
            line.clear();
            self.line = line;
        }
        rest
    }

    fn act(&mut self, line: &[u8]) {
        if let FramingState::Head(head) = &mut self.place
            && !line.is_empty()
        {
            return head.read(line);
        }
        self.place = match mem::replace(&mut self.place, FramingState::Blind) {
            FramingState::Head(head) => self.head_ends(head),
            FramingState::ChunkSize => match chunk_size(line) {
                Some(0) => FramingState::Trailers,
                // The data is followed by a line end.
                Some(size) => FramingState::Body { left: size.saturating_add(2), then: AfterBody::ChunkSize },
                None => {
                    // Nobody may go on where this has lost its way.
                    self.suspect = Some(self.heads);
                    FramingState::Blind
                }
            },
            FramingState::Trailers if line.is_empty() => FramingState::Head(HeadFields::default()),
            same @ (FramingState::Trailers | FramingState::Body { .. } | FramingState::Blind) => same,
        };
    }

    fn head_ends(&mut self, head: HeadFields) -> FramingState {
        if head.lines == 0 {
            // Empty lines before a request are passed over.
            return FramingState::Head(head);
        }
        let number = self.heads;
        self.heads += 1;
        if 1 < head.lengths + head.encodings || 0 < head.overlong {
            self.suspect = Some(number);
            return FramingState::Blind;
        }
        match (head.encodings, head.length) {
            (1, _) => FramingState::ChunkSize,
            (_, 0) => FramingState::Head(HeadFields::default()),
            (_, left) => FramingState::Body { left, then: AfterBody::Head },
        }
    }
}

/// Takes off the line end and nothing else: padding counts towards an overlong line.
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
        // Everything else is passed over by its first letter.
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
            // What is no number is refused by hyper.
            self.length = digits.parse().unwrap_or(0);
        }
        self.overlong += usize::from((is_length || is_encoding) && LINE_MAX < line.len());
    }
}

fn chunk_size(line: &[u8]) -> Option<u64> {
    // Of an overlong line only the beginning may be at hand.
    if LINE_MAX < line.len() {
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

    /// Feeds the text split at every place, and tells what all agree on.
    fn suspect(text: &str) -> Option<u64> {
        let told: Vec<Option<u64>> = (0..text.len())
            .map(|at| {
                let mut framing = FramingCheck::new();
                framing.feed(&text.as_bytes()[..at]);
                framing.feed(&text.as_bytes()[at..]);
                framing.suspect()
            })
            .collect();
        assert!(told.windows(2).all(|pair| pair[0] == pair[1]), "depends on where the bytes are split");
        told[0]
    }

    #[test]
    fn both_kinds_of_length_are_suspect_in_either_order() {
        assert_eq!(suspect(BOTH), Some(0));
        assert_eq!(suspect("POST / HTTP/1.1\ncontent-length: 5\ntransfer-encoding: chunked\n\n"), Some(0));
    }

    #[test]
    fn one_kind_twice_is_suspect() {
        assert_eq!(suspect("POST / HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\n"), Some(0));
        assert_eq!(
            suspect("POST / HTTP/1.1\r\nTransfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n\r\n"),
            Some(0)
        );
    }

    #[test]
    fn a_length_padded_out_of_sight_is_suspect() {
        let padded = format!("POST / HTTP/1.1\r\nContent-Length:{}5\r\n\r\n", " ".repeat(LINE_MAX));
        assert_eq!(suspect(&padded), Some(0));
    }

    #[test]
    fn a_chunk_size_padded_out_of_sight_is_suspect() {
        let padded = format!("{}5", "0".repeat(LINE_MAX));
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n";
        assert_eq!(suspect(&format!("{chunked}{padded}\r\nGET /\r\n0\r\n\r\n")), Some(1));
    }

    #[test]
    fn what_a_body_says_is_not_a_head() {
        let inside = "x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n";
        let sized = format!("POST / HTTP/1.1\r\nContent-Length: {}\r\n\r\n{inside}", inside.len());
        assert_eq!(suspect(&format!("{sized}{GET}")), None);
        let chunk = format!("{:x};note=1\r\n{inside}\r\n0\r\nTrailer: 1\r\n\r\n", inside.len());
        let chunked = format!("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n{chunk}");
        assert_eq!(suspect(&format!("{chunked}{GET}")), None);
    }

    #[test]
    fn a_head_behind_others_is_found_by_its_number() {
        let sized = "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc";
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(suspect(&format!("{GET}{sized}\r\n{chunked}{BOTH}{GET}")), Some(3));
    }

    #[test]
    fn after_a_chunk_that_makes_no_sense_nothing_is_trusted() {
        let chunked = "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n";
        assert_eq!(suspect(&format!("{GET}{chunked}{GET}")), Some(2));
    }

    #[test]
    fn h2_is_not_looked_at() {
        let mut framing = FramingCheck::blind();
        framing.feed(BOTH.as_bytes());
        assert_eq!(framing.suspect(), None);
    }
}
