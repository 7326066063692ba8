//! Finds `usage` in a JSON body while it passes through, without buffering the body.
//!
//! Limits: buffers at most [`VALUE_BYTES_MAX`] bytes of the value of `usage`; a longer one is ignored.

use super::{Usage, UsageFields};
use crate::json::Cursor;

/// Longest `usage` object.
const VALUE_BYTES_MAX: usize = 4_096;
const NAME: &[u8] = b"usage";

/// Scanner of a JSON body in chunks of any size.
///
/// The body must be JSON; in anything else it finds nothing.
#[derive(Clone, Debug, Default)]
pub struct UsageScanner {
    depth: u32,
    state: ScanState,
    /// Match of the outermost object's last string with [`NAME`].
    name: NameMatch,
    value: Vec<u8>,
    fields: UsageFields,
}

/// Position in the JSON text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Between,
    InText,
    Escaped,
}

/// Match of a field's name with [`NAME`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NameMatch {
    #[default]
    Other,
    /// This many bytes match so far.
    Partial(usize),
    /// The name matches; its colon may still follow.
    Found,
    /// Its value is being buffered.
    InValue,
}

impl UsageScanner {
    /// Scans the next chunk.
    pub fn scan(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if self.name == NameMatch::InValue {
                self.buffer(byte);
            }
            match self.state {
                ScanState::Between => self.between(byte),
                ScanState::Escaped => self.state = ScanState::InText,
                ScanState::InText => self.in_text(byte),
            }
        }
    }

    /// Returns the usage, once it has been scanned.
    pub fn usage(&self) -> Option<Usage> {
        self.fields.usage()
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.state = ScanState::InText;
                if self.depth == 1 {
                    self.name = NameMatch::Partial(0);
                }
            }
            b'{' if self.depth == 1 && self.name == NameMatch::Found => {
                self.depth = 2;
                self.name = NameMatch::InValue;
                self.value.clear();
                self.value.push(b'{');
            }
            b'{' | b'[' => {
                // An outermost array has no field of ours.
                self.depth = if self.depth == 0 && byte == b'[' { 2 } else { self.depth.saturating_add(1) };
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 && self.name == NameMatch::InValue {
                    self.read_value();
                }
            }
            b',' if self.depth == 1 => self.name = NameMatch::Other,
            _ => {}
        }
    }

    fn in_text(&mut self, byte: u8) {
        match (byte, self.name) {
            (b'"', name) => {
                self.state = ScanState::Between;
                if self.depth == 1 {
                    self.name = if name == NameMatch::Partial(NAME.len()) {
                        NameMatch::Found
                    } else {
                        NameMatch::Other
                    };
                }
            }
            (b'\\', _) => {
                self.state = ScanState::Escaped;
                if self.depth == 1 {
                    self.name = NameMatch::Other;
                }
            }
            (byte, NameMatch::Partial(so_far)) if self.depth == 1 => {
                let fits = NAME.get(so_far) == Some(&byte);
                self.name = if fits { NameMatch::Partial(so_far + 1) } else { NameMatch::Other };
            }
            _ => {}
        }
    }

    fn buffer(&mut self, byte: u8) {
        if self.value.len() <= VALUE_BYTES_MAX {
            self.value.push(byte);
        }
    }

    fn read_value(&mut self) {
        self.name = NameMatch::Other;
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
