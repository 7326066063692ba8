//! Scanner of streaming responses (server-sent events): finds generated text, usage, errors and the end-of-stream marker
//! while the stream passes through.
//!
//! Guarantees: output and totals do not depend on the chunk boundaries. A chunk of complete events is passed on without
//! a copy.
//!
//! Limits: one pass over every byte; of an incomplete event at most [`EVENT_BYTES_MAX`] bytes are held back, and a
//! longer event is passed on unread.

mod boundary;
mod event;
mod first_event;

use core::mem;

use bytes::Bytes;

use crate::usage::{TextLength, Usage, UsageFields};
use boundary::Boundary;
use event::SseEvent;
pub(crate) use first_event::{FirstEvent, FirstEventReader};

/// Length limit of an event that is parsed.
pub const EVENT_BYTES_MAX: usize = 1 << 20;

/// Events that are hidden from the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HideUsage {
    Nothing,
    /// The usage event, which the client did not ask for.
    Usage,
}

/// Totals of a stream so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamTotals {
    /// Number of deltas with generated text; about one per token.
    pub deltas: u64,
    /// Length of the generated text.
    pub text: TextLength,
    /// The latest usage that the engine reported.
    pub usage: Option<Usage>,
    /// The end-of-stream marker has arrived.
    pub done: bool,
    /// The engine has sent an error event.
    pub error: bool,
    /// An event was invalid; neither it nor anything after it is passed on.
    pub stopped: bool,
}

/// End of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamEnd {
    Complete,
    /// It ended after a complete event, without an end-of-stream marker.
    NoEndMarker,
    /// It ended within an event.
    Truncated,
}

/// Scanner of a stream.
#[derive(Debug)]
pub struct Scanner {
    hide: HideUsage,
    on_invalid: OnInvalidEvent,
    totals: StreamTotals,
    usage: UsageFields,
    boundary: Boundary,
    /// Beginning of an incomplete event.
    held: Vec<u8>,
    mode: Mode,
    /// Action for an event that ended with the carriage return at the end of the last chunk; a line feed may follow.
    after_return: Option<EventAction>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Reading,
    /// The current event is too long and is passed on unread.
    Passing,
}

/// Reaction to an invalid event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnInvalidEvent {
    Pass,
    Stop,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum EventAction {
    Pass,
    Hide,
    Stop,
}

impl Scanner {
    /// Creates a scanner for a stream of arbitrary events.
    pub fn new(hide: HideUsage) -> Self {
        Self {
            hide,
            on_invalid: OnInvalidEvent::Pass,
            totals: StreamTotals::default(),
            usage: UsageFields::default(),
            boundary: Boundary::default(),
            held: Vec::new(),
            mode: Mode::Reading,
            after_return: None,
        }
    }

    /// Creates a scanner for a stream of JSON events; an invalid event before the end-of-stream marker stops it.
    pub fn for_json(hide: HideUsage) -> Self {
        Self { on_invalid: OnInvalidEvent::Stop, ..Self::new(hide) }
    }

    /// Scans a chunk and appends the bytes for the client to `out`; returns the totals since the stream began.
    pub fn scan(&mut self, chunk: Bytes, out: &mut Vec<Bytes>) -> StreamTotals {
        if self.totals.stopped {
            return self.totals;
        }
        let mut from = 0;
        let mut start = 0;
        if !chunk.is_empty()
            && let Some(action) = self.after_return.take()
        {
            start = usize::from(chunk[0] == b'\n');
            from = if action == EventAction::Hide { start } else { 0 };
        }
        // `from..start` is to be passed on. At `start` a new event begins, or the held one continues.
        while let Some(len) = self.boundary.find(&chunk[start..]) {
            let end = start + len;
            let action = self.end_event(&chunk[start..end]);
            if action == EventAction::Stop {
                push(out, chunk.slice(from..start));
                self.held.clear();
                return self.totals;
            }
            if action == EventAction::Hide {
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
                from = if action == EventAction::Hide { start } else { from };
                self.after_return = Some(action).filter(|_| end == chunk.len());
            }
        }
        self.hold(chunk, from, start, out);
        self.totals
    }

    /// Ends the stream and appends the remaining bytes to `out`.
    ///
    /// An incomplete event is dropped, so that an error event can follow, unless it is the end-of-stream marker.
    pub fn finish(&mut self, out: &mut Vec<Bytes>) -> StreamEnd {
        let held = mem::take(&mut self.held);
        let is_truncated = !held.is_empty() || self.mode == Mode::Passing;
        let event = SseEvent::read(&held);
        if event.done {
            self.record(&event);
            out.push(held.into());
        }
        match (self.totals.done, is_truncated) {
            (true, _) => StreamEnd::Complete,
            (false, true) => StreamEnd::Truncated,
            (false, false) => StreamEnd::NoEndMarker,
        }
    }

    /// Returns the totals since the stream began.
    pub fn totals(&self) -> StreamTotals {
        self.totals
    }

    /// Reports whether the bytes passed on end with a complete event; if not, an empty line ends the event.
    pub fn is_between_events(&self) -> bool {
        self.mode == Mode::Reading
    }

    /// Parses the event that consists of the held bytes and `tail`.
    ///
    /// If part of the event was held, all of it is held afterwards.
    fn end_event(&mut self, tail: &[u8]) -> EventAction {
        if self.mode == Mode::Passing || self.held.len() + tail.len() > EVENT_BYTES_MAX {
            self.mode = Mode::Reading;
            self.complete_held(tail);
            return EventAction::Pass;
        }
        self.complete_held(tail);
        let event = SseEvent::read(if self.held.is_empty() { tail } else { &self.held });
        if event.is_invalid && self.on_invalid == OnInvalidEvent::Stop && !self.totals.done {
            self.totals.stopped = true;
            return EventAction::Stop;
        }
        self.record(&event);
        match self.hide {
            HideUsage::Usage if event.is_usage_only() => EventAction::Hide,
            HideUsage::Usage | HideUsage::Nothing => EventAction::Pass,
        }
    }

    fn record(&mut self, event: &SseEvent) {
        self.usage.update(event.usage);
        self.totals.deltas = self.totals.deltas.saturating_add(event.deltas);
        self.totals.text += event.text;
        self.totals.usage = self.usage.usage();
        self.totals.done |= event.done;
        self.totals.error |= event.error;
    }

    fn complete_held(&mut self, tail: &[u8]) {
        if !self.held.is_empty() {
            self.held.extend_from_slice(tail);
        }
    }

    /// Passes on complete events, and holds back the beginning of the next one.
    fn hold(&mut self, mut chunk: Bytes, from: usize, start: usize, out: &mut Vec<Bytes>) {
        if self.mode == Mode::Passing {
            push(out, chunk.split_off(from));
            return;
        }
        self.held.extend_from_slice(&chunk[start..]);
        chunk.truncate(start);
        push(out, chunk.split_off(from));
        if self.held.len() > EVENT_BYTES_MAX {
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
