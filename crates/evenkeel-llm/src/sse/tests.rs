use super::*;

const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n";
const ROLE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn a_chunk_of_whole_events_is_passed_on_as_it_is() {
    let chunk = Bytes::from([TOKEN, TOKEN].concat());
    let mut out = Vec::new();
    let mut scanner = Scanner::new(HideUsage::Usage);
    let found = scanner.scan(chunk.clone(), &mut out);
    assert_eq!((out.len(), out[0].as_ptr(), out[0].len()), (1, chunk.as_ptr(), chunk.len()));
    assert_eq!(found.tokens, 2);
}

#[test]
fn only_the_extra_counts_are_hidden() {
    let stream = [ROLE, TOKEN, TOKEN, USAGE, DONE].concat();
    let (passed, found, ending) = scanned(HideUsage::Usage, &[&stream]);
    assert_eq!(passed, [ROLE, TOKEN, TOKEN, DONE].concat());
    let usage = Some(Usage { input: 3, output: 2 });
    assert_eq!(found, StreamTotals { tokens: 2, usage, done: true, ..StreamTotals::default() });
    assert_eq!(ending, StreamEnd::Complete);
    assert_eq!(scanned(HideUsage::Nothing, &[&stream]), (stream, found, ending));
}

#[test]
fn an_event_in_pieces_is_held_until_it_is_whole() {
    let mut scanner = Scanner::new(HideUsage::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: {\"choices\":"), &mut out);
    assert!(out.is_empty());
    scanner.scan(Bytes::from_static(b"[]}\n\nda"), &mut out);
    assert_eq!(out, ["data: {\"choices\":[]}\n\n"]);
}

#[test]
fn a_stream_that_stops_is_told_from_one_that_ends() {
    assert_eq!(scanned(HideUsage::Nothing, &[TOKEN]).2, StreamEnd::NoEndMarker);
    assert_eq!(
        scanned(HideUsage::Nothing, &[TOKEN, "data: {"]),
        (TOKEN.to_owned(), one_token(), StreamEnd::Truncated)
    );
    let (passed, found, ending) = scanned(HideUsage::Nothing, &[TOKEN, "data: [DONE]\n"]);
    assert_eq!((passed, ending), (format!("{TOKEN}data: [DONE]\n"), StreamEnd::Complete));
    assert!(found.done);
}

#[test]
fn counts_are_understood_in_every_dialect() {
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
    let found = StreamTotals {
        tokens: 1,
        usage: Some(Usage { input: 9, output: 4 }),
        done: true,
        ..StreamTotals::default()
    };
    for dialect in [&anthropic[..], &responses[..]] {
        let stream: String = dialect.iter().map(|data| format!("event: x\ndata: {data}\n\n")).collect();
        assert_eq!(scanned(HideUsage::Usage, &[&stream]), (stream, found, StreamEnd::Complete));
    }
}

#[test]
fn each_way_of_saying_something_is_a_piece_and_empty_ones_are_none() {
    for (choice, tokens) in [
        (r#"{"delta":{"content":"x"}}"#, 1),
        (r#"{"delta":{"reasoning_content":"x","content":null}}"#, 1),
        (r#"{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}"#, 1),
        (r#"{"text":"x"}"#, 1),
        (r#"{"text":""}"#, 0),
        (r#"{"delta":{"role":"assistant","content":""}}"#, 0),
        (r#"{"delta":{},"finish_reason":"stop"}"#, 0),
        (r#"{"delta":{"content":"x"}},{"delta":{"content":"y"}}"#, 2),
    ] {
        let event = format!("data: {{\"choices\":[{choice}]}}\n\n");
        assert_eq!(scanned(HideUsage::Nothing, &[&event]).1.tokens, tokens, "{choice}");
    }
}

#[test]
fn an_error_is_never_hidden() {
    let event = USAGE.replace("\"choices\"", "\"error\":{\"message\":\"x\"},\"choices\"");
    let (passed, found, _) = scanned(HideUsage::Usage, &[&event]);
    assert_eq!((passed, found.error), (event, true));
}

#[test]
fn the_line_feed_of_a_hidden_event_is_hidden_with_it() {
    let counts = USAGE.replace('\n', "\r\n");
    let (before, after) = counts.split_at(counts.len() - 1);
    let mut scanner = Scanner::new(HideUsage::Usage);
    let mut out = Vec::new();
    for chunk in [before, after, DONE] {
        scanner.scan(Bytes::copy_from_slice(chunk.as_bytes()), &mut out);
    }
    assert_eq!(out, [DONE]);
}

#[test]
fn a_line_feed_that_comes_late_is_passed_on_at_once() {
    let mut scanner = Scanner::new(HideUsage::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: x\r\n\r"), &mut out);
    assert_eq!(mem::take(&mut out), ["data: x\r\n\r"]);
    scanner.scan(Bytes::from_static(b"\n"), &mut out);
    assert_eq!(out, ["\n"]);
}

#[test]
fn what_was_passed_on_can_be_followed_by_an_event_unless_one_was_too_long() {
    let mut scanner = Scanner::new(HideUsage::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: x\n\ndata"), &mut out);
    assert!(scanner.is_between_events());
    scanner.scan(Bytes::from(vec![b'x'; EVENT_BYTES_MAX]), &mut out);
    assert!(!scanner.is_between_events());
    assert_eq!(scanner.finish(&mut out), StreamEnd::Truncated);
}

#[test]
fn a_stream_of_json_stops_at_what_makes_no_sense() {
    let garbage = "data: {\"choices\":[{\"delta\"\n\n";
    let mut scanner = Scanner::of_json(HideUsage::Usage);
    let mut out = Vec::new();
    let stream = [TOKEN, garbage, TOKEN, DONE].concat();
    let found = scanner.scan(Bytes::from(stream.clone()), &mut out);
    assert_eq!(found, StreamTotals { stopped: true, ..one_token() });
    scanner.scan(Bytes::from_static(DONE.as_bytes()), &mut out);
    assert_eq!((out.concat(), scanner.is_between_events()), (TOKEN.as_bytes().to_vec(), true));
    assert_eq!(scanned(HideUsage::Usage, &[&stream]).0, stream, "other streams go on");
}

#[test]
fn what_engines_say_besides_their_chunks_makes_sense() {
    for event in [
        ": keep-alive\n\n",
        "data:\n\n",
        "event: ping\ndata: {}\n\n",
        "data: \"ping\"\n\n",
        "event: error\ndata: out of memory\n\n",
        "data: [DONE]\n\ndata: bye\n\n",
    ] {
        let mut scanner = Scanner::of_json(HideUsage::Usage);
        let mut out = Vec::new();
        assert!(!scanner.scan(Bytes::from_static(event.as_bytes()), &mut out).stopped, "{event:?}");
        assert_eq!(out.concat(), event.as_bytes());
    }
}

fn one_token() -> StreamTotals {
    StreamTotals { tokens: 1, ..StreamTotals::default() }
}

fn scanned(hide: HideUsage, chunks: &[&str]) -> (String, StreamTotals, StreamEnd) {
    let mut scanner = Scanner::new(hide);
    let mut out = Vec::new();
    for chunk in chunks {
        scanner.scan(Bytes::copy_from_slice(chunk.as_bytes()), &mut out);
    }
    let ending = scanner.finish(&mut out);
    (String::from_utf8(out.concat()).unwrap(), scanner.found(), ending)
}
