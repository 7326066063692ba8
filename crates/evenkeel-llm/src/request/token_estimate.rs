//! Estimate of a request's prompt tokens, without the model's tokenizer.

use crate::json::{Cursor, JsonError, Kind, Text};

/// Average bytes of text per token.
pub(crate) const TOKEN_BYTES: u64 = 4;
/// Tokens counted for an image, a recording or a file of any size.
const MEDIA_TOKENS: u64 = 1_000;

/// Fields that contain media instead of text.
const MEDIA: [&str; 10] = [
    "image_url",
    "image",
    "images",
    "input_audio",
    "audio_url",
    "audio",
    "video_url",
    "file",
    "file_data",
    "source",
];

/// Kind of JSON value, which decides how it is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    /// Messages and prompts, including media.
    Text,
    /// Tool schemas, in which a property may have the name of a media field.
    Schema,
}

/// Running estimate.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenEstimate {
    text_bytes: u64,
    tokens: u64,
}

impl TokenEstimate {
    /// Counts a value: names and strings by length, a number as one token, media at a flat rate.
    pub(super) fn count(&mut self, cursor: &mut Cursor<'_>, kind: ContentKind) -> Result<(), JsonError> {
        match cursor.kind()? {
            Kind::Object => cursor.object(|name, cursor| self.count_field(&name, cursor, kind)),
            Kind::Array => cursor.array(|cursor| self.count(cursor, kind)),
            Kind::Text => {
                let text = cursor.text()?;
                self.add_text(&text);
                Ok(())
            }
            Kind::Number => {
                self.tokens += 1;
                cursor.number().map(drop)
            }
            Kind::Bool | Kind::Null => cursor.skip(),
        }
    }

    /// Counts a field's name and value.
    pub(super) fn count_field<E: From<JsonError>>(
        &mut self,
        name: &Text<'_>,
        cursor: &mut Cursor<'_>,
        kind: ContentKind,
    ) -> Result<(), E> {
        if kind == ContentKind::Text && MEDIA.iter().any(|media| name.is(media)) {
            self.tokens += MEDIA_TOKENS;
            return Ok(cursor.skip()?);
        }
        self.add_text(name);
        Ok(self.count(cursor, kind)?)
    }

    /// Counts the tokens of one or more prompts; returns the number of prompts.
    ///
    /// An array of numbers is one prompt, already tokenized.
    pub(super) fn count_prompts(&mut self, cursor: &mut Cursor<'_>) -> Result<u64, JsonError> {
        if cursor.kind()? != Kind::Array {
            self.count(cursor, ContentKind::Text)?;
            return Ok(1);
        }
        let mut prompts = 0;
        cursor.array(|cursor| {
            prompts += u64::from(matches!(cursor.kind()?, Kind::Text | Kind::Array));
            self.count(cursor, ContentKind::Text)
        })?;
        Ok(prompts)
    }

    pub(super) fn add_text(&mut self, text: &Text<'_>) {
        self.text_bytes += text.len() as u64;
    }

    pub(super) fn tokens(&self) -> u64 {
        self.text_bytes.div_ceil(TOKEN_BYTES) + self.tokens
    }
}
