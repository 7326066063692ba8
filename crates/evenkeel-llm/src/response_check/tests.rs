use http::HeaderValue;

use super::*;

const STREAM: ResponseMode = ResponseMode::Stream;
const WHOLE: ResponseMode = ResponseMode::NonStreaming;

#[test]
fn a_body_is_recognized_by_its_first_byte_whatever_its_content_type() {
    for label in ["", "text/plain", "text/html", "application/octet-stream", "application/json"] {
        assert_eq!(sniff(ExpectedBody::Json, WHOLE, label, " \n{"), Some(Ok(BodyKind::Json)), "{label}");
        assert_eq!(
            sniff(ExpectedBody::Json, STREAM, label, "data: {}"),
            Some(Ok(BodyKind::Events)),
            "{label}"
        );
        assert_eq!(
            sniff(ExpectedBody::Json, WHOLE, label, "busy"),
            Some(Err(AttemptError::NotJson)),
            "{label}"
        );
        assert_eq!(
            sniff(ExpectedBody::Json, WHOLE, label, "<html>"),
            Some(Err(AttemptError::Html)),
            "{label}"
        );
        assert_eq!(sniff(ExpectedBody::Json, WHOLE, label, " \r\n\t"), None, "{label}");
    }
    let events = "text/event-stream; charset=utf-8";
    assert_eq!(sniff(ExpectedBody::Json, WHOLE, events, ": ping"), Some(Ok(BodyKind::Events)));
    assert_eq!(sniff(ExpectedBody::Json, STREAM, events, "{"), Some(Ok(BodyKind::Json)));
    assert_eq!(sniff(ExpectedBody::Json, STREAM, events, "<"), Some(Err(AttemptError::Html)));
}

#[test]
fn a_byte_order_mark_is_skipped_wherever_it_is_split() {
    let mut sniffer = sniffer(ExpectedBody::Json, WHOLE, "application/json");
    for byte in BYTE_ORDER_MARK {
        assert_eq!(sniffer.read(&[*byte]), None);
    }
    assert_eq!(sniffer.read(b"["), Some(Ok(BodyKind::Json)));
}

#[test]
fn audio_transcriptions_and_vectors_pass_unread() {
    for (expected, label, body) in [
        (ExpectedBody::Media, "text/plain", "[music]"),
        (ExpectedBody::Media, "text/plain", "<unk>"),
        (ExpectedBody::Media, "audio/mpeg", "<binary"),
        (ExpectedBody::JsonOrBinary, "application/octet-stream", "{binary"),
        (ExpectedBody::Anything, "text/html", "<html>"),
        (ExpectedBody::Anything, "", "pong"),
    ] {
        assert_eq!(sniff(expected, WHOLE, label, body), Some(Ok(BodyKind::Opaque)), "{label} {body}");
    }
    let web_page = sniff(ExpectedBody::Media, WHOLE, "text/html", "<html>");
    assert_eq!(web_page, Some(Err(AttemptError::Html)), "a web page is neither audio nor a transcription");
}

#[test]
fn a_compressed_body_passes_unread() {
    let kind = (CONTENT_TYPE, HeaderValue::from_static("application/json"));
    let headers = HeaderMap::from_iter([kind, (CONTENT_ENCODING, HeaderValue::from_static("gzip"))]);
    let mut sniffer = BodySniffer::new(ExpectedBody::Json, WHOLE, &headers);
    assert_eq!(sniffer.read(b"\x1f\x8b"), Some(Ok(BodyKind::Opaque)));
}

#[test]
fn only_media_and_extra_paths_may_be_empty() {
    let finish = |expected, label| sniffer(expected, WHOLE, label).finish();
    assert_eq!(finish(ExpectedBody::Json, "application/json"), Err(AttemptError::Empty));
    assert_eq!(finish(ExpectedBody::JsonOrBinary, "application/octet-stream"), Err(AttemptError::Empty));
    assert_eq!(finish(ExpectedBody::Media, "text/plain"), Ok(BodyKind::Opaque));
    assert_eq!(finish(ExpectedBody::Anything, ""), Ok(BodyKind::Opaque));
    assert_eq!(finish(ExpectedBody::Anything, "text/event-stream"), Err(AttemptError::Empty));
}

#[test]
fn an_incomplete_json_body_is_an_error() {
    let usage = Some(Usage { input: 1, cached: 0, output: 2 });
    let reported = |body: &str| check_json(body.as_bytes()).map(|body| body.usage);
    assert_eq!(reported(r#"{"usage":{"prompt_tokens":1,"completion_tokens":2}} "#), Ok(usage));
    assert_eq!(reported("\u{FEFF}{\"usage\":{\"prompt_tokens\":1,\"completion_tokens\":2}}"), Ok(usage));
    assert_eq!(reported(r#"[{"score":0.5}]"#), Ok(None));
    let python = r#"{"a":[NaN,-Infinity],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#;
    assert_eq!(reported(python), Ok(usage));
    for broken in ["", "{", r#"{"a":"#, "<html>", r#"{"a":1}}"#, r#"{"a":nope}"#] {
        assert_eq!(reported(broken), Err(AttemptError::NotJson), "{broken}");
    }
}

#[test]
fn a_lone_error_of_the_node_fails_and_a_clients_error_passes() {
    let is_client_error = |body: &str| check_json(body.as_bytes()).map(|body| body.is_client_error);
    for body in [
        r#"{"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}"#,
        r#"{"error":"engine is dead"}"#,
        r#"{"error":{"type":"server_error"},"choices":[],"detail":{"trace":["x"]}}"#,
        r#"{"type":"error","error":{"type":"api_error"},"request_id":"req_1"}"#,
        r#"{"object":"error","message":"x","type":"InternalServerError","param":null,"code":500}"#,
    ] {
        assert_eq!(is_client_error(body), Err(AttemptError::ReportedError), "{body}");
    }
    assert_eq!(is_client_error(r#"{"error":{"code":429}}"#), Err(AttemptError::Busy { retry_after: None }));
    for body in [
        r#"{"error":{"type":"invalid_request_error","code":"context_length_exceeded"}}"#,
        r#"{"object":"error","message":"x","type":"BadRequestError","code":400}"#,
    ] {
        assert_eq!(is_client_error(body), Ok(true), "{body}");
    }
    for body in [
        r#"{"choices":[{"text":"x"}],"error":{"code":500}}"#,
        r#"{"object":"response","output":[{"type":"message"}],"error":null}"#,
        r#"{"object":"response","output":[],"error":null}"#,
        r#"{"input_tokens":3}"#,
        r#"[{"error":{"code":500}}]"#,
    ] {
        assert_eq!(is_client_error(body), Ok(false), "{body}");
    }
}

fn sniffer(expected: ExpectedBody, mode: ResponseMode, label: &'static str) -> BodySniffer {
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(label))]);
    BodySniffer::new(expected, mode, &headers)
}

fn sniff(
    expected: ExpectedBody,
    mode: ResponseMode,
    label: &'static str,
    body: &str,
) -> Option<Result<BodyKind, AttemptError>> {
    sniffer(expected, mode, label).read(body.as_bytes())
}
