//! Checks of a 2xx response before the client sees it: a web page, an empty body or a lone error is a failed attempt.
//!
//! Guarantees: JSON and events are recognized by their first byte, not by their content type, because engines and proxies
//! mislabel both. Compressed bodies, audio, text transcriptions and binary vectors pass unread.

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use crate::error::{AttemptError, classify_reported_error};
use crate::forwarding::is_known_path;
use crate::json::{Cursor, JsonError, Kind};
use crate::request::{Endpoint, ResponseMode};
use crate::usage::{TextLength, Usage, UsageFields, UsageScanner};

/// UTF-8 byte order mark, which clients skip.
pub(crate) const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";

/// Kind of response body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// Server-sent events.
    Events,
    /// One JSON value.
    Json,
    /// Anything else, passed through unread.
    Opaque,
}

/// Responses that an endpoint may return with a 2xx status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExpectedBody {
    /// JSON or events.
    Json,
    /// JSON, events, or vectors and images in a binary format.
    JsonOrBinary,
    /// Audio or a transcription in any text format, possibly empty.
    Media,
    /// Anything: the route of an `extra_paths` entry.
    Anything,
}

impl ExpectedBody {
    pub(crate) fn of(endpoint: Endpoint, path: &str) -> Self {
        match endpoint {
            Endpoint::Chat
            | Endpoint::Completions
            | Endpoint::Messages
            | Endpoint::CountTokens
            | Endpoint::Responses
            | Endpoint::Rerank => Self::Json,
            Endpoint::Embeddings => Self::JsonOrBinary,
            Endpoint::Speech | Endpoint::Transcription => Self::Media,
            Endpoint::Other if is_known_path(path) => Self::JsonOrBinary,
            Endpoint::Other => Self::Anything,
        }
    }

    /// Reports whether a 2xx response without content is a failure.
    fn needs_content(self) -> bool {
        matches!(self, Self::Json | Self::JsonOrBinary)
    }
}

/// Body kind as the response head declares it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContentLabel {
    Events,
    Json,
    Html,
    /// Audio, images, video or arbitrary bytes.
    Binary,
    Compressed,
    Other,
}

impl ContentLabel {
    fn from_headers(headers: &HeaderMap) -> Self {
        if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Self::Compressed;
        }
        let kind = headers.get(CONTENT_TYPE).map_or(&[][..], |kind| kind.as_bytes());
        let kind = kind.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is = |name: &[u8]| kind.eq_ignore_ascii_case(name);
        let is_any =
            |prefix: &[u8]| kind.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
        match () {
            () if is(b"text/event-stream") => Self::Events,
            () if is(b"application/json") => Self::Json,
            () if is(b"text/html") || is(b"application/xhtml+xml") => Self::Html,
            () if is(b"application/octet-stream") => Self::Binary,
            () if is_any(b"audio/") || is_any(b"image/") || is_any(b"video/") => Self::Binary,
            () => Self::Other,
        }
    }
}

/// Recognizes the kind of a body from its first significant byte.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodySniffer {
    expected: ExpectedBody,
    mode: ResponseMode,
    label: ContentLabel,
    /// Bytes of the byte order mark seen so far.
    mark_len: usize,
}

impl BodySniffer {
    pub(crate) fn new(expected: ExpectedBody, mode: ResponseMode, headers: &HeaderMap) -> Self {
        Self { expected, mode, label: ContentLabel::from_headers(headers), mark_len: 0 }
    }

    /// Returns the kind that the head declares, for responses that are not checked.
    pub(crate) fn declared(&self) -> BodyKind {
        match self.label {
            ContentLabel::Events => BodyKind::Events,
            ContentLabel::Json => BodyKind::Json,
            ContentLabel::Html | ContentLabel::Binary | ContentLabel::Compressed | ContentLabel::Other => {
                BodyKind::Opaque
            }
        }
    }

    /// Reads the next chunk; `None` while it has only whitespace and the byte order mark.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> Option<Result<BodyKind, AttemptError>> {
        if self.is_unread() {
            return chunk.first().map(|_| Ok(BodyKind::Opaque));
        }
        for byte in chunk {
            if BYTE_ORDER_MARK.get(self.mark_len) == Some(byte) {
                self.mark_len += 1;
            } else if !byte.is_ascii_whitespace() {
                return Some(self.classify(*byte));
            }
        }
        None
    }

    /// Returns the kind of a body that ended without a significant byte.
    pub(crate) fn finish(&self) -> Result<BodyKind, AttemptError> {
        if self.expected.needs_content() || self.label == ContentLabel::Events {
            return Err(AttemptError::Empty);
        }
        Ok(self.declared())
    }

    /// Reports whether every body passes unread.
    fn is_unread(&self) -> bool {
        match self.label {
            ContentLabel::Compressed => true,
            ContentLabel::Binary => self.expected != ExpectedBody::Json,
            ContentLabel::Other => matches!(self.expected, ExpectedBody::Media | ExpectedBody::Anything),
            ContentLabel::Html => self.expected == ExpectedBody::Anything,
            ContentLabel::Events | ContentLabel::Json => false,
        }
    }

    fn classify(&self, first: u8) -> Result<BodyKind, AttemptError> {
        match (self.expected, first) {
            (ExpectedBody::Anything, _) => Ok(self.declared()),
            (_, b'<') => Err(AttemptError::Html),
            (ExpectedBody::Media, _) => Ok(self.declared()),
            (_, b'{' | b'[') => Ok(BodyKind::Json),
            _ if self.label == ContentLabel::Events || self.mode == ResponseMode::Stream => {
                Ok(BodyKind::Events)
            }
            _ => Err(AttemptError::NotJson),
        }
    }
}

/// A complete JSON body that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JsonBody {
    pub(crate) usage: Option<Usage>,
    pub(crate) text: TextLength,
    /// The body only reports a client's error.
    pub(crate) is_client_error: bool,
}

/// Checks a complete JSON body: fails if it is not valid or contains nothing but the node's error.
pub(crate) fn check_json(body: &[u8]) -> Result<JsonBody, AttemptError> {
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body);
    let fields = match TopLevel::read(body) {
        Ok(fields) => fields,
        Err(error) if is_python_number(body, error.at) => {
            let mut scanner = UsageScanner::default();
            scanner.scan(body);
            return Ok(JsonBody { usage: scanner.usage(), text: scanner.text(), is_client_error: false });
        }
        Err(_) => return Err(AttemptError::NotJson),
    };
    if fields.is_lone_error() {
        classify_reported_error(&serde_json::from_slice(body).unwrap_or_default())?;
    }
    let usage = fields.usage.usage();
    Ok(JsonBody { usage, text: fields.text, is_client_error: fields.is_lone_error() })
}

/// Reports whether the JSON error at `at` is `NaN` or `Infinity`, which Python's `json` writes and clients accept.
fn is_python_number(body: &[u8], at: usize) -> bool {
    body.get(at..).is_some_and(|rest| rest.starts_with(b"NaN") || rest.starts_with(b"Infinity"))
}

/// Top-level fields of a JSON body, as far as the gateway acts on them.
#[derive(Clone, Copy, Debug, Default)]
struct TopLevel {
    usage: UsageFields,
    text: TextLength,
    has_error: bool,
    /// A field other than the error and its details is an array or object that is not empty.
    has_result: bool,
}

impl TopLevel {
    fn read(body: &[u8]) -> Result<Self, JsonError> {
        let mut cursor = Cursor::new(body);
        let mut fields = Self::default();
        if cursor.kind()? == Kind::Object {
            cursor.object(|name, cursor| fields.read_field(name.raw(), cursor))?;
        } else {
            cursor.skip()?;
        }
        cursor.end()?;
        Ok(fields)
    }

    fn read_field(&mut self, name: &[u8], cursor: &mut Cursor<'_>) -> Result<(), JsonError> {
        match name {
            b"usage" => self.usage.update(UsageFields::read(cursor)?),
            b"error" => {
                self.has_error |= cursor.kind()? != Kind::Null;
                cursor.skip()?;
            }
            // Older versions of vLLM put the error's fields at the top level.
            b"object" if cursor.kind()? == Kind::Text => self.has_error |= cursor.text()?.is("error"),
            b"detail" | b"details" | b"metadata" => cursor.skip()?,
            _ => {
                let is_nested = matches!(cursor.kind()?, Kind::Object | Kind::Array);
                let from = cursor.at();
                self.text.read_output(name, cursor)?;
                self.has_result |= is_nested && cursor.since(from).len() > EMPTY.len();
            }
        }
        Ok(())
    }

    fn is_lone_error(&self) -> bool {
        self.has_error && !self.has_result
    }
}

/// An empty array; an empty object has the same length.
const EMPTY: &[u8] = b"[]";

#[cfg(test)]
mod tests;
