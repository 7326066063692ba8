//! Equal tenants get equal service from engines that report no usage, whatever the format of their responses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_llm::LlmOptions;
use serde_json::{Value, json};

use super::engine::{BodySender, Engine, EngineRequest, events};
use super::harness::{Gateway, node, tenant};

/// Tokens that the engine generates in all.
const TOKENS: u64 = 60_000;
const CLIENTS: usize = 12;
const WORDS: [&str; 8] = ["the", " keel", " keeps", " a", " boat", " even", " while", " sailing"];

/// Tokens generated for each tenant, counted by the engine.
#[derive(Default)]
struct Generated {
    plain: AtomicU64,
    heavy: AtomicU64,
}

impl Generated {
    fn total(&self) -> u64 {
        self.plain.load(Ordering::Relaxed) + self.heavy.load(Ordering::Relaxed)
    }

    /// Returns the service of the tenant `plain` as a multiple of the other's.
    fn ratio(&self) -> f64 {
        self.plain.load(Ordering::Relaxed) as f64 / self.heavy.load(Ordering::Relaxed).max(1) as f64
    }
}

/// Returns the tokens of a response: words, or tool arguments.
fn pieces(count: u64, kind: &str) -> Vec<String> {
    let word = |index: u64| WORDS[(index % WORDS.len() as u64) as usize].to_owned();
    let argument = |index: u64| if index == 0 { "{\"a\":\"".to_owned() } else { "data".to_owned() };
    (0..count).map(|index| if kind == "tools" { argument(index) } else { word(index) }).collect()
}

/// Returns log probabilities of a token, which are much longer than it.
fn logprobs(piece: &str) -> Value {
    let alternatives = vec![json!({"token": " content", "logprob": -2.5, "bytes": [32, 99, 111]}); 10];
    json!({"content": [{"token": piece, "logprob": -0.1, "bytes": [1, 2], "top_logprobs": alternatives}]})
}

/// Responds without usage, in the format that the request's marker names.
fn reply(received: EngineRequest, generated: &Generated) {
    let request: Value = serde_json::from_slice(&received.body).unwrap();
    let marker = request["metadata"]["user_id"].as_str().unwrap().to_owned();
    let parts: Vec<&str> = marker.split('-').collect();
    let count: u64 = parts[1].parse().unwrap();
    let pieces = pieces(count, parts[0]);
    let counter = if parts[0] == "plain" { &generated.plain } else { &generated.heavy };
    counter.fetch_add(count, Ordering::Relaxed);
    if request["stream"] == true {
        let (sender, _) = received.stream();
        return stream(&sender, parts[0], &pieces);
    }
    let text = pieces.concat();
    let body = match parts[0] {
        "messages" => json!({"type": "message", "content": [
            {"type": "thinking", "thinking": &text[..text.len() / 2], "signature": "A".repeat(3_000)},
            {"type": "text", "text": &text[text.len() / 2..]}]}),
        "responses" => json!({"object": "response", "instructions": "x".repeat(3_000),
            "output": [{"content": [{"type": "output_text", "text": text, "logprobs": logprobs("x")}]}]}),
        "tools" => json!({"choices": [{"message": {"content": null,
            "tool_calls": [{"function": {"name": "f", "arguments": text}}]}, "logprobs": logprobs("x")}]}),
        _ => json!({"choices": [{"message": {"content": text}}]}),
    };
    received.reply_json(&body.to_string());
}

fn stream(sender: &BodySender, kind: &str, pieces: &[String]) {
    let event = |piece: &String| match kind {
        "messages" => json!({"type": "content_block_delta", "delta": {"type": "text_delta", "text": piece}}),
        "responses" => {
            json!({"type": "response.output_text.delta", "delta": piece, "logprobs": [logprobs(piece)]})
        }
        "tools" => json!({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": null, "type": "function",
            "function": {"name": null, "arguments": piece}}]}}]}),
        "reasoning" => json!({"choices": [{"delta": {"reasoning": piece, "reasoning_content": piece}}]}),
        _ => json!({"choices": [{"delta": {"content": piece}, "logprobs": logprobs(piece)}]}),
    };
    let end = match kind {
        "messages" => r#"{"type":"message_stop"}"#,
        "responses" => r#"{"type":"response.completed","response":{"output":[]}}"#,
        _ => "[DONE]",
    };
    let bodies: Vec<String> = pieces.iter().map(|piece| event(piece).to_string()).collect();
    bodies.iter().for_each(|body| events(sender, &[body]));
    events(sender, &[end]);
}

/// Sends requests of one tenant, with formats in turn, until the engine has generated enough.
async fn run_client(gateway: Arc<Gateway>, name: &'static str, seed: u64, generated: Arc<Generated>) {
    let kinds = ["logprobs", "tools", "reasoning", "messages", "responses"];
    let mut client = gateway.client().await;
    for turn in seed.. {
        if generated.total() >= TOKENS {
            return;
        }
        let kind = if name == "plain" { "plain" } else { kinds[(turn % 5) as usize] };
        let count = 40 + turn * 37 % 120;
        // Every other request of the heavy tenant is a stream; reasoning and log probabilities are always streamed.
        let is_stream = name == "heavy" && (turn % 2 == 0 || matches!(kind, "logprobs" | "reasoning"));
        let mut body = json!({"model": "m", "stream": is_stream, "max_tokens": 500,
            "metadata": {"user_id": format!("{kind}-{count}")}});
        let path = match kind {
            "messages" => "/v1/messages",
            "responses" => "/v1/responses",
            _ => "/v1/chat/completions",
        };
        let field = if kind == "responses" { "input" } else { "messages" };
        body[field] = json!([{"role": "user", "content": "hello"}]);
        let response = client.send(http::Method::POST, name, path, &body.to_string()).await;
        let response = super::harness::read_response(response).await;
        assert_eq!(response.status, 200, "{}", response.body);
    }
}

#[tokio::test]
async fn equal_tenants_get_equal_service_from_an_engine_that_reports_no_usage() {
    let generated = Arc::new(Generated::default());
    let counted = generated.clone();
    let url = Engine::reply_always_with(move |received| reply(received, &counted)).await;
    let options = LlmOptions { nodes: vec![node("a", &url, 2)], ..LlmOptions::default() };
    let gateway = Arc::new(Gateway::start_with(options, vec![tenant("plain"), tenant("heavy")]).await);
    let mut clients = tokio::task::JoinSet::new();
    for seed in 0..CLIENTS as u64 {
        for name in ["plain", "heavy"] {
            clients.spawn(run_client(gateway.clone(), name, seed, generated.clone()));
        }
    }
    clients.join_all().await;
    let ratio = generated.ratio();
    println!("service ratio {ratio:.3} by tokens that the engine generated");
    assert!((0.9..=1.1).contains(&ratio), "{ratio}");
    gateway.wait_until_idle().await;
}
