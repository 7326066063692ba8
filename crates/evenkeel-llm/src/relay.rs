//! An answer on its way to the client: read as it passes, counted, and never cut short in silence.
//!
//! Bound: holds what one chunk of the node's makes, and of an event what [`Scanner`] holds back; asks the node for more
//! only once the client has taken that.

use core::mem;
use core::pin::Pin;
use core::task::{Context, Poll, ready};

use bytes::Bytes;
use evenkeel_door::body::BodyError;
use evenkeel_policy::estimate::Outcome;
use http_body::{Body, Frame};

use crate::answer::Form;
use crate::bill::Bill;
use crate::refuse::Trouble;
use crate::request::{Ask, Endpoint, UsageWish};
use crate::sse::{Ending, Hide, Scanner};
use crate::upstream::{SendError, UpstreamBody};
use crate::usage::{AnswerScanner, Usage};
use crate::walk::Slot;
use crate::wording;

/// The body of an answer that is longer than one piece.
pub(crate) struct Relay {
    endpoint: Endpoint,
    reading: Reading,
    /// What may be passed on, from `next` on.
    ready: Vec<Bytes>,
    next: usize,
    /// `None` once all of it was read.
    rest: Option<UpstreamBody>,
    /// `None` once the request has ended.
    open: Option<(Slot, Bill)>,
    /// Whether the node serves the request, or tells the client of its mistake.
    served: bool,
    /// How much has come.
    bytes: u64,
    /// How the body ends once everything ready is passed on.
    broken: Option<Trouble>,
}

/// How an answer is read.
enum Reading {
    Events(Scanner),
    Json(AnswerScanner),
    Opaque,
}

impl Relay {
    pub(crate) fn new(
        form: Form,
        (endpoint, ask): (Endpoint, &Ask),
        begun: Vec<Bytes>,
        rest: Option<UpstreamBody>,
        (slot, bill, served): (Slot, Bill, bool),
    ) -> Self {
        // Only these two are asked for counts that their client did not ask for.
        let hide = match (endpoint, ask.usage) {
            (Endpoint::Chat | Endpoint::Completions, UsageWish::NotAsked) => Hide::Usage,
            _ => Hide::Nothing,
        };
        let reading = match form {
            Form::Events if endpoint.has_last_word() => Reading::Events(Scanner::of_json(hide)),
            Form::Events => Reading::Events(Scanner::new(hide)),
            Form::Json => Reading::Json(AnswerScanner::default()),
            Form::Opaque => Reading::Opaque,
        };
        slot.first_byte();
        let (ready, open) = (Vec::new(), Some((slot, bill)));
        let mut relay =
            Self { endpoint, reading, ready, next: 0, rest, open, served, bytes: 0, broken: None };
        begun.into_iter().for_each(|chunk| relay.read(chunk));
        relay.end_if_read();
        relay
    }

    /// Reads a chunk, and counts what it says.
    fn read(&mut self, chunk: Bytes) {
        self.bytes += chunk.len() as u64;
        let (told, seen) = match &mut self.reading {
            Reading::Events(scanner) => {
                let found = scanner.scan(chunk, &mut self.ready);
                (found.usage, found.tokens)
            }
            Reading::Json(scanner) => {
                scanner.scan(&chunk);
                self.ready.push(chunk);
                (scanner.usage(), 0)
            }
            Reading::Opaque => {
                self.ready.push(chunk);
                (None, 0)
            }
        };
        let Some((slot, bill)) = self.open.as_mut().filter(|_| self.served) else { return };
        // Until the node says otherwise, the prompt was as long as it looked. Some count an answer only at its end.
        let told = told.unwrap_or(Usage { input: bill.guess().input, output: 0 });
        let so_far = Usage { output: told.output.max(seen), ..told };
        bill.note(so_far);
        slot.progress(so_far.cost());
    }

    /// Ends the request if the node has said all, or what makes no sense: who reads a body of known length may not ask
    /// for more.
    fn end_if_read(&mut self) {
        if let Reading::Events(scanner) = &self.reading
            && scanner.found().stopped
        {
            return self.break_off(Trouble::NotJson);
        }
        if self.rest.as_ref().is_none_or(Body::is_end_stream) {
            self.rest = None;
            self.end();
        }
    }

    fn end(&mut self) {
        let outcome = match &mut self.reading {
            Reading::Events(scanner) => {
                let ending = scanner.finish(&mut self.ready);
                match (ending, scanner.found().error) {
                    (Ending::Cut, _) => return self.break_off(Trouble::Unfinished),
                    // An error that is the client's to read is not the node's fault.
                    (_, true) => {
                        if self.served {
                            Outcome::Bad
                        } else {
                            Outcome::Good
                        }
                    }
                    (Ending::Done, _) => Outcome::Good,
                    (Ending::Unsaid, _) if self.endpoint.has_last_word() => {
                        return self.break_off(Trouble::Unfinished);
                    }
                    (Ending::Unsaid, _) => Outcome::Good,
                }
            }
            Reading::Json(_) | Reading::Opaque => Outcome::Good,
        };
        let Some((slot, mut bill)) = self.open.take() else { return };
        match &self.reading {
            Reading::Events(scanner) if scanner.found().usage.is_some() || 0 < scanner.found().tokens => {
                // The last word about an answer's length is the node's, not the number of its pieces.
                if let Some(told) = scanner.found().usage.filter(|told| self.served && 0 < told.output) {
                    bill.note(told);
                }
                bill.learn();
            }
            Reading::Json(scanner) if scanner.usage().is_some() => bill.learn(),
            // Who tells nothing is charged what was guessed.
            Reading::Json(_) | Reading::Opaque if self.served => {
                bill.note(Usage::untold(self.endpoint, bill.guess(), self.bytes));
            }
            Reading::Events(_) | Reading::Json(_) | Reading::Opaque => {}
        }
        match outcome {
            Outcome::Good => bill.trace.served(),
            Outcome::Bad => bill.trace.broken(&Trouble::Told),
        }
        slot.end(bill.so_far().cost(), outcome);
    }

    /// Ends the request because no more comes of its answer, which may be whole for all that.
    fn lose(&mut self, error: SendError) {
        match &self.reading {
            Reading::Events(scanner) if scanner.found().done => {
                self.rest = None;
                self.end();
            }
            Reading::Events(_) | Reading::Json(_) | Reading::Opaque => self.break_off(error.into()),
        }
    }

    /// Ends the request because its node did not finish; a stream says so, any other body breaks off.
    fn break_off(&mut self, trouble: Trouble) {
        self.rest = None;
        if let Some((slot, mut bill)) = self.open.take() {
            bill.trace.broken(&trouble);
            slot.break_off(trouble.failure());
        }
        match &self.reading {
            Reading::Events(scanner) => {
                let before = if scanner.is_between_events() { "" } else { "\n\n" };
                self.ready.push(wording::event(before, self.endpoint, &trouble.refusal()));
            }
            Reading::Json(_) | Reading::Opaque => self.broken = Some(trouble),
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

impl Body for Relay {
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
                    self.end_if_read();
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
