//! What one event says: OpenAI's chunks, and the events of its Responses and of Anthropic's Messages.

use std::borrow::Cow;

use super::boundary::lines;
use crate::json::{Cursor, JsonError, JsonErrorKind, Kind};
use crate::usage::UsageFields;

/// What an event says; nothing if it is not JSON.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SseEvent {
    /// How many pieces of answer it brings.
    pub(super) tokens: u64,
    pub(super) counts: UsageFields,
    pub(super) done: bool,
    pub(super) error: bool,
    /// Whether it makes no sense: neither JSON nor the last word nor an error in words of its own.
    pub(super) garbage: bool,
    choices: Option<u64>,
}

/// Types of events after which nothing comes.
const LAST: [&[u8]; 6] = [
    b"message_stop",
    b"response.completed",
    b"response.incomplete",
    b"response.failed",
    b"transcript.text.done",
    b"speech.audio.done",
];

/// Names behind which an answer's piece stands, in any of the dialects.
const PIECES: [&[u8]; 10] = [
    b"content",
    b"text",
    b"reasoning_content",
    b"reasoning",
    b"tool_calls",
    b"function_call",
    b"refusal",
    b"partial_json",
    b"thinking",
    b"audio",
];

impl SseEvent {
    /// Reads a whole event.
    pub(super) fn read(event: &[u8]) -> Self {
        let (data, is_error) = data_of(event);
        let Some(data) = data else { return Self::default() };
        if data.trim_ascii() == b"[DONE]" {
            return Self { done: true, ..Self::default() };
        }
        match Self::read_json(&data) {
            Ok(said) => Self { error: said.error | is_error, ..said },
            Err(_) => Self { error: is_error, garbage: !is_error && !is_json(&data), ..Self::default() },
        }
    }

    /// Whether it is the extra event that brings the counts and nothing else.
    pub(super) fn is_only_counts(&self) -> bool {
        self.choices == Some(0) && self.counts.usage().is_some() && !self.error
    }

    fn read_json(data: &[u8]) -> Result<Self, JsonError> {
        let mut said = Self::default();
        let mut cursor = Cursor::new(data);
        cursor.object(|name, cursor| match name.raw() {
            b"choices" => said.read_choices(cursor),
            b"usage" => {
                said.counts.update(UsageFields::read(cursor)?);
                Ok(())
            }
            b"error" => {
                said.error |= cursor.kind()? != Kind::Null;
                cursor.skip()
            }
            b"type" if cursor.kind()? == Kind::Text => {
                let kind = cursor.text()?;
                said.done |= LAST.contains(&kind.raw());
                said.error |= matches!(kind.raw(), b"error" | b"response.failed");
                Ok(())
            }
            b"delta" => {
                said.tokens += u64::from(is_piece(cursor)?);
                Ok(())
            }
            b"message" | b"response" if cursor.kind()? == Kind::Object => cursor.object(|name, cursor| {
                if name.raw() != b"usage" {
                    return cursor.skip();
                }
                said.counts.update(UsageFields::read(cursor)?);
                Ok(())
            }),
            _ => cursor.skip(),
        })?;
        cursor.end()?;
        Ok(said)
    }

    fn read_choices(&mut self, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        if cursor.kind()? != Kind::Array {
            return cursor.skip();
        }
        let mut choices = 0;
        cursor.array(|cursor| {
            choices += 1;
            if cursor.kind()? != Kind::Object {
                return cursor.skip();
            }
            let mut brings = false;
            cursor.object(|name, cursor| {
                if !matches!(name.raw(), b"delta" | b"text") {
                    return cursor.skip();
                }
                brings |= is_piece(cursor)?;
                Ok(())
            })?;
            self.tokens += u64::from(brings);
            Ok(())
        })?;
        self.choices = Some(choices);
        Ok(())
    }
}

/// Finds an event's data, and whether it is named an error.
pub(super) fn data_of(event: &[u8]) -> (Option<Cow<'_, [u8]>>, bool) {
    let (mut data, mut is_error): (Option<Cow<'_, [u8]>>, _) = (None, false);
    for line in lines(event) {
        if let Some(value) = value_of(line, b"data") {
            match &mut data {
                None => data = Some(Cow::Borrowed(value)),
                Some(data) => {
                    data.to_mut().push(b'\n');
                    data.to_mut().extend_from_slice(value);
                }
            }
        } else if let Some(name) = value_of(line, b"event") {
            is_error = name == b"error";
        }
    }
    (data, is_error)
}

/// Whether data is JSON of any kind, as far as can be told, or nothing at all.
fn is_json(data: &[u8]) -> bool {
    let mut cursor = Cursor::new(data);
    let read = cursor.skip().and_then(|()| cursor.end());
    data.trim_ascii().is_empty() || !matches!(read, Err(JsonError { what: JsonErrorKind::Syntax, .. }))
}

/// Reads a delta, and tells whether it brings a piece of an answer.
fn is_piece(cursor: &mut Cursor<'_>) -> Result<bool, JsonError> {
    match cursor.kind()? {
        Kind::Text => Ok(!cursor.text()?.raw().is_empty()),
        Kind::Object => {
            let mut brings = false;
            cursor.object(|name, cursor| {
                if !PIECES.contains(&name.raw()) {
                    return cursor.skip();
                }
                match cursor.kind()? {
                    Kind::Text => brings |= !cursor.text()?.raw().is_empty(),
                    Kind::Object | Kind::Array => {
                        brings = true;
                        cursor.skip()?;
                    }
                    Kind::Number | Kind::Bool | Kind::Null => cursor.skip()?,
                }
                Ok(())
            })?;
            Ok(brings)
        }
        Kind::Array | Kind::Number | Kind::Bool | Kind::Null => cursor.skip().map(|()| false),
    }
}

/// What stands behind a field's name in a line.
fn value_of<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(field)?;
    if rest.is_empty() {
        return Some(rest);
    }
    let value = rest.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}
