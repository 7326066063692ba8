//! A node's answer from its head to the point from which it is the client's: until then another node can be asked.
//!
//! Bound: of an answer in one piece at most [`HELD_MAX`] bytes are held back to see that it is whole; of any other, what
//! comes first.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use evenkeel_door::body::{self, Response};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;

use crate::bill::Bill;
use crate::headers;
use crate::json::{Cursor, Fault, Kind};
use crate::refuse::{Trouble, judge};
use crate::relay::Relay;
use crate::request::{Ask, Endpoint};
use crate::upstream::UpstreamBody;
use crate::usage::{Counts, Usage};
use crate::walk::Slot;

/// How much of an answer is held back at most.
const HELD_MAX: usize = 1 << 20;

/// How an answer comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// As a stream of events.
    Events,
    /// As one JSON value.
    Json,
    /// As something we do not read.
    Opaque,
}

impl Form {
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
    fn holds_back(self, held: usize) -> bool {
        match self {
            Self::Json => held <= HELD_MAX,
            Self::Events | Self::Opaque => held == 0,
        }
    }
}

/// An answer that has begun.
pub(crate) struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    form: Form,
    begun: Vec<Bytes>,
    rest: Rest,
}

/// What is still to come of an answer.
enum Rest {
    Body(UpstreamBody),
    /// Nothing; what it says it took, if it says so.
    Nothing(Option<Usage>),
}

impl Answer {
    /// Reads the beginning of an answer; a node that is busy or broken is found out here.
    pub(crate) async fn begin(response: http::Response<UpstreamBody>) -> Result<Self, Trouble> {
        let (head, mut body) = response.into_parts();
        let status = head.status;
        if let Err(trouble) = judge(status, &head.headers) {
            read_what_is_here(&mut body);
            return Err(trouble);
        }
        let form = Form::of(&head.headers);
        let (mut begun, mut held, mut ended) = (Vec::new(), 0, body.is_end_stream());
        while !ended && form.holds_back(held) {
            let Some(frame) = body.frame().await else {
                ended = true;
                break;
            };
            if let Ok(bytes) = frame?.into_data() {
                held += bytes.len();
                begun.push(bytes);
            }
            ended = body.is_end_stream();
        }
        let rest =
            if ended { Rest::Nothing(check_whole(status, form, &mut begun)?) } else { Rest::Body(body) };
        Ok(Self { status, headers: headers::for_client(head.headers), form, begun, rest })
    }

    /// Hands the answer to the client, and the slot back as soon as its node is done.
    pub(crate) fn pass_on(mut self, slot: Slot, mut bill: Bill, endpoint: Endpoint, ask: &Ask) -> Response {
        let whole = match (self.form, &self.rest) {
            (Form::Json | Form::Opaque, Rest::Nothing(usage)) => Some(*usage),
            (Form::Events, Rest::Nothing(_)) | (_, Rest::Body(_)) => None,
        };
        let body = if let Some(usage) = whole {
            settle_whole(self.status, usage, slot, &mut bill);
            body::full(self.begun.pop().unwrap_or_default())
        } else {
            if self.form == Form::Events {
                // What is hidden is missing from it.
                self.headers.remove(CONTENT_LENGTH);
            }
            let rest = match self.rest {
                Rest::Body(body) => Some(body),
                Rest::Nothing(_) => None,
            };
            let served = self.status.is_success();
            Relay::new(self.form, (endpoint, ask), self.begun, rest, (slot, bill, served)).boxed_unsync()
        };
        let mut response = Response::new(body);
        *response.status_mut() = self.status;
        *response.headers_mut() = self.headers;
        response
    }
}

/// Ends a request whose answer is at hand; what a client did wrong costs nothing.
fn settle_whole(status: StatusCode, usage: Option<Usage>, slot: Slot, bill: &mut Bill) {
    if status.is_success() {
        bill.note(usage.unwrap_or(bill.guess()));
        if usage.is_some() {
            bill.learn();
        }
    }
    slot.end_at_once(bill.so_far().cost());
}

/// Reads what has come of an answer that nobody wants, so that its connection can be used again.
fn read_what_is_here(body: &mut UpstreamBody) {
    let mut silent = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *body).poll_frame(&mut silent) {}
}

/// Sees that an answer is what it says it is, joins it, and finds what it took.
fn check_whole(status: StatusCode, form: Form, begun: &mut Vec<Bytes>) -> Result<Option<Usage>, Trouble> {
    if form == Form::Events {
        return if begun.is_empty() { Err(Trouble::Empty) } else { Ok(None) };
    }
    if 1 < begun.len() {
        let mut joined = BytesMut::with_capacity(begun.iter().map(Bytes::len).sum());
        begun.iter().for_each(|piece| joined.extend_from_slice(piece));
        *begun = vec![joined.freeze()];
    }
    if form != Form::Json || !status.is_success() {
        return Ok(None);
    }
    let answer = begun.first().map_or(&[][..], |whole| whole);
    match usage_of(answer) {
        Ok(usage) => Ok(usage),
        Err(fault) if is_pythons_number(answer, fault.at) => Ok(Usage::of_json(answer)),
        Err(_) => Err(Trouble::NotJson),
    }
}

/// Whether what JSON does not know is what Python writes for numbers that are none, which every client of it reads.
fn is_pythons_number(answer: &[u8], at: usize) -> bool {
    answer.get(at..).is_some_and(|rest| rest.starts_with(b"NaN") || rest.starts_with(b"Infinity"))
}

/// Reads a JSON answer to its end, and the counts in it.
fn usage_of(answer: &[u8]) -> Result<Option<Usage>, Fault> {
    let mut cursor = Cursor::new(answer);
    let mut counts = Counts::default();
    if cursor.kind()? == Kind::Object {
        cursor.object(|name, cursor| {
            if name.raw() != b"usage" {
                return cursor.skip();
            }
            counts.update(Counts::read(cursor)?);
            Ok::<(), Fault>(())
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
            Form::of(&HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(kind))]))
        };
        assert_eq!(form("text/event-stream; charset=utf-8"), Form::Events);
        assert_eq!(form("Application/JSON"), Form::Json);
        for kind in ["application/jsonl", "application/x-ndjson", "audio/mpeg", ""] {
            assert_eq!(form(kind), Form::Opaque, "{kind}");
        }
        let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let packed = HeaderMap::from_iter([kind, (CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
        assert_eq!(Form::of(&packed), Form::Opaque);
    }

    #[test]
    fn an_answer_is_whole_or_refused() {
        let check = |answer: &'static str| check_whole(StatusCode::OK, Form::Json, &mut vec![answer.into()]);
        let usage = Some(Usage { input: 1, output: 2 });
        assert_eq!(check(r#"{"usage":{"prompt_tokens":1,"completion_tokens":2}} "#), Ok(usage));
        assert_eq!(check(r#"[{"score":0.5}]"#), Ok(None));
        let pythons = r#"{"a":[NaN,-Infinity],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
        assert_eq!(check(pythons), Ok(usage));
        for broken in ["", "{", r#"{"a":"#, "<html>", r#"{"a":1}}"#, r#"{"a":nope}"#] {
            assert_eq!(check(broken), Err(Trouble::NotJson), "{broken}");
        }
    }
}
