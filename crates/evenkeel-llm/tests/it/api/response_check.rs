//! A 2xx response is checked before the client sees it: what cannot be an answer is a failed attempt.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use evenkeel_llm::request::ResponseMode;
use http::Method;
use http_body_util::BodyExt;

use super::engine::{Engine, EngineRequest, events};
use super::failure::assert_fails_over;
use super::harness::{CHAT, CHAT_BODY, CHAT_STREAM_BODY, COMPLETION, Gateway, node};

type Headers = &'static [(&'static str, &'static str)];

const HTML: Headers = &[("content-type", "text/html; charset=utf-8")];
const JSON: Headers = &[("content-type", "application/json")];
const EVENTS: Headers = &[("content-type", "text/event-stream")];
const PLAIN: Headers = &[("content-type", "text/plain")];
const PAGE: &str = "<!doctype html><html><body>Welcome to nginx</body></html>";
const NODE_ERROR: &str =
    r#"{"error":{"message":"CUDA out of memory","type":"InternalServerError","code":500}}"#;
const CLIENT_ERROR: &str =
    r#"{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}"#;

/// Sends a body in chunks of one byte, without a content length.
fn trickle(received: EngineRequest, headers: Headers, body: &str) {
    let (sender, _) = received.begin(headers);
    body.bytes().for_each(|byte| sender.send(Ok(vec![byte].into())).unwrap());
}

#[tokio::test]
async fn all_clients_get_good_responses_while_a_node_serves_a_web_page() {
    let is_replaced = Arc::new(AtomicBool::new(false));
    let pages = Arc::new(AtomicU32::new(0));
    let page = is_replaced.clone();
    let sent = pages.clone();
    // A proxy in front of an engine that has stopped.
    let faulty = Engine::reply_always_with(move |received| {
        if page.load(Ordering::Relaxed) {
            sent.fetch_add(1, Ordering::Relaxed);
            received.reply(200, HTML, PAGE);
        } else {
            received.reply_json(COMPLETION);
        }
    })
    .await;
    let good = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = Gateway::with_nodes(vec![node("faulty", &faulty, 8), node("good", &good, 8)]).await;
    // The requests before the fault earn the retries after it.
    for user in 0..600 {
        is_replaced.store(user >= 100, Ordering::Relaxed);
        let body = format!(r#"{{"model":"m","user":"{user}","messages":[]}}"#);
        let response = gateway.post(CHAT, &body).await;
        assert_eq!((response.status, response.body.as_str()), (200, COMPLETION));
    }
    let pages = pages.load(Ordering::Relaxed);
    assert!((1..=10).contains(&pages), "{pages} of 500 requests went to the node with the web page");
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_whole_response_that_is_no_answer_fails_over() {
    let replies: [(u16, Headers, &str); 14] = [
        (200, HTML, PAGE),
        (200, JSON, PAGE),
        (200, &[], PAGE),
        (200, PLAIN, "no healthy upstream"),
        (200, &[], "no healthy upstream"),
        (200, JSON, ""),
        (200, &[], ""),
        (204, &[], ""),
        (204, JSON, ""),
        (200, JSON, " \r\n\t "),
        (200, JSON, "\u{FEFF}"),
        (200, JSON, NODE_ERROR),
        (201, PLAIN, NODE_ERROR),
        (200, JSON, r#""pong""#),
    ];
    for (status, headers, body) in replies {
        let whole = Engine::reply_always_with(move |received| received.reply(status, headers, body)).await;
        assert_fails_over(whole, ResponseMode::NonStreaming, "bad_response").await;
        if status != 204 {
            let chunked = Engine::reply_always_with(move |received| trickle(received, headers, body)).await;
            assert_fails_over(chunked, ResponseMode::NonStreaming, "bad_response").await;
        }
    }
    let busy = r#"{"type":"error","error":{"type":"overloaded_error"}}"#;
    let busy = Engine::reply_always_with(move |received| received.reply(200, JSON, busy)).await;
    assert_fails_over(busy, ResponseMode::NonStreaming, "busy").await;
}

#[tokio::test]
async fn a_stream_that_is_no_answer_fails_over() {
    let node_error = format!("data: {NODE_ERROR}\n\n");
    let after_comment = format!(": ping\n\n{node_error}");
    let unframed = format!("{NODE_ERROR}\n");
    for body in [
        "",
        "\n\n\n",
        " \r\n",
        ": ping\n\n",
        "data:\n\n",
        "data: [DONE]\n\n",
        "data: [DONE]",
        "\u{FEFF}data: [DONE]\n\n",
        "event: error\ndata: out of memory\n\n",
        "data: {\"choices\":[{\"de",
        PAGE,
        &node_error,
        &after_comment,
        &unframed,
    ] {
        for headers in [EVENTS, HTML] {
            let owned = body.to_owned();
            let whole =
                Engine::reply_always_with(move |received| received.reply(200, headers, owned.clone())).await;
            assert_fails_over(whole, ResponseMode::Stream, "bad_response").await;
        }
        let owned = body.to_owned();
        let chunked = Engine::reply_always_with(move |received| trickle(received, EVENTS, &owned)).await;
        assert_fails_over(chunked, ResponseMode::Stream, "bad_response").await;
    }
}

#[tokio::test]
async fn json_passes_whatever_its_content_type() {
    let marked = format!("\u{FEFF}{COMPLETION}");
    for headers in [HTML, PLAIN, JSON, &[], &[("content-type", "application/octet-stream")]] {
        for body in [COMPLETION, &marked] {
            let owned = body.to_owned();
            let url =
                Engine::reply_always_with(move |received| received.reply(200, headers, owned.clone())).await;
            let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
            let response = gateway.post(CHAT, CHAT_BODY).await;
            assert_eq!((response.status, response.body.as_str()), (200, body));
            let metrics = gateway.registry.render();
            let line = r#"evenkeel_cost_units_total{pool="llm",tenant="open"} 11"#;
            assert!(metrics.lines().any(|found| found == line), "the usage is read: {metrics}");
        }
    }
}

#[tokio::test]
async fn events_pass_whatever_their_content_type() {
    let stream = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\ndata: [DONE]\n\n";
    for headers in [EVENTS, PLAIN, JSON, &[]] {
        let url = Engine::reply_always_with(move |received| received.reply(200, headers, stream)).await;
        let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
        let response = gateway.post(CHAT, CHAT_STREAM_BODY).await;
        assert_eq!((response.status, response.body.as_str()), (200, stream));
    }
}

#[tokio::test]
async fn compressed_binary_and_plain_text_responses_pass_as_they_are() {
    let gzip: Headers = &[("content-type", "application/json"), ("content-encoding", "gzip")];
    let speech = r#"{"model":"m","input":"hello"}"#;
    let replies: [(&str, &str, Headers, &[u8]); 6] = [
        (CHAT, CHAT_BODY, gzip, b"\x1f\x8b\x08\x00<compressed>"),
        ("/v1/audio/speech", speech, &[("content-type", "audio/mpeg")], b"<\xFFaudio"),
        ("/v1/audio/transcriptions", speech, PLAIN, b"[music] <unk> hello"),
        ("/v1/audio/transcriptions", speech, PLAIN, b""),
        ("/v1/embeddings", speech, &[("content-type", "application/octet-stream")], b"<\x00\x80{"),
        ("/v1/images/generations", speech, &[("content-type", "image/png")], b"\x89PNG"),
    ];
    for (path, body, headers, reply) in replies {
        let url = Engine::reply_always_with(move |received| received.reply(200, headers, reply)).await;
        let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
        let mut client = gateway.client().await;
        let response = client.send(Method::POST, "none", path, body).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), reply, "{path}");
    }
}

#[tokio::test]
async fn a_clients_error_inside_a_200_passes_and_counts_against_no_node() {
    let stream = format!("data: {CLIENT_ERROR}\n\n");
    for (body, reply, headers) in [
        (CHAT_BODY, CLIENT_ERROR, JSON),
        (CHAT_BODY, CLIENT_ERROR, PLAIN),
        (CHAT_STREAM_BODY, &stream, EVENTS),
    ] {
        let owned = reply.to_owned();
        let url =
            Engine::reply_always_with(move |received| received.reply(200, headers, owned.clone())).await;
        let gateway = Gateway::with_nodes(vec![node("a", &url, 1), node("b", &url, 1)]).await;
        for _ in 0..20 {
            let response = gateway.post(CHAT, body).await;
            assert_eq!(response.status, 200);
            assert!(response.body.starts_with(reply), "{}", response.body);
        }
        gateway.wait_until_idle().await;
        let status = gateway.status().await;
        assert_eq!(status["counts"]["retried"], 0);
        assert!(
            status["nodes"].as_array().unwrap().iter().all(|node| node["breaker"] == "closed"),
            "{status}"
        );
    }
}

#[tokio::test]
async fn keep_alive_comments_reach_the_client_while_the_first_token_is_awaited() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let mut client = gateway.client().await;
    let (response, sender) = tokio::join!(client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY), async {
        let (sender, _) = engine.next_request().await.stream();
        sender.send(Ok(": ping\n\n".into())).unwrap();
        sender.send(Ok(": ping\n\n".into())).unwrap();
        sender
    });
    let mut body = response.into_body();
    let mut received = String::new();
    while received.len() < ": ping\n\n: ping\n\n".len() {
        received += &super::harness::next_chunk(&mut body).await.unwrap();
    }
    assert_eq!(received, ": ping\n\n: ping\n\n");
    events(&sender, &[r#"{"choices":[{"delta":{"content":"hi"}}]}"#, "[DONE]"]);
    drop(sender);
    while super::harness::next_chunk(&mut body).await.is_some() {}
    gateway.wait_until_idle().await;
}
