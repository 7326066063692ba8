//! Counts found in an answer while it passes by, without keeping it.
//!
//! Bound: keeps at most [`KEPT_MAX`] bytes, of the value behind `usage`; a longer one tells nothing.

use super::{Usage, UsageFields};
use crate::json::Cursor;

/// How long the object with the counts may be.
const KEPT_MAX: usize = 4_096;
const NAME: &[u8] = b"usage";

/// Follows a JSON answer, in pieces of any size, to the counts in it.
///
/// It relies on the answer being JSON, and finds nothing in what is not.
#[derive(Clone, Debug, Default)]
pub struct UsageScanner {
    depth: u32,
    place: ScanState,
    /// How the last string of the outermost object compares with [`NAME`].
    name: NameMatch,
    kept: Vec<u8>,
    counts: UsageFields,
}

/// Where in the text the scanner is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    Between,
    InText,
    Escaped,
}

/// What is known about the name of the value to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum NameMatch {
    /// It is another.
    #[default]
    Other,
    /// So many bytes of it are as they should be.
    Begun(usize),
    /// It is the one; its colon may still be missing.
    Found,
    /// The value behind it is being kept.
    Kept,
}

impl UsageScanner {
    /// Takes the next piece.
    pub fn scan(&mut self, piece: &[u8]) {
        for &byte in piece {
            if self.name == NameMatch::Kept {
                self.keep(byte);
            }
            match self.place {
                ScanState::Between => self.between(byte),
                ScanState::Escaped => self.place = ScanState::InText,
                ScanState::InText => self.in_text(byte),
            }
        }
    }

    /// The counts, once they have passed.
    pub fn usage(&self) -> Option<Usage> {
        self.counts.usage()
    }

    fn between(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.place = ScanState::InText;
                if self.depth == 1 {
                    self.name = NameMatch::Begun(0);
                }
            }
            b'{' if self.depth == 1 && self.name == NameMatch::Found => {
                self.depth = 2;
                self.name = NameMatch::Kept;
                self.kept.clear();
                self.kept.push(b'{');
            }
            b'{' | b'[' => {
                // Within an array every name is somebody else's.
                self.depth = if self.depth == 0 && byte == b'[' { 2 } else { self.depth.saturating_add(1) };
            }
            b'}' | b']' => {
                self.depth = self.depth.saturating_sub(1);
                if self.depth == 1 && self.name == NameMatch::Kept {
                    self.read_kept();
                }
            }
            b',' if self.depth == 1 => self.name = NameMatch::Other,
            _ => {}
        }
    }

    fn in_text(&mut self, byte: u8) {
        match (byte, self.name) {
            (b'"', name) => {
                self.place = ScanState::Between;
                if self.depth == 1 {
                    self.name = if name == NameMatch::Begun(NAME.len()) {
                        NameMatch::Found
                    } else {
                        NameMatch::Other
                    };
                }
            }
            (b'\\', _) => {
                self.place = ScanState::Escaped;
                if self.depth == 1 {
                    self.name = NameMatch::Other;
                }
            }
            (byte, NameMatch::Begun(so_far)) if self.depth == 1 => {
                let fits = NAME.get(so_far) == Some(&byte);
                self.name = if fits { NameMatch::Begun(so_far + 1) } else { NameMatch::Other };
            }
            _ => {}
        }
    }

    fn keep(&mut self, byte: u8) {
        if self.kept.len() <= KEPT_MAX {
            self.kept.push(byte);
        }
    }

    fn read_kept(&mut self) {
        self.name = NameMatch::Other;
        if KEPT_MAX < self.kept.len() {
            return;
        }
        if let Ok(counts) = UsageFields::read(&mut Cursor::new(&self.kept)) {
            self.counts.update(counts);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANSWER: &[u8] =
        br#"{"id":"\"usage\"","usage ":{"prompt_tokens":1},"choices":[{"usage":{"prompt_tokens":2}}],
        "text":"usage","usage":{"prompt_tokens":3,"x":{"}":"\"}"},"completion_tokens":4},"z":{"usage":{}}}"#;

    #[test]
    fn counts_are_found_however_the_answer_is_cut() {
        for at in 0..=ANSWER.len() {
            let mut scanner = UsageScanner::default();
            scanner.scan(&ANSWER[..at]);
            scanner.scan(&ANSWER[at..]);
            assert_eq!(scanner.usage(), Some(Usage { input: 3, output: 4 }), "cut at {at}");
        }
    }

    #[test]
    fn counts_longer_than_the_limit_tell_nothing() {
        let padded = |spaces: usize| {
            let answer = format!(r#"{{"usage":{{"prompt_tokens":3{}}}}}"#, " ".repeat(spaces));
            Usage::of_json(answer.as_bytes())
        };
        let room = KEPT_MAX - r#"{"prompt_tokens":3}"#.len();
        assert_eq!(padded(room), Some(Usage { input: 3, output: 0 }));
        assert_eq!(padded(room + 1), None);
    }
}
