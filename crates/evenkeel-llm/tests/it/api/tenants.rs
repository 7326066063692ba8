//! Limits of tenants: models, tokens per minute, concurrency.

use std::sync::Arc;

use evenkeel_llm::LlmOptions;
use evenkeel_server::tenant::TenantSettings;
use http::Method;

use super::engine::Engine;
use super::harness::{CHAT, CHAT_BODY, COMPLETION, Gateway, node, tenant};

async fn start_gateway(url: &str, slots: u32, tenants: Vec<TenantSettings>) -> Arc<Gateway> {
    let nodes = vec![node("a", url, slots)];
    Arc::new(Gateway::start_with(LlmOptions { nodes, ..LlmOptions::default() }, tenants).await)
}

#[tokio::test]
async fn a_tenant_at_its_concurrency_limit_waits_and_another_does_not() {
    let mut engine = Engine::start().await;
    let capped = TenantSettings { concurrency_max: Some(1), ..tenant("capped") };
    let gateway = start_gateway(&engine.url, 8, vec![capped, tenant("uncapped")]).await;
    let first = gateway.spawn_chat("capped", CHAT_BODY);
    let received = engine.next_request().await;
    let second = gateway.spawn_chat("capped", CHAT_BODY);
    gateway.wait_until_queued(1).await;
    let other = gateway.spawn_chat("uncapped", CHAT_BODY);
    engine.next_request().await.reply_json(COMPLETION);
    assert_eq!(other.await.unwrap().status, 200);
    assert!(!engine.has_request());
    received.reply_json(COMPLETION);
    engine.next_request().await.reply_json(COMPLETION);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_reload_changes_the_limits_of_queued_requests() {
    let mut engine = Engine::start().await;
    let capped = TenantSettings { concurrency_max: Some(1), ..tenant("capped") };
    let gateway = start_gateway(&engine.url, 8, vec![capped]).await;
    let first = gateway.spawn_chat("capped", CHAT_BODY);
    let received = engine.next_request().await;
    let second = gateway.spawn_chat("capped", CHAT_BODY);
    gateway.wait_until_queued(1).await;
    gateway.auth.reload(vec![tenant("capped")], vec![]).unwrap();
    gateway.llm.set_tenants(&gateway.auth.tenants().all()).unwrap();
    engine.next_request().await.reply_json(COMPLETION);
    received.reply_json(COMPLETION);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
}

#[tokio::test]
async fn a_request_for_a_forbidden_model_is_rejected_and_the_model_is_not_listed() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let other = TenantSettings { models: vec!["other".to_owned()], ..tenant("other") };
    let gateway = start_gateway(&url, 8, vec![other, tenant("any")]).await;
    assert_eq!(
        gateway.post_as("other", CHAT, CHAT_BODY).await.status_and_code(),
        (403, "model_forbidden".to_owned())
    );
    let list = |tenant| gateway.call(Method::GET, tenant, "/v1/models", "");
    assert_eq!(list("other").await.json()["data"], serde_json::json!([]));
    assert_eq!(list("any").await.json()["data"][0]["id"], "m");
    assert_eq!(gateway.call(Method::GET, "any", "/v1/models/m", "").await.json()["object"], "model");
    assert_eq!(gateway.call(Method::GET, "other", "/v1/models/m", "").await.status, 403);
    assert_eq!(gateway.call(Method::GET, "any", "/v1/models/x/y", "").await.status, 404);
    assert_eq!(gateway.call(Method::GET, "nobody", "/v1/models", "").await.status, 401);
}

#[tokio::test]
async fn tpm_reserves_the_estimate_and_is_corrected_to_the_actual_usage() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = start_gateway(&url, 8, vec![TenantSettings { tpm: Some(400), ..tenant("a") }]).await;
    let body = r#"{"model":"m","max_tokens":390,"messages":[]}"#;
    // Each request reserves nearly the whole limit up front but uses only 7 tokens.
    for _ in 0..3 {
        assert_eq!(gateway.post_as("a", CHAT, body).await.status, 200);
    }
    let long = format!(
        r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"{}"}}]}}"#,
        "word ".repeat(312)
    );
    let rejected = gateway.post_as("a", CHAT, &long).await;
    assert_eq!((rejected.status, &rejected.json()["error"]["type"]), (429, &"tokens".into()), "{rejected:?}");
    assert!(rejected.has_header("retry-after"));
    let metrics = gateway.registry.render();
    let line = r#"evenkeel_rejected_total{pool="llm",tenant="a",reason="rate_limited"} 1"#;
    assert!(metrics.lines().any(|found| found == line), "{metrics}");
}

#[tokio::test]
async fn tokens_reserved_for_a_request_that_fails_with_4xx_are_refunded() {
    let url = Engine::reply_always_with(|received| {
        received.reply(400, &[("content-type", "application/json")], "{}");
    })
    .await;
    let gateway = start_gateway(&url, 8, vec![TenantSettings { tpm: Some(400), ..tenant("a") }]).await;
    let body = r#"{"model":"m","max_tokens":390,"messages":[]}"#;
    for _ in 0..5 {
        assert_eq!(gateway.post_as("a", CHAT, body).await.status, 400);
    }
}
