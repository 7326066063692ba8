//! Client deadlines.

use std::sync::Arc;

use super::engine::Engine;
use super::harness::{CHAT, CHAT_BODY, COMPLETION, Gateway, ReadResponse, node};

type Headers = &'static [(&'static str, &'static str)];

/// Sends a request while the only slot is busy, and advances the clock until there is a response.
async fn response_while_slot_is_busy(headers: Headers) -> ReadResponse {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    let shared = gateway.clone();
    let second = tokio::spawn(async move { shared.post_with(CHAT, headers, CHAT_BODY).await });
    gateway.wait_until_queued(1).await;
    tokio::time::pause();
    let response = second.await.unwrap();
    tokio::time::resume();
    assert_eq!(gateway.llm.update_gauges().queue_size, 0, "the request is still queued");
    received.reply_json(COMPLETION);
    assert_eq!(first.await.unwrap().status, 200);
    gateway.wait_until_idle().await;
    response
}

#[tokio::test]
async fn a_request_leaves_the_queue_at_the_clients_deadline() {
    for headers in [
        &[("x-request-timeout-ms", "2500")][..],
        &[("x-stainless-read-timeout", "2.5")],
        &[("x-stainless-timeout", "2.5"), ("x-request-timeout-ms", "20000")],
    ] {
        let response = response_while_slot_is_busy(headers).await;
        assert_eq!(response.status_and_code(), (504, "wait_timeout".to_owned()), "{headers:?}");
        let waited: u32 = response.header("x-queue-wait-ms").parse().unwrap();
        assert!((2_400..10_000).contains(&waited), "{headers:?}: {waited}");
    }
}

#[tokio::test]
async fn a_client_cannot_lengthen_its_wait() {
    for headers in [&[("x-request-timeout-ms", "600000")][..], &[("x-stainless-timeout", "-5")]] {
        let response = response_while_slot_is_busy(headers).await;
        assert_eq!(response.status_and_code(), (504, "wait_timeout".to_owned()), "{headers:?}");
        assert!(response.header("x-queue-wait-ms").parse::<u32>().unwrap() >= 30_000, "{headers:?}");
    }
}

#[tokio::test]
async fn a_client_deadline_does_not_count_against_the_node() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await);
    for _ in 0..10 {
        let shared = gateway.clone();
        let pending = tokio::spawn(async move {
            shared.post_with(CHAT, &[("x-request-timeout-ms", "3000")], CHAT_BODY).await
        });
        let received = engine.next_request().await;
        tokio::time::pause();
        assert_eq!(pending.await.unwrap().status_and_code(), (504, "upstream_timeout".to_owned()));
        tokio::time::resume();
        assert!(received.ended.await.is_err(), "the connection to the node was not closed");
    }
    let metrics = gateway.registry.render();
    let line = r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="cancelled"} 10"#;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
    assert_eq!(gateway.status().await["nodes"][0]["breaker"], "closed");
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn an_invalid_request_timeout_is_rejected_and_an_invalid_sdk_timeout_is_ignored() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let rejected = gateway.post_with(CHAT, &[("x-request-timeout-ms", "soon")], CHAT_BODY).await;
    assert_eq!(rejected.status_and_code(), (400, "invalid_request".to_owned()));
    assert_eq!(rejected.json()["error"]["param"], "x-request-timeout-ms");
    assert_eq!(gateway.post_with(CHAT, &[("x-stainless-timeout", "soon")], CHAT_BODY).await.status, 200);
}
