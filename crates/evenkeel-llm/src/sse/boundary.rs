//! Where events end: at an empty line, whichever of the three line ends it has.

use memchr::memchr2;

/// What stands before the next byte.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Boundary {
    /// The beginning of a line.
    #[default]
    LineStart,
    /// The beginning of a line, or the line feed of the carriage return that ended the last one.
    LineStartOrFeed,
    /// A line that has begun.
    InLine,
}

impl Boundary {
    /// Finds how many bytes end the event; `None` if all of them belong to it, and it goes on.
    ///
    /// Where an event ends with a carriage return, the line feed behind it is for the caller to pass over.
    pub(super) fn find(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        loop {
            let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
            if matches!(self, Self::LineStartOrFeed) {
                *self = Self::LineStart;
                if rest[0] == b'\n' {
                    at += 1;
                    continue;
                }
            }
            let Some(len) = memchr2(b'\n', b'\r', rest) else {
                *self = Self::InLine;
                return None;
            };
            let is_empty = len == 0 && matches!(self, Self::LineStart);
            let is_return = rest[len] == b'\r';
            at += len + 1;
            *self = if is_return && !is_empty { Self::LineStartOrFeed } else { Self::LineStart };
            if is_empty {
                return Some(at);
            }
        }
    }
}

/// Splits an event into its lines.
pub(super) fn lines(event: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = event;
    core::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..len];
        let end = if rest[len..].starts_with(b"\r\n") { len + 2 } else { len + 1 };
        rest = rest.get(end..).unwrap_or_default();
        Some(line)
    })
}
