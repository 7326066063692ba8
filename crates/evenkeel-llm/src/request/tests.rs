use super::*;
use serde_json::{Value, json};

#[test]
fn a_plain_chat_is_read() {
    let ask = chat(json!({"max_tokens": 50})).unwrap();
    assert_eq!((ask.model.as_str(), ask.delivery), ("m", Delivery::Whole));
    assert_eq!((ask.usage, ask.output_max), (UsageWish::NotAsked, Some(50)));
    assert!(ask.affinity.is_some());
}

#[test]
fn what_is_wrong_is_named() {
    for (change, param) in [
        (json!({"model": null}), "model"),
        (json!({"model": 7}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"model": "m".repeat(MODEL_BYTES_MAX + 1)}), "model"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": {}}), "messages"),
        (json!({"messages": ["hello"]}), "messages"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": []}), "stream_options"),
        (json!({"stream_options": {"Include_usage": true}}), "stream_options"),
        (json!({"stream_options": {"include_usage": 1}}), "include_usage"),
        (json!({"max_tokens": "many"}), "max_tokens"),
        (json!({"max_tokens": 1.5}), "max_tokens"),
        (json!({"n": []}), "n"),
        (json!({"Model": "other"}), "model"),
        (json!({"\u{17f}tream": true}), "stream"),
    ] {
        match chat(change.clone()) {
            Err(Refusal::Invalid { param: Some(named), .. }) => assert_eq!(named, param, "{change}"),
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[test]
fn counts_are_asked_for_where_the_client_did_not() {
    for (given, forwarded) in [
        (r#"{"stream":true}"#, r#"{"stream_options":{"include_usage":true},"stream":true}"#),
        (
            r#"{"stream":true,"stream_options":null}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream":true,"stream_options":{}}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true}}"#,
        ),
        (
            r#"{"stream_options": { "x":1},"stream":true}"#,
            r#"{"stream_options": {"include_usage":true, "x":1},"stream":true}"#,
        ),
        (
            r#"{"stream_options":{"include_usage": false },"stream":true}"#,
            r#"{"stream_options":{"include_usage": true },"stream":true}"#,
        ),
        (r#"{"stream_options":{"include_usage":true},"stream":true}"#, ""),
        (r#"{"stream":false}"#, ""),
        (r#"{"stream_options":{"include_usage":false}}"#, ""),
    ] {
        let with_model = |text: &str| text.replacen('{', r#"{"model":"m","#, 1);
        let body = Bytes::from(with_model(given));
        let ask = Ask::parse(Endpoint::Completions, &body).unwrap();
        let expected = if forwarded.is_empty() { given } else { forwarded };
        let expected: Value = serde_json::from_str(&with_model(expected)).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&ask.forwarded(&body)).unwrap(), expected, "{given}");
    }
}

#[test]
fn what_is_not_changed_is_not_copied() {
    let body = Bytes::from_static(br#"{"model":"m","prompt":"x"}"#);
    let ask = Ask::parse(Endpoint::Completions, &body).unwrap();
    assert_eq!(ask.forwarded(&body).as_ptr(), body.as_ptr());
}

fn chat(change: Value) -> Result<Ask, Refusal> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    Ask::parse(Endpoint::Chat, &Bytes::from(body.to_string()))
}
