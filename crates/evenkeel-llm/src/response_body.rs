//! An answer on its way to the client: read as it passes, counted, and never cut short in silence.
//!
//! Bound: holds what one chunk of the node's makes, and of an event what [`Scanner`] holds back; asks the node for more
//! only once the client has taken that.

use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::Bytes;
use evenkeel_policy::estimate::Outcome;
use evenkeel_server::body::BodyError;
use http_body::{Body, Frame};

use crate::error::AttemptError;
use crate::error_format;
use crate::node_response::BodyKind;
use crate::request::{Endpoint, IncludeUsage, LlmRequest};
use crate::sse::{HideUsage, Scanner, StreamEnd};
use crate::token_reservation::TokenReservation;
use crate::usage::{Usage, UsageScanner};
use evenkeel_scheduler::SlotGuard;
use evenkeel_upstream::{UpstreamBody, UpstreamError};

/// The body of an answer that is longer than one piece.
pub(crate) struct ProxyBody {
    endpoint: Endpoint,
    reading: BodyScanner,
    /// What may be passed on, from `next` on.
    ready: Vec<Bytes>,
    next: usize,
    /// `None` once all of it was read.
    rest: Option<UpstreamBody>,
    /// `None` once the request has ended.
    open: Option<(SlotGuard, TokenReservation)>,
    /// Whether the node serves the request, or tells the client of its mistake.
    served: bool,
    /// How much has come.
    bytes: u64,
    /// How the body ends once everything ready is passed on.
    broken: Option<AttemptError>,
}

/// How an answer is read.
enum BodyScanner {
    Events(Scanner),
    Json(UsageScanner),
    Opaque,
}

impl ProxyBody {
    pub(crate) fn new(
        form: BodyKind,
        (endpoint, ask): (Endpoint, &LlmRequest),
        begun: Vec<Bytes>,
        rest: Option<UpstreamBody>,
        (slot, bill, served): (SlotGuard, TokenReservation, bool),
    ) -> Self {
        // Only these two are asked for counts that their client did not ask for.
        let hide = match (endpoint, ask.usage) {
            (Endpoint::Chat | Endpoint::Completions, IncludeUsage::NotAsked) => HideUsage::Usage,
            _ => HideUsage::Nothing,
        };
        let reading = match form {
            BodyKind::Events if endpoint.has_end_marker() => BodyScanner::Events(Scanner::of_json(hide)),
            BodyKind::Events => BodyScanner::Events(Scanner::new(hide)),
            BodyKind::Json => BodyScanner::Json(UsageScanner::default()),
            BodyKind::Opaque => BodyScanner::Opaque,
        };
        slot.on_first_byte();
        let ready = Vec::new();
        let open = Some((slot, bill));
        let mut relay =
            Self { endpoint, reading, ready, next: 0, rest, open, served, bytes: 0, broken: None };
        begun.into_iter().for_each(|chunk| relay.read(chunk));
        relay.finish_if_complete();
        relay
    }

    /// Reads a chunk, and counts what it says.
    fn read(&mut self, chunk: Bytes) {
        self.bytes += chunk.len() as u64;
        let (told, seen) = match &mut self.reading {
            BodyScanner::Events(scanner) => {
                let found = scanner.scan(chunk, &mut self.ready);
                (found.usage, found.tokens)
            }
            BodyScanner::Json(scanner) => {
                scanner.scan(&chunk);
                self.ready.push(chunk);
                (scanner.usage(), 0)
            }
            BodyScanner::Opaque => {
                self.ready.push(chunk);
                (None, 0)
            }
        };
        let Some((slot, bill)) = self.open.as_mut().filter(|_| self.served) else { return };
        // Until the node says otherwise, the prompt was as long as it looked. Some count an answer only at its end.
        let told = told.unwrap_or(Usage { input: bill.estimate().input, output: 0 });
        let so_far = Usage { output: told.output.max(seen), ..told };
        bill.note(so_far);
        slot.report_cost(so_far.cost());
    }

    /// Ends the request if the node has said all, or what makes no sense: who reads a body of known length may not ask
    /// for more.
    fn finish_if_complete(&mut self) {
        if let BodyScanner::Events(scanner) = &self.reading
            && scanner.found().stopped
        {
            return self.fail_mid_stream(AttemptError::NotJson);
        }
        if self.rest.as_ref().is_none_or(Body::is_end_stream) {
            self.rest = None;
            self.end();
        }
    }

    fn end(&mut self) {
        let outcome = match &mut self.reading {
            BodyScanner::Events(scanner) => {
                let ending = scanner.finish(&mut self.ready);
                match (ending, scanner.found().error) {
                    (StreamEnd::Truncated, _) => return self.fail_mid_stream(AttemptError::Truncated),
                    // An error that is the client's to read is not the node's fault.
                    (_, true) => {
                        if self.served {
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
        let Some((slot, mut bill)) = self.open.take() else { return };
        match &self.reading {
            BodyScanner::Events(scanner) if scanner.found().usage.is_some() || 0 < scanner.found().tokens => {
                // The last word about an answer's length is the node's, not the number of its pieces.
                if let Some(told) = scanner.found().usage.filter(|told| self.served && 0 < told.output) {
                    bill.note(told);
                }
                bill.record_actual();
            }
            BodyScanner::Json(scanner) if scanner.usage().is_some() => bill.record_actual(),
            // Who tells nothing is charged what was guessed.
            BodyScanner::Json(_) | BodyScanner::Opaque if self.served => {
                bill.note(Usage::estimate_unreported(self.endpoint, bill.estimate(), self.bytes));
            }
            BodyScanner::Events(_) | BodyScanner::Json(_) | BodyScanner::Opaque => {}
        }
        match outcome {
            Outcome::Good => bill.trace.served(),
            Outcome::Bad => bill.trace.broken(&AttemptError::ErrorEvent),
        }
        slot.complete(bill.so_far().cost(), outcome);
    }

    /// Ends the request because no more comes of its answer, which may be whole for all that.
    fn lose(&mut self, error: UpstreamError) {
        match &self.reading {
            BodyScanner::Events(scanner) if scanner.found().done => {
                self.rest = None;
                self.end();
            }
            BodyScanner::Events(_) | BodyScanner::Json(_) | BodyScanner::Opaque => {
                self.fail_mid_stream(error.into())
            }
        }
    }

    /// Ends the request because its node did not finish; a stream says so, any other body breaks off.
    fn fail_mid_stream(&mut self, trouble: AttemptError) {
        self.rest = None;
        if let Some((slot, mut bill)) = self.open.take() {
            bill.trace.broken(&trouble);
            slot.fail_mid_stream(trouble.failure());
        }
        match &self.reading {
            BodyScanner::Events(scanner) => {
                let before = if scanner.is_between_events() { "" } else { "\n\n" };
                self.ready.push(error_format::event(before, self.endpoint, &trouble.rejection_error()));
            }
            BodyScanner::Json(_) | BodyScanner::Opaque => self.broken = Some(trouble),
        }
    }

    fn take_ready(&mut self) -> Option<Bytes> {
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
            if let Some(bytes) = self.take_ready() {
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            let Some(rest) = &mut self.rest else {
                return Poll::Ready(self.broken.take().map(|trouble| Err(trouble.into())));
            };
            match ready!(Pin::new(rest).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Trailers concern one connection.
                    if let Ok(chunk) = frame.into_data() {
                        self.read(chunk);
                    }
                    self.finish_if_complete();
                }
                Some(Err(error)) => self.lose(error),
                None => {
                    self.rest = None;
                    self.end();
                }
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_none() && self.broken.is_none() && self.ready.len() <= self.next
    }
}
