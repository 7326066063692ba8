//! Body of a proxied response: scanned for usage while it is streamed. The client can always detect a truncated body.
//!
//! Limits: holds the output of one chunk from the node, plus the incomplete event that [`Scanner`] holds back; reads
//! more from the node only after the server has taken it (backpressure). The server reads ahead for a slow client, so
//! that the slot is released when the node's work ends.

use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::Bytes;
use evenkeel_policy::estimate::Outcome;
use evenkeel_server::body::BodyError;
use http_body::{Body, Frame};

use crate::error::AttemptError;
use crate::error_format;

use crate::request::{Endpoint, IncludeUsage};
use crate::response_check::BodyKind;
use crate::sse::{HideUsage, Scanner, StreamEnd};
use crate::token_reservation::TokenReservation;
use crate::usage::{GeneratedText, Usage, UsageScanner};
use evenkeel_scheduler::SlotGuard;
use evenkeel_upstream::{UpstreamBody, UpstreamError};

/// Body of a response that is streamed or too long to be buffered.
pub(crate) struct ProxyBody {
    endpoint: Endpoint,
    scanner: BodyScanner,
    /// Chunks for the client, from index `next` on.
    ready: Vec<Bytes>,
    next: usize,
    /// `None` once all of it was read.
    remainder: Option<UpstreamBody>,
    /// `None` once the request has ended.
    open: Option<(SlotGuard, TokenReservation)>,
    /// False if the response reports a client error.
    is_served: bool,
    received_bytes: u64,
    /// Error with which the body ends once `ready` is empty.
    error: Option<AttemptError>,
}

/// Reader of a response's usage, by kind of body.
pub(crate) enum BodyScanner {
    Events(Scanner),
    Json(UsageScanner),
    Opaque,
}

impl BodyScanner {
    pub(crate) fn new(kind: BodyKind, endpoint: Endpoint, usage: IncludeUsage) -> Self {
        // Only on these two endpoints does the gateway request usage that the client did not request.
        let hide = match (endpoint, usage) {
            (Endpoint::Chat | Endpoint::Completions, IncludeUsage::NotRequested) => HideUsage::Usage,
            _ => HideUsage::Nothing,
        };
        match kind {
            BodyKind::Events if endpoint.has_end_marker() => Self::Events(Scanner::for_json(hide)),
            BodyKind::Events => Self::Events(Scanner::new(hide)),
            BodyKind::Json => Self::Json(UsageScanner::default()),
            BodyKind::Opaque => Self::Opaque,
        }
    }

    /// Returns the usage reported so far.
    fn usage(&self) -> Option<Usage> {
        match self {
            Self::Events(scanner) => scanner.totals().usage,
            Self::Json(scanner) => scanner.usage(),
            Self::Opaque => None,
        }
    }
}

impl ProxyBody {
    pub(crate) fn new(
        endpoint: Endpoint,
        scanner: BodyScanner,
        remainder: Option<UpstreamBody>,
        slot: SlotGuard,
        reservation: TokenReservation,
        is_served: bool,
    ) -> Self {
        Self {
            endpoint,
            scanner,
            ready: Vec::new(),
            next: 0,
            remainder,
            open: Some((slot, reservation)),
            is_served,
            received_bytes: 0,
            error: None,
        }
    }

    /// Records the first byte and scans the chunks that were buffered before it.
    pub(crate) fn start(&mut self, buffered: Vec<Bytes>) {
        if let Some((slot, _)) = &self.open {
            slot.on_first_byte();
        }
        buffered.into_iter().for_each(|chunk| self.read(chunk));
        self.finish_if_complete();
    }

    /// Scans a chunk and reports the cost so far.
    fn read(&mut self, chunk: Bytes) {
        self.received_bytes += chunk.len() as u64;
        match &mut self.scanner {
            BodyScanner::Events(scanner) => {
                scanner.scan(chunk, &mut self.ready);
            }
            BodyScanner::Json(scanner) => {
                scanner.scan(&chunk);
                self.ready.push(chunk);
            }
            BodyScanner::Opaque => self.ready.push(chunk),
        }
        let text = self.text().unwrap_or_default();
        let reported = self.scanner.usage();
        let Some((slot, reservation)) = self.open.as_mut().filter(|_| self.is_served) else { return };
        reservation.update(reported, text);
        slot.report_cost(reservation.cost());
    }

    /// Ends the request if the body is complete or invalid.
    ///
    /// Does not wait for the next poll, because hyper may not poll a body of known length again.
    fn finish_if_complete(&mut self) {
        if let BodyScanner::Events(scanner) = &self.scanner
            && scanner.totals().stopped
        {
            return self.fail_mid_stream(AttemptError::NotJson);
        }
        if self.remainder.as_ref().is_none_or(Body::is_end_stream) {
            self.remainder = None;
            self.finish();
        }
    }

    fn finish(&mut self) {
        let outcome = match &mut self.scanner {
            BodyScanner::Events(scanner) => {
                let end = scanner.finish(&mut self.ready);
                match (end, scanner.totals().error) {
                    (StreamEnd::Truncated, _) => return self.fail_mid_stream(AttemptError::Truncated),
                    // A client error does not count against the node.
                    (_, true) => {
                        if self.is_served {
                            Outcome::Bad
                        } else {
                            Outcome::Good
                        }
                    }
                    (StreamEnd::Complete, _) => Outcome::Good,
                    (StreamEnd::NoEndMarker, _) if self.endpoint.has_end_marker() => {
                        return self.fail_mid_stream(AttemptError::Truncated);
                    }
                    (StreamEnd::NoEndMarker, _) => Outcome::Good,
                }
            }
            BodyScanner::Json(_) | BodyScanner::Opaque => Outcome::Good,
        };
        let text = self.text();
        let Some((slot, mut reservation)) = self.open.take() else { return };
        if self.is_served {
            reservation.finish(self.scanner.usage(), text);
        }
        match outcome {
            Outcome::Good => reservation.trace.served(self.scanner.usage()),
            Outcome::Bad => reservation.trace.failed_mid_stream(&AttemptError::ReportedError),
        }
        slot.complete(reservation.cost(), outcome);
    }

    /// Returns the generated text received so far; `None` if the body cannot be read.
    fn text(&self) -> Option<GeneratedText> {
        match &self.scanner {
            BodyScanner::Events(scanner) => {
                let totals = scanner.totals();
                Some(GeneratedText { bytes: totals.text.bytes(), deltas: totals.deltas })
            }
            BodyScanner::Json(scanner) => Some(GeneratedText { bytes: scanner.text().bytes(), deltas: 0 }),
            BodyScanner::Opaque => GeneratedText::of_opaque(self.endpoint, self.received_bytes),
        }
    }

    /// Ends the request after the connection failed; a stream whose end-of-stream marker has arrived is complete.
    fn on_read_error(&mut self, error: UpstreamError) {
        match &self.scanner {
            BodyScanner::Events(scanner) if scanner.totals().done => {
                self.remainder = None;
                self.finish();
            }
            BodyScanner::Events(_) | BodyScanner::Json(_) | BodyScanner::Opaque => {
                self.fail_mid_stream(error.into());
            }
        }
    }

    /// Ends the request after its node failed mid-stream. A stream ends with an error event, any other body is aborted.
    fn fail_mid_stream(&mut self, error: AttemptError) {
        self.remainder = None;
        if let Some((slot, mut reservation)) = self.open.take() {
            reservation.trace.failed_mid_stream(&error);
            slot.fail_mid_stream(error.failure());
        }
        match &self.scanner {
            BodyScanner::Events(scanner) => {
                let before = if scanner.is_between_events() { "" } else { "\n\n" };
                self.ready.push(error_format::error_event(before, self.endpoint, &error.api_error()));
            }
            BodyScanner::Json(_) | BodyScanner::Opaque => self.error = Some(error),
        }
    }

    fn pop_ready(&mut self) -> Option<Bytes> {
        if let Some(bytes) = self.ready.get_mut(self.next) {
            self.next += 1;
            return Some(mem::take(bytes));
        }
        self.ready.clear();
        self.next = 0;
        None
    }
}

impl Body for ProxyBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        loop {
            if let Some(bytes) = self.pop_ready() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(remainder) = &mut self.remainder else {
                return Poll::Ready(self.error.take().map(|error| Err(error.into())));
            };
            match ready!(Pin::new(remainder).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers are hop-by-hop and dropped.
                    if let Ok(chunk) = frame.into_data() {
                        self.read(chunk);
                    }
                    self.finish_if_complete();
                }
                Some(Err(error)) => self.on_read_error(error),
                None => {
                    self.remainder = None;
                    self.finish();
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.remainder.is_none() && self.error.is_none() && self.next >= self.ready.len()
    }
}
