//! A node's response before its first byte goes to the client; until then the request can fail over to another node.
//!
//! Limits: buffers at most [`BUFFERED_MAX`] bytes of a JSON response, to check that it is complete; of a stream its
//! first event, and one comment before it; of any other body its first chunk; [`REFUSAL_MAX`] bytes of a refusal.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;

use bytes::{Bytes, BytesMut};
use evenkeel_server::body::{self, Response};
use evenkeel_server::sending::ReadAhead;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body::Body as _;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::error::{AttemptError, RefusedResponse, classify_reported_error, classify_status};
use crate::headers;
use crate::request::{Endpoint, IncludeUsage, ResponseMode};
use crate::response_body::{BodyScanner, ProxyBody};
use crate::response_check::{BodyKind, BodySniffer, ExpectedBody, check_json};
use crate::sse::{FirstEvent, FirstEventReader};
use crate::token_reservation::TokenReservation;
use crate::usage::{GeneratedText, Usage};
use evenkeel_scheduler::SlotGuard;
use evenkeel_upstream::UpstreamBody;

const BUFFERED_MAX: usize = 1 << 20;
/// Longest body of a refusal that is kept for the client.
const REFUSAL_MAX: usize = 64 << 10;
/// Longest time for which the body of a refusal is awaited.
const REFUSAL_WAIT_MAX: Duration = Duration::from_secs(1);

/// A response that goes to the client.
pub(crate) struct NodeResponse {
    status: StatusCode,
    headers: HeaderMap,
    kind: BodyKind,
    buffered: Vec<Bytes>,
    remainder: BodyRemainder,
    /// False if the response reports a client error.
    is_served: bool,
    usage: IncludeUsage,
}

/// The part of a body that is not buffered.
enum BodyRemainder {
    Body(UpstreamBody),
    /// The body is complete.
    Nothing(CompleteBody),
}

/// Usage of a complete body that is not a stream.
#[derive(Clone, Copy, Default)]
struct CompleteBody {
    usage: Option<Usage>,
    /// `None` if the body was not read.
    text: Option<GeneratedText>,
}

impl NodeResponse {
    /// Reads the beginning of a response; fails if the node is overloaded or the response is broken.
    pub(crate) async fn begin(
        response: http::Response<UpstreamBody>,
        endpoint: Endpoint,
        expected: ExpectedBody,
        mode: ResponseMode,
        usage: IncludeUsage,
    ) -> Result<Self, AttemptError> {
        let (head, mut body) = response.into_parts();
        let status = head.status;
        if let Err(error) = classify_status(status, &head.headers) {
            if let AttemptError::Busy { .. } = error {
                let body = timeout(REFUSAL_WAIT_MAX, read_refusal(&mut body)).await.unwrap_or_default();
                return Err(AttemptError::Refused(Box::new(RefusedResponse {
                    status,
                    headers: head.headers,
                    body,
                })));
            }
            drain_received(&mut body);
            return Err(error);
        }
        let sniffer = BodySniffer::new(expected, mode, &head.headers);
        let mut start = ResponseStart::new(status, sniffer);
        let mut ended = body.is_end_stream();
        while !ended && start.needs_more() {
            let Some(frame) = body.frame().await else {
                ended = true;
                break;
            };
            if let Ok(bytes) = frame?.into_data() {
                start.push(bytes)?;
            }
            ended = body.is_end_stream();
        }
        let headers = headers::for_client(head.headers);
        if ended {
            return start.complete(headers, endpoint, usage);
        }
        let kind = start.kind.ok_or(AttemptError::Empty)?;
        let is_served = start.check_first_event(endpoint)?;
        let remainder = BodyRemainder::Body(body);
        Ok(Self { status, headers, kind, buffered: start.buffered, remainder, is_served, usage })
    }

    /// Returns the response for the client; its body releases the slot as soon as the node has sent everything.
    pub(crate) fn into_response(
        mut self,
        slot: SlotGuard,
        mut reservation: TokenReservation,
        endpoint: Endpoint,
        read_ahead: Option<ReadAhead>,
    ) -> Response {
        reservation.trace.first_byte(self.status);
        if !self.is_served {
            slot.on_client_error();
        }
        let whole = match (self.kind, &self.remainder) {
            (BodyKind::Json | BodyKind::Opaque, BodyRemainder::Nothing(complete)) => Some(*complete),
            (BodyKind::Events, BodyRemainder::Nothing(_)) | (_, BodyRemainder::Body(_)) => None,
        };
        let mut extensions = http::Extensions::new();
        let body = if let Some(complete) = whole {
            let all = self.buffered.pop().unwrap_or_default();
            if self.is_served {
                reservation.finish(complete.usage, complete.text);
            }
            reservation.trace.served(complete.usage);
            // A client error costs nothing.
            slot.complete_whole(reservation.cost());
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
            let scanner = BodyScanner::new(self.kind, endpoint, self.usage);
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

/// The beginning of a response, as far as it is buffered.
struct ResponseStart {
    status: StatusCode,
    sniffer: BodySniffer,
    /// `None` until the first significant byte.
    kind: Option<BodyKind>,
    buffered: Vec<Bytes>,
    buffered_len: usize,
    reader: FirstEventReader,
    first_event: Option<FirstEvent>,
}

impl ResponseStart {
    fn new(status: StatusCode, sniffer: BodySniffer) -> Self {
        Self {
            status,
            sniffer,
            // An error response goes to the client as it is.
            kind: Some(sniffer.declared()).filter(|_| !status.is_success()),
            buffered: Vec::new(),
            buffered_len: 0,
            reader: FirstEventReader::default(),
            first_event: None,
        }
    }

    /// Reports whether more must be buffered before the response goes to the client.
    fn needs_more(&self) -> bool {
        let has_room = self.buffered_len <= BUFFERED_MAX;
        match self.kind {
            None | Some(BodyKind::Json) => has_room,
            // The first event may be an error.
            Some(BodyKind::Events) => has_room && self.first_event.is_none(),
            Some(BodyKind::Opaque) => self.buffered_len == 0,
        }
    }

    fn push(&mut self, bytes: Bytes) -> Result<(), AttemptError> {
        if self.kind.is_none() {
            self.kind = self.sniffer.read(&bytes).transpose()?;
        }
        if self.kind == Some(BodyKind::Events) {
            self.first_event = self.reader.read(&bytes);
        }
        self.buffered_len += bytes.len();
        self.buffered.push(bytes);
        Ok(())
    }

    /// Checks the first event of a stream; `Ok(false)` if the response reports a client error.
    fn check_first_event(&self, endpoint: Endpoint) -> Result<bool, AttemptError> {
        let Some(event) = self.first_event.as_ref().filter(|_| self.status.is_success()) else {
            return Ok(self.status.is_success());
        };
        match event {
            FirstEvent::Invalid if endpoint.has_end_marker() => Err(AttemptError::NotJson),
            FirstEvent::EndMarker if endpoint.has_end_marker() => Err(AttemptError::Empty),
            FirstEvent::Content | FirstEvent::Invalid | FirstEvent::EndMarker => Ok(true),
            FirstEvent::Error(error) => classify_reported_error(error).map(|()| false),
        }
    }

    /// Checks a response whose body is complete.
    fn complete(
        mut self,
        headers: HeaderMap,
        endpoint: Endpoint,
        usage: IncludeUsage,
    ) -> Result<NodeResponse, AttemptError> {
        let kind = self.kind.map_or_else(|| self.sniffer.finish(), Ok)?;
        let mut is_served = self.check_first_event(endpoint)?;
        let mut complete = CompleteBody::default();
        match kind {
            BodyKind::Events if self.status.is_success() && self.first_event.is_none() => {
                let is_empty = self.reader.is_empty();
                return Err(if is_empty { AttemptError::Empty } else { AttemptError::Truncated });
            }
            BodyKind::Events => {}
            BodyKind::Json | BodyKind::Opaque => self.join(),
        }
        if kind == BodyKind::Json && is_served {
            let body = check_json(self.buffered.first().map_or(&[][..], |whole| whole))?;
            let text = GeneratedText { bytes: body.text.bytes(), deltas: 0 };
            complete = CompleteBody { usage: body.usage, text: Some(text) };
            is_served = !body.is_client_error;
        } else if kind == BodyKind::Opaque {
            complete.text = GeneratedText::of_opaque(endpoint, self.buffered_len as u64);
        }
        let remainder = BodyRemainder::Nothing(complete);
        let Self { status, buffered, .. } = self;
        Ok(NodeResponse { status, headers, kind, buffered, remainder, is_served, usage })
    }

    /// Joins the chunks.
    fn join(&mut self) {
        if self.buffered.len() > 1 {
            let mut joined = BytesMut::with_capacity(self.buffered_len);
            self.buffered.iter().for_each(|chunk| joined.extend_from_slice(chunk));
            self.buffered = vec![joined.freeze()];
        }
    }
}

/// Reads the body of a refusal; a body that is too large or broken is left out.
async fn read_refusal(body: &mut UpstreamBody) -> Bytes {
    let mut read = BytesMut::new();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(chunk) = frame.into_data() else { continue };
        if REFUSAL_MAX < read.len() + chunk.len() {
            return Bytes::new();
        }
        read.extend_from_slice(&chunk);
    }
    read.freeze()
}

/// Reads the part of a discarded response that has already arrived, so that its connection can be reused.
fn drain_received(body: &mut UpstreamBody) {
    let mut cx = Context::from_waker(Waker::noop());
    while let Poll::Ready(Some(Ok(_))) = Pin::new(&mut *body).poll_frame(&mut cx) {}
}
