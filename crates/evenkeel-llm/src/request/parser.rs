//! The names of a request that we act on, and what may stand behind them.

use evenkeel_server::api_error::ApiError;

use super::affinity::{Affinity, Rank};
use super::token_estimate::{ContentKind, TokenEstimate};
use super::{Endpoint, IncludeUsage, LlmRequest, MODEL_BYTES_MAX, ParseError, ResponseMode, Splice};
use crate::json::{Cursor, Kind, Text};

/// What a name of the body means to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    Model,
    Stream,
    StreamOptions,
    Messages,
    /// What the answer follows; several in one request are answered each.
    Prompt,
    /// What comes before the messages.
    Preamble,
    /// More that the model reads.
    Words,
    /// What the model may call or must keep to.
    Schema,
    /// How long an answer may be; the one of higher rank counts.
    OutputMax(u8),
    /// How many answers are made of one prompt.
    Answers,
    /// Names the conversation; the one of higher rank counts.
    Id(Rank),
}

/// Every name that we act on; the order of this table is the order of their marks in [`Reader::seen`].
const FIELDS: [(&str, Field); 28] = [
    ("model", Field::Model),
    ("messages", Field::Messages),
    ("stream", Field::Stream),
    ("stream_options", Field::StreamOptions),
    ("max_tokens", Field::OutputMax(0)),
    ("max_completion_tokens", Field::OutputMax(2)),
    ("max_output_tokens", Field::OutputMax(1)),
    ("n", Field::Answers),
    ("best_of", Field::Answers),
    ("prompt", Field::Prompt),
    ("input", Field::Prompt),
    ("suffix", Field::Words),
    ("query", Field::Words),
    ("documents", Field::Words),
    ("texts", Field::Words),
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
];

/// How many tokens of sound a token of text takes to say: about 20 a second, at three words a second.
const SOUND_PER_TOKEN: u64 = 6;

/// The option that asks for the counts.
const INCLUDE_USAGE: &str = "include_usage";

/// What was read of a body so far.
pub(super) struct RequestParser {
    endpoint: Endpoint,
    seen: u32,
    model: Option<String>,
    delivery: ResponseMode,
    /// What asks for the counts; nothing where the client does.
    asks_counts: Option<Splice>,
    tally: TokenEstimate,
    output_max: Option<(u8, u64)>,
    answers: u64,
    prompts: u64,
    affinity: Affinity,
}

impl RequestParser {
    pub(super) fn read(endpoint: Endpoint, body: &[u8]) -> Result<LlmRequest, ParseError> {
        let mut cursor = Cursor::new(body);
        if cursor.kind()? != Kind::Object {
            // What is not JSON at all is told so, wherever it goes wrong.
            cursor.skip()?;
            cursor.end()?;
            return Err(ApiError::invalid("the body must be a JSON object").into());
        }
        let inside = cursor.at() + 1;
        let by = r#""stream_options":{"include_usage":true},"#;
        let mut reader = Self {
            endpoint,
            seen: 0,
            model: None,
            delivery: ResponseMode::Whole,
            asks_counts: Some(Splice { replaced: inside..inside, by }),
            tally: TokenEstimate::default(),
            output_max: None,
            answers: 1,
            prompts: 1,
            affinity: Affinity::default(),
        };
        cursor.object(|name, cursor| match reader.field(name)? {
            Some((name, field)) => reader.read_field(name, field, cursor),
            None => Ok(cursor.skip()?),
        })?;
        cursor.end()?;
        reader.ask()
    }

    /// Finds what a name means; refuses it the second time, and where only some readers would take it for ours.
    fn field(&mut self, name: Text<'_>) -> Result<Option<(&'static str, Field)>, ParseError> {
        let Some(name) = name.decoded() else {
            return Err(ApiError::invalid("a name in the body is not Unicode text").into());
        };
        let names = FIELDS.iter().map(|(known, _)| *known);
        let Some(mark) = place_of(&name, names) else { return Ok(None) };
        let (known, field) = FIELDS[mark];
        if name != known {
            return Err(invalid(known, format!("{name:?} must be written {known:?}")));
        }
        if self.seen & 1 << mark != 0 {
            return Err(invalid(known, format!("{known} is given twice")));
        }
        self.seen |= 1 << mark;
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
                    self.delivery = ResponseMode::Stream;
                }
            }
            Field::StreamOptions => self.asks_counts = read_stream_options(cursor)?,
            Field::Messages => self.read_messages(name, cursor)?,
            // A conversation goes by this name, too.
            Field::Prompt if self.endpoint == Endpoint::Responses && cursor.kind()? == Kind::Array => {
                self.read_messages(name, cursor)?;
            }
            Field::Prompt => {
                let from = cursor.start()?;
                self.prompts = self.prompts.max(self.tally.prompts(cursor)?);
                self.affinity.record_prompt(cursor.since(from));
            }
            Field::Preamble => {
                let from = cursor.start()?;
                self.tally.count(cursor, ContentKind::Words)?;
                self.affinity.record_preamble(cursor.since(from));
            }
            Field::Words => self.tally.count(cursor, ContentKind::Words)?,
            Field::Schema => self.tally.count(cursor, ContentKind::Schema)?,
            Field::OutputMax(rank) => {
                if let Some(tokens) = read_count(name, cursor)?
                    && self.output_max.is_none_or(|(other, _)| other < rank)
                {
                    self.output_max = Some((rank, tokens));
                }
            }
            Field::Answers => {
                let answers = read_count(name, cursor)?;
                self.answers = self.answers.max(answers.unwrap_or(1));
            }
            Field::Id(rank) => self.affinity.read_id(rank, cursor)?,
        }
        Ok(())
    }

    fn read_messages(&mut self, field: &str, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        if cursor.kind()? != Kind::Array {
            return Err(invalid(field, format!("{field} must be an array")));
        }
        let Self { tally, affinity, .. } = self;
        cursor.array(|cursor| {
            if cursor.kind()? != Kind::Object {
                return Err(invalid(field, format!("each of {field} must be an object")));
            }
            let mut role = None;
            let mut content: &[u8] = &[];
            cursor.object(|name, cursor| {
                if name.is("role") && cursor.kind()? == Kind::Text {
                    let text = cursor.text()?;
                    tally.add_text(&text);
                    role = Some(text);
                    return Ok(());
                }
                if !name.is("content") {
                    return tally.walk_named(&name, cursor, ContentKind::Words);
                }
                let from = cursor.start()?;
                tally.count(cursor, ContentKind::Words)?;
                content = cursor.since(from);
                Ok::<(), ParseError>(())
            })?;
            affinity.record_message(role, content);
            Ok(())
        })
    }

    fn ask(self) -> Result<LlmRequest, ParseError> {
        let needs_messages =
            matches!(self.endpoint, Endpoint::Chat | Endpoint::Messages | Endpoint::CountTokens);
        let lacks_messages = needs_messages && !self.has("messages");
        let Some(model) = self.model else {
            return Err(invalid("model", "the body must name a model"));
        };
        if lacks_messages {
            return Err(invalid("messages", "a chat needs messages"));
        }
        let usage = if self.asks_counts.is_none() { IncludeUsage::Asked } else { IncludeUsage::NotAsked };
        let counts_can_be_asked = matches!(self.endpoint, Endpoint::Chat | Endpoint::Completions);
        let output_max = if self.endpoint.has_no_tokens() {
            Some(0)
        } else {
            let answers = self.answers.max(1).saturating_mul(self.prompts);
            self.output_max.map(|(_, tokens)| tokens.saturating_mul(answers))
        };
        let (input_tokens, output_known) = match self.endpoint {
            // No model reads what is only counted.
            Endpoint::CountTokens => (1, None),
            Endpoint::Speech => {
                let tokens = self.tally.tokens();
                (tokens, Some(tokens.saturating_mul(SOUND_PER_TOKEN)))
            }
            _ => (self.tally.tokens(), None),
        };
        Ok(LlmRequest {
            affinity: self.affinity.hash(&model, self.endpoint),
            model,
            delivery: self.delivery,
            usage,
            input_tokens,
            output_max,
            output_known,
            splice: self.asks_counts.filter(|_| counts_can_be_asked && self.delivery == ResponseMode::Stream),
        })
    }

    fn has(&self, name: &str) -> bool {
        FIELDS.iter().position(|(known, _)| *known == name).is_some_and(|mark| self.seen & 1 << mark != 0)
    }
}

/// Finds which of `known` some reader takes `name` for; Go's ignores case, also that of letters like `ſ`.
fn place_of<'a>(name: &str, mut known: impl Iterator<Item = &'a str>) -> Option<usize> {
    if name.is_ascii() {
        return known.position(|known| known.eq_ignore_ascii_case(name));
    }
    let folded: String = name.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    known.position(|known| known == folded)
}

fn read_model(cursor: &mut Cursor<'_>) -> Result<String, ParseError> {
    if cursor.kind()? != Kind::Text {
        return Err(invalid("model", "model must be a string"));
    }
    match cursor.text()?.decoded() {
        None => Err(invalid("model", "model is not Unicode text")),
        Some(model) if model.is_empty() => Err(invalid("model", "model is empty")),
        Some(model) if MODEL_BYTES_MAX < model.len() => {
            Err(invalid("model", format!("model is longer than {MODEL_BYTES_MAX} bytes")))
        }
        Some(model) => Ok(model.into_owned()),
    }
}

/// Reads a value that is `true`, `false`, or left open.
fn read_bool(name: &str, cursor: &mut Cursor<'_>) -> Result<Option<bool>, ParseError> {
    match cursor.kind()? {
        Kind::Bool => Ok(Some(cursor.bool()?)),
        Kind::Null => Ok(cursor.skip().map(|()| None)?),
        Kind::Object | Kind::Array | Kind::Text | Kind::Number => {
            Err(invalid(name, format!("{name} must be true or false")))
        }
    }
}

/// Reads a whole number; `None` where it is left open, or below zero, which to some servers means no limit.
fn read_count(name: &str, cursor: &mut Cursor<'_>) -> Result<Option<u64>, ParseError> {
    let wrong = || invalid(name, format!("{name} must be a whole number"));
    match cursor.kind()? {
        Kind::Number => {}
        Kind::Null => return Ok(cursor.skip().map(|()| None)?),
        Kind::Object | Kind::Array | Kind::Text | Kind::Bool => return Err(wrong()),
    }
    let number = core::str::from_utf8(cursor.number()?).unwrap_or_default();
    if let Ok(count) = number.parse() {
        return Ok(Some(count));
    }
    // Some clients write 16.0 or 1e3; a number too large for us is as good as the largest.
    match number.parse::<f64>() {
        Ok(count) if count.is_finite() && count.fract() != 0.0 => Err(wrong()),
        Ok(count) if count < 0.0 => Ok(None),
        Ok(count) => Ok(Some(count as u64)),
        Err(_) => Err(wrong()),
    }
}

/// Reads the options of a stream, and tells what to change in them to ask for the counts.
fn read_stream_options(cursor: &mut Cursor<'_>) -> Result<Option<Splice>, ParseError> {
    let kind = cursor.kind()?;
    let start = cursor.at();
    if kind == Kind::Null {
        cursor.skip()?;
        let splice = Splice { replaced: start..cursor.at(), by: r#"{"include_usage":true}"# };
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
        if place_of(&name, [INCLUDE_USAGE].into_iter()).is_none() {
            return Ok(cursor.skip()?);
        }
        if name != INCLUDE_USAGE || include_usage.is_some() {
            let what = "stream_options must have include_usage once, and spelled so";
            return Err(invalid("stream_options", what));
        }
        let from = cursor.start()?;
        let asked = read_bool(INCLUDE_USAGE, cursor)?;
        include_usage = Some((asked, from..cursor.at()));
        Ok::<(), ParseError>(())
    })?;
    let inside = start + 1;
    let splice = match (include_usage, count) {
        (Some((Some(true), _)), _) => return Ok(None),
        (Some((_, replaced)), _) => Splice { replaced, by: "true" },
        (None, 0) => Splice { replaced: inside..inside, by: r#""include_usage":true"# },
        (None, _) => Splice { replaced: inside..inside, by: r#""include_usage":true,"# },
    };
    Ok(Some(splice))
}

fn invalid(param: &str, message: impl Into<String>) -> ParseError {
    ApiError::Invalid { message: message.into(), param: Some(param.to_owned()) }.into()
}
