//! A node's response before its first byte goes to the client; until then the request can fail over to another node.
//!
//! Limits: buffers at most [`BUFFERED_MAX`] bytes of a JSON response, to check that it is complete; of a stream its
//! first event; of any other body its first chunk.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use evenkeel_server::body::{self, Response};
use evenkeel_server::sending::ReadAhead;
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::error::{AttemptError, classify_error_event, classify_status};
use crate::headers;
use crate::json::{Cursor, JsonError, Kind};
use crate::request::{Endpoint, LlmRequest};
use crate::response_body::{BodyScanner, ProxyBody};
use crate::sse::{FirstEvent, FirstEventReader};
use crate::token_reservation::TokenReservation;
use crate::usage::{Usage, UsageFields};
use evenkeel_scheduler::SlotGuard;
use evenkeel_upstream::UpstreamBody;

const BUFFERED_MAX: usize = 1 << 20;

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

impl BodyKind {
    fn from_headers(headers: &HeaderMap) -> Self {
        let Some(kind) = headers.get(CONTENT_TYPE) else { return Self::Opaque };
        // A compressed body cannot be read.
        if headers.get(CONTENT_ENCODING).is_some_and(|encoding| encoding != "identity") {
            return Self::Opaque;
        }
        let kind = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match () {
            () if kind.eq_ignore_ascii_case(b"text/event-stream") => Self::Events,
            () if kind.eq_ignore_ascii_case(b"application/json") => Self::Json,
            () => Self::Opaque,
        }
    }

    /// Reports whether more must be buffered before the response goes to the client.
    fn needs_more(self, buffered: usize, first_event: Option<&FirstEvent>) -> bool {
        match self {
            Self::Json => buffered <= BUFFERED_MAX,
            // The first event may be an error.
            Self::Events => first_event.is_none(),
            Self::Opaque => buffered == 0,
        }
    }
}

/// A response that goes to the client.
pub(crate) struct NodeResponse {
    status: StatusCode,
    headers: HeaderMap,
    kind: BodyKind,
    buffered: Vec<Bytes>,
    remainder: BodyRemainder,
    /// False if the response reports a client error.
    is_served: bool,
}

/// The part of a body that is not buffered.
enum BodyRemainder {
    Body(UpstreamBody),
    /// The body is complete; the usage it reports, if any.
    Nothing(Option<Usage>),
}

impl NodeResponse {
    /// Reads the beginning of a response; fails if the node is overloaded or the response is broken.
    pub(crate) async fn begin(
        response: http::Response<UpstreamBody>,
        endpoint: Endpoint,
    ) -> Result<Self, AttemptError> {
        let (head, mut body) = response.into_parts();
        let status = head.status;
        if let Err(error) = classify_status(status, &head.headers) {
            drain_received(&mut body);
            return Err(error);
        }
        let kind = BodyKind::from_headers(&head.headers);
        let mut buffered = Vec::new();
        let mut buffered_len = 0;
        let mut ended = body.is_end_stream();
        let mut reader = FirstEventReader::default();
        let mut first_event = None;
        while !ended && kind.needs_more(buffered_len, first_event.as_ref()) {
            let Some(frame) = body.frame().await else {
                ended = true;
                break;
            };
            if let Ok(bytes) = frame?.into_data() {
                buffered_len += bytes.len();
                if kind == BodyKind::Events {
                    first_event = reader.read(&bytes);
                }
                buffered.push(bytes);
            }
            ended = body.is_end_stream();
        }
        let is_served = match first_event {
            Some(event) if status.is_success() => check_first_event(&event, endpoint)?,
            Some(_) | None => status.is_success(),
        };
        let remainder = if ended {
            BodyRemainder::Nothing(check_whole(status, kind, &mut buffered, &reader)?)
        } else {
            BodyRemainder::Body(body)
        };
        Ok(Self { status, headers: headers::for_client(head.headers), kind, buffered, remainder, is_served })
    }

    /// Returns the response for the client; its body releases the slot as soon as the node has sent everything.
    pub(crate) fn into_response(
        mut self,
        slot: SlotGuard,
        mut reservation: TokenReservation,
        endpoint: Endpoint,
        request: &LlmRequest,
        read_ahead: Option<ReadAhead>,
    ) -> Response {
        reservation.trace.first_byte(self.status);
        let whole = match (self.kind, &self.remainder) {
            (BodyKind::Json | BodyKind::Opaque, BodyRemainder::Nothing(usage)) => Some(*usage),
            (BodyKind::Events, BodyRemainder::Nothing(_)) | (_, BodyRemainder::Body(_)) => None,
        };
        let mut extensions = http::Extensions::new();
        let body = if let Some(usage) = whole {
            let all = self.buffered.pop().unwrap_or_default();
            if self.is_served {
                let estimate = reservation.estimate();
                let unreported = Usage::estimate_unreported(endpoint, estimate, all.len() as u64);
                reservation.set_usage(usage.unwrap_or(unreported));
                if usage.is_some() || unreported != estimate {
                    reservation.record_actual();
                }
            }
            reservation.trace.served();
            // A client error costs nothing.
            slot.complete_whole(reservation.usage().cost());
            body::full(all)
        } else {
            if self.kind == BodyKind::Events {
                // A hidden usage event shortens the body.
                self.headers.remove(CONTENT_LENGTH);
            }
            let remainder = match self.remainder {
                BodyRemainder::Body(body) => Some(body),
                BodyRemainder::Nothing(_) => None,
            };
            let scanner = BodyScanner::new(self.kind, endpoint, request.usage);
            let mut body = ProxyBody::new(endpoint, scanner, remainder, slot, reservation, self.is_served);
            body.start(self.buffered);
            if let Some(read_ahead) = read_ahead {
                extensions.insert(read_ahead);
            }
            body.boxed_unsync()
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        *response.extensions_mut() = extensions;
        response
    }
}

/// Checks the first event of a stream; `Ok(false)` if it reports a client error.
fn check_first_event(event: &FirstEvent, endpoint: Endpoint) -> Result<bool, AttemptError> {
    match event {
        FirstEvent::Invalid if endpoint.has_end_marker() => Err(AttemptError::NotJson),
        FirstEvent::Content | FirstEvent::Invalid => Ok(true),
        FirstEvent::Error(error) => classify_error_event(error).map(|()| false),
    }
}

/// Reads the part of a discarded response that has already arrived, so that its connection can be reused.
fn drain_received(body: &mut UpstreamBody) {
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *body).poll_frame(&mut cx) {}
}

/// Checks that a complete body is what its content type says, joins its chunks, and finds its usage.
fn check_whole(
    status: StatusCode,
    kind: BodyKind,
    buffered: &mut Vec<Bytes>,
    first_event: &FirstEventReader,
) -> Result<Option<Usage>, AttemptError> {
    if kind == BodyKind::Events {
        return match () {
            () if buffered.is_empty() => Err(AttemptError::Empty),
            () if status.is_success() && first_event.is_truncated() => Err(AttemptError::Truncated),
            () => Ok(None),
        };
    }
    if buffered.len() > 1 {
        let mut joined = BytesMut::with_capacity(buffered.iter().map(Bytes::len).sum());
        buffered.iter().for_each(|chunk| joined.extend_from_slice(chunk));
        *buffered = vec![joined.freeze()];
    }
    if kind != BodyKind::Json || !status.is_success() {
        return Ok(None);
    }
    let body = buffered.first().map_or(&[][..], |whole| whole);
    match read_usage(body) {
        Ok(usage) => Ok(usage),
        Err(error) if is_python_number(body, error.at) => Ok(Usage::from_json(body)),
        Err(_) => Err(AttemptError::NotJson),
    }
}

/// Reports whether the JSON error at `at` is `NaN` or `Infinity`, which Python's `json` writes and clients accept.
fn is_python_number(body: &[u8], at: usize) -> bool {
    body.get(at..).is_some_and(|rest| rest.starts_with(b"NaN") || rest.starts_with(b"Infinity"))
}

/// Parses a JSON body to its end; returns the usage it reports.
fn read_usage(body: &[u8]) -> Result<Option<Usage>, JsonError> {
    let mut cursor = Cursor::new(body);
    let mut fields = UsageFields::default();
    if cursor.kind()? == Kind::Object {
        cursor.object(|name, cursor| {
            if name.raw() != b"usage" {
                return cursor.skip();
            }
            fields.update(UsageFields::read(cursor)?);
            Ok::<(), JsonError>(())
        })?;
    } else {
        cursor.skip()?;
    }
    cursor.end()?;
    Ok(fields.usage())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn the_content_type_decides_how_a_body_is_read() {
        let kind_of = |kind: &'static str| {
            BodyKind::from_headers(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        assert_eq!(kind_of("text/event-stream; charset=utf-8"), BodyKind::Events);
        assert_eq!(kind_of("Application/JSON"), BodyKind::Json);
        for kind in ["application/jsonl", "application/x-ndjson", "audio/mpeg", ""] {
            assert_eq!(kind_of(kind), BodyKind::Opaque, "{kind}");
        }
        let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let compressed = HeaderMap::from_iter([kind, (CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(BodyKind::from_headers(&compressed), BodyKind::Opaque);
    }

    #[test]
    fn an_incomplete_json_body_is_an_error() {
        let first_event = FirstEventReader::default();
        let check = |body: &'static str| {
            check_whole(StatusCode::OK, BodyKind::Json, &mut vec![body.into()], &first_event)
        };
        let usage = Some(Usage { input: 1, output: 2 });
        assert_eq!(check(r#"{"usage":{"prompt_tokens":1,"completion_tokens":2}} "#), Ok(usage));
        assert_eq!(check(r#"[{"score":0.5}]"#), Ok(None));
        let python = r#"{"a":[NaN,-Infinity],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        assert_eq!(check(python), Ok(usage));
        for broken in ["", "{", r#"{"a":"#, "<html>", r#"{"a":1}}"#, r#"{"a":nope}"#] {
            assert_eq!(check(broken), Err(AttemptError::NotJson), "{broken}");
        }
    }
}
