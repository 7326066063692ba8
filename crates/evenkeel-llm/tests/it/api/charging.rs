//! Charging: by reported usage, or by the generated text, never by the JSON around it.

use evenkeel_llm::usage::CachedCost;
use evenkeel_llm::{LlmOptions, NodeOptions};
use serde_json::{Value, json};

use super::engine::{Engine, EngineRequest, events};
use super::harness::{CHAT, CHAT_BODY, CHAT_STREAM_BODY, Gateway, node, tenant};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const COMPLETIONS: &str = "/v1/completions";
/// 40 bytes of text: 10 tokens.
const TEXT: &str = "ten tokens of four bytes each, of text!!";

/// Returns the total cost charged to the tenant `open`.
async fn charged(gateway: &Gateway) -> u64 {
    gateway.wait_until_idle().await;
    let metrics = gateway.registry.render();
    let prefix = r#"evenkeel_cost_units_total{pool="llm",tenant="open"} "#;
    let line = metrics.lines().find_map(|line| line.strip_prefix(prefix));
    line.map_or(0, |cost| cost.parse().unwrap())
}

async fn gateway(reply: impl Fn(EngineRequest) + Send + 'static) -> Gateway {
    let url = Engine::reply_always_with(reply).await;
    Gateway::with_nodes(vec![node("a", &url, 8)]).await
}

/// Returns log probabilities that are much longer than the text.
fn logprobs() -> Value {
    let alternatives = vec![json!({"token": "content", "logprob": -1.5, "bytes": [1, 2, 3]}); 20];
    json!({"content": vec![json!({"token": "text", "bytes": [4, 5], "top_logprobs": alternatives}); 10]})
}

/// Returns a request of every API for the same text.
fn request(path: &str, stream: bool) -> String {
    let mut request = json!({"model": "m", "stream": stream, "max_tokens": 2_000});
    match path {
        COMPLETIONS => request["prompt"] = "hello".into(),
        RESPONSES => request["input"] = "hello".into(),
        _ => request["messages"] = json!([{"role": "user", "content": "hello"}]),
    }
    request.to_string()
}

#[tokio::test]
async fn a_whole_response_without_usage_is_charged_by_its_text() {
    let arguments = json!({"city": "Hamburg, the harbour", "days": 7}).to_string();
    let message = |message: Value| json!({"choices": [{"message": message, "logprobs": logprobs()}]});
    let call =
        json!({"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": arguments}});
    let item = |item: Value| json!({"object": "response", "instructions": TEXT.repeat(50), "output": [item]});
    for (path, response, text) in [
        (CHAT, message(json!({"content": TEXT})), TEXT.len()),
        (
            CHAT,
            message(json!({"content": TEXT, "reasoning_content": TEXT, "reasoning": TEXT})),
            2 * TEXT.len(),
        ),
        (CHAT, message(json!({"content": null, "tool_calls": [call]})), arguments.len()),
        (CHAT, message(json!({"audio": {"data": "A".repeat(9_000), "transcript": TEXT}})), TEXT.len()),
        (
            COMPLETIONS,
            json!({"choices": [{"text": TEXT, "logprobs": logprobs()}, {"text": TEXT}]}),
            2 * TEXT.len(),
        ),
        (
            MESSAGES,
            json!({"type": "message", "content": [
            {"type": "thinking", "thinking": TEXT, "signature": "A".repeat(9_000)}, {"type": "text", "text": TEXT}]}),
            2 * TEXT.len(),
        ),
        (
            MESSAGES,
            json!({"type": "message", "content": [
            {"type": "tool_use", "name": "weather", "input": {"city": "Hamburg, the harbour", "days": 7}}]}),
            arguments.len(),
        ),
        (
            RESPONSES,
            item(json!({"content": [{"type": "output_text", "text": TEXT, "logprobs": logprobs()}]})),
            TEXT.len(),
        ),
        (
            RESPONSES,
            item(json!({"type": "function_call", "name": "weather", "arguments": arguments})),
            arguments.len(),
        ),
    ] {
        let body = response.to_string();
        let gateway = gateway(move |received| received.reply_json(&body)).await;
        let response = gateway.post(path, &request(path, false)).await;
        assert_eq!(response.status, 200, "{}", response.body);
        let input = input_tokens(path).await;
        assert_eq!(charged(&gateway).await, input + 2 * text.div_ceil(4) as u64, "{path} {}", response.body);
    }
}

/// Returns the estimated prompt tokens of [`request`].
async fn input_tokens(path: &'static str) -> u64 {
    let gateway = gateway(|received| received.reply_json(r#"{"choices":[],"content":[],"output":[]}"#)).await;
    gateway.post(path, &request(path, false)).await;
    charged(&gateway).await
}

#[tokio::test]
async fn a_stream_without_usage_is_charged_by_its_text() {
    let chunk = |delta: Value| json!({"choices": [{"delta": delta, "logprobs": logprobs()}]});
    let call = |arguments: &str| json!({"tool_calls": [{"index": 0, "function": {"arguments": arguments}}]});
    let block = |delta: Value| json!({"type": "content_block_delta", "index": 0, "delta": delta});
    let delta = |kind: &str, text: &str| json!({"type": kind, "delta": text, "logprobs": []});
    for (path, event, end) in [
        (CHAT, chunk(json!({"content": "word"})), "[DONE]"),
        (CHAT, chunk(json!({"reasoning": "word", "reasoning_content": "word"})), "[DONE]"),
        (CHAT, chunk(call("{\"a\"")), "[DONE]"),
        (COMPLETIONS, json!({"choices": [{"text": "word", "logprobs": logprobs()}]}), "[DONE]"),
        (MESSAGES, block(json!({"type": "text_delta", "text": "word"})), r#"{"type":"message_stop"}"#),
        (
            MESSAGES,
            block(json!({"type": "input_json_delta", "partial_json": "word"})),
            r#"{"type":"message_stop"}"#,
        ),
        (
            RESPONSES,
            delta("response.output_text.delta", "word"),
            r#"{"type":"response.completed","response":{}}"#,
        ),
        (
            RESPONSES,
            delta("response.function_call_arguments.delta", "word"),
            r#"{"type":"response.completed","response":{}}"#,
        ),
    ] {
        for text in ["word", &"word".repeat(5)] {
            // Whether a delta is one token or five, the text has a token per four bytes.
            let event = event.to_string().replace("\"word\"", &format!("\"{text}\""));
            let event = event.replace(r#"{\"a\""#, &r#"{\"a\""#.repeat(text.len() / 4));
            let last = end.to_owned();
            let gateway = gateway(move |received| {
                let (sender, _) = received.stream();
                events(&sender, &[event.as_str(); 20]);
                events(&sender, &[&last]);
            })
            .await;
            let response = gateway.post(path, &request(path, true)).await;
            assert!(!response.body.contains("bad_upstream"), "{}", response.body);
            let tokens = 20 * text.len() as u64 / 4;
            let cost = input_tokens(path).await + 2 * tokens;
            assert_eq!(charged(&gateway).await, cost, "{path} {}", response.body);
        }
    }
}

#[tokio::test]
async fn a_response_of_megabytes_is_charged_by_its_text() {
    let filler = json!({"tokens": vec!["A".repeat(1_000); 2_000]});
    let body = json!({"choices": [{"message": {"content": TEXT}, "logprobs": filler}]}).to_string();
    assert!(body.len() > 1 << 20);
    let gateway = gateway(move |received| received.reply_json(&body)).await;
    gateway.post(CHAT, &request(CHAT, false)).await;
    assert_eq!(charged(&gateway).await, input_tokens(CHAT).await + 2 * 10);
}

#[tokio::test]
async fn the_length_of_a_models_tokens_is_learned_from_reported_usage() {
    let gateway = gateway(|received| {
        let mut response = json!({"choices": [{"message": {"content": TEXT.repeat(10)}}]});
        if received.body.windows(5).any(|part| part == b"learn") {
            response["usage"] = json!({"prompt_tokens": 1, "completion_tokens": 200});
        }
        received.reply_json(&response.to_string());
    })
    .await;
    let learn = r#"{"model":"m","messages":[{"role":"user","content":"learn"}]}"#;
    gateway.post(CHAT, learn).await;
    let before = charged(&gateway).await;
    assert_eq!(before, 1 + 2 * 200);
    gateway.post(CHAT, CHAT_BODY).await;
    let output = charged(&gateway).await - before;
    assert!((400..=410).contains(&output), "{output}: a token has two bytes");
}

#[tokio::test]
async fn vectors_and_images_are_charged_by_input_and_number() {
    let base64 = json!({"data": [{"embedding": "A".repeat(9_000)}]}).to_string();
    let floats = json!({"data": [{"embedding": vec![0.125; 4_000]}]}).to_string();
    let image = json!({"data": [{"b64_json": "A".repeat(90_000)}]}).to_string();
    let input = r#"{"model":"m","input":"four by five is 20.."}"#;
    for (path, request, response, cost) in [
        ("/v1/embeddings", input, base64.clone(), 5),
        ("/v1/embeddings", input, floats.clone(), 5),
        ("/v1/pooling", input, floats, 5),
        ("/v1/classify", input, r#"{"data":[{"label":"x","probs":[1]}]}"#.to_owned(), 5),
        (
            "/v1/images/generations",
            r#"{"model":"m","prompt":"four by five is 20.."}"#,
            image.clone(),
            5 + 2 * 1_000,
        ),
        (
            "/v1/images/generations",
            r#"{"model":"m","prompt":"four by five is 20..","n":3}"#,
            image,
            5 + 2 * 3_000,
        ),
    ] {
        let gateway = gateway(move |received| received.reply_json(&response)).await;
        assert_eq!(gateway.post(path, request).await.status, 200);
        assert_eq!(charged(&gateway).await, cost, "{path} {request}");
    }
}

#[tokio::test]
async fn cached_prompt_tokens_cost_a_fraction_and_count_in_full_against_tokens_per_minute() {
    let openai =
        r#"{"prompt_tokens":1000,"completion_tokens":10,"prompt_tokens_details":{"cached_tokens":900}}"#;
    let anthropic = r#"{"input_tokens":60,"cache_read_input_tokens":900,"cache_creation_input_tokens":40,"output_tokens":10}"#;
    for (usage, fraction, cost) in
        [(openai, 0.1, 100 + 90 + 20), (anthropic, 0.1, 100 + 90 + 20), (openai, 0.5, 100 + 450 + 20)]
    {
        let body = format!(r#"{{"choices":[],"usage":{usage}}}"#);
        let url = Engine::reply_always_with(move |received| received.reply_json(&body)).await;
        let options = LlmOptions {
            nodes: vec![node("a", &url, 1)],
            cached_cost: CachedCost::new(fraction),
            ..LlmOptions::default()
        };
        let limited = evenkeel_server::tenant::TenantSettings { tpm: Some(1_300), ..tenant("acme") };
        let gateway = Gateway::start_with(options, vec![limited]).await;
        assert_eq!(gateway.post_as("acme", CHAT, CHAT_BODY).await.status, 200);
        gateway.wait_until_idle().await;
        let status = gateway.status().await;
        let tenants = status["tenants"].as_array().unwrap();
        let acme = tenants.iter().find(|tenant| tenant["name"] == "acme").unwrap();
        assert_eq!(acme["served_cost"], cost, "{usage} {status}");
        assert_eq!(gateway.post_as("acme", CHAT, CHAT_BODY).await.status, 200);
        gateway.wait_until_idle().await;
        let third = gateway.post_as("acme", CHAT, CHAT_BODY).await;
        assert_eq!(third.status, 429, "2020 of 1300 tokens are used: {}", third.body);
    }
}

#[tokio::test]
async fn a_failed_attempt_is_charged_its_prompt_and_a_refusal_nothing() {
    for (status, is_charged) in [(500, true), (429, false)] {
        let faulty = Engine::reply_always_with(move |received| received.reply(status, &[], "")).await;
        let gateway = Gateway::with_nodes(vec![node("a", &faulty, 1)]).await;
        let response = gateway.post(CHAT, &request(CHAT, false)).await;
        assert_ne!(response.status, 200);
        gateway.wait_until_idle().await;
        let served = gateway.status().await["tenants"][0]["served_cost"].as_u64().unwrap();
        assert_eq!(served, if is_charged { input_tokens(CHAT).await } else { 0 }, "{status}");
    }
}

#[tokio::test]
async fn a_node_may_get_streams_as_the_client_sent_them() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}"#;
    let mut engine = Engine::start().await;
    let plain = NodeOptions { inject_stream_options: false, ..node("a", &engine.url, 1) };
    let gateway = Gateway::with_nodes(vec![plain]).await;
    let (response, body) = tokio::join!(gateway.post(CHAT, CHAT_STREAM_BODY), async {
        let received = engine.next_request().await;
        let body = received.body.clone();
        events(&received.stream().0, &[r#"{"choices":[{"delta":{"content":"hi"}}]}"#, usage, "[DONE]"]);
        body
    });
    assert_eq!(body, CHAT_STREAM_BODY);
    assert!(response.body.contains(usage), "the engine's own events are not hidden: {}", response.body);
    assert_eq!(gateway.status().await["nodes"][0]["inject_stream_options"], false);
}

#[tokio::test]
async fn each_node_gets_the_stream_options_that_it_is_configured_for() {
    let is_injected =
        |received: &EngineRequest| received.body.windows(13).any(|part| part == b"include_usage");
    let reply = move |expected: bool| {
        move |received: EngineRequest| {
            assert_eq!(is_injected(&received), expected);
            received.reply(500, &[], "");
        }
    };
    let plain = Engine::reply_always_with(reply(false)).await;
    let injected = Engine::reply_always_with(reply(true)).await;
    let plain = NodeOptions { inject_stream_options: false, ..node("plain", &plain, 1) };
    let gateway = Gateway::with_nodes(vec![plain, node("injected", &injected, 1)]).await;
    // Both nodes fail, so each gets the request; a failed assertion would close the connection.
    let response = gateway.post(CHAT, CHAT_STREAM_BODY).await;
    assert_eq!(response.status_and_code(), (502, "bad_upstream".to_owned()));
    let metrics = gateway.registry.render();
    let line = r#"evenkeel_dispatched_total{pool="llm",node="plain"} 1"#;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}
