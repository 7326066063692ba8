//! Parsing of requests: one pass over the body, which is forwarded as received, apart from the splices listed here.
//!
//! Guarantees: a request is rejected if a field that the gateway acts on is repeated or spelled in another case,
//! because the node's parser could read it differently.
//!
//! Limits: only the model's name is copied from the body, at most [`MODEL_BYTES_MAX`] bytes.

mod affinity;
mod multipart;
mod parser;
mod token_estimate;

use core::cmp::Reverse;
use core::ops::Range;
use std::borrow::Cow;

use bytes::{Bytes, BytesMut};
use evenkeel_policy::class::{Class, SessionId};
use evenkeel_server::api_error::ApiError;

use crate::json::{JsonError, JsonErrorKind};
use affinity::Affinity;
pub(crate) use affinity::hash;
use parser::RequestParser;
pub(crate) use token_estimate::TOKEN_BYTES;

/// Longest name of a model.
pub const MODEL_BYTES_MAX: usize = 256;

/// API endpoint of a request; decides how its body is parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/messages`, Anthropic's.
    Messages,
    /// `/v1/messages/count_tokens`, Anthropic's.
    CountTokens,
    /// `/v1/responses`.
    Responses,
    /// `/v1/rerank`.
    Rerank,
    /// `/v1/audio/speech`.
    Speech,
    /// `/v1/audio/transcriptions` and `/v1/audio/translations`.
    Transcription,
    /// Any other path under `/v1`.
    Other,
}

impl Endpoint {
    pub(crate) const ALL: [Self; 10] = [
        Self::Chat,
        Self::Completions,
        Self::Embeddings,
        Self::Messages,
        Self::CountTokens,
        Self::Responses,
        Self::Rerank,
        Self::Speech,
        Self::Transcription,
        Self::Other,
    ];

    pub(crate) fn route(self) -> &'static str {
        match self {
            Self::Chat => "/v1/chat/completions",
            Self::Completions => "/v1/completions",
            Self::Embeddings => "/v1/embeddings",
            Self::Messages => "/v1/messages",
            Self::CountTokens => "/v1/messages/count_tokens",
            Self::Responses => "/v1/responses",
            Self::Rerank => "/v1/rerank",
            Self::Speech => "/v1/audio/speech",
            Self::Transcription => "/v1/audio/transcriptions",
            Self::Other => "/v1/*",
        }
    }

    /// Returns the value of the trace attribute `gen_ai.operation.name`.
    pub(crate) fn operation(self) -> &'static str {
        match self {
            Self::Chat | Self::Messages | Self::Responses => "chat",
            Self::Completions => "text_completion",
            Self::Embeddings => "embeddings",
            Self::CountTokens => "count_tokens",
            Self::Rerank => "rerank",
            Self::Speech => "speech",
            Self::Transcription => "transcription",
            Self::Other => "other",
        }
    }

    /// Reports whether errors have Anthropic's format.
    pub(crate) fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }

    /// Reports whether its streams consist of JSON events and end with an end-of-stream marker.
    pub(crate) fn has_end_marker(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Messages | Self::Responses)
    }

    /// Reports whether its responses have no output tokens.
    fn has_no_tokens(self) -> bool {
        matches!(self, Self::Embeddings | Self::CountTokens | Self::Rerank)
    }
}

/// Delivery of the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseMode {
    #[default]
    NonStreaming,
    /// As events, while it is generated.
    Stream,
}

/// The client's `include_usage` option for streams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeUsage {
    Requested,
    /// The gateway requests usage itself and hides it from the client.
    #[default]
    NotRequested,
}

/// A parsed request: the fields that the gateway acts on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmRequest {
    pub model: String,
    pub mode: ResponseMode,
    pub usage: IncludeUsage,
    /// Estimated prompt tokens.
    pub input_tokens: u64,
    /// Limit of output tokens, over all choices; `None` if unlimited.
    pub output_tokens_max: Option<u64>,
    /// Exact number of output tokens, where the request determines it.
    pub output_tokens_exact: Option<u64>,
    /// Number of choices or images, over all prompts.
    pub choices: u64,
    /// Session that the body names: a user or an agent, or else a conversation.
    pub session: Option<SessionId>,
    /// Class that the body's service tier stands for.
    pub class: Option<Class>,
    model_place: ModelPlace,
    /// `None` if the request belongs to no recognizable conversation.
    conversation: Option<Affinity>,
    splice: Option<Splice>,
}

/// Place of the model's name in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ModelPlace {
    range: Range<usize>,
    format: ModelFormat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ModelFormat {
    /// A JSON string, with its quotes.
    Json,
    /// The plain value of a form's field.
    Form,
}

/// Replacement of a part of the forwarded body.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Splice {
    range: Range<usize>,
    text: &'static str,
}

impl LlmRequest {
    /// Parses a JSON body.
    pub fn parse(endpoint: Endpoint, body: &Bytes) -> Result<Self, ApiError> {
        if let Err(error) = core::str::from_utf8(body) {
            return Err(not_json("it is not UTF-8", body, error.valid_up_to()));
        }
        RequestParser::parse(endpoint, body).map_err(|error| match error {
            ParseError::Json(JsonError { at, kind: JsonErrorKind::Syntax }) if body.len() <= at => {
                not_json("it ends too early", body, at)
            }
            ParseError::Json(JsonError { at, kind: JsonErrorKind::Syntax }) => {
                not_json("unexpected character", body, at)
            }
            ParseError::Json(JsonError { at, kind: JsonErrorKind::TooDeep }) => {
                not_json("it is nested too deeply", body, at)
            }
            ParseError::Rejected(error) => error,
        })
    }

    /// Returns the hash shared by requests for a model that should go to the same node.
    pub fn affinity(&self, model: &str) -> Option<u64> {
        self.conversation.map(|conversation| conversation.hash(model))
    }

    /// Reports whether [`forwarded`](Self::forwarded) adds `include_usage`.
    pub fn adds_usage(&self) -> bool {
        self.splice.is_some()
    }

    /// Returns the body for a node: as received, or with another `model` and with `include_usage` where the client did not
    /// set it.
    ///
    /// `body` must be the one that was parsed.
    pub fn forwarded(&self, body: &Bytes, model: Option<&str>) -> Bytes {
        self.edited(body, model, self.splice.as_ref())
    }

    /// Returns the body for a node that gets no `include_usage`.
    pub fn forwarded_without_usage(&self, body: &Bytes, model: Option<&str>) -> Bytes {
        self.edited(body, model, None)
    }

    fn edited(&self, body: &Bytes, model: Option<&str>, usage: Option<&Splice>) -> Bytes {
        let renamed = model.map(|name| (&self.model_place.range, self.model_text(name)));
        let usage = usage.map(|Splice { range, text }| (range, Cow::Borrowed(*text)));
        let mut edits: Vec<_> = renamed.into_iter().chain(usage).collect();
        // From the end, so that an edit does not move the place of the next.
        edits.sort_by_key(|(range, _)| Reverse(range.start));
        edits.iter().fold(body.clone(), |body, (range, text)| splice(&body, range, text))
    }

    fn model_text<'a>(&self, name: &'a str) -> Cow<'a, str> {
        match self.model_place.format {
            ModelFormat::Json => Cow::Owned(serde_json::Value::from(name).to_string()),
            ModelFormat::Form => Cow::Borrowed(name),
        }
    }
}

/// Replaces a part of a body.
fn splice(body: &Bytes, range: &Range<usize>, text: &str) -> Bytes {
    let (Some(before), Some(after)) = (body.get(..range.start), body.get(range.end..)) else {
        return body.clone();
    };
    let mut changed = BytesMut::with_capacity(before.len() + text.len() + after.len());
    changed.extend_from_slice(before);
    changed.extend_from_slice(text.as_bytes());
    changed.extend_from_slice(after);
    changed.freeze()
}

/// Failure to parse a body.
#[derive(Debug, thiserror::Error)]
enum ParseError {
    #[error(transparent)]
    Json(#[from] JsonError),
    #[error(transparent)]
    Rejected(#[from] ApiError),
}

fn not_json(reason: &str, body: &[u8], at: usize) -> ApiError {
    let before = &body[..at.min(body.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let column = 1 + before.len() - line_start;
    ApiError::invalid(format!("the body is not valid JSON: {reason}, line {line} column {column}"))
}

#[cfg(test)]
mod tests;
