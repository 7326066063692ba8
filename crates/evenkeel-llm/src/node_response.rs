//! A node's answer from its head to the point from which it is the client's: until then another node can be asked.
//!
//! Bound: of an answer in one piece at most [`HELD_MAX`] bytes are held back to see that it is whole; of any other, what
//! comes first, which of a stream is its first event.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use evenkeel_server::body::{self, Response};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::error::{AttemptError, classify_error_event, classify_status};
use crate::headers;
use crate::json::{Cursor, JsonError, Kind};
use crate::request::{Endpoint, LlmRequest};
use crate::response_body::ProxyBody;
use crate::sse::{FirstEvent, FirstEventReader};
use crate::token_reservation::TokenReservation;
use crate::usage::{Usage, UsageFields};
use evenkeel_scheduler::SlotGuard;
use evenkeel_upstream::UpstreamBody;

/// How much of an answer is held back at most.
const HELD_MAX: usize = 1 << 20;

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyKind {
    /// As a stream of events.
    Events,
    /// As one JSON value.
    Json,
    /// As something we do not read.
    Opaque,
}

impl BodyKind {
    fn of(headers: &HeaderMap) -> Self {
        let Some(kind) = headers.get(CONTENT_TYPE) else { return Self::Opaque };
        // What is packed is not what its type says.
        if headers.get(CONTENT_ENCODING).is_some_and(|packing| packing != "identity") {
            return Self::Opaque;
        }
        let kind = kind.as_bytes().split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        match () {
            () if kind.eq_ignore_ascii_case(b"text/event-stream") => Self::Events,
            () if kind.eq_ignore_ascii_case(b"application/json") => Self::Json,
            () => Self::Opaque,
        }
    }

    /// Whether more is to be read before the answer is the client's.
    fn needs_more(self, held: usize, opening: Option<&FirstEvent>) -> bool {
        match self {
            Self::Json => held <= HELD_MAX,
            // Whether it is an answer, its first event tells.
            Self::Events => opening.is_none(),
            Self::Opaque => held == 0,
        }
    }
}

/// An answer that has begun.
pub(crate) struct NodeResponse {
    status: StatusCode,
    headers: HeaderMap,
    form: BodyKind,
    begun: Vec<Bytes>,
    rest: BodyRemainder,
    /// Whether the node serves the request, or tells the client of its mistake.
    served: bool,
}

/// What is still to come of an answer.
enum BodyRemainder {
    Body(UpstreamBody),
    /// Nothing; what it says it took, if it says so.
    Nothing(Option<Usage>),
}

impl NodeResponse {
    /// Reads the beginning of an answer; a node that is busy or broken is found out here.
    pub(crate) async fn begin(
        response: http::Response<UpstreamBody>,
        endpoint: Endpoint,
    ) -> Result<Self, AttemptError> {
        let (head, mut body) = response.into_parts();
        let status = head.status;
        if let Err(trouble) = classify_status(status, &head.headers) {
            read_what_is_here(&mut body);
            return Err(trouble);
        }
        let form = BodyKind::of(&head.headers);
        let mut begun = Vec::new();
        let mut held = 0;
        let mut ended = body.is_end_stream();
        let mut reader = FirstEventReader::default();
        let mut opening = None;
        while !ended && form.needs_more(held, opening.as_ref()) {
            let Some(frame) = body.frame().await else {
                ended = true;
                break;
            };
            if let Ok(bytes) = frame?.into_data() {
                held += bytes.len();
                if form == BodyKind::Events {
                    opening = reader.read(&bytes);
                }
                begun.push(bytes);
            }
            ended = body.is_end_stream();
        }
        let served = match opening {
            Some(opening) if status.is_success() => check_opening(&opening, endpoint)?,
            Some(_) | None => status.is_success(),
        };
        let rest = if ended {
            BodyRemainder::Nothing(check_whole(status, form, &mut begun, &reader)?)
        } else {
            BodyRemainder::Body(body)
        };
        Ok(Self { status, headers: headers::for_client(head.headers), form, begun, rest, served })
    }

    /// Hands the answer to the client, and the slot back as soon as its node is done.
    pub(crate) fn into_response(
        mut self,
        slot: SlotGuard,
        mut bill: TokenReservation,
        endpoint: Endpoint,
        ask: &LlmRequest,
    ) -> Response {
        bill.trace.answered(self.status);
        let whole = match (self.form, &self.rest) {
            (BodyKind::Json | BodyKind::Opaque, BodyRemainder::Nothing(usage)) => Some(*usage),
            (BodyKind::Events, BodyRemainder::Nothing(_)) | (_, BodyRemainder::Body(_)) => None,
        };
        let body = if let Some(usage) = whole {
            let all = self.begun.pop().unwrap_or_default();
            if self.served {
                let untold = Usage::estimate_unreported(endpoint, bill.estimate(), all.len() as u64);
                bill.note(usage.unwrap_or(untold));
                if usage.is_some() || untold != bill.estimate() {
                    bill.record_actual();
                }
            }
            bill.trace.served();
            // What a client did wrong costs nothing.
            slot.complete_whole(bill.so_far().cost());
            body::full(all)
        } else {
            if self.form == BodyKind::Events {
                // What is hidden is missing from it.
                self.headers.remove(CONTENT_LENGTH);
            }
            let rest = match self.rest {
                BodyRemainder::Body(body) => Some(body),
                BodyRemainder::Nothing(_) => None,
            };
            let held = (slot, bill, self.served);
            ProxyBody::new(self.form, (endpoint, ask), self.begun, rest, held).boxed_unsync()
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Sees what a stream begins with: whether it serves the client, or tells it of its mistake.
fn check_opening(opening: &FirstEvent, endpoint: Endpoint) -> Result<bool, AttemptError> {
    match opening {
        FirstEvent::Garbage if endpoint.has_end_marker() => Err(AttemptError::NotJson),
        FirstEvent::Answer | FirstEvent::Garbage => Ok(true),
        FirstEvent::Error(said) => classify_error_event(said).map(|()| false),
    }
}

/// Reads what has come of an answer that nobody wants, so that its connection can be used again.
fn read_what_is_here(body: &mut UpstreamBody) {
    let mut silent = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *body).poll_frame(&mut silent) {}
}

/// Sees that an answer is what it says it is, joins it, and finds what it took.
fn check_whole(
    status: StatusCode,
    form: BodyKind,
    begun: &mut Vec<Bytes>,
    opening: &FirstEventReader,
) -> Result<Option<Usage>, AttemptError> {
    if form == BodyKind::Events {
        return match () {
            () if begun.is_empty() => Err(AttemptError::Empty),
            () if status.is_success() && opening.is_cut() => Err(AttemptError::Truncated),
            () => Ok(None),
        };
    }
    if 1 < begun.len() {
        let mut joined = BytesMut::with_capacity(begun.iter().map(Bytes::len).sum());
        begun.iter().for_each(|piece| joined.extend_from_slice(piece));
        *begun = vec![joined.freeze()];
    }
    if form != BodyKind::Json || !status.is_success() {
        return Ok(None);
    }
    let answer = begun.first().map_or(&[][..], |whole| whole);
    match usage_of(answer) {
        Ok(usage) => Ok(usage),
        Err(fault) if is_pythons_number(answer, fault.at) => Ok(Usage::of_json(answer)),
        Err(_) => Err(AttemptError::NotJson),
    }
}

/// Whether what JSON does not know is what Python writes for numbers that are none, which every client of it reads.
fn is_pythons_number(answer: &[u8], at: usize) -> bool {
    answer.get(at..).is_some_and(|rest| rest.starts_with(b"NaN") || rest.starts_with(b"Infinity"))
}

/// Reads a JSON answer to its end, and the counts in it.
fn usage_of(answer: &[u8]) -> Result<Option<Usage>, JsonError> {
    let mut cursor = Cursor::new(answer);
    let mut counts = UsageFields::default();
    if cursor.kind()? == Kind::Object {
        cursor.object(|name, cursor| {
            if name.raw() != b"usage" {
                return cursor.skip();
            }
            counts.update(UsageFields::read(cursor)?);
            Ok::<(), JsonError>(())
        })?;
    } else {
        cursor.skip()?;
    }
    cursor.end()?;
    Ok(counts.usage())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn an_answer_is_read_as_what_its_type_says() {
        let form = |kind: &'static str| {
            BodyKind::of(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        assert_eq!(form("text/event-stream; charset=utf-8"), BodyKind::Events);
        assert_eq!(form("Application/JSON"), BodyKind::Json);
        for kind in ["application/jsonl", "application/x-ndjson", "audio/mpeg", ""] {
            assert_eq!(form(kind), BodyKind::Opaque, "{kind}");
        }
        let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let packed = HeaderMap::from_iter([kind, (CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(BodyKind::of(&packed), BodyKind::Opaque);
    }

    #[test]
    fn an_answer_is_whole_or_refused() {
        let opening = FirstEventReader::default();
        let check = |answer: &'static str| {
            check_whole(StatusCode::OK, BodyKind::Json, &mut vec![answer.into()], &opening)
        };
        let usage = Some(Usage { input: 1, output: 2 });
        assert_eq!(check(r#"{"usage":{"prompt_tokens":1,"completion_tokens":2}} "#), Ok(usage));
        assert_eq!(check(r#"[{"score":0.5}]"#), Ok(None));
        let pythons = r#"{"a":[NaN,-Infinity],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        assert_eq!(check(pythons), Ok(usage));
        for broken in ["", "{", r#"{"a":"#, "<html>", r#"{"a":1}}"#, r#"{"a":nope}"#] {
            assert_eq!(check(broken), Err(AttemptError::NotJson), "{broken}");
        }
    }
}
