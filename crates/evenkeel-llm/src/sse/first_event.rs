//! The first event of a stream, looked at before anybody else sees it: another node can still be asked.
//!
//! Bound: holds at most [`EVENT_BYTES_MAX`] bytes; of a longer event nothing is known.

use core::mem;

use serde_json::Value;

use super::EVENT_BYTES_MAX;
use super::boundary::Boundary;
use super::event::{SseEvent, data_of};

/// What a stream begins with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum FirstEvent {
    /// Something for the client: an answer, or a sign of life.
    Answer,
    /// Something that is no JSON.
    Garbage,
    /// An error, in the engine's words; null if they are no JSON.
    Error(Value),
}

/// Waits for the first event of a stream.
#[derive(Debug, Default)]
pub(crate) struct FirstEventReader {
    boundary: Boundary,
    held: Vec<u8>,
}

impl FirstEventReader {
    /// Takes a chunk; tells what the first event is as soon as it is whole.
    pub(crate) fn read(&mut self, chunk: &[u8]) -> Option<FirstEvent> {
        match self.boundary.find(chunk) {
            Some(end) if self.held.is_empty() => Some(opening(&chunk[..end])),
            Some(end) => {
                self.held.extend_from_slice(&chunk[..end]);
                Some(opening(&mem::take(&mut self.held)))
            }
            None if EVENT_BYTES_MAX < self.held.len() + chunk.len() => Some(FirstEvent::Answer),
            None => {
                self.held.extend_from_slice(chunk);
                None
            }
        }
    }

    /// Whether a stream that ends here ends within its first event, which does not say that this is all.
    pub(crate) fn is_cut(&self) -> bool {
        !self.held.is_empty() && !SseEvent::read(&self.held).done
    }
}

fn opening(event: &[u8]) -> FirstEvent {
    let said = SseEvent::read(event);
    match (said.garbage, said.error) {
        (true, _) => FirstEvent::Garbage,
        (false, false) => FirstEvent::Answer,
        (false, true) => {
            let data = data_of(event).0.unwrap_or_default();
            FirstEvent::Error(serde_json::from_slice(&data).unwrap_or_default())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_event_is_known_wherever_it_is_cut() {
        for (stream, opening) in [
            ("data: {\"choices\":[]}\n\ndata: {\"error\":1}\n\n", FirstEvent::Answer),
            (": still there\n\n", FirstEvent::Answer),
            ("data: [DONE]\n\n", FirstEvent::Answer),
            ("data: <html>\n\n", FirstEvent::Garbage),
            ("data: {\"error\":{\"code\":500}}\n\n", FirstEvent::Error(json!({"error": {"code": 500}}))),
            ("event: error\r\ndata: out of memory\r\n\r\n", FirstEvent::Error(Value::Null)),
        ] {
            for at in 0..stream.len() {
                let mut reader = FirstEventReader::default();
                let first = reader.read(&stream.as_bytes()[..at]);
                let told = first.or_else(|| reader.read(&stream.as_bytes()[at..]));
                assert_eq!(told, Some(opening.clone()), "{stream:?} cut at {at}");
            }
        }
    }

    #[test]
    fn an_event_that_is_too_long_is_not_waited_for() {
        let mut reader = FirstEventReader::default();
        assert_eq!(reader.read(&vec![b'x'; EVENT_BYTES_MAX]), None);
        assert_eq!(reader.read(b"x"), Some(FirstEvent::Answer));
    }
}
