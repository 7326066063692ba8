//! Client disconnects: slots and queue capacity are released, and nodes stop generating.

use std::sync::Arc;

use http::Method;

use super::engine::{Engine, event};
use super::harness::{CHAT, CHAT_BODY, CHAT_STREAM_BODY, COMPLETION, Gateway, next_chunk, node};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;

#[tokio::test]
async fn a_client_that_disconnects_while_queued_leaves_the_queue() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    let second = gateway.spawn_chat("none", CHAT_BODY);
    gateway.wait_until_queued(1).await;
    second.abort();
    gateway.wait_until_queued(0).await;
    received.reply_json(COMPLETION);
    assert_eq!(first.await.unwrap().status, 200);
    gateway.wait_until_idle().await;
    assert!(!engine.has_request(), "a cancelled request was sent to a node");
    assert_eq!(gateway.status().await["counts"]["cancelled"], 1);
}

#[tokio::test]
async fn a_disconnect_before_the_first_byte_releases_the_slot_and_closes_the_nodes_connection() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    let second = gateway.spawn_chat("none", CHAT_BODY);
    gateway.wait_until_queued(1).await;
    first.abort();
    assert!(received.ended.await.is_err(), "the node's connection is closed");
    engine.next_request().await.reply_json(COMPLETION);
    assert_eq!(second.await.unwrap().status, 200);
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_client_that_disconnects_mid_stream_is_charged_the_tokens_it_received() {
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
    event(&sender, DELTA);
    next_chunk(&mut body).await.unwrap();
    drop((body, client));
    assert!(ended.await.is_err(), "the node's connection is closed");
    gateway.wait_until_idle().await;
    let status = gateway.status().await;
    let served = status["tenants"][0]["served_cost"].as_u64().unwrap();
    assert!(
        (4..100).contains(&served),
        "the charge must be two tokens and the prompt, not the estimate: {served}"
    );
    let metrics = gateway.registry.render();
    let line = r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="cancelled"} 1"#;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[tokio::test]
async fn disconnects_at_any_time_leak_nothing() {
    let url = Engine::reply_always_with(|received| {
        let (sender, _) = received.stream();
        event(&sender, DELTA);
        tokio::spawn(async move { sender.closed().await });
    })
    .await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &url, 2)]).await);
    let clients: Vec<_> = (0..60)
        .map(|n| {
            let gateway = gateway.clone();
            tokio::spawn(async move {
                let mut client = gateway.client().await;
                let sending = client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY);
                if n % 3 == 0 {
                    // Disconnects after `n` polls, wherever the request is by then.
                    let polls = async {
                        for _ in 0..n {
                            tokio::task::yield_now().await;
                        }
                    };
                    tokio::select! { () = polls => {}, _ = sending => {} }
                } else {
                    let mut body = sending.await.into_body();
                    next_chunk(&mut body).await.unwrap();
                }
            })
        })
        .collect();
    for client in clients {
        client.await.unwrap();
    }
    gateway.wait_until_idle().await;
}
