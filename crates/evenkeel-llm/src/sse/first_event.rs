//! The first event of a stream, checked before the client sees it, while failover is still possible.
//!
//! Limits: buffers at most [`EVENT_BYTES_MAX`] bytes of an incomplete event; an event that is still incomplete after
//! that counts as content.

use core::mem;

use serde_json::Value;

use super::EVENT_BYTES_MAX;
use super::boundary::Boundary;
use super::event::{SseEvent, event_data};

/// Classification of a stream's first event.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FirstEvent {
    /// Content, a comment, the end-of-stream marker or an event over the limit.
    Content,
    /// Neither JSON, nor an end-of-stream marker, nor a plain-text error.
    Invalid,
    /// The engine's error; null if it is not JSON.
    Error(Value),
}

/// Reader of a stream's first event.
#[derive(Debug, Default)]
pub(crate) struct FirstEventReader {
    boundary: Boundary,
    buffer: Vec<u8>,
}

impl FirstEventReader {
    /// Reads a chunk; returns the first event once it is complete.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> Option<FirstEvent> {
        match self.boundary.find(chunk) {
            Some(end) if self.buffer.is_empty() => Some(classify(&chunk[..end])),
            Some(end) => {
                self.buffer.extend_from_slice(&chunk[..end]);
                Some(classify(&mem::take(&mut self.buffer)))
            }
            None if self.buffer.len() + chunk.len() > EVENT_BYTES_MAX => Some(FirstEvent::Content),
            None => {
                self.buffer.extend_from_slice(chunk);
                None
            }
        }
    }

    /// Reports whether a stream that ends here is truncated within its first event.
    ///
    /// A final `[DONE]` without an empty line after it is accepted as complete.
    pub(crate) fn is_truncated(&self) -> bool {
        !self.buffer.is_empty() && !SseEvent::read(&self.buffer).done
    }
}

fn classify(event: &[u8]) -> FirstEvent {
    let parsed = SseEvent::read(event);
    match (parsed.is_invalid, parsed.error) {
        (true, _) => FirstEvent::Invalid,
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
            (": still there\n\n", FirstEvent::Content),
            ("data: [DONE]\n\n", FirstEvent::Content),
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
    fn an_event_over_the_limit_counts_as_content() {
        let mut reader = FirstEventReader::default();
        assert_eq!(reader.read(&vec![b'x'; EVENT_BYTES_MAX]), None);
        assert_eq!(reader.read(b"x"), Some(FirstEvent::Content));
    }
}
