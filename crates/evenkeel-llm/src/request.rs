//! What a client asks for: read once at the edge, in one pass over the body, which is forwarded as received.
//!
//! Bound: nothing of the body is kept but the model's name, of [`MODEL_BYTES_MAX`] bytes at most. A name that we act on
//! and that another reader could understand differently, because it is there twice or in other letters, is refused.

mod affinity;
mod multipart;
mod parser;
mod token_estimate;

use core::ops::Range;

use bytes::{Bytes, BytesMut};
use evenkeel_server::api_error::ApiError;

use crate::json::{JsonError, JsonErrorKind};
use parser::RequestParser;
pub(crate) use token_estimate::TOKEN_BYTES;

/// How long the name of a model may be.
pub const MODEL_BYTES_MAX: usize = 256;

/// What kind of request a body is read as.
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
    /// Anything else that names a model.
    Other,
}

impl Endpoint {
    /// All of them.
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

    /// The path it is asked at.
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

    /// What it has a model do, in the words that traces have for it.
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

    /// Whether Anthropic's clients ask it, and hear of errors in Anthropic's words.
    pub(crate) fn is_anthropic(self) -> bool {
        matches!(self, Self::Messages | Self::CountTokens)
    }

    /// Whether its streams are JSON to the last word, and have one.
    pub(crate) fn has_end_marker(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Messages | Self::Responses)
    }

    /// Whether its answers have no tokens.
    fn has_no_tokens(self) -> bool {
        matches!(self, Self::Embeddings | Self::CountTokens | Self::Rerank)
    }
}

/// How the answer is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ResponseMode {
    /// In one piece.
    #[default]
    Whole,
    /// As events, while it is made.
    Stream,
}

/// Whether the client asked for the counts at the end of its stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeUsage {
    /// It did, and gets them.
    Asked,
    /// It did not; what is told to us is hidden from it.
    #[default]
    NotAsked,
}

/// A request, as far as we need to understand it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LlmRequest {
    /// The model it is for.
    pub model: String,
    /// How the answer is wanted.
    pub delivery: ResponseMode,
    /// Whether the client asked for the counts of its stream.
    pub usage: IncludeUsage,
    /// How many tokens it probably brings.
    pub input_tokens: u64,
    /// How many tokens its answers may have in all; `None` is as many as the model likes.
    pub output_max: Option<u64>,
    /// How many tokens its answer has, where the request alone decides that.
    pub output_known: Option<u64>,
    /// What it has in common with requests that should meet the same node.
    pub affinity: Option<u64>,
    splice: Option<Splice>,
}

/// A change to the body on its way.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Splice {
    replaced: Range<usize>,
    by: &'static str,
}

impl LlmRequest {
    /// Reads a body.
    pub fn parse(endpoint: Endpoint, body: &Bytes) -> Result<Self, ApiError> {
        if let Err(error) = core::str::from_utf8(body) {
            return Err(not_json("it is not UTF-8", body, error.valid_up_to()));
        }
        RequestParser::read(endpoint, body).map_err(|wrong| match wrong {
            ParseError::Json(JsonError { at, what: JsonErrorKind::Syntax }) if body.len() <= at => {
                not_json("it ends too early", body, at)
            }
            ParseError::Json(JsonError { at, what: JsonErrorKind::Syntax }) => {
                not_json("this cannot be here", body, at)
            }
            ParseError::Json(JsonError { at, what: JsonErrorKind::TooDeep }) => {
                not_json("it is nested too deeply", body, at)
            }
            ParseError::Refused(refusal) => refusal,
        })
    }

    /// The body for the node: as received, or with the counts asked for where the client did not.
    ///
    /// `body` is the one that was parsed.
    pub fn forwarded(&self, body: &Bytes) -> Bytes {
        let Some(Splice { replaced, by }) = &self.splice else { return body.clone() };
        let (Some(before), Some(after)) = (body.get(..replaced.start), body.get(replaced.end..)) else {
            return body.clone();
        };
        let mut changed = BytesMut::with_capacity(before.len() + by.len() + after.len());
        changed.extend_from_slice(before);
        changed.extend_from_slice(by.as_bytes());
        changed.extend_from_slice(after);
        changed.freeze()
    }
}

/// Why a body is not a request.
#[derive(Debug)]
enum ParseError {
    Json(JsonError),
    Refused(ApiError),
}

impl From<JsonError> for ParseError {
    fn from(fault: JsonError) -> Self {
        Self::Json(fault)
    }
}

impl From<ApiError> for ParseError {
    fn from(refusal: ApiError) -> Self {
        Self::Refused(refusal)
    }
}

fn not_json(why: &str, body: &[u8], at: usize) -> ApiError {
    let before = &body[..at.min(body.len())];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let column = 1 + before.len() - line_start;
    ApiError::invalid(format!("the body is not valid JSON: {why}, line {line} column {column}"))
}

#[cfg(test)]
mod tests;
