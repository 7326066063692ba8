use super::*;
use serde_json::{Value, json};

#[test]
fn a_plain_chat_is_read() {
    let ask = chat(json!({"max_tokens": 50})).unwrap();
    assert_eq!((ask.model.as_str(), ask.delivery), ("m", ResponseMode::Whole));
    assert_eq!((ask.usage, ask.output_max), (IncludeUsage::NotAsked, Some(50)));
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
            Err(ApiError::Invalid { param: Some(named), .. }) => assert_eq!(named, param, "{change}"),
            other => panic!("{change}: {other:?}"),
        }
    }
}

#[test]
fn what_is_missing_is_named() {
    for (body, param) in [
        ("{}", Some("model")),
        (r#"{"messages":[]}"#, Some("model")),
        (r#"{"model":"m"}"#, Some("messages")),
        ("[]", None),
        ("7", None),
    ] {
        let refused = LlmRequest::parse(Endpoint::Chat, &Bytes::from_static(body.as_bytes())).unwrap_err();
        let ApiError::Invalid { param: named, .. } = refused else { panic!("{body}: {refused:?}") };
        assert_eq!(named.as_deref(), param, "{body}");
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
        let ask = LlmRequest::parse(Endpoint::Completions, &body).unwrap();
        let expected = if forwarded.is_empty() { given } else { forwarded };
        let expected: Value = serde_json::from_str(&with_model(expected)).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&ask.forwarded(&body)).unwrap(), expected, "{given}");
    }
}

#[test]
fn what_is_not_changed_is_not_copied() {
    let body = Bytes::from_static(br#"{"model":"m","prompt":"x"}"#);
    let ask = LlmRequest::parse(Endpoint::Completions, &body).unwrap();
    assert_eq!(ask.forwarded(&body).as_ptr(), body.as_ptr());
}

#[test]
fn the_newest_name_of_a_limit_counts_wherever_it_stands() {
    for (first, second) in [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
    {
        let body = format!(r#"{{"model":"m","{first}":{{}},"{second}":{{}}}}"#);
        let value = |name: &str| if name == "max_tokens" { "5" } else { "9" };
        let body = body.replacen("{}", value(first), 1).replacen("{}", value(second), 1);
        assert_eq!(parse(Endpoint::Other, &body).output_max, Some(9), "{body}");
    }
    assert_eq!(parse(Endpoint::Other, r#"{"model":"m","max_output_tokens":4}"#).output_max, Some(4));
}

#[test]
fn every_answer_to_every_prompt_may_be_as_long_as_allowed() {
    for (prompt, answers) in [
        (r#""one""#, 1),
        (r#"["one"]"#, 1),
        (r#"["one","two"]"#, 2),
        ("[1,2,3]", 1),
        ("[[1,2],[3]]", 2),
        (r#""one","n":3"#, 3),
        (r#"["one","two"],"n":3,"best_of":5"#, 10),
        (r#""one","n":0"#, 1),
        (r#""one","n":null"#, 1),
    ] {
        let body = format!(r#"{{"model":"m","max_tokens":10,"prompt":{prompt}}}"#);
        assert_eq!(parse(Endpoint::Completions, &body).output_max, Some(10 * answers), "{prompt}");
    }
}

#[test]
fn embeddings_make_no_tokens() {
    let ask = parse(Endpoint::Embeddings, r#"{"model":"m","input":["four","five5"],"max_tokens":9}"#);
    assert_eq!((ask.input_tokens, ask.output_max, ask.affinity), (3, Some(0), None));
    assert_eq!(parse(Endpoint::Embeddings, r#"{"model":"m","input":[[1,2],[3]]}"#).input_tokens, 3);
}

#[test]
fn what_the_model_reads_is_counted_and_pictures_are_flat() {
    let text = chat(json!({"messages": [{"role": "user", "content": "x".repeat(4_000)}]})).unwrap();
    assert!((1_000..1_010).contains(&text.input_tokens), "{}", text.input_tokens);
    for size in [10, 1_000_000] {
        let picture = json!({"type": "image_url", "image_url": {"url": "x".repeat(size)}});
        let ask = chat(json!({"messages": [{"role": "user", "content": [picture]}]})).unwrap();
        assert!((1_000..1_010).contains(&ask.input_tokens), "{}", ask.input_tokens);
    }
    let tools = json!([{"type": "function", "function": {"parameters": {"image_url": "x".repeat(400)}}}]);
    let ask = chat(json!({"tools": tools})).unwrap();
    assert!((100..130).contains(&ask.input_tokens), "{}", ask.input_tokens);
}

#[test]
fn turns_of_a_conversation_meet_again_and_others_do_not() {
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let turn = |messages: Value| chat(json!({"messages": messages})).unwrap().affinity;
    let first = turn(json!([said("system", "be brief"), said("user", "hello")]));
    let second =
        [said("system", "be brief"), said("user", "hello"), said("assistant", "hi"), said("user", "x")];
    assert_eq!(turn(json!(second)), first);
    for other in [
        json!([said("system", "be brief"), said("user", "hello!")]),
        json!([said("system", "be long"), said("user", "hello")]),
        json!([said("user", "hello")]),
    ] {
        assert_ne!(turn(other.clone()), first, "{other}");
    }
    let of_other_model = chat(json!({"model": "n", "messages": second})).unwrap().affinity;
    assert_ne!(of_other_model, first);
}

#[test]
fn only_the_beginning_of_a_message_tells_conversations_apart() {
    let affinity = |tail: &str| {
        let content = format!("{}{tail}", "x".repeat(1_024));
        chat(json!({"messages": [{"role": "user", "content": content}]})).unwrap().affinity
    };
    assert_eq!(affinity("one"), affinity("two"));
}

#[test]
fn a_name_given_to_the_conversation_counts_instead_of_its_words() {
    let named = |change: Value| {
        let affinity = |content: &str| {
            let mut change = change.clone();
            change["messages"] = json!([{"role": "user", "content": content}]);
            chat(change).unwrap().affinity
        };
        (affinity("one") == affinity("two")).then(|| affinity("one"))
    };
    assert_eq!(named(json!({})), None);
    assert_eq!(named(json!({"user": ""})), None);
    assert_eq!(named(json!({"metadata": {"colour": "red"}, "user": null, "conversation": []})), None);
    let key = named(json!({"prompt_cache_key": "a"}));
    assert!(key.is_some());
    assert_eq!(named(json!({"prompt_cache_key": "a", "conversation": {"id": "b"}, "user": "c"})), key);
    let conversation = named(json!({"conversation": "b"}));
    assert_eq!(named(json!({"user": "c", "conversation": {"x": 1, "id": "b"}})), conversation);
    assert_ne!(conversation, key);
    let session = named(json!({"metadata": {"user_id": "c", "session_id": "s"}}));
    assert_eq!(named(json!({"metadata": {"session_id": "s"}, "user": "c"})), session);
}

#[test]
fn an_affinity_is_the_same_for_ever() {
    let ask = parse(Endpoint::Other, r#"{"model":"m","prompt_cache_key":"conversation 1"}"#);
    assert_eq!(ask.affinity, Some(3_056_119_902_571_641_871));
    let ask = parse(Endpoint::Completions, r#"{"model":"m","prompt":"hello"}"#);
    assert_eq!(ask.affinity, Some(8_806_813_052_248_375_744));
}

#[test]
fn a_conversation_of_responses_returns_to_its_node_as_a_chat_does() {
    let affinity = |input: Value| {
        let body = json!({"model": "m", "instructions": "be brief", "input": input}).to_string();
        parse(Endpoint::Responses, &body).affinity
    };
    let user = |said: &str| json!({"role": "user", "content": said});
    let first = affinity(json!([user("hello")]));
    let answered =
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]});
    assert_eq!(affinity(json!([user("hello"), answered, user("and then?")])), first);
    assert_ne!(affinity(json!([user("another")])), first);
    let refused =
        LlmRequest::parse(Endpoint::Responses, &Bytes::from_static(br#"{"model":"m","input":["x"]}"#));
    assert_eq!(refused.unwrap_err().to_string(), "each of input must be an object");
}

#[test]
fn what_no_model_reads_costs_next_to_nothing() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a long story"}]}"#;
    let ask = parse(Endpoint::CountTokens, body);
    assert_eq!((ask.input_tokens, ask.output_max), (1, Some(0)));
    assert!(1 < parse(Endpoint::Messages, body).input_tokens);
}

#[test]
fn how_long_speech_is_the_text_says() {
    let ask = parse(Endpoint::Speech, r#"{"model":"m","voice":"alloy","input":"eight by"}"#);
    assert_eq!((ask.input_tokens, ask.output_known), (2, Some(12)));
}

fn parse(endpoint: Endpoint, body: &str) -> LlmRequest {
    LlmRequest::parse(endpoint, &Bytes::copy_from_slice(body.as_bytes())).unwrap()
}

fn chat(change: Value) -> Result<LlmRequest, ApiError> {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hello"}]});
    for (name, value) in change.as_object().unwrap() {
        body[name] = value.clone();
    }
    LlmRequest::parse(Endpoint::Chat, &Bytes::from(body.to_string()))
}
