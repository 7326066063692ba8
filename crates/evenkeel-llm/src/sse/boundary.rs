//! Boundaries between events: empty lines, with any of the three line endings.

use memchr::memchr2;

/// Position of the next byte in its line.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Boundary {
    /// At the start of a line.
    #[default]
    LineStart,
    /// At the start of a line, or at the line feed after the carriage return that ended the previous line.
    LineStartOrFeed,
    /// Within a line.
    InLine,
}

impl Boundary {
    /// Returns the number of bytes up to the end of the event; `None` if it continues beyond `bytes`.
    ///
    /// If the event ends with a carriage return, the caller skips a line feed after it.
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
