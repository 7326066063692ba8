//! A stream of events, read while it passes through: how much was said, what it cost, and whether it ended well.
//!
//! Bound: one pass over every byte. A chunk of whole events is passed on as it is, without a copy; of an event that is
//! not complete at most [`EVENT_BYTES_MAX`] bytes are held back, and a longer one is passed on unread. What is passed
//! on and what is found do not depend on where the chunks were cut.

mod boundary;
mod event;
mod first_event;

use core::mem;

use bytes::Bytes;

use crate::usage::{Usage, UsageFields};
use boundary::Boundary;
use event::SseEvent;
pub(crate) use first_event::{FirstEvent, FirstEventReader};

/// How long an event may be to be read.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// What is kept from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HideUsage {
    /// Nothing.
    Nothing,
    /// The event with the counts, which the client did not ask for.
    Usage,
}

/// What a stream has told so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// How many pieces of answer there were; about as many as tokens.
    pub tokens: u64,
    /// The engine's own counts, the latest it told.
    pub usage: Option<Usage>,
    /// Whether the engine said that this is all.
    pub done: bool,
    /// Whether the engine told an error.
    pub error: bool,
    /// Whether an event made no sense, and neither it nor anything after it is passed on.
    pub stopped: bool,
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    /// The engine said that this is all.
    Complete,
    /// It ended after an event, without a word that this is all.
    NoEndMarker,
    /// It ended within an event.
    Truncated,
}

/// Reads a stream while it passes through.
#[derive(Debug)]
pub struct Scanner {
    hide: HideUsage,
    garbage: OnInvalidEvent,
    found: StreamTotals,
    counts: UsageFields,
    boundary: Boundary,
    /// The beginning of an event whose end has not come.
    held: Vec<u8>,
    mode: Mode,
    /// What became of an event that ended with the last chunk's carriage return; its line feed may follow.
    returned: Option<EventAction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// Events are read.
    Reading,
    /// This event is too long, and is passed on as it comes.
    Passing,
}

/// What an event does that makes no sense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnInvalidEvent {
    /// It passes.
    Passed,
    /// It stops the stream.
    Stops,
}

/// What becomes of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventAction {
    Passed,
    Hidden,
    Stopped,
}

impl Scanner {
    /// Starts before the first byte of a stream.
    pub fn new(hide: HideUsage) -> Self {
        Self {
            hide,
            garbage: OnInvalidEvent::Passed,
            found: StreamTotals::default(),
            counts: UsageFields::default(),
            boundary: Boundary::default(),
            held: Vec::new(),
            mode: Mode::Reading,
            returned: None,
        }
    }

    /// Starts a stream of JSON, which stops at the first event that makes no sense before the engine said that this is
    /// all.
    pub fn of_json(hide: HideUsage) -> Self {
        Self { garbage: OnInvalidEvent::Stops, ..Self::new(hide) }
    }

    /// Takes a chunk, and adds to `out` what is to be passed on; tells what was found since the stream began.
    pub fn scan(&mut self, chunk: Bytes, out: &mut Vec<Bytes>) -> StreamTotals {
        if self.found.stopped {
            return self.found;
        }
        let mut from = 0;
        let mut start = 0;
        if !chunk.is_empty()
            && let Some(fate) = self.returned.take()
        {
            start = usize::from(chunk[0] == b'\n');
            from = if fate == EventAction::Hidden { start } else { 0 };
        }
        // From `from` to `start` are bytes to be passed on; at `start` an event begins, or what is held goes on.
        while let Some(len) = self.boundary.find(&chunk[start..]) {
            let end = start + len;
            let fate = self.end_event(&chunk[start..end]);
            if fate == EventAction::Stopped {
                push(out, chunk.slice(from..start));
                self.held.clear();
                return self.found;
            }
            if fate == EventAction::Hidden {
                push(out, chunk.slice(from..start));
                from = end;
            } else if !self.held.is_empty() {
                out.push(mem::take(&mut self.held).into());
                from = end;
            }
            self.held.clear();
            start = end;
            if chunk[end - 1] == b'\r' {
                start += usize::from(chunk.get(end) == Some(&b'\n'));
                from = if fate == EventAction::Hidden { start } else { from };
                self.returned = Some(fate).filter(|_| end == chunk.len());
            }
        }
        self.hold(chunk, from, start, out);
        self.found
    }

    /// Ends the stream where its sender did, and adds to `out` what is still to be passed on.
    ///
    /// An event that is not complete is dropped, so that another can follow, unless it says that this is all.
    pub fn finish(&mut self, out: &mut Vec<Bytes>) -> StreamEnd {
        let held = mem::take(&mut self.held);
        let is_cut = !held.is_empty() || self.mode == Mode::Passing;
        let event = SseEvent::read(&held);
        if event.done {
            self.note(&event);
            out.push(held.into());
        }
        match (self.found.done, is_cut) {
            (true, _) => StreamEnd::Complete,
            (false, true) => StreamEnd::Truncated,
            (false, false) => StreamEnd::NoEndMarker,
        }
    }

    /// What was found since the stream began.
    pub fn found(&self) -> StreamTotals {
        self.found
    }

    /// Whether what was passed on ends with an event; if not, an empty line ends the one that it ends in.
    pub fn is_between_events(&self) -> bool {
        self.mode == Mode::Reading
    }

    /// Reads the event that ends with `piece` and begins with what is held, which is whole afterwards.
    fn end_event(&mut self, piece: &[u8]) -> EventAction {
        if self.mode == Mode::Passing || EVENT_BYTES_MAX < self.held.len() + piece.len() {
            self.mode = Mode::Reading;
            self.complete(piece);
            return EventAction::Passed;
        }
        self.complete(piece);
        let event = SseEvent::read(if self.held.is_empty() { piece } else { &self.held });
        if event.garbage && self.garbage == OnInvalidEvent::Stops && !self.found.done {
            self.found.stopped = true;
            return EventAction::Stopped;
        }
        self.note(&event);
        match self.hide {
            HideUsage::Usage if event.is_only_counts() => EventAction::Hidden,
            HideUsage::Usage | HideUsage::Nothing => EventAction::Passed,
        }
    }

    fn note(&mut self, event: &SseEvent) {
        self.counts.update(event.counts);
        self.found.tokens = self.found.tokens.saturating_add(event.tokens);
        self.found.usage = self.counts.usage();
        self.found.done |= event.done;
        self.found.error |= event.error;
    }

    fn complete(&mut self, piece: &[u8]) {
        if !self.held.is_empty() {
            self.held.extend_from_slice(piece);
        }
    }

    /// Passes on what is whole, and holds back the beginning of the next event.
    fn hold(&mut self, mut chunk: Bytes, from: usize, start: usize, out: &mut Vec<Bytes>) {
        if self.mode == Mode::Passing {
            push(out, chunk.split_off(from));
            return;
        }
        self.held.extend_from_slice(&chunk[start..]);
        chunk.truncate(start);
        push(out, chunk.split_off(from));
        if EVENT_BYTES_MAX < self.held.len() {
            self.mode = Mode::Passing;
            out.push(mem::take(&mut self.held).into());
        }
    }
}

fn push(out: &mut Vec<Bytes>, bytes: Bytes) {
    if !bytes.is_empty() {
        out.push(bytes);
    }
}

#[cfg(test)]
mod tests;
