use super::*;
use serde_json::{Value, json};

#[test]
fn a_plain_chat_is_parsed() {
    let request = chat(json!({"max_tokens": 50})).unwrap();
    assert_eq!((request.model.as_str(), request.mode), ("m", ResponseMode::NonStreaming));
    assert_eq!((request.usage, request.output_tokens_max), (IncludeUsage::NotRequested, Some(50)));
    assert!(request.affinity("m").is_some());
}

#[test]
fn an_error_names_the_invalid_field() {
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
        // Names that differ only in case are rejected; U+017F (long s) folds to s.
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
fn an_error_names_the_missing_field_if_the_body_is_an_object() {
    for (body, param) in [
        ("{}", Some("model")),
        (r#"{"messages":[]}"#, Some("model")),
        (r#"{"model":"m"}"#, Some("messages")),
        ("[]", None),
        ("7", None),
    ] {
        let error = LlmRequest::parse(Endpoint::Chat, &Bytes::from_static(body.as_bytes())).unwrap_err();
        let ApiError::Invalid { param: named, .. } = error else { panic!("{body}: {error:?}") };
        assert_eq!(named.as_deref(), param, "{body}");
    }
}

#[test]
fn include_usage_is_added_to_streams_that_lack_it() {
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
        let request = LlmRequest::parse(Endpoint::Completions, &body).unwrap();
        let expected = if forwarded.is_empty() { given } else { forwarded };
        let expected: Value = serde_json::from_str(&with_model(expected)).unwrap();
        assert_eq!(
            serde_json::from_slice::<Value>(&request.forwarded(&body, None)).unwrap(),
            expected,
            "{given}"
        );
    }
}

#[test]
fn another_model_replaces_only_the_value_of_the_field() {
    for (given, forwarded) in [
        (r#"{ "model" : "m" ,"prompt":"m"}"#, r#"{ "model" : "a/\"b\"" ,"prompt":"m"}"#),
        (
            r#"{"stream":true,"stream_options":{},"model":"m"}"#,
            r#"{"stream":true,"stream_options":{"include_usage":true},"model":"a/\"b\""}"#,
        ),
        (
            r#"{"model":"m","stream_options":null,"stream":true}"#,
            r#"{"model":"a/\"b\"","stream_options":{"include_usage":true},"stream":true}"#,
        ),
    ] {
        let body = Bytes::from(given);
        let request = LlmRequest::parse(Endpoint::Completions, &body).unwrap();
        assert_eq!(request.forwarded(&body, Some(r#"a/"b""#)), forwarded);
        let plain = given.replacen(r#""m""#, r#""a/\"b\"""#, 1);
        assert_eq!(request.forwarded_without_usage(&body, Some(r#"a/"b""#)), plain);
    }
}

#[test]
fn an_unchanged_body_is_not_copied() {
    let body = Bytes::from_static(br#"{"model":"m","prompt":"x"}"#);
    let request = LlmRequest::parse(Endpoint::Completions, &body).unwrap();
    assert_eq!(request.forwarded(&body, None).as_ptr(), body.as_ptr());
}

#[test]
fn max_completion_tokens_takes_precedence_over_max_tokens_in_any_order() {
    for (first, second) in [("max_tokens", "max_completion_tokens"), ("max_completion_tokens", "max_tokens")]
    {
        let body = format!(r#"{{"model":"m","{first}":{{}},"{second}":{{}}}}"#);
        let value = |name: &str| if name == "max_tokens" { "5" } else { "9" };
        let body = body.replacen("{}", value(first), 1).replacen("{}", value(second), 1);
        assert_eq!(parse(Endpoint::Other, &body).output_tokens_max, Some(9), "{body}");
    }
    assert_eq!(parse(Endpoint::Other, r#"{"model":"m","max_output_tokens":4}"#).output_tokens_max, Some(4));
}

#[test]
fn the_output_limit_applies_to_every_choice_of_every_prompt() {
    for (prompt, choices) in [
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
        assert_eq!(parse(Endpoint::Completions, &body).output_tokens_max, Some(10 * choices), "{prompt}");
    }
}

#[test]
fn embeddings_have_no_output_tokens() {
    let request = parse(Endpoint::Embeddings, r#"{"model":"m","input":["four","five5"],"max_tokens":9}"#);
    assert_eq!((request.input_tokens, request.output_tokens_max, request.affinity("m")), (3, Some(0), None));
    assert_eq!(parse(Endpoint::Embeddings, r#"{"model":"m","input":[[1,2],[3]]}"#).input_tokens, 3);
}

#[test]
fn text_is_estimated_by_length_and_an_image_at_a_flat_rate() {
    let text = chat(json!({"messages": [{"role": "user", "content": "x".repeat(4_000)}]})).unwrap();
    assert!((1_000..1_010).contains(&text.input_tokens), "{}", text.input_tokens);
    for size in [10, 1_000_000] {
        let image = json!({"type": "image_url", "image_url": {"url": "x".repeat(size)}});
        let request = chat(json!({"messages": [{"role": "user", "content": [image]}]})).unwrap();
        assert!((1_000..1_010).contains(&request.input_tokens), "{}", request.input_tokens);
    }
    let tools = json!([{"type": "function", "function": {"parameters": {"image_url": "x".repeat(400)}}}]);
    let request = chat(json!({"tools": tools})).unwrap();
    assert!((100..130).contains(&request.input_tokens), "{}", request.input_tokens);
}

#[test]
fn the_turns_of_a_conversation_share_an_affinity_and_others_do_not() {
    let message = |role: &str, text: &str| json!({"role": role, "content": text});
    let turn = |messages: Value| chat(json!({"messages": messages})).unwrap().affinity("m");
    let first = turn(json!([message("system", "be brief"), message("user", "hello")]));
    let second = [
        message("system", "be brief"),
        message("user", "hello"),
        message("assistant", "hi"),
        message("user", "x"),
    ];
    assert_eq!(turn(json!(second)), first);
    for other in [
        json!([message("system", "be brief"), message("user", "hello!")]),
        json!([message("system", "be long"), message("user", "hello")]),
        json!([message("user", "hello")]),
    ] {
        assert_ne!(turn(other.clone()), first, "{other}");
    }
    let other_model = chat(json!({"messages": second})).unwrap().affinity("n");
    assert_ne!(other_model, first);
}

#[test]
fn affinity_uses_the_first_1024_bytes_of_a_message() {
    let affinity = |tail: &str| {
        let content = format!("{}{tail}", "x".repeat(1_024));
        chat(json!({"messages": [{"role": "user", "content": content}]})).unwrap().affinity("m")
    };
    assert_eq!(affinity("one"), affinity("two"));
}

#[test]
fn an_explicit_id_determines_the_affinity() {
    let affinity_from_id = |change: Value| {
        let affinity = |content: &str| {
            let mut change = change.clone();
            change["messages"] = json!([{"role": "user", "content": content}]);
            chat(change).unwrap().affinity("m")
        };
        (affinity("one") == affinity("two")).then(|| affinity("one"))
    };
    assert_eq!(affinity_from_id(json!({})), None);
    assert_eq!(affinity_from_id(json!({"user": ""})), None);
    assert_eq!(
        affinity_from_id(json!({"metadata": {"colour": "red"}, "user": null, "conversation": []})),
        None
    );
    let key = affinity_from_id(json!({"prompt_cache_key": "a"}));
    assert!(key.is_some());
    assert_eq!(
        affinity_from_id(json!({"prompt_cache_key": "a", "conversation": {"id": "b"}, "user": "c"})),
        key
    );
    let conversation = affinity_from_id(json!({"conversation": "b"}));
    assert_eq!(affinity_from_id(json!({"user": "c", "conversation": {"x": 1, "id": "b"}})), conversation);
    assert_ne!(conversation, key);
    let session = affinity_from_id(json!({"metadata": {"user_id": "c", "session_id": "s"}}));
    assert_eq!(affinity_from_id(json!({"metadata": {"session_id": "s"}, "user": "c"})), session);
}

#[test]
fn affinity_is_stable_across_versions() {
    let request = parse(Endpoint::Other, r#"{"model":"m","prompt_cache_key":"conversation 1"}"#);
    assert_eq!(request.affinity("m"), Some(3_056_119_902_571_641_871));
    let request = parse(Endpoint::Completions, r#"{"model":"m","prompt":"hello"}"#);
    assert_eq!(request.affinity("m"), Some(8_806_813_052_248_375_744));
}

#[test]
fn the_turns_of_a_responses_conversation_share_an_affinity() {
    let affinity = |input: Value| {
        let body = json!({"model": "m", "instructions": "be brief", "input": input}).to_string();
        parse(Endpoint::Responses, &body).affinity("m")
    };
    let user = |text: &str| json!({"role": "user", "content": text});
    let first = affinity(json!([user("hello")]));
    let reply =
        json!({"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]});
    assert_eq!(affinity(json!([user("hello"), reply, user("and then?")])), first);
    assert_ne!(affinity(json!([user("another")])), first);
    let rejected =
        LlmRequest::parse(Endpoint::Responses, &Bytes::from_static(br#"{"model":"m","input":["x"]}"#));
    assert_eq!(rejected.unwrap_err().to_string(), "each of input must be an object");
}

#[test]
fn count_tokens_requests_cost_one_token() {
    let body = r#"{"model":"m","messages":[{"role":"user","content":"a long story"}]}"#;
    let request = parse(Endpoint::CountTokens, body);
    assert_eq!((request.input_tokens, request.output_tokens_max), (1, Some(0)));
    assert!(parse(Endpoint::Messages, body).input_tokens > 1);
}

#[test]
fn speech_output_tokens_are_computed_from_the_text() {
    let request = parse(Endpoint::Speech, r#"{"model":"m","voice":"alloy","input":"eight by"}"#);
    assert_eq!((request.input_tokens, request.output_tokens_exact), (2, Some(12)));
}

#[test]
fn a_session_is_the_user_before_the_conversation() {
    let session = |fields: Value| chat(fields).unwrap().session;
    let amy = session(json!({"user": "amy"}));
    assert!(amy.is_some() && amy != session(json!({"user": "ben"})));
    let cached =
        json!({"prompt_cache_key": "c1", "user": "amy", "metadata": {"user_id": "m"}, "conversation": "c"});
    assert_eq!(session(cached), amy);
    assert_eq!(session(json!({"safety_identifier": "amy"})), amy);
    let metadata = session(json!({"metadata": {"user_id": "m"}}));
    assert!(metadata.is_some());
    assert_eq!(session(json!({"metadata": {"user_id": "m"}, "session_id": "s"})), metadata);
    let conversation = session(json!({"session_id": "s"}));
    assert_eq!(session(json!({"session_id": "s", "prompt_cache_key": "k"})), conversation);
    assert!(session(json!({"prompt_cache_key": "k"})).is_some());
    assert_eq!(session(json!({})), None, "the text of a conversation names no session");
    assert_eq!(session(json!({"user": ""})), None);
}

#[test]
fn a_service_tier_stands_for_a_class_and_is_passed_on() {
    let class = |tier: Value| {
        let request = chat(json!({"service_tier": tier})).unwrap();
        assert_eq!(request.splice, None);
        request.class
    };
    assert_eq!(class(json!("priority")), Some(Class::High));
    assert_eq!(class(json!("flex")), Some(Class::Low));
    for tier in [json!("auto"), json!("default"), json!("scale"), json!(null), json!(7)] {
        assert_eq!(class(tier), None);
    }
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
