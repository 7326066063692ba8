//! How much a model has to read, without knowing its tokenizer.

use crate::json::{Cursor, JsonError, Kind, Text};

/// How many bytes of text make a token, about.
pub(crate) const TOKEN_BYTES: u64 = 4;
/// What a picture, a recording or a file counts, whatever its size.
const MEDIA_TOKENS: u64 = 1_000;

/// Names behind which there is no text to read.
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

/// What a value is read as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentKind {
    /// What people and models say, with what they show each other.
    Words,
    /// Descriptions of tools, which may be named like a picture.
    Schema,
}

/// What was counted so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TokenEstimate {
    text_bytes: u64,
    tokens: u64,
}

impl TokenEstimate {
    /// Counts a value: names and texts by their length, numbers as tokens, media flat.
    pub(super) fn count(&mut self, cursor: &mut Cursor<'_>, reading: ContentKind) -> Result<(), JsonError> {
        match cursor.kind()? {
            Kind::Object => cursor.object(|name, cursor| self.walk_named(&name, cursor, reading)),
            Kind::Array => cursor.array(|cursor| self.count(cursor, reading)),
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

    /// Counts a value with its name.
    pub(super) fn walk_named<E: From<JsonError>>(
        &mut self,
        name: &Text<'_>,
        cursor: &mut Cursor<'_>,
        reading: ContentKind,
    ) -> Result<(), E> {
        if reading == ContentKind::Words && MEDIA.iter().any(|media| name.is(media)) {
            self.tokens += MEDIA_TOKENS;
            return Ok(cursor.skip()?);
        }
        self.add_text(name);
        Ok(self.count(cursor, reading)?)
    }

    /// Counts what the model is to continue, and tells how many there are of it.
    ///
    /// A list of numbers is one, already cut into tokens.
    pub(super) fn prompts(&mut self, cursor: &mut Cursor<'_>) -> Result<u64, JsonError> {
        if cursor.kind()? != Kind::Array {
            self.count(cursor, ContentKind::Words)?;
            return Ok(1);
        }
        let mut prompts = 0;
        cursor.array(|cursor| {
            prompts += u64::from(matches!(cursor.kind()?, Kind::Text | Kind::Array));
            self.count(cursor, ContentKind::Words)
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
