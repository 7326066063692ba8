//! A stream is passed on and scanned the same, wherever the chunks are cut, and event by event.

use bytes::Bytes;
use evenkeel_llm::sse::{HideUsage, Scanner, StreamEnd, StreamTotals};

/// Number of places at which the check cuts a stream; `check_every_split` cuts it at every byte.
const CUTS: usize = 16;

/// Output, totals and end of a scanned stream.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ScanResult {
    pub(crate) passed: Vec<u8>,
    pub(crate) totals: StreamTotals,
    pub(crate) end: StreamEnd,
}

/// Checks one stream.
pub(crate) fn check(stream: &[u8]) {
    for hide in [HideUsage::Nothing, HideUsage::Usage] {
        let whole = scan(hide, [stream]);
        check_passed(hide, &whole, stream);
        check_events(hide, &whole, stream);
        check_cuts(|| Scanner::new(hide), &whole, stream);
        let json = scan_with(Scanner::for_json(hide), [stream]);
        assert!(whole.passed.starts_with(&json.passed));
        assert!(json.totals.stopped || json == whole, "the scanners differ without an invalid event");
        check_cuts(|| Scanner::for_json(hide), &json, stream);
    }
}

fn check_cuts(scanner: impl Fn() -> Scanner, whole: &ScanResult, stream: &[u8]) {
    assert_eq!(scan_with(scanner(), stream.chunks(1)), *whole, "in single bytes");
    for len in [2, 3, 5, 7, 64] {
        assert_eq!(scan_with(scanner(), stream.chunks(len)), *whole, "in {len} bytes each");
    }
    let step = 1 + stream.len() / CUTS;
    for at in (0..=stream.len()).step_by(step) {
        assert_eq!(scan_with(scanner(), [&stream[..at], b"", &stream[at..]]), *whole, "cut at {at}");
    }
}

/// Scans a stream in these chunks.
pub(crate) fn scan<'a>(hide: HideUsage, chunks: impl IntoIterator<Item = &'a [u8]>) -> ScanResult {
    scan_with(Scanner::new(hide), chunks)
}

fn scan_with<'a>(mut scanner: Scanner, chunks: impl IntoIterator<Item = &'a [u8]>) -> ScanResult {
    let mut out = Vec::new();
    for chunk in chunks {
        let totals = scanner.scan(Bytes::copy_from_slice(chunk), &mut out);
        assert_eq!(totals, scanner.totals());
    }
    let end = scanner.finish(&mut out);
    assert!(out.iter().all(|bytes| !bytes.is_empty()));
    ScanResult { passed: out.concat(), totals: scanner.totals(), end }
}

/// Checks that all bytes are passed on if usage is not hidden, except an incomplete event at the end.
fn check_passed(hide: HideUsage, result: &ScanResult, stream: &[u8]) {
    if hide == HideUsage::Nothing {
        assert!(stream.starts_with(&result.passed));
        assert!(result.end != StreamEnd::NoEndMarker || result.passed == stream);
    }
    assert_eq!(result.totals.done, result.end == StreamEnd::Complete);
}

/// Checks that the totals of a stream are the sum of the totals of its events.
fn check_events(hide: HideUsage, whole: &ScanResult, stream: &[u8]) {
    let mut sum = StreamTotals::default();
    let mut passed = Vec::new();
    for event in events(stream) {
        let one = scan(hide, [event]);
        sum.deltas += one.totals.deltas;
        sum.text += one.totals.text;
        sum.done |= one.totals.done;
        sum.error |= one.totals.error;
        passed.extend_from_slice(&one.passed);
    }
    assert_eq!(
        (whole.totals.deltas, whole.totals.text, whole.totals.done, whole.totals.error),
        (sum.deltas, sum.text, sum.done, sum.error)
    );
    // The last event may be incomplete; it is passed on only if it is the end-of-stream marker.
    assert_eq!(passed, whole.passed);
}

/// Splits a stream after every empty line.
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
