//! A stream is passed on and understood the same, wherever it is cut, and event by event.

use bytes::Bytes;
use evenkeel_llm::sse::{HideUsage, Scanner, StreamEnd, StreamTotals};

/// At how many places a stream is cut in two; tests also cut at every place, for which fuzzing has no time.
const CUTS: usize = 16;

/// Everything a scanner tells about a stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) passed: Vec<u8>,
    pub(crate) found: StreamTotals,
    pub(crate) ending: StreamEnd,
}

/// Checks one stream.
pub(crate) fn check(stream: &[u8]) {
    for hide in [HideUsage::Nothing, HideUsage::Usage] {
        let whole = told(hide, [stream]);
        check_passed(hide, &whole, stream);
        check_events(hide, &whole, stream);
        check_cuts(|| Scanner::new(hide), &whole, stream);
        let of_json = told_by(Scanner::of_json(hide), [stream]);
        assert!(whole.passed.starts_with(&of_json.passed));
        assert!(of_json.found.stopped || of_json == whole, "stopped by nothing");
        check_cuts(|| Scanner::of_json(hide), &of_json, stream);
    }
}

fn check_cuts(scanner: impl Fn() -> Scanner, whole: &Told, stream: &[u8]) {
    assert_eq!(told_by(scanner(), stream.chunks(1)), *whole, "in single bytes");
    for len in [2, 3, 5, 7, 64] {
        assert_eq!(told_by(scanner(), stream.chunks(len)), *whole, "in {len} bytes each");
    }
    let step = 1 + stream.len() / CUTS;
    for at in (0..=stream.len()).step_by(step) {
        assert_eq!(told_by(scanner(), [&stream[..at], b"", &stream[at..]]), *whole, "cut at {at}");
    }
}

/// Scans a stream in these chunks.
pub(crate) fn told<'a>(hide: HideUsage, chunks: impl IntoIterator<Item = &'a [u8]>) -> Told {
    told_by(Scanner::new(hide), chunks)
}

fn told_by<'a>(mut scanner: Scanner, chunks: impl IntoIterator<Item = &'a [u8]>) -> Told {
    let mut out = Vec::new();
    for chunk in chunks {
        let found = scanner.scan(Bytes::copy_from_slice(chunk), &mut out);
        assert_eq!(found, scanner.found());
    }
    let ending = scanner.finish(&mut out);
    assert!(out.iter().all(|bytes| !bytes.is_empty()));
    Told { passed: out.concat(), found: scanner.found(), ending }
}

/// Where nothing is hidden, all is passed on but what is not a whole event.
fn check_passed(hide: HideUsage, told: &Told, stream: &[u8]) {
    if hide == HideUsage::Nothing {
        assert!(stream.starts_with(&told.passed));
        assert!(told.ending != StreamEnd::NoEndMarker || told.passed == stream);
    }
    assert_eq!(told.found.done, told.ending == StreamEnd::Complete);
}

/// What a stream tells is what its events tell one by one.
fn check_events(hide: HideUsage, whole: &Told, stream: &[u8]) {
    let mut sum = StreamTotals::default();
    let mut passed = Vec::new();
    for event in events(stream) {
        let one = told(hide, [event]);
        sum.tokens += one.found.tokens;
        sum.done |= one.found.done;
        sum.error |= one.found.error;
        passed.extend_from_slice(&one.passed);
    }
    assert_eq!((whole.found.tokens, whole.found.done, whole.found.error), (sum.tokens, sum.done, sum.error));
    // The last one may be cut, and is passed on only if it says that this is all, or something before it did.
    assert_eq!(passed, whole.passed);
}

/// Cuts a stream after every empty line, by looking back from each byte.
fn events(stream: &[u8]) -> Vec<&[u8]> {
    let mut events = Vec::new();
    let mut start = 0;
    let mut at = 0;
    let mut line_start = 0;
    while at < stream.len() {
        let is_end = matches!(stream[at], b'\n' | b'\r');
        let is_empty = at == line_start;
        at += if stream[at..].starts_with(b"\r\n") { 2 } else { 1 };
        if !is_end {
            continue;
        }
        line_start = at;
        if is_empty {
            events.push(&stream[start..at]);
            start = at;
        }
    }
    events.push(&stream[start..]);
    events
}
