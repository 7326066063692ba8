//! Backpressure as clients see it: delays in the warning band, and the metric of rejections.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_llm::LlmOptions;

use super::engine::Engine;
use super::harness::{CHAT, CHAT_BODY, COMPLETION, Gateway, node};

const MAX_WAITING: usize = 20;
const MAX_DELAY: Duration = Duration::from_millis(1_200);

fn options(url: &str) -> LlmOptions {
    let mut options = LlmOptions { nodes: vec![node("a", url, 1)], ..LlmOptions::default() };
    options.pipeline.load.wait_queue.max_waiting = MAX_WAITING;
    options.pipeline.load.backpressure.max_queue_size = MAX_WAITING;
    options.pipeline.load.backpressure.max_delay = MAX_DELAY;
    options
}

/// Reads the total of rejections by backpressure.
fn rejections(gateway: &Gateway) -> u64 {
    let metrics = gateway.registry.render();
    let line =
        metrics.lines().find_map(|line| line.strip_prefix("llm_router_backpressure_rejections_total "));
    line.unwrap().parse().unwrap()
}

#[tokio::test]
async fn in_warning_a_lone_tenants_requests_are_delayed_and_the_more_so_the_higher_the_load() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::start_with(options(&engine.url), vec![]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let running = engine.next_request().await;
    let mut queued = Vec::new();
    for waiting in 0..16 {
        queued.push(gateway.spawn_chat("none", CHAT_BODY));
        gateway.wait_until_queued(waiting + 1).await;
    }
    let rejected = gateway.post(CHAT, CHAT_BODY).await;
    assert_eq!(rejected.status_and_code(), (503, "queue_full".to_owned()));
    running.reply_json(COMPLETION);
    tokio::spawn(async move {
        loop {
            engine.next_request().await.reply_json(COMPLETION);
        }
    });
    assert_eq!(first.await.unwrap().status, 200);
    let mut delayed = 0;
    for (waiting, request) in queued.into_iter().enumerate() {
        let response = request.await.unwrap();
        assert_eq!(response.status, 200);
        let waited: u64 = response.header("x-queue-wait-ms").parse().unwrap();
        // The delay rises linearly from 10 to 16 waiting requests.
        let delay = MAX_DELAY.as_millis() as u64 * (waiting as u64).saturating_sub(10) / 6;
        assert!(waited >= delay, "with {waiting} waiting: waited {waited} ms of {delay} ms");
        delayed += u64::from(delay > 0);
    }
    let metrics = gateway.registry.render();
    let line = format!(r#"evenkeel_delayed_total{{pool="llm",tenant="open"}} {delayed}"#);
    assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_rejection_by_deadline_is_backpressure_and_a_failing_node_is_not() {
    let busy = Engine::reply_always_with(|received| received.reply(503, &[("retry-after", "60")], "")).await;
    let gateway = Gateway::start_with(options(&busy), vec![]).await;
    let deadline = [("x-request-timeout-ms", "500")];
    // The first request starts the cooldown, which the second cannot outwait.
    gateway.post_with(CHAT, &deadline, CHAT_BODY).await;
    let before = rejections(&gateway);
    let response = gateway.post_with(CHAT, &deadline, CHAT_BODY).await;
    assert_eq!(response.status, 503);
    assert_eq!(rejections(&gateway), before + 1);
    let failing = Engine::reply_always_with(|received| received.reply(500, &[], "")).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let unreachable = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    for url in [failing, unreachable] {
        let gateway = Gateway::start_with(options(&url), vec![]).await;
        for _ in 0..20 {
            assert!(gateway.post_with(CHAT, &deadline, CHAT_BODY).await.status >= 500);
        }
        assert_eq!(rejections(&gateway), 0, "{url}");
    }
}
