//! Anthropic's Messages API and OpenAI's Responses API: requests are passed through and scanned, and errors have the
//! format of the API.

use evenkeel_llm::{LlmOptions, NodeOptions};
use evenkeel_server::tenant::TenantSettings;
use evenkeel_telemetry::Secret;
use http::Method;
use serde_json::{Value, json};

use super::engine::{BodySender, Engine, event};
use super::harness::{Gateway, next_chunk, node, tenant};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const MESSAGE: &str = r#"{"model":"m","max_tokens":64,"messages":[{"role":"user","content":"hello"}]}"#;
const MESSAGE_STREAM: &str =
    r#"{"model":"m","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
const TEXT_DELTA: &str = r#","index":0,"delta":{"type":"text_delta","text":"hi"}"#;
const RESPONSE_STREAM: &str = r#"{"model":"m","stream":true,"input":"hello"}"#;

#[tokio::test]
async fn a_message_is_passed_through_unchanged_and_charged_its_usage() {
    let mut engine = Engine::start().await;
    let keyed = NodeOptions { api_key: Some(Secret::new("sk-1".to_owned())), ..node("a", &engine.url, 1) };
    let options = LlmOptions { nodes: vec![keyed], ..LlmOptions::default() };
    let gateway = std::sync::Arc::new(Gateway::start_with(options, vec![tenant("acme")]).await);
    let shared = gateway.clone();
    let headers = &[("x-api-key", "ek-acme"), ("anthropic-version", "2023-06-01")];
    let pending =
        tokio::spawn(async move { shared.post_with("/v1/messages?beta=true", headers, MESSAGE).await });
    let received = engine.next_request().await;
    assert_eq!((received.path.as_str(), &received.body[..]), ("/v1/messages?beta=true", MESSAGE.as_bytes()));
    let header = |name| received.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("anthropic-version").as_deref(), Some("2023-06-01"));
    assert_eq!(
        (header("x-api-key").as_deref(), header("authorization").as_deref()),
        (Some("sk-1"), Some("Bearer sk-1"))
    );
    let reply = r#"{"type":"message","content":[],"usage":{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":4}}"#;
    received.reply_json(reply);
    let response = pending.await.unwrap();
    assert_eq!((response.status, response.body.as_str()), (200, reply));
    assert_eq!(response.header("request-id"), response.header("x-request-id"));
    // Seven cached tokens cost a tenth of a token each.
    assert_cost(&gateway, "acme", 3 + 1 + 2 * 4);
}

#[tokio::test]
async fn a_messages_stream_is_scanned_up_to_its_end_of_stream_marker() {
    let url = Engine::reply_always_with(|received| {
        assert_eq!(&received.body[..], MESSAGE_STREAM.as_bytes(), "the body is unchanged");
        send_message(&received.stream().0, &["message_stop"]);
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let response = gateway.post(MESSAGES, MESSAGE_STREAM).await;
    assert!(
        response.body.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
        "{}",
        response.body
    );
    gateway.wait_until_idle().await;
    assert_cost(&gateway, "open", 11 + 2 * 3);
}

#[tokio::test]
async fn a_disconnect_from_a_messages_stream_is_charged_the_tokens_sent() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let mut client = gateway.client().await;
    let (response, sender) =
        tokio::join!(client.send(Method::POST, "none", MESSAGES, MESSAGE_STREAM), async {
            let (sender, _) = engine.next_request().await.stream();
            begin_message(&sender);
            (0..50).for_each(|_| send_event(&sender, "content_block_delta", TEXT_DELTA));
            sender
        });
    let mut body = response.into_body();
    let mut reply = String::new();
    while reply.matches("text_delta").count() < 50 {
        reply.push_str(&next_chunk(&mut body).await.unwrap());
    }
    drop((body, client));
    gateway.wait_until_idle().await;
    assert_cost(&gateway, "open", 11 + 2 * 50);
    drop(sender);
}

#[tokio::test]
async fn a_truncated_messages_stream_ends_with_anthropics_error_event() {
    let url = Engine::reply_always_with(|received| send_message(&received.stream().0, &[])).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let response = gateway.post(MESSAGES, MESSAGE_STREAM).await;
    let (_, last) = response.body.trim_end().rsplit_once("\n\n").unwrap();
    let data = last.strip_prefix("event: error\ndata: ").unwrap();
    let error: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&error["type"], &error["error"]["type"]), (&json!("error"), &json!("api_error")));
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn rejections_on_messages_have_anthropics_format() {
    let url = Engine::reply_always_with(|received| received.reply(503, &[("retry-after-ms", "1")], "")).await;
    let tenants = vec![
        tenant("acme"),
        TenantSettings { rpm: Some(1), ..tenant("rare") },
        TenantSettings { models: vec!["other".to_owned()], ..tenant("narrow") },
    ];
    let options = LlmOptions { nodes: vec![node("a", &url, 1)], ..LlmOptions::default() };
    let gateway = Gateway::start_with(options, tenants).await;
    let unknown = MESSAGE.replace("\"m\"", "\"unknown\"");
    for (tenant_name, path, body, status, kind) in [
        ("nobody", MESSAGES, MESSAGE, 401, "authentication_error"),
        ("acme", MESSAGES, r#"{"model":"m"}"#, 400, "invalid_request_error"),
        ("acme", MESSAGES, &unknown, 404, "not_found_error"),
        ("narrow", MESSAGES, MESSAGE, 403, "permission_error"),
        ("acme", MESSAGES, MESSAGE, 503, "overloaded_error"),
        ("rare", "/v1/messages/count_tokens", "{}", 400, "invalid_request_error"),
        ("rare", "/v1/messages/count_tokens", "{}", 429, "rate_limit_error"),
    ] {
        let response = gateway.post_as(tenant_name, path, body).await;
        let error = response.json();
        assert_eq!((response.status, &error["error"]["type"]), (status, &json!(kind)), "{error}");
        assert_eq!(
            (&error["type"], &error["request_id"]),
            (&json!("error"), &json!(response.header("request-id")))
        );
        assert_eq!(response.has_header("retry-after"), matches!(status, 429 | 503), "{error}");
    }
}

#[tokio::test]
async fn a_count_tokens_request_costs_one_token() {
    let url = Engine::reply_always_with(|received| {
        assert_eq!(received.path, "/v1/messages/count_tokens");
        received.reply_json(r#"{"input_tokens":1000}"#);
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let long = MESSAGE.replace("hello", &"word ".repeat(1_000));
    let response = gateway.post("/v1/messages/count_tokens", &long).await;
    assert_eq!(response.json()["input_tokens"], 1000);
    assert_cost(&gateway, "open", 1);
}

#[tokio::test]
async fn a_responses_stream_is_scanned_up_to_its_end_of_stream_marker() {
    let url = Engine::reply_always_with(|received| {
        assert_eq!(&received.body[..], RESPONSE_STREAM.as_bytes(), "the body is unchanged");
        send_response(&received.stream().0, true);
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let read = gateway.post(RESPONSES, RESPONSE_STREAM).await;
    assert!(read.body.contains("response.completed") && !read.body.contains("error"), "{}", read.body);
    gateway.wait_until_idle().await;
    assert_cost(&gateway, "open", 9 + 2 * 2);
}

#[tokio::test]
async fn a_truncated_responses_stream_ends_with_its_apis_error_event() {
    let url = Engine::reply_always_with(|received| send_response(&received.stream().0, false)).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let response = gateway.post(RESPONSES, RESPONSE_STREAM).await;
    let (_, last) = response.body.trim_end().rsplit_once("\n\n").unwrap();
    let error: Value = serde_json::from_str(last.strip_prefix("event: error\ndata: ").unwrap()).unwrap();
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("bad_upstream")));
    assert_eq!(error["error"]["code"], "bad_upstream", "OpenAI's clients raise this object");
    gateway.wait_until_idle().await;
}

fn send_message(sender: &BodySender, last: &[&str]) {
    begin_message(sender);
    (0..5).for_each(|_| send_event(sender, "content_block_delta", TEXT_DELTA));
    send_event(sender, "content_block_stop", r#","index":0"#);
    send_event(sender, "message_delta", r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}"#);
    last.iter().for_each(|kind| send_event(sender, kind, ""));
}

fn begin_message(sender: &BodySender) {
    let message = r#","message":{"role":"assistant","usage":{"input_tokens":11,"output_tokens":1}}"#;
    send_event(sender, "message_start", message);
    send_event(sender, "content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#);
}

fn send_event(sender: &BodySender, kind: &str, more: &str) {
    let data = format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{more}}}\n\n");
    sender.send(Ok(data.into())).unwrap();
}

fn send_response(sender: &BodySender, completed: bool) {
    event(sender, r#"{"type":"response.created","response":{"status":"in_progress","usage":null}}"#);
    event(sender, r#"{"type":"response.output_text.delta","delta":"hi"}"#);
    event(sender, r#"{"type":"response.output_text.delta","delta":" there"}"#);
    if completed {
        let usage = r#"{"input_tokens":9,"output_tokens":2,"total_tokens":11}"#;
        event(sender, &format!(r#"{{"type":"response.completed","response":{{"usage":{usage}}}}}"#));
    }
}

#[track_caller]
fn assert_cost(gateway: &Gateway, tenant: &str, cost: u64) {
    let metrics = gateway.registry.render();
    let line = format!(r#"evenkeel_cost_units_total{{pool="llm",tenant="{tenant}"}} {cost}"#);
    assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
}
