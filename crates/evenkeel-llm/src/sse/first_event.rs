//! The first event of a stream, checked before the client sees it, while failover is still possible.
//!
//! Limits: buffers at most [`EVENT_BYTES_MAX`] bytes of an incomplete event; an event that is still incomplete after
//! that counts as content. At most [`COMMENTS_HELD_MAX`] comments are held back, so that a client sees the keep-alive
//! comments of a long prefill.

use core::mem;

use serde_json::Value;

use super::EVENT_BYTES_MAX;
use super::boundary::Boundary;
use super::event::{SseEvent, event_data};

/// Maximum of comments held back before the first event.
const COMMENTS_HELD_MAX: u32 = 1;

/// Classification of a stream's first event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FirstEvent {
    /// Content, or an event or comments over the limit.
    Content,
    /// An end-of-stream marker without any content before it.
    EndMarker,
    /// Neither JSON, nor an end-of-stream marker, nor a plain-text error.
    Invalid,
    /// The engine's error; null if it is not JSON.
    Error(Value),
}

/// Reader of a stream's first event; comments and empty lines are not events.
#[derive(Debug, Default)]
pub(crate) struct FirstEventReader {
    boundary: Boundary,
    buffer: Vec<u8>,
    comments: u32,
}

impl FirstEventReader {
    /// Reads a chunk; returns the first event once it is complete.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> Option<FirstEvent> {
        let mut rest = chunk;
        while let Some(end) = self.boundary.find(rest) {
            let first = self.end_block(&rest[..end]);
            if first.is_some() {
                return first;
            }
            rest = &rest[end..];
        }
        if self.buffer.len() + rest.len() > EVENT_BYTES_MAX {
            return Some(FirstEvent::Content);
        }
        self.buffer.extend_from_slice(rest);
        None
    }

    /// Reports whether a stream that ends here has no event, not even an incomplete one.
    ///
    /// A final `[DONE]` without an empty line after it is no event.
    pub(crate) fn is_empty(&self) -> bool {
        let event = SseEvent::read(&self.buffer);
        event.is_bare_end || is_blank(&self.buffer)
    }

    /// Ends a block of lines; returns the event that it is, if any.
    fn end_block(&mut self, tail: &[u8]) -> Option<FirstEvent> {
        let held = mem::take(&mut self.buffer);
        let joined;
        let block = if held.is_empty() {
            tail
        } else {
            joined = [&held[..], tail].concat();
            &joined
        };
        if !is_blank(block) {
            return Some(classify(block));
        }
        self.comments += u32::from(!block.trim_ascii().is_empty());
        (self.comments > COMMENTS_HELD_MAX).then_some(FirstEvent::Content)
    }
}

/// Reports whether a block of lines has no data.
fn is_blank(block: &[u8]) -> bool {
    event_data(block).0.is_none_or(|data| data.trim_ascii().is_empty())
}

fn classify(event: &[u8]) -> FirstEvent {
    let parsed = SseEvent::read(event);
    match (parsed.is_invalid, parsed.error) {
        (true, _) => FirstEvent::Invalid,
        (false, false) if parsed.is_bare_end => FirstEvent::EndMarker,
        (false, false) => FirstEvent::Content,
        (false, true) => {
            let data = event_data(event).0.unwrap_or_default();
            FirstEvent::Error(serde_json::from_slice(&data).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_event_is_found_however_the_stream_is_split() {
        for (stream, expected) in [
            ("data: {\"choices\":[]}\n\ndata: {\"error\":1}\n\n", FirstEvent::Content),
            (": ping\n\n\n\ndata: {\"error\":1}\n\n", FirstEvent::Error(json!({"error": 1}))),
            ("\r\n: ping\r\n\r\n: ping\r\n\r\n", FirstEvent::Content),
            ("data: [DONE]\n\n", FirstEvent::EndMarker),
            ("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n", FirstEvent::EndMarker),
            ("\u{FEFF}data: {\"error\":1}\n\n", FirstEvent::Error(json!({"error": 1}))),
            ("data: <html>\n\n", FirstEvent::Invalid),
            ("data: {\"error\":{\"code\":500}}\n\n", FirstEvent::Error(json!({"error": {"code": 500}}))),
            ("event: error\r\ndata: out of memory\r\n\r\n", FirstEvent::Error(Value::Null)),
        ] {
            for at in 0..stream.len() {
                let mut reader = FirstEventReader::default();
                let first = reader.read(&stream.as_bytes()[..at]);
                let event = first.or_else(|| reader.read(&stream.as_bytes()[at..]));
                assert_eq!(event, Some(expected.clone()), "{stream:?} split at {at}");
            }
        }
    }

    #[test]
    fn a_stream_of_comments_is_empty_and_one_of_data_is_truncated() {
        for (stream, is_empty) in [
            ("", true),
            ("\n \n", true),
            (": ping\n\n: pi", true),
            ("data:", true),
            ("data: [DONE]", true),
            ("data: {\"choices\":", false),
        ] {
            let mut reader = FirstEventReader::default();
            assert_eq!(reader.read(stream.as_bytes()), None, "{stream:?}");
            assert_eq!(reader.is_empty(), is_empty, "{stream:?}");
        }
    }

    #[test]
    fn an_event_over_the_limit_counts_as_content() {
        let mut reader = FirstEventReader::default();
        assert_eq!(reader.read(&vec![b'x'; EVENT_BYTES_MAX]), None);
        assert_eq!(reader.read(b"x"), Some(FirstEvent::Content));
    }
}
