//! Finds `usage` and the length of the generated text in a JSON body while it passes through, without buffering the body.
//!
//! Limits: buffers at most [`VALUE_BYTES_MAX`] + 1 bytes of the value of `usage`; a value over the limit is ignored.

use super::generated_text::{TextField, TextLength};
use super::{Usage, UsageFields};
use crate::json::{Cursor, utf8_len};

/// Maximum length of the `usage` value, in bytes.
const VALUE_BYTES_MAX: usize = 4_096;

/// Scanner of a JSON body in chunks of any size.
///
/// The body must be JSON; for anything else the result is unspecified.
#[derive(Clone, Debug, Default)]
pub struct UsageScanner {
    depth: u32,
    state: ScanState,
    string: StringRole,
    name: FieldName,
    /// Field whose value comes next.
    field: Option<TextField>,
    /// Meaning of the current field of the top-level object.
    top_level: TopLevelField,
    /// Depth of the object that contains a field without generated text, while in its value.
    skipped_from: Option<u32>,
    /// Depth of the object that contains a tool's arguments, while in them.
    arguments_from: Option<u32>,
    value: Vec<u8>,
    fields: UsageFields,
    text: TextLength,
}

/// Position in the JSON text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum ScanState {
    #[default]
    OutsideString,
    InString,
    Escaped,
    /// Within the digits of a `\u` escape.
    Unicode {
        digits: u8,
        unit: u32,
    },
}

/// Role of the current string.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum StringRole {
    /// A field's name, or a string in an array.
    #[default]
    Name,
    /// Generated text.
    Text(TextField),
    OtherValue,
}

/// Current field of the top-level object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum TopLevelField {
    #[default]
    Other,
    Output,
    Usage,
    /// The value of `usage` is being buffered.
    Buffering,
}

/// A field's name, as far as it can have a meaning.
#[derive(Clone, Copy, Debug, Default)]
struct FieldName {
    bytes: [u8; TextField::NAME_BYTES_MAX],
    /// Beyond the capacity if the name is too long or has an escape.
    len: usize,
}

impl FieldName {
    fn push(&mut self, byte: u8) {
        if let Some(free) = self.bytes.get_mut(self.len) {
            *free = byte;
        }
        self.len = self.len.saturating_add(1);
    }

    fn invalidate(&mut self) {
        self.len = usize::MAX;
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl UsageScanner {
    /// Scans the next chunk.
    pub fn scan(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if self.top_level == TopLevelField::Buffering {
                self.buffer(byte);
            }
            let was_in_arguments = self.arguments_from.is_some();
            match self.state {
                ScanState::OutsideString => self.outside_string(byte),
                ScanState::InString => self.in_string(byte),
                ScanState::Escaped => self.escaped(byte),
                ScanState::Unicode { digits, unit } => self.unicode(byte, digits, unit),
            }
            if was_in_arguments || self.arguments_from.is_some() {
                self.text.add(TextField::Arguments, 1);
            }
        }
    }

    /// Returns the usage, once it has been scanned.
    pub fn usage(&self) -> Option<Usage> {
        self.fields.usage()
    }

    /// Returns the length of the generated text scanned so far.
    pub fn text(&self) -> TextLength {
        self.text
    }

    fn outside_string(&mut self, byte: u8) {
        match byte {
            b'"' => {
                self.state = ScanState::InString;
                self.string = match self.field.take() {
                    None => StringRole::Name,
                    Some(field) if self.is_counting() => StringRole::Text(field),
                    Some(_) => StringRole::OtherValue,
                };
                if self.string == StringRole::Name {
                    self.name = FieldName::default();
                }
            }
            b':' => self.begin_field(),
            b'{' | b'[' => self.open(byte),
            b'}' | b']' => self.close(),
            b',' => self.field = None,
            _ => {}
        }
    }

    fn begin_field(&mut self) {
        let name = self.name.as_bytes();
        self.field = Some(TextField::of(name));
        if self.depth == 1 {
            self.top_level = match name {
                b"usage" => TopLevelField::Usage,
                name if TextField::is_output(name) => TopLevelField::Output,
                _ => TopLevelField::Other,
            };
        }
    }

    fn open(&mut self, byte: u8) {
        let field = self.field.take();
        if byte == b'{' && self.depth == 1 && self.top_level == TopLevelField::Usage && field.is_some() {
            self.top_level = TopLevelField::Buffering;
            self.value.clear();
            self.value.push(b'{');
        }
        if self.is_counting() {
            match field {
                Some(TextField::Skipped) => self.skipped_from = Some(self.depth),
                Some(TextField::Arguments) if byte == b'{' => self.arguments_from = Some(self.depth),
                _ => {}
            }
        }
        // A top-level array has no fields: start at depth 2, so that nothing in it counts as top level.
        self.depth = if self.depth == 0 && byte == b'[' { 2 } else { self.depth.saturating_add(1) };
    }

    fn close(&mut self) {
        self.field = None;
        self.depth = self.depth.saturating_sub(1);
        let depth = Some(self.depth);
        self.skipped_from = self.skipped_from.filter(|_| self.skipped_from != depth);
        self.arguments_from = self.arguments_from.filter(|_| self.arguments_from != depth);
        if self.depth == 1 && self.top_level == TopLevelField::Buffering {
            self.parse_value();
        }
    }

    /// Reports whether the current position is in the output, outside of fields that are not read.
    fn is_counting(&self) -> bool {
        self.top_level == TopLevelField::Output
            && self.skipped_from.is_none()
            && self.arguments_from.is_none()
    }

    fn in_string(&mut self, byte: u8) {
        match (byte, self.string) {
            (b'"', _) => self.state = ScanState::OutsideString,
            (b'\\', role) => {
                self.state = ScanState::Escaped;
                if role == StringRole::Name {
                    self.name.invalidate();
                }
            }
            (byte, StringRole::Name) => self.name.push(byte),
            (_, StringRole::Text(field)) => self.text.add(field, 1),
            (_, StringRole::OtherValue) => {}
        }
    }

    fn escaped(&mut self, byte: u8) {
        if byte == b'u' {
            self.state = ScanState::Unicode { digits: 0, unit: 0 };
            return;
        }
        self.end_escape(1);
    }

    fn unicode(&mut self, byte: u8, digits: u8, unit: u32) {
        let unit = unit << 4 | char::from(byte).to_digit(16).unwrap_or(0);
        if digits == 3 {
            self.end_escape(utf8_len(unit) as u64);
        } else {
            self.state = ScanState::Unicode { digits: digits + 1, unit };
        }
    }

    /// Ends an escape that stands for a character of this length.
    fn end_escape(&mut self, len: u64) {
        self.state = ScanState::InString;
        if let StringRole::Text(field) = self.string {
            self.text.add(field, len);
        }
    }

    fn buffer(&mut self, byte: u8) {
        if self.value.len() <= VALUE_BYTES_MAX {
            self.value.push(byte);
        }
    }

    fn parse_value(&mut self) {
        self.top_level = TopLevelField::Other;
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
            assert_eq!(scanner.usage(), Some(Usage { input: 3, cached: 0, output: 4 }), "cut at {at}");
        }
    }

    #[test]
    fn usage_over_the_limit_is_ignored() {
        let padded = |spaces: usize| {
            let body = format!(r#"{{"usage":{{"prompt_tokens":3{}}}}}"#, " ".repeat(spaces));
            Usage::from_json(body.as_bytes())
        };
        let room = VALUE_BYTES_MAX - r#"{"prompt_tokens":3}"#.len();
        assert_eq!(padded(room), Some(Usage { input: 3, cached: 0, output: 0 }));
        assert_eq!(padded(room + 1), None);
    }
}
