//! Length of the text that a model generated, by which a response without `usage` is charged.
//!
//! Guarantees: content, reasoning, refusals, tool arguments and transcripts count, in bytes of decoded UTF-8. JSON syntax,
//! log probabilities, token ids, vectors, base64, annotations and echoed parameters do not.

use crate::json::{Cursor, JsonError, Kind};

/// Length of generated text in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextLength {
    content: u64,
    /// Some engines send the same reasoning under two names.
    reasoning: u64,
    reasoning_content: u64,
}

/// Meaning of a field inside a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TextField {
    Content,
    Reasoning,
    ReasoningContent,
    /// Arguments of a tool: a string, or an object in Anthropic's format.
    Arguments,
    /// Never contains generated text of its own.
    Skipped,
    Other,
}

impl TextField {
    /// Longest name of a field with a meaning.
    pub(super) const NAME_BYTES_MAX: usize = b"reasoning_content".len();

    pub(super) fn of(name: &[u8]) -> Self {
        match name {
            b"content" | b"text" | b"thinking" | b"arguments" | b"refusal" | b"partial_json"
            | b"transcript" => Self::Content,
            b"reasoning" => Self::Reasoning,
            b"reasoning_content" => Self::ReasoningContent,
            b"input" => Self::Arguments,
            b"logprobs" | b"prompt_logprobs" | b"reasoning_details" | b"annotations" | b"citations" => {
                Self::Skipped
            }
            _ => Self::Other,
        }
    }

    /// Reports whether a top-level field of a response contains the generated output.
    pub(super) fn is_output(name: &[u8]) -> bool {
        matches!(name, b"choices" | b"content" | b"output" | b"text")
    }
}

impl TextLength {
    /// Returns the length of `bytes` bytes of content.
    pub fn of_content(bytes: u64) -> Self {
        Self { content: bytes, ..Self::default() }
    }

    /// Returns the total.
    pub fn bytes(self) -> u64 {
        self.content.saturating_add(self.reasoning.max(self.reasoning_content))
    }

    /// Adds the text of a top-level field of a whole response.
    pub(crate) fn read_output(&mut self, name: &[u8], cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if TextField::is_output(name) { self.read_field(name, cursor) } else { cursor.skip() }
    }

    /// Adds the text of a field within the output.
    pub(crate) fn read_field(&mut self, name: &[u8], cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        let field = TextField::of(name);
        match (field, cursor.kind()?) {
            (TextField::Skipped, _) => cursor.skip(),
            (TextField::Other, Kind::Text) => cursor.skip(),
            (_, Kind::Text) => {
                let len = cursor.text()?.len() as u64;
                self.add(field, len);
                Ok(())
            }
            (TextField::Arguments, Kind::Object) => {
                let from = cursor.at();
                cursor.skip()?;
                self.add(field, cursor.since(from).len() as u64);
                Ok(())
            }
            _ => self.read(cursor),
        }
    }

    /// Adds the text of a value within the output; a string in an array does not count.
    pub(crate) fn read(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match cursor.kind()? {
            Kind::Object => cursor.object(|name, cursor| self.read_field(name.raw(), cursor)),
            Kind::Array => cursor.array(|cursor| self.read(cursor)),
            Kind::Text | Kind::Number | Kind::Bool | Kind::Null => cursor.skip(),
        }
    }

    pub(super) fn add(&mut self, field: TextField, bytes: u64) {
        let length = match field {
            TextField::Content | TextField::Arguments => &mut self.content,
            TextField::Reasoning => &mut self.reasoning,
            TextField::ReasoningContent => &mut self.reasoning_content,
            TextField::Skipped | TextField::Other => return,
        };
        *length = length.saturating_add(bytes);
    }
}

impl core::ops::AddAssign for TextLength {
    fn add_assign(&mut self, other: Self) {
        self.content = self.content.saturating_add(other.content);
        self.reasoning = self.reasoning.saturating_add(other.reasoning);
        self.reasoning_content = self.reasoning_content.saturating_add(other.reasoning_content);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::UsageScanner;

    const LOGPROBS: &str =
        r#"{"content":[{"token":"hi","bytes":[104,105],"top_logprobs":[{"token":"ho"}]}]}"#;

    #[test]
    fn only_generated_text_counts_in_every_api() {
        for (body, bytes) in [
            (
                format!(r#"{{"id":"chatcmpl-1","choices":[{{"message":{{"role":"assistant","content":"hi"}},"logprobs":{LOGPROBS}}}]}}"#),
                2,
            ),
            (format!(r#"{{"choices":[{{"text":"hi"}},{{"text":"a\u00e9\ud83d\ude00\n"}}],"logprobs":{LOGPROBS}}}"#), 10),
            (r#"{"choices":[{"message":{"content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]}}]}"#.to_owned(), 7),
            (r#"{"choices":[{"message":{"reasoning":"abc","reasoning_content":"abc","reasoning_details":[{"text":"abc"}],"content":"d"}}]}"#.to_owned(), 4),
            (r#"{"choices":[{"message":{"content":"","audio":{"id":"a","data":"AAAAAAAA","transcript":"hello"}}}]}"#.to_owned(), 5),
            (r#"{"type":"message","content":[{"type":"thinking","thinking":"hm","signature":"AAAA"},{"type":"text","text":"hi"},{"type":"tool_use","name":"f","input":{"a": "b"}}]}"#.to_owned(), 14),
            (r#"{"object":"response","instructions":"be kind","text":{"format":{"type":"text"}},"tools":[{"parameters":{"content":"x"}}],
                "output":[{"type":"reasoning","summary":[{"type":"summary_text","text":"hm"}]},
                {"type":"function_call","name":"f","arguments":"{}"},{"content":[{"type":"output_text","text":"hi","annotations":[{"text":"x"}]}]}]}"#.to_owned(), 6),
            (r#"{"text":"it says","segments":[{"text":"it says"}],"words":[{"word":"it"}]}"#.to_owned(), 7),
            (r#"{"data":[{"embedding":"AAAA"},{"embedding":[0.1]},{"b64_json":"AAAA","content":"x"}]}"#.to_owned(), 0),
            (r#"{"results":[{"index":0,"document":{"text":"x"}}]}"#.to_owned(), 0),
        ] {
            assert_eq!(read(&body).bytes(), bytes, "{body}");
            for at in 0..=body.len() {
                let mut scanner = UsageScanner::default();
                scanner.scan(&body.as_bytes()[..at]);
                scanner.scan(&body.as_bytes()[at..]);
                assert_eq!(scanner.text(), read(&body), "cut at {at}: {body}");
            }
        }
    }

    fn read(body: &str) -> TextLength {
        let mut length = TextLength::default();
        let mut cursor = Cursor::new(body.as_bytes());
        cursor.object(|name, cursor| length.read_output(name.raw(), cursor)).unwrap();
        length
    }
}
