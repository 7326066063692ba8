//! A node's answer from its head to the point from which it is the client's: until then another node can be asked.
//!
//! Bound: of an answer in one piece at most [`HELD_MAX`] bytes are held back to see that it is whole; of any other, what
//! comes first.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};
use evenkeel_door::body::{self, Response};
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
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
        let is = |wanted: &str| {
            kind.as_bytes()
                .get(..wanted.len())
                .is_some_and(|kind| kind.eq_ignore_ascii_case(wanted.as_bytes()))
        };
        match () {
            () if is("text/event-stream") => Self::Events,
            () if is("application/json") => Self::Json,
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
        if let Err(trouble) = judge(status, headers::retry_after(&head.headers)) {
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
    usage_of(begun.first().map_or(&[], |whole| whole)).map_err(|_| Trouble::NotJson)
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
