//! Parser of one event: chunks of OpenAI's completions, events of its Responses API and of Anthropic's Messages API.

use std::borrow::Cow;

use super::boundary::lines;
use crate::json::{Cursor, JsonError, JsonErrorKind, Kind};
use crate::response_check::BYTE_ORDER_MARK;
use crate::usage::{TextLength, UsageFields};

/// A parsed event; empty if it is not JSON.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SseEvent {
    /// Number of deltas with generated text.
    pub(super) deltas: u64,
    pub(super) text: TextLength,
    pub(super) usage: UsageFields,
    pub(super) done: bool,
    /// An end-of-stream marker that carries nothing else.
    pub(super) is_bare_end: bool,
    pub(super) error: bool,
    /// Neither JSON, nor an end-of-stream marker, nor a plain-text error.
    pub(super) is_invalid: bool,
    choices: Option<u64>,
}

/// Event types that end a stream.
const END_MARKERS: [&[u8]; 6] = [
    b"message_stop",
    b"response.completed",
    b"response.incomplete",
    b"response.failed",
    b"transcript.text.done",
    b"speech.audio.done",
];

impl SseEvent {
    /// Parses a complete event.
    pub(super) fn read(event: &[u8]) -> Self {
        let (data, is_error) = event_data(event);
        let Some(data) = data else { return Self::default() };
        if data.trim_ascii() == b"[DONE]" {
            return Self { done: true, is_bare_end: true, ..Self::default() };
        }
        match Self::read_json(&data) {
            Ok(parsed) => Self { error: parsed.error | is_error, ..parsed },
            Err(_) => Self { error: is_error, is_invalid: !is_error && !is_json(&data), ..Self::default() },
        }
    }

    /// Reports whether it is the extra event that contains only the usage.
    pub(super) fn is_usage_only(&self) -> bool {
        self.choices == Some(0) && self.usage.usage().is_some() && !self.error
    }

    fn read_json(data: &[u8]) -> Result<Self, JsonError> {
        let mut parsed = Self::default();
        let mut delta = TextLength::default();
        let mut is_audio = false;
        let mut cursor = Cursor::new(data);
        cursor.object(|name, cursor| match name.raw() {
            b"choices" => parsed.read_choices(cursor),
            b"usage" => {
                parsed.usage.update(UsageFields::read(cursor)?);
                Ok(())
            }
            b"error" => {
                parsed.error |= cursor.kind()? != Kind::Null;
                cursor.skip()
            }
            b"type" if cursor.kind()? == Kind::Text => {
                let kind = cursor.text()?;
                parsed.done |= END_MARKERS.contains(&kind.raw());
                parsed.is_bare_end |= kind.raw() == b"message_stop";
                parsed.error |= matches!(kind.raw(), b"error" | b"response.failed");
                is_audio = kind.raw().ends_with(b"audio.delta");
                Ok(())
            }
            b"delta" => read_delta(&mut delta, cursor),
            b"message" | b"response" if cursor.kind()? == Kind::Object => {
                let is_start = name.raw() == b"message";
                cursor.object(|name, cursor| {
                    if name.raw() != b"usage" {
                        return cursor.skip();
                    }
                    let usage = UsageFields::read(cursor)?;
                    parsed.usage.update(if is_start { usage.without_output() } else { usage });
                    Ok(())
                })
            }
            _ => cursor.skip(),
        })?;
        cursor.end()?;
        // A delta of audio is base64.
        if !is_audio {
            parsed.add_delta(delta);
        }
        Ok(parsed)
    }

    fn add_delta(&mut self, text: TextLength) {
        self.deltas += u64::from(text.bytes() > 0);
        self.text += text;
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
            let mut text = TextLength::default();
            cursor.object(|name, cursor| match name.raw() {
                b"delta" => read_delta(&mut text, cursor),
                b"text" => text.read_field(b"text", cursor),
                _ => cursor.skip(),
            })?;
            self.add_delta(text);
            Ok(())
        })?;
        self.choices = Some(choices);
        Ok(())
    }
}

/// Returns an event's data, and whether its type is `error`.
pub(super) fn event_data(event: &[u8]) -> (Option<Cow<'_, [u8]>>, bool) {
    let mut data: Option<Cow<'_, [u8]>> = None;
    let mut is_error = false;
    let event = event.strip_prefix(BYTE_ORDER_MARK).unwrap_or(event);
    for line in lines(event) {
        if let Some(value) = field_value(line, b"data") {
            match &mut data {
                None => data = Some(Cow::Borrowed(value)),
                Some(data) => {
                    data.to_mut().push(b'\n');
                    data.to_mut().extend_from_slice(value);
                }
            }
        } else if let Some(name) = field_value(line, b"event") {
            is_error = name == b"error";
        }
    }
    (data, is_error)
}

/// Reports whether data is empty or JSON of any kind; JSON that is nested too deeply counts.
fn is_json(data: &[u8]) -> bool {
    let mut cursor = Cursor::new(data);
    let read = cursor.skip().and_then(|()| cursor.end());
    data.trim_ascii().is_empty() || !matches!(read, Err(JsonError { kind: JsonErrorKind::Syntax, .. }))
}

/// Reads a delta: a string, or an object with generated text.
fn read_delta(text: &mut TextLength, cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
    if cursor.kind()? == Kind::Text {
        *text += TextLength::of_content(cursor.text()?.len() as u64);
        return Ok(());
    }
    text.read(cursor)
}

/// Returns the value of a field in a line.
fn field_value<'a>(line: &'a [u8], field: &[u8]) -> Option<&'a [u8]> {
    let rest = line.strip_prefix(field)?;
    if rest.is_empty() {
        return Some(rest);
    }
    let value = rest.strip_prefix(b":")?;
    Some(value.strip_prefix(b" ").unwrap_or(value))
}
