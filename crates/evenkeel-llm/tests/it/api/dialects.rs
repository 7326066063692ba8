//! Anthropic's Messages and OpenAI's Responses: passed on as they are, counted, ended and refused in their own words.

use evenkeel_llm::{LlmOptions, NodeOptions};
use evenkeel_server::tenant::TenantSettings;
use evenkeel_telemetry::Secret;
use http::Method;
use serde_json::{Value, json};

use super::engine::{Engine, Pen, event};
use super::harness::{House, node, piece, tenant};

const MESSAGES: &str = "/v1/messages";
const RESPONSES: &str = "/v1/responses";
const MESSAGE: &str = r#"{"model":"m","max_tokens":64,"messages":[{"role":"user","content":"hello"}]}"#;
const MESSAGE_STREAM: &str =
    r#"{"model":"m","max_tokens":64,"stream":true,"messages":[{"role":"user","content":"hello"}]}"#;
const PIECE: &str = r#","index":0,"delta":{"type":"text_delta","text":"hi"}"#;
const RESPONSE_STREAM: &str = r#"{"model":"m","stream":true,"input":"hello"}"#;

#[tokio::test]
async fn a_message_reaches_its_node_untouched_and_is_charged_what_it_took() {
    let mut engine = Engine::start().await;
    let keyed = NodeOptions { api_key: Some(Secret::new("sk-1".to_owned())), ..node("a", &engine.url, 1) };
    let options = LlmOptions { nodes: vec![keyed], ..LlmOptions::default() };
    let house = std::sync::Arc::new(House::with(options, vec![tenant("acme")]).await);
    let own = house.clone();
    let headers = &[("x-api-key", "ek-acme"), ("anthropic-version", "2023-06-01")];
    let asking = tokio::spawn(async move { own.post_with("/v1/messages?beta=true", headers, MESSAGE).await });
    let heard = engine.hears().await;
    assert_eq!((heard.path.as_str(), &heard.body[..]), ("/v1/messages?beta=true", MESSAGE.as_bytes()));
    let header = |name| heard.headers.get(name).map(|value| value.to_str().unwrap().to_owned());
    assert_eq!(header("anthropic-version").as_deref(), Some("2023-06-01"));
    assert_eq!(
        (header("x-api-key").as_deref(), header("authorization").as_deref()),
        (Some("sk-1"), Some("Bearer sk-1"))
    );
    let said = r#"{"type":"message","content":[],"usage":{"input_tokens":3,"cache_read_input_tokens":7,"output_tokens":4}}"#;
    heard.reply_json(said);
    let answer = asking.await.unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, said));
    assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    assert_cost(&house, "acme", 3 + 7 + 2 * 4);
}

#[tokio::test]
async fn a_stream_of_messages_is_passed_on_counted_and_ends_with_its_own_last_word() {
    let url = Engine::always(|heard| {
        assert_eq!(&heard.body[..], MESSAGE_STREAM.as_bytes(), "nothing is injected");
        say_message(&heard.stream().0, &["message_stop"]);
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post(MESSAGES, MESSAGE_STREAM).await;
    assert!(
        answer.body.ends_with("event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n"),
        "{}",
        answer.body
    );
    house.until_idle().await;
    assert_cost(&house, "open", 11 + 2 * 3);
}

#[tokio::test]
async fn who_leaves_a_stream_of_messages_pays_for_what_it_was_sent_before_it_was_counted() {
    let mut engine = Engine::start().await;
    let house = House::to(vec![node("a", &engine.url, 1)]).await;
    let mut client = house.client().await;
    let (response, pen) = tokio::join!(client.send(Method::POST, "none", MESSAGES, MESSAGE_STREAM), async {
        let (pen, _) = engine.hears().await.stream();
        begin_message(&pen);
        (0..50).for_each(|_| named(&pen, "content_block_delta", PIECE));
        pen
    });
    let mut body = response.into_body();
    let mut said = String::new();
    while said.matches("text_delta").count() < 50 {
        said.push_str(&piece(&mut body).await.unwrap());
    }
    drop((body, client));
    house.until_idle().await;
    assert_cost(&house, "open", 11 + 2 * 50);
    drop(pen);
}

#[tokio::test]
async fn a_stream_of_messages_that_breaks_off_says_so_as_anthropic_does() {
    let url = Engine::always(|heard| say_message(&heard.stream().0, &[])).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post(MESSAGES, MESSAGE_STREAM).await;
    let (_, last) = answer.body.trim_end().rsplit_once("\n\n").unwrap();
    let data = last.strip_prefix("event: error\ndata: ").unwrap();
    let told: Value = serde_json::from_str(data).unwrap();
    assert_eq!((&told["type"], &told["error"]["type"]), (&json!("error"), &json!("api_error")));
    house.until_idle().await;
}

#[tokio::test]
async fn whoever_is_refused_a_message_hears_so_as_anthropic_says_it() {
    let url = Engine::always(|heard| heard.reply(503, &[("retry-after-ms", "1")], "")).await;
    let tenants = vec![
        tenant("acme"),
        TenantSettings { rpm: Some(1), ..tenant("rare") },
        TenantSettings { models: vec!["other".to_owned()], ..tenant("narrow") },
    ];
    let options = LlmOptions { nodes: vec![node("a", &url, 1)], ..LlmOptions::default() };
    let house = House::with(options, tenants).await;
    let unknown = MESSAGE.replace("\"m\"", "\"nobody's\"");
    for (who, path, body, status, kind) in [
        ("nobody", MESSAGES, MESSAGE, 401, "authentication_error"),
        ("acme", MESSAGES, r#"{"model":"m"}"#, 400, "invalid_request_error"),
        ("acme", MESSAGES, &unknown, 404, "not_found_error"),
        ("narrow", MESSAGES, MESSAGE, 403, "permission_error"),
        ("acme", MESSAGES, MESSAGE, 503, "overloaded_error"),
        ("rare", "/v1/messages/count_tokens", "{}", 400, "invalid_request_error"),
        ("rare", "/v1/messages/count_tokens", "{}", 429, "rate_limit_error"),
    ] {
        let answer = house.post_as(who, path, body).await;
        let told = answer.json();
        assert_eq!((answer.status, &told["error"]["type"]), (status, &json!(kind)), "{told}");
        assert_eq!(
            (&told["type"], &told["request_id"]),
            (&json!("error"), &json!(answer.header("request-id")))
        );
        assert_eq!(answer.header("retry-after") != "none", matches!(status, 429 | 503), "{told}");
    }
}

#[tokio::test]
async fn counting_tokens_costs_next_to_nothing() {
    let url = Engine::always(|heard| {
        assert_eq!(heard.path, "/v1/messages/count_tokens");
        heard.reply_json(r#"{"input_tokens":1000}"#);
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let long = MESSAGE.replace("hello", &"word ".repeat(1_000));
    let answer = house.post("/v1/messages/count_tokens", &long).await;
    assert_eq!(answer.json()["input_tokens"], 1000);
    assert_cost(&house, "open", 1);
}

#[tokio::test]
async fn a_response_streams_counted_to_its_own_last_word() {
    let url = Engine::always(|heard| {
        assert_eq!(&heard.body[..], RESPONSE_STREAM.as_bytes(), "nothing is injected");
        say_response(&heard.stream().0, true);
    })
    .await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post(RESPONSES, RESPONSE_STREAM).await;
    assert!(answer.body.contains("response.completed") && !answer.body.contains("error"), "{}", answer.body);
    house.until_idle().await;
    assert_cost(&house, "open", 9 + 2 * 2);
}

#[tokio::test]
async fn a_response_that_breaks_off_says_so_as_the_api_and_its_clients_have_it() {
    let url = Engine::always(|heard| say_response(&heard.stream().0, false)).await;
    let house = House::to(vec![node("a", &url, 1)]).await;
    let answer = house.post(RESPONSES, RESPONSE_STREAM).await;
    let (_, last) = answer.body.trim_end().rsplit_once("\n\n").unwrap();
    let told: Value = serde_json::from_str(last.strip_prefix("event: error\ndata: ").unwrap()).unwrap();
    assert_eq!((&told["type"], &told["code"]), (&json!("error"), &json!("bad_upstream")));
    assert_eq!(told["error"]["code"], "bad_upstream", "what OpenAI's clients raise");
    // What was said stays charged: the prompt as it looked, and two pieces.
    house.until_idle().await;
}

fn say_message(pen: &Pen, last: &[&str]) {
    begin_message(pen);
    (0..5).for_each(|_| named(pen, "content_block_delta", PIECE));
    named(pen, "content_block_stop", r#","index":0"#);
    named(pen, "message_delta", r#","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":3}"#);
    last.iter().for_each(|kind| named(pen, kind, ""));
}

fn begin_message(pen: &Pen) {
    let message = r#","message":{"role":"assistant","usage":{"input_tokens":11,"output_tokens":1}}"#;
    named(pen, "message_start", message);
    named(pen, "content_block_start", r#","index":0,"content_block":{"type":"text","text":""}"#);
}

fn named(pen: &Pen, kind: &str, more: &str) {
    let data = format!("event: {kind}\ndata: {{\"type\":\"{kind}\"{more}}}\n\n");
    pen.send(Ok(data.into())).unwrap();
}

fn say_response(pen: &Pen, completed: bool) {
    event(pen, r#"{"type":"response.created","response":{"status":"in_progress","usage":null}}"#);
    event(pen, r#"{"type":"response.output_text.delta","delta":"hi"}"#);
    event(pen, r#"{"type":"response.output_text.delta","delta":" there"}"#);
    if completed {
        let usage = r#"{"input_tokens":9,"output_tokens":2,"total_tokens":11}"#;
        event(pen, &format!(r#"{{"type":"response.completed","response":{{"usage":{usage}}}}}"#));
    }
}

#[track_caller]
fn assert_cost(house: &House, tenant: &str, cost: u64) {
    let page = house.registry.render();
    let line = format!(r#"evenkeel_cost_units_total{{pool="llm",tenant="{tenant}"}} {cost}"#);
    assert!(page.lines().any(|found| found == line), "no {line} in {page}");
}
