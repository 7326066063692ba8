//! Failover before the first byte, and errors after it.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_llm::LlmOptions;
use evenkeel_llm::request::ResponseMode;
use http::Method;
use http_body_util::BodyExt;

use super::engine::{BodyAbort, Engine, event, events};
use super::harness::{
    CHAT, CHAT_BODY, CHAT_STREAM_BODY, COMPLETION, Gateway, next_chunk, node, read_response,
};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
const JSON: &[(&str, &str)] = &[("content-type", "application/json")];

/// Returns a URL with a closed port.
async fn closed_url() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    format!("http://{}", listener.local_addr().unwrap())
}

/// Sends requests until one is sent to the faulty node, and checks that every client gets a complete response.
pub(crate) async fn assert_fails_over(faulty: String, mode: ResponseMode, failure: &str) {
    let healthy = Engine::reply_always_with(|received| {
        if received.body.windows(13).any(|part| part == b"include_usage") {
            let (sender, _) = received.stream();
            events(&sender, &[DELTA, "[DONE]"]);
        } else {
            received.reply_json(COMPLETION);
        }
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("faulty", &faulty, 8), node("healthy", &healthy, 8)]).await;
    for user in 0..100 {
        let stream = mode == ResponseMode::Stream;
        let body = format!(r#"{{"model":"m","stream":{stream},"user":"{user}","messages":[]}}"#);
        let response = gateway.post(CHAT, &body).await;
        assert_eq!(response.status, 200, "{}", response.body);
        assert!(!response.body.contains("error"), "{}", response.body);
        let status = gateway.status().await;
        if status["counts"]["retried"].as_u64() == Some(1) {
            let metrics = gateway.registry.render();
            let line = format!(r#"evenkeel_failed_over_total{{pool="llm",failure="{failure}"}} 1"#);
            assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
            return gateway.wait_until_idle().await;
        }
    }
    panic!("the faulty node was never picked");
}

#[tokio::test]
async fn an_unreachable_node_fails_over() {
    assert_fails_over(closed_url().await, ResponseMode::NonStreaming, "unreachable").await;
}

#[tokio::test]
async fn a_server_error_fails_over() {
    let faulty = Engine::reply_always_with(|received| received.reply(500, JSON, "{}")).await;
    assert_fails_over(faulty, ResponseMode::NonStreaming, "bad_response").await;
}

#[tokio::test]
async fn a_node_that_rejects_our_key_fails_over() {
    let faulty = Engine::reply_always_with(|received| received.reply(401, JSON, "{}")).await;
    assert_fails_over(faulty, ResponseMode::NonStreaming, "bad_response").await;
}

#[tokio::test]
async fn an_overloaded_node_fails_over_and_cools_down() {
    let faulty =
        Engine::reply_always_with(|received| received.reply(429, &[("retry-after", "30")], "")).await;
    assert_fails_over(faulty, ResponseMode::NonStreaming, "busy").await;
}

#[tokio::test]
async fn a_response_that_is_not_json_fails_over() {
    let faulty = Engine::reply_always_with(|received| received.reply(200, JSON, r#"{"choices":[{"#)).await;
    assert_fails_over(faulty, ResponseMode::NonStreaming, "bad_response").await;
}

#[tokio::test]
async fn a_response_truncated_before_its_first_byte_to_the_client_fails_over() {
    let faulty = Engine::reply_always_with(|received| {
        let (sender, _) = received.begin(JSON);
        sender.send(Ok("{".into())).unwrap();
        sender.send(Err(BodyAbort)).unwrap();
    })
    .await;
    assert_fails_over(faulty, ResponseMode::NonStreaming, "bad_response").await;
}

#[tokio::test]
async fn a_stream_truncated_before_its_first_event_fails_over() {
    let faulty =
        Engine::reply_always_with(|received| received.stream().0.send(Err(BodyAbort)).unwrap()).await;
    assert_fails_over(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn an_empty_stream_fails_over() {
    let faulty = Engine::reply_always_with(|received| drop(received.stream())).await;
    assert_fails_over(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_begins_with_an_invalid_event_fails_over() {
    let faulty = Engine::reply_always_with(|received| {
        events(&received.stream().0, &["<html>busy</html>", DELTA, "[DONE]"]);
    })
    .await;
    assert_fails_over(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_begins_with_an_error_fails_over() {
    let error = r#"{"error":{"message":"CUDA error","type":"InternalServerError","code":500}}"#;
    let faulty =
        Engine::reply_always_with(move |received| events(&received.stream().0, &[error, "[DONE]"])).await;
    assert_fails_over(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn a_stream_that_begins_with_an_overload_error_fails_over_and_its_node_cools_down() {
    let error = r#"{"error":{"message":"try later","type":"overloaded_error"}}"#;
    let faulty = Engine::reply_always_with(move |received| events(&received.stream().0, &[error])).await;
    assert_fails_over(faulty, ResponseMode::Stream, "busy").await;
}

#[tokio::test]
async fn a_stream_that_ends_within_its_first_event_fails_over() {
    let faulty = Engine::reply_always_with(|received| {
        received.stream().0.send(Ok(bytes::Bytes::from_static(b"data: {\"choices\":[{"))).unwrap();
    })
    .await;
    assert_fails_over(faulty, ResponseMode::Stream, "bad_response").await;
}

#[tokio::test]
async fn the_client_gets_an_error_status_if_every_stream_begins_with_an_error() {
    let url =
        Engine::reply_always_with(|received| events(&received.stream().0, &[r#"{"error":"out of memory"}"#]))
            .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    assert_eq!(
        gateway.post(CHAT, CHAT_STREAM_BODY).await.status_and_code(),
        (502, "bad_upstream".to_owned())
    );
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_stream_that_begins_with_a_client_error_is_passed_on_and_does_not_count_against_the_node() {
    let error = r#"{"error":{"message":"too long","type":"BadRequestError","code":400}}"#;
    let url =
        Engine::reply_always_with(move |received| events(&received.stream().0, &[error, "[DONE]"])).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    for _ in 0..10 {
        let response = gateway.post(CHAT, CHAT_STREAM_BODY).await;
        assert_eq!((response.status, response.body), (200, format!("data: {error}\n\ndata: [DONE]\n\n")));
    }
    let metrics = gateway.registry.render();
    assert!(
        metrics.contains(r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="served"} 10"#),
        "{metrics}"
    );
    assert!(metrics.contains(r#"evenkeel_cost_units_total{pool="llm",tenant="open"} 0"#), "{metrics}");
    assert_eq!(gateway.status().await["nodes"][0]["breaker"], "closed");
}

#[tokio::test]
async fn a_late_first_byte_fails_over() {
    let mut slow = Engine::start().await;
    let mut quick = Engine::start().await;
    let nodes = vec![node("slow", &slow.url, 1)];
    let first_byte_max = Some(Duration::from_secs(3));
    let gateway =
        Gateway::start_with(LlmOptions { nodes, first_byte_max, ..LlmOptions::default() }, vec![]).await;
    let gateway = Arc::new(gateway);
    let pending = gateway.spawn_chat("none", CHAT_STREAM_BODY);
    // The head alone does not count as the first byte.
    let (sender, ended) = slow.next_request().await.stream();
    gateway.llm.add_node(node("quick", &quick.url, 1)).unwrap();
    tokio::time::pause();
    let (quick_sender, _) = quick.next_request().await.stream();
    events(&quick_sender, &[DELTA, "[DONE]"]);
    drop(quick_sender);
    assert!(pending.await.unwrap().body.ends_with("[DONE]\n\n"));
    assert!(ended.await.is_err(), "the slow node's connection is closed");
    drop(sender);
    tokio::time::resume();
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn the_client_gets_the_last_failure_if_no_node_is_left() {
    let url = Engine::reply_always_with(|received| received.reply(500, &[], "")).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let response = gateway.post(CHAT, CHAT_BODY).await;
    assert_eq!(response.status_and_code(), (502, "bad_upstream".to_owned()));
    assert_eq!(response.header("x-queue-wait-ms"), "0");
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_node_failure_mid_stream_ends_the_stream_with_an_error_event() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    for abort in [true, false] {
        let mut client = gateway.client().await;
        let (response, sender) =
            tokio::join!(client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY), async {
                let (sender, _) = engine.next_request().await.stream();
                event(&sender, DELTA);
                sender
            });
        let mut body = response.into_body();
        assert_eq!(next_chunk(&mut body).await, Some(format!("data: {DELTA}\n\n")));
        sender.send(Ok("data: {\"choi".into())).unwrap();
        if abort {
            sender.send(Err(BodyAbort)).unwrap();
        }
        drop(sender);
        let last = next_chunk(&mut body).await.unwrap();
        let error: serde_json::Value =
            serde_json::from_str(last.strip_prefix("data: ").unwrap().trim_end()).unwrap();
        assert_eq!(error["error"]["code"], "bad_upstream");
        assert_eq!(next_chunk(&mut body).await, None, "there is no end-of-stream marker");
        gateway.wait_until_idle().await;
    }
}

#[tokio::test]
async fn a_stalled_stream_ends_with_an_error_event() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let mut client = gateway.client().await;
    let (response, (sender, ended)) =
        tokio::join!(client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY), async {
            let (sender, ended) = engine.next_request().await.stream();
            event(&sender, DELTA);
            (sender, ended)
        });
    let mut body = response.into_body();
    next_chunk(&mut body).await.unwrap();
    tokio::time::pause();
    let last = next_chunk(&mut body).await.unwrap();
    assert!(last.contains("upstream_timeout"), "{last}");
    assert_eq!(next_chunk(&mut body).await, None);
    assert!(ended.await.is_err(), "the node's connection is closed");
    drop(sender);
    tokio::time::resume();
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_stream_without_an_end_of_stream_marker_is_not_complete() {
    let url = Engine::reply_always_with(|received| event(&received.stream().0, DELTA)).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let response = gateway.post(CHAT, CHAT_STREAM_BODY).await;
    assert!(response.body.contains("bad_upstream") && !response.body.contains("[DONE]"), "{}", response.body);
    let other = gateway.post("/v1/classify", r#"{"model":"m","stream":true,"input":"x"}"#).await;
    assert!(
        !other.body.contains("bad_upstream"),
        "other endpoints have no known end-of-stream marker: {}",
        other.body
    );
}

#[tokio::test]
async fn a_truncated_response_aborts_the_clients_connection() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let mut client = gateway.client().await;
    let body = r#"{"model":"m","input":"x"}"#;
    let sending = client.send(Method::POST, "none", "/v1/audio/speech", body);
    let (response, sender) = tokio::join!(sending, async {
        let (sender, _) = engine.next_request().await.begin(&[("content-type", "audio/mpeg")]);
        sender.send(Ok("started".into())).unwrap();
        sender
    });
    let mut body = response.into_body();
    assert_eq!(next_chunk(&mut body).await, Some("started".to_owned()));
    sender.send(Err(BodyAbort)).unwrap();
    assert!(body.collect().await.is_err(), "a truncated response looked complete");
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_request_to_an_overloaded_pool_is_rejected_with_queue_full_and_retry_after() {
    let url = Engine::reply_always_with(|received| received.reply(503, &[("retry-after", "40")], "")).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    // The node is avoided for half of the default timeout, which this client does not wait.
    let response = gateway.post_with(CHAT, &[("x-request-timeout-ms", "9000")], CHAT_BODY).await;
    assert_eq!(response.status_and_code(), (503, "queue_full".to_owned()));
    assert_eq!((response.header("retry-after"), response.header("x-queue-size")), ("15", "0"));
    assert_eq!(gateway.status().await["nodes"][0]["breaker"], "closed");
}

#[tokio::test]
async fn a_full_queue_rejects_a_request_and_reports_the_queue_size() {
    let mut engine = Engine::start().await;
    let mut options = LlmOptions { nodes: vec![node("a", &engine.url, 1)], ..LlmOptions::default() };
    options.pipeline.load.wait_queue.max_waiting = 1;
    options.pipeline.load.backpressure.max_queue_size = 1;
    let gateway = Arc::new(Gateway::start_with(options, vec![]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    let second = gateway.spawn_chat("none", CHAT_BODY);
    gateway.wait_until_queued(1).await;
    let response = gateway.post(CHAT, CHAT_BODY).await;
    assert_eq!(response.status_and_code(), (503, "queue_full".to_owned()));
    assert_eq!(response.header("x-queue-size"), "1");
    assert!(response.header("retry-after").parse::<u32>().unwrap() >= 1);
    received.reply_json(COMPLETION);
    engine.next_request().await.reply_json(COMPLETION);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_queue_timeout_reports_the_time_queued() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    let mut client = gateway.client().await;
    let second = tokio::spawn(async move {
        let response = client.send(Method::POST, "none", CHAT, CHAT_BODY).await;
        read_response(response).await
    });
    gateway.wait_until_queued(1).await;
    tokio::time::pause();
    let read = second.await.unwrap();
    tokio::time::resume();
    assert_eq!(read.status_and_code(), (504, "wait_timeout".to_owned()));
    assert!(read.header("x-queue-wait-ms").parse::<u32>().unwrap() >= 30_000);
    received.reply_json(COMPLETION);
    assert_eq!(first.await.unwrap().status, 200);
    gateway.wait_until_idle().await;
}
