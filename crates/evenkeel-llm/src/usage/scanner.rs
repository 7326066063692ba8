//! Finds `usage` in a JSON body while it passes through, without buffering the body.
//!
//! Limits: buffers at most [`VALUE_BYTES_MAX`] + 1 bytes of the value of `usage`; a value over the limit is ignored.

use super::{Usage, UsageFields};
use crate::json::Cursor;

/// Maximum length of the `usage` value, in bytes.
const VALUE_BYTES_MAX: usize = 4_096;
const FIELD_NAME: &[u8] = b"usage";

/// Scanner of a JSON body in chunks of any size.
///
/// The body must be JSON; for anything else the result is unspecified.
#[derive(Clone, Debug, Default)]
pub struct UsageScanner {
    depth: u32,
    state: ScanState,
    /// Match of the current key of the top-level object with [`FIELD_NAME`].
    field: FieldState,
    value: Vec<u8>,
    fields: UsageFields,
}

/// Position in the JSON text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    OutsideString,
    InString,
    Escaped,
}

/// State of the current field of the top-level object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum FieldState {
    #[default]
    Other,
    /// This many bytes of the key match [`FIELD_NAME`] so far.
    Matching(usize),
    /// The last string is `usage`; it is a key if an object follows.
    Matched,
    /// The value of `usage` is being buffered.
    Buffering,
}

impl UsageScanner {
    /// Scans the next chunk.
    pub fn scan(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if self.field == FieldState::Buffering {
                self.buffer(byte);
            }
            match self.state {
                ScanState::OutsideString => self.outside_string(byte),
                ScanState::Escaped => self.state = ScanState::InString,
                ScanState::InString => self.in_string(byte),
            }
        }
    }

    /// Returns the usage, once it has been scanned.
    pub fn usage(&self) -> Option<Usage> {
        self.fields.usage()
    }

    fn outside_string(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.state = ScanState::InString;
                if self.depth == 1 {
                    self.field = FieldState::Matching(0);
                }
            }
            b'{' if self.depth == 1 && self.field == FieldState::Matched => {
                self.depth = 2;
                self.field = FieldState::Buffering;
                self.value.clear();
                self.value.push(b'{');
            }
            b'{' | b'[' => {
                // A top-level array has no `usage` field: start at depth 2, so that nothing in it counts as top level.
                self.depth = if self.depth == 0 && byte == b'[' { 2 } else { self.depth.saturating_add(1) };
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 && self.field == FieldState::Buffering {
                    self.parse_value();
                }
            }
            b',' if self.depth == 1 => self.field = FieldState::Other,
            _ => {}
        }
    }

    fn in_string(&mut self, byte: u8) {
        match (byte, self.field) {
            (b'"', field) => {
                self.state = ScanState::OutsideString;
                if self.depth == 1 {
                    self.field = if field == FieldState::Matching(FIELD_NAME.len()) {
                        FieldState::Matched
                    } else {
                        FieldState::Other
                    };
                }
            }
            (b'\\', _) => {
                self.state = ScanState::Escaped;
                if self.depth == 1 {
                    self.field = FieldState::Other;
                }
            }
            (byte, FieldState::Matching(so_far)) if self.depth == 1 => {
                let fits = FIELD_NAME.get(so_far) == Some(&byte);
                self.field = if fits { FieldState::Matching(so_far + 1) } else { FieldState::Other };
            }
            _ => {}
        }
    }

    fn buffer(&mut self, byte: u8) {
        if self.value.len() <= VALUE_BYTES_MAX {
            self.value.push(byte);
        }
    }

    fn parse_value(&mut self) {
        self.field = FieldState::Other;
        if self.value.len() > VALUE_BYTES_MAX {
            return;
        }
        if let Ok(fields) = UsageFields::read(&mut Cursor::new(&self.value)) {
            self.fields.update(fields);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] =
        br#"{"id":"\"usage\"","usage ":{"prompt_tokens":1},"choices":[{"usage":{"prompt_tokens":2}}],
        "text":"usage","usage":{"prompt_tokens":3,"x":{"}":"\"}"},"completion_tokens":4},"z":{"usage":{}}}"#;

    #[test]
    fn usage_is_found_wherever_the_chunks_are_cut() {
        for at in 0..=BODY.len() {
            let mut scanner = UsageScanner::default();
            scanner.scan(&BODY[..at]);
            scanner.scan(&BODY[at..]);
            assert_eq!(scanner.usage(), Some(Usage { input: 3, output: 4 }), "cut at {at}");
        }
    }

    #[test]
    fn usage_over_the_limit_is_ignored() {
        let padded = |spaces: usize| {
            let body = format!(r#"{{"usage":{{"prompt_tokens":3{}}}}}"#, " ".repeat(spaces));
            Usage::from_json(body.as_bytes())
        };
        let room = VALUE_BYTES_MAX - r#"{"prompt_tokens":3}"#.len();
        assert_eq!(padded(room), Some(Usage { input: 3, output: 0 }));
        assert_eq!(padded(room + 1), None);
    }
}
