//! Parser of JSON requests: the fields that the gateway acts on, and their valid values.

use core::ops::Range;

use evenkeel_policy::class::Class;
use evenkeel_server::api_error::ApiError;

use super::affinity::{Affinity, Rank};
use super::token_estimate::{ContentKind, TokenEstimate};
use super::{
    Endpoint, IncludeUsage, LlmRequest, MODEL_BYTES_MAX, ModelFormat, ModelPlace, ParseError, ResponseMode,
    Splice,
};
use crate::json::{Cursor, Kind, Text};

/// Meaning of a field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    StreamOptions,
    Messages,
    /// One or more prompts; each gets a response.
    Prompt,
    /// System prompt.
    Preamble,
    /// Other text that the model reads.
    Text,
    /// Tools and response formats.
    Schema,
    /// Limit of output tokens; the field of the highest rank applies.
    OutputMax(u8),
    /// Number of choices per prompt.
    Choices,
    /// Conversation ID; the field of the highest rank is used.
    Id(Rank),
    /// OpenAI's service tier.
    Tier,
}

/// Every field that the gateway acts on; a field's index is its bit in [`RequestParser::seen`].
const FIELDS: [(&str, Field); 29] = [
    ("model", Field::Model),
    ("messages", Field::Messages),
    ("stream", Field::Stream),
    ("stream_options", Field::StreamOptions),
    ("max_tokens", Field::OutputMax(0)),
    ("max_completion_tokens", Field::OutputMax(2)),
    ("max_output_tokens", Field::OutputMax(1)),
    ("n", Field::Choices),
    ("best_of", Field::Choices),
    ("prompt", Field::Prompt),
    ("input", Field::Prompt),
    ("suffix", Field::Text),
    ("query", Field::Text),
    ("documents", Field::Text),
    ("texts", Field::Text),
    ("system", Field::Preamble),
    ("instructions", Field::Preamble),
    ("tools", Field::Schema),
    ("functions", Field::Schema),
    ("response_format", Field::Schema),
    ("prompt_cache_key", Field::Id(Rank::CacheKey)),
    ("conversation", Field::Id(Rank::Conversation)),
    ("conversation_id", Field::Id(Rank::Conversation)),
    ("session_id", Field::Id(Rank::Conversation)),
    ("metadata", Field::Id(Rank::Metadata)),
    ("user", Field::Id(Rank::User)),
    ("user_id", Field::Id(Rank::User)),
    ("safety_identifier", Field::Id(Rank::User)),
    ("service_tier", Field::Tier),
];

/// Audio tokens per text token, at about 20 audio tokens and three words per second.
const AUDIO_PER_TOKEN: u64 = 6;

const INCLUDE_USAGE: &str = "include_usage";

/// State of the parser.
pub(super) struct RequestParser {
    endpoint: Endpoint,
    /// Bit set of the fields seen, by index in [`FIELDS`].
    seen: u32,
    model: Option<(String, Range<usize>)>,
    mode: ResponseMode,
    /// Splice that sets `include_usage`; `None` if the client sets it.
    usage_splice: Option<Splice>,
    estimate: TokenEstimate,
    output_tokens_max: Option<(u8, u64)>,
    choices: u64,
    prompts: u64,
    affinity: Affinity,
    class: Option<Class>,
}

impl RequestParser {
    pub(super) fn parse(endpoint: Endpoint, body: &[u8]) -> Result<LlmRequest, ParseError> {
        let mut cursor = Cursor::new(body);
        if cursor.kind()? != Kind::Object {
            // If the body is not valid JSON at all, that is the error to report.
            cursor.skip()?;
            cursor.end()?;
            return Err(ApiError::invalid("the body must be a JSON object").into());
        }
        let inside = cursor.at() + 1;
        let text = r#""stream_options":{"include_usage":true},"#;
        let mut parser = Self {
            endpoint,
            seen: 0,
            model: None,
            mode: ResponseMode::NonStreaming,
            usage_splice: Some(Splice { range: inside..inside, text }),
            estimate: TokenEstimate::default(),
            output_tokens_max: None,
            choices: 1,
            prompts: 1,
            affinity: Affinity::default(),
            class: None,
        };
        cursor.object(|name, cursor| match parser.field(name)? {
            Some((name, field)) => parser.read_field(name, field, cursor),
            None => Ok(cursor.skip()?),
        })?;
        cursor.end()?;
        parser.finish()
    }

    /// Looks up a field; rejects it if it is repeated, or if only a case-insensitive parser would recognize its name.
    fn field(&mut self, name: Text<'_>) -> Result<Option<(&'static str, Field)>, ParseError> {
        let Some(name) = name.decoded() else {
            return Err(ApiError::invalid("a field name in the body is not valid Unicode").into());
        };
        let names = FIELDS.iter().map(|(known, _)| *known);
        let Some(index) = find_folded(&name, names) else { return Ok(None) };
        let (known, field) = FIELDS[index];
        if name != known {
            return Err(invalid(known, format!("{name:?} must be written {known:?}")));
        }
        if self.seen & 1 << index != 0 {
            return Err(invalid(known, format!("{known} is given twice")));
        }
        self.seen |= 1 << index;
        Ok(Some((known, field)))
    }

    fn read_field(
        &mut self,
        name: &'static str,
        field: Field,
        cursor: &mut Cursor<'_>,
    ) -> Result<(), ParseError> {
        match field {
            Field::Model => self.model = Some(read_model(cursor)?),
            Field::Stream => {
                if read_bool(name, cursor)? == Some(true) {
                    self.mode = ResponseMode::Stream;
                }
            }
            Field::StreamOptions => self.usage_splice = read_stream_options(cursor)?,
            Field::Messages => self.read_messages(name, cursor)?,
            // In the Responses API, `input` may be a conversation.
            Field::Prompt if self.endpoint == Endpoint::Responses && cursor.kind()? == Kind::Array => {
                self.read_messages(name, cursor)?;
            }
            Field::Prompt => {
                let from = cursor.start()?;
                self.prompts = self.prompts.max(self.estimate.count_prompts(cursor)?);
                self.affinity.record_prompt(cursor.since(from));
            }
            Field::Preamble => {
                let from = cursor.start()?;
                self.estimate.count(cursor, ContentKind::Text)?;
                self.affinity.record_preamble(cursor.since(from));
            }
            Field::Text => self.estimate.count(cursor, ContentKind::Text)?,
            Field::Schema => self.estimate.count(cursor, ContentKind::Schema)?,
            Field::OutputMax(rank) => {
                if let Some(tokens) = read_count(name, cursor)?
                    && self.output_tokens_max.is_none_or(|(other, _)| other < rank)
                {
                    self.output_tokens_max = Some((rank, tokens));
                }
            }
            Field::Choices => {
                let choices = read_count(name, cursor)?;
                self.choices = self.choices.max(choices.unwrap_or(1));
            }
            Field::Id(rank) => self.affinity.read_id(rank, cursor)?,
            Field::Tier => self.class = read_tier(cursor)?,
        }
        Ok(())
    }

    fn read_messages(&mut self, field: &str, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        if cursor.kind()? != Kind::Array {
            return Err(invalid(field, format!("{field} must be an array")));
        }
        let Self { estimate, affinity, .. } = self;
        cursor.array(|cursor| {
            if cursor.kind()? != Kind::Object {
                return Err(invalid(field, format!("each of {field} must be an object")));
            }
            let mut role = None;
            let mut content: &[u8] = &[];
            cursor.object(|name, cursor| {
                if name.is("role") && cursor.kind()? == Kind::Text {
                    let text = cursor.text()?;
                    estimate.add_text(&text);
                    role = Some(text);
                    return Ok(());
                }
                if !name.is("content") {
                    return estimate.count_field(&name, cursor, ContentKind::Text);
                }
                let from = cursor.start()?;
                estimate.count(cursor, ContentKind::Text)?;
                content = cursor.since(from);
                Ok::<(), ParseError>(())
            })?;
            affinity.record_message(role, content);
            Ok(())
        })
    }

    fn finish(self) -> Result<LlmRequest, ParseError> {
        let needs_messages =
            matches!(self.endpoint, Endpoint::Chat | Endpoint::Messages | Endpoint::CountTokens);
        let lacks_messages = needs_messages && !self.has("messages");
        let Some((model, range)) = self.model else {
            return Err(invalid("model", "the body must contain a model"));
        };
        if lacks_messages {
            return Err(invalid("messages", "a chat needs messages"));
        }
        let usage =
            if self.usage_splice.is_none() { IncludeUsage::Requested } else { IncludeUsage::NotRequested };
        let has_include_usage = matches!(self.endpoint, Endpoint::Chat | Endpoint::Completions);
        let choices = self.choices.max(1).saturating_mul(self.prompts);
        let output_tokens_max = if self.endpoint.has_no_tokens() {
            Some(0)
        } else {
            self.output_tokens_max.map(|(_, tokens)| tokens.saturating_mul(choices))
        };
        let (input_tokens, output_tokens_exact) = match self.endpoint {
            // No model processes the prompt.
            Endpoint::CountTokens => (1, None),
            Endpoint::Speech => {
                let tokens = self.estimate.tokens();
                (tokens, Some(tokens.saturating_mul(AUDIO_PER_TOKEN)))
            }
            _ => (self.estimate.tokens(), None),
        };
        Ok(LlmRequest {
            conversation: self.affinity.is_known(self.endpoint).then_some(self.affinity),
            session: self.affinity.session(),
            class: self.class,
            model,
            model_place: ModelPlace { range, format: ModelFormat::Json },
            mode: self.mode,
            usage,
            input_tokens,
            output_tokens_max,
            output_tokens_exact,
            choices,
            splice: self.usage_splice.filter(|_| has_include_usage && self.mode == ResponseMode::Stream),
        })
    }

    fn has(&self, name: &str) -> bool {
        FIELDS.iter().position(|(known, _)| *known == name).is_some_and(|index| self.seen & 1 << index != 0)
    }
}

/// Finds the known name that equals `name` case-insensitively, as Go's parser does, even with letters like `ſ`.
fn find_folded<'a>(name: &str, mut known: impl Iterator<Item = &'a str>) -> Option<usize> {
    if name.is_ascii() {
        return known.position(|known| known.eq_ignore_ascii_case(name));
    }
    let folded: String = name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    known.position(|known| known == folded)
}

/// Reads the model's name and its range in the body.
fn read_model(cursor: &mut Cursor<'_>) -> Result<(String, Range<usize>), ParseError> {
    let from = cursor.start()?;
    if cursor.kind()? != Kind::Text {
        return Err(invalid("model", "model must be a string"));
    }
    match cursor.text()?.decoded() {
        None => Err(invalid("model", "model is not valid Unicode")),
        Some(model) if model.is_empty() => Err(invalid("model", "model is empty")),
        Some(model) if model.len() > MODEL_BYTES_MAX => {
            Err(invalid("model", format!("model is longer than {MODEL_BYTES_MAX} bytes")))
        }
        Some(model) => Ok((model.into_owned(), from..cursor.at())),
    }
}

/// Reads the class that a service tier stands for; `None` for the tiers that leave the choice to the server.
fn read_tier(cursor: &mut Cursor<'_>) -> Result<Option<Class>, ParseError> {
    if cursor.kind()? != Kind::Text {
        cursor.skip()?;
        return Ok(None);
    }
    let tier = cursor.text()?;
    Ok(match () {
        () if tier.is("priority") => Some(Class::High),
        () if tier.is("flex") => Some(Class::Low),
        () => None,
    })
}

/// Reads a boolean; `None` for null.
fn read_bool(name: &str, cursor: &mut Cursor<'_>) -> Result<Option<bool>, ParseError> {
    match cursor.kind()? {
        Kind::Bool => Ok(Some(cursor.bool()?)),
        Kind::Null => Ok(cursor.skip().map(|()| None)?),
        Kind::Object | Kind::Array | Kind::Text | Kind::Number => {
            Err(invalid(name, format!("{name} must be true or false")))
        }
    }
}

/// Reads a whole number; `None` for null and for negative numbers, which mean "no limit" to some servers.
fn read_count(name: &str, cursor: &mut Cursor<'_>) -> Result<Option<u64>, ParseError> {
    let not_whole = || invalid(name, format!("{name} must be a whole number"));
    match cursor.kind()? {
        Kind::Number => {}
        Kind::Null => return Ok(cursor.skip().map(|()| None)?),
        Kind::Object | Kind::Array | Kind::Text | Kind::Bool => return Err(not_whole()),
    }
    let number = core::str::from_utf8(cursor.number()?).unwrap_or_default();
    if let Ok(count) = number.parse() {
        return Ok(Some(count));
    }
    // Some clients write 16.0 or 1e3. The cast saturates.
    match number.parse::<f64>() {
        Ok(count) if count.is_finite() && count.fract() != 0.0 => Err(not_whole()),
        Ok(count) if count < 0.0 => Ok(None),
        Ok(count) => Ok(Some(count as u64)),
        Err(_) => Err(not_whole()),
    }
}

/// Reads `stream_options`; returns the splice that sets `include_usage`, if the client does not.
fn read_stream_options(cursor: &mut Cursor<'_>) -> Result<Option<Splice>, ParseError> {
    let kind = cursor.kind()?;
    let start = cursor.at();
    if kind == Kind::Null {
        cursor.skip()?;
        let splice = Splice { range: start..cursor.at(), text: r#"{"include_usage":true}"# };
        return Ok(Some(splice));
    }
    if kind != Kind::Object {
        return Err(invalid("stream_options", "stream_options must be an object"));
    }
    let mut count = 0;
    let mut include_usage = None;
    cursor.object(|name, cursor| {
        count += 1;
        let name = name.decoded().unwrap_or_default();
        if find_folded(&name, [INCLUDE_USAGE].into_iter()).is_none() {
            return Ok(cursor.skip()?);
        }
        if name != INCLUDE_USAGE || include_usage.is_some() {
            let message = "stream_options must contain include_usage once, in lower case";
            return Err(invalid("stream_options", message));
        }
        let from = cursor.start()?;
        let include = read_bool(INCLUDE_USAGE, cursor)?;
        include_usage = Some((include, from..cursor.at()));
        Ok::<(), ParseError>(())
    })?;
    let inside = start + 1;
    let splice = match (include_usage, count) {
        (Some((Some(true), _)), _) => return Ok(None),
        (Some((_, range)), _) => Splice { range, text: "true" },
        (None, 0) => Splice { range: inside..inside, text: r#""include_usage":true"# },
        (None, _) => Splice { range: inside..inside, text: r#""include_usage":true,"# },
    };
    Ok(Some(splice))
}

fn invalid(param: &str, message: impl Into<String>) -> ParseError {
    ApiError::Invalid { message: message.into(), param: Some(param.to_owned()) }.into()
}
