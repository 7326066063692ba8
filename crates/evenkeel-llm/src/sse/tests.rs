use super::*;

const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n";
const ROLE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn a_chunk_of_complete_events_is_passed_on_without_a_copy() {
    let chunk = Bytes::from([TOKEN, TOKEN].concat());
    let mut out = Vec::new();
    let mut scanner = Scanner::new(HideUsage::Usage);
    let totals = scanner.scan(chunk.clone(), &mut out);
    assert_eq!((out.len(), out[0].as_ptr(), out[0].len()), (1, chunk.as_ptr(), chunk.len()));
    assert_eq!((totals.deltas, totals.text.bytes()), (2, 4));
}

#[test]
fn only_the_extra_usage_event_is_hidden() {
    let stream = [ROLE, TOKEN, TOKEN, USAGE, DONE].concat();
    let (passed, totals, end) = scanned(HideUsage::Usage, &[&stream]);
    assert_eq!(passed, [ROLE, TOKEN, TOKEN, DONE].concat());
    let usage = Some(Usage { input: 3, cached: 0, output: 2 });
    assert_eq!(totals, StreamTotals { usage, done: true, ..deltas(2) });
    assert_eq!(end, StreamEnd::Complete);
    assert_eq!(scanned(HideUsage::Nothing, &[&stream]), (stream, totals, end));
}

#[test]
fn an_incomplete_event_is_held_back() {
    let mut scanner = Scanner::new(HideUsage::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: {\"choices\":"), &mut out);
    assert!(out.is_empty());
    scanner.scan(Bytes::from_static(b"[]}\n\nda"), &mut out);
    assert_eq!(out, ["data: {\"choices\":[]}\n\n"]);
}

#[test]
fn a_truncated_stream_is_distinguished_from_a_complete_one() {
    assert_eq!(scanned(HideUsage::Nothing, &[TOKEN]).2, StreamEnd::NoEndMarker);
    assert_eq!(
        scanned(HideUsage::Nothing, &[TOKEN, "data: {"]),
        (TOKEN.to_owned(), one_token(), StreamEnd::Truncated)
    );
    let (passed, totals, end) = scanned(HideUsage::Nothing, &[TOKEN, "data: [DONE]\n"]);
    assert_eq!((passed, end), (format!("{TOKEN}data: [DONE]\n"), StreamEnd::Complete));
    assert!(totals.done);
}

#[test]
fn usage_is_read_in_every_api() {
    let anthropic = [
        r#"{"type":"message_start","message":{"content":[],"usage":{"input_tokens":9,"output_tokens":1}}}"#,
        r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"hi"}}"#,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":4}}"#,
        r#"{"type":"message_stop"}"#,
    ];
    let responses = [
        r#"{"type":"response.created","response":{"usage":null}}"#,
        r#"{"type":"response.output_text.delta","delta":"hi"}"#,
        r#"{"type":"response.completed","response":{"usage":{"input_tokens":9,"output_tokens":4}}}"#,
    ];
    let totals =
        StreamTotals { usage: Some(Usage { input: 9, cached: 0, output: 4 }), done: true, ..deltas(1) };
    for api in [&anthropic[..], &responses[..]] {
        let stream: String = api.iter().map(|data| format!("event: x\ndata: {data}\n\n")).collect();
        assert_eq!(scanned(HideUsage::Usage, &[&stream]), (stream, totals, StreamEnd::Complete));
    }
}

#[test]
fn only_generated_text_counts_however_much_json_surrounds_it() {
    let logprobs = r#""logprobs":{"content":[{"token":"x","logprob":-0.1,"bytes":[120],"top_logprobs":[]}]}"#;
    for (event, deltas, bytes) in [
        (format!(r#"{{"choices":[{{"delta":{{"content":"x"}},{logprobs}}}]}}"#), 1, 1),
        (r#"{"choices":[{"delta":{"reasoning_content":"xy","reasoning":"xy","content":null}}]}"#.to_owned(), 1, 2),
        (
            r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"call_1","function":{"name":"f","arguments":"{\"a\""}}]}}]}"#
                .to_owned(),
            1,
            4,
        ),
        (r#"{"choices":[{"delta":{"tool_calls":[{"id":"call_1","function":{"name":"f","arguments":""}}]}}]}"#.to_owned(), 0, 0),
        (r#"{"choices":[{"text":"xyz","logprobs":{"tokens":["xyz"],"text_offset":[0]}}]}"#.to_owned(), 1, 3),
        (r#"{"choices":[{"text":""}]}"#.to_owned(), 0, 0),
        (r#"{"choices":[{"delta":{"role":"assistant","content":""}}]}"#.to_owned(), 0, 0),
        (r#"{"choices":[{"delta":{"audio":{"data":"AAAA","transcript":"hi"}}}]}"#.to_owned(), 1, 2),
        (r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#.to_owned(), 0, 0),
        (r#"{"choices":[{"delta":{"content":"x"}},{"delta":{"content":"y"}}]}"#.to_owned(), 2, 2),
        (r#"{"type":"content_block_delta","delta":{"type":"thinking_delta","thinking":"hm"}}"#.to_owned(), 1, 2),
        (r#"{"type":"content_block_delta","delta":{"type":"signature_delta","signature":"AAAA"}}"#.to_owned(), 0, 0),
        (r#"{"type":"content_block_delta","delta":{"type":"input_json_delta","partial_json":"{\"a"}}"#.to_owned(), 1, 3),
        (r#"{"type":"response.function_call_arguments.delta","delta":"{}"}"#.to_owned(), 1, 2),
        (r#"{"delta":"AAAA","type":"response.output_audio.delta"}"#.to_owned(), 0, 0),
        (r#"{"type":"response.output_audio_transcript.delta","delta":"hi"}"#.to_owned(), 1, 2),
        (r#"{"type":"response.output_text.done","text":"hi"}"#.to_owned(), 0, 0),
        (r#"{"type":"response.completed","response":{"output":[{"content":[{"text":"hi"}]}]}}"#.to_owned(), 0, 0),
    ] {
        let totals = scanned(HideUsage::Nothing, &[&format!("data: {event}\n\n")]).1;
        assert_eq!((totals.deltas, totals.text.bytes()), (deltas, bytes), "{event}");
    }
}

#[test]
fn the_placeholder_for_the_output_at_the_start_of_a_message_is_ignored() {
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1}}}"#;
    let totals = scanned(HideUsage::Nothing, &[&format!("data: {start}\n\n")]).1;
    assert_eq!(totals.usage, Some(Usage { input: 9, cached: 0, output: 0 }));
}

#[test]
fn an_error_event_is_never_hidden() {
    let event = USAGE.replace("\"choices\"", "\"error\":{\"message\":\"x\"},\"choices\"");
    let (passed, totals, _) = scanned(HideUsage::Usage, &[&event]);
    assert_eq!((passed, totals.error), (event, true));
}

#[test]
fn the_line_feed_of_a_hidden_event_is_hidden_with_it() {
    let usage = USAGE.replace('\n', "\r\n");
    let (before, after) = usage.split_at(usage.len() - 1);
    let mut scanner = Scanner::new(HideUsage::Usage);
    let mut out = Vec::new();
    for chunk in [before, after, DONE] {
        scanner.scan(Bytes::copy_from_slice(chunk.as_bytes()), &mut out);
    }
    assert_eq!(out, [DONE]);
}

#[test]
fn a_line_feed_that_arrives_in_the_next_chunk_is_passed_on_at_once() {
    let mut scanner = Scanner::new(HideUsage::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: x\r\n\r"), &mut out);
    assert_eq!(mem::take(&mut out), ["data: x\r\n\r"]);
    scanner.scan(Bytes::from_static(b"\n"), &mut out);
    assert_eq!(out, ["\n"]);
}

#[test]
fn the_output_ends_between_events_unless_one_was_too_long() {
    let mut scanner = Scanner::new(HideUsage::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: x\n\ndata"), &mut out);
    assert!(scanner.is_between_events());
    scanner.scan(Bytes::from(vec![b'x'; EVENT_BYTES_MAX]), &mut out);
    assert!(!scanner.is_between_events());
    assert_eq!(scanner.finish(&mut out), StreamEnd::Truncated);
}

#[test]
fn a_json_stream_stops_at_an_invalid_event() {
    let invalid = "data: {\"choices\":[{\"delta\"\n\n";
    let mut scanner = Scanner::for_json(HideUsage::Usage);
    let mut out = Vec::new();
    let stream = [TOKEN, invalid, TOKEN, DONE].concat();
    let totals = scanner.scan(Bytes::from(stream.clone()), &mut out);
    assert_eq!(totals, StreamTotals { stopped: true, ..one_token() });
    scanner.scan(Bytes::from_static(DONE.as_bytes()), &mut out);
    assert_eq!((out.concat(), scanner.is_between_events()), (TOKEN.as_bytes().to_vec(), true));
    assert_eq!(scanned(HideUsage::Usage, &[&stream]).0, stream, "other streams continue");
}

#[test]
fn comments_pings_and_plain_errors_are_valid_events() {
    for event in [
        ": keep-alive\n\n",
        "data:\n\n",
        "event: ping\ndata: {}\n\n",
        "data: \"ping\"\n\n",
        "event: error\ndata: out of memory\n\n",
        "data: [DONE]\n\ndata: bye\n\n",
    ] {
        let mut scanner = Scanner::for_json(HideUsage::Usage);
        let mut out = Vec::new();
        assert!(!scanner.scan(Bytes::from_static(event.as_bytes()), &mut out).stopped, "{event:?}");
        assert_eq!(out.concat(), event.as_bytes());
    }
}

/// Returns the totals of deltas that each have the content "hi".
fn deltas(count: u64) -> StreamTotals {
    StreamTotals { deltas: count, text: TextLength::of_content(2 * count), ..StreamTotals::default() }
}

fn one_token() -> StreamTotals {
    deltas(1)
}

fn scanned(hide: HideUsage, chunks: &[&str]) -> (String, StreamTotals, StreamEnd) {
    let mut scanner = Scanner::new(hide);
    let mut out = Vec::new();
    for chunk in chunks {
        scanner.scan(Bytes::copy_from_slice(chunk.as_bytes()), &mut out);
    }
    let end = scanner.finish(&mut out);
    (String::from_utf8(out.concat()).unwrap(), scanner.totals(), end)
}
