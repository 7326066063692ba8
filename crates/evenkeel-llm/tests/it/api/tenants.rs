//! Tenants: what each may use, how much, and how many at once.

use std::sync::Arc;

use evenkeel_llm::LlmOptions;
use evenkeel_server::tenant::TenantSettings;
use http::Method;

use super::engine::Engine;
use super::harness::{ASK, CHAT, House, SAID, node, tenant};

async fn house(url: &str, slots: u32, tenants: Vec<TenantSettings>) -> Arc<House> {
    let nodes = vec![node("a", url, slots)];
    Arc::new(House::with(LlmOptions { nodes, ..LlmOptions::default() }, tenants).await)
}

#[tokio::test]
async fn a_tenant_at_its_cap_waits_and_another_does_not() {
    let mut engine = Engine::start().await;
    let capped = TenantSettings { concurrency_max: Some(1), ..tenant("capped") };
    let house = house(&engine.url, 8, vec![capped, tenant("free")]).await;
    let first = house.ask("capped", ASK);
    let heard = engine.hears().await;
    let second = house.ask("capped", ASK);
    house.until_waiting(1).await;
    let other = house.ask("free", ASK);
    engine.hears().await.reply_json(SAID);
    assert_eq!(other.await.unwrap().status, 200);
    assert!(!engine.has_heard());
    heard.reply_json(SAID);
    engine.hears().await.reply_json(SAID);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
    house.until_idle().await;
}

#[tokio::test]
async fn a_reload_changes_caps_of_those_who_wait() {
    let mut engine = Engine::start().await;
    let capped = TenantSettings { concurrency_max: Some(1), ..tenant("capped") };
    let house = house(&engine.url, 8, vec![capped]).await;
    let first = house.ask("capped", ASK);
    let heard = engine.hears().await;
    let second = house.ask("capped", ASK);
    house.until_waiting(1).await;
    house.gate.reload(vec![tenant("capped")], vec![]).unwrap();
    house.llm.set_tenants(&house.gate.tenants().all()).unwrap();
    engine.hears().await.reply_json(SAID);
    heard.reply_json(SAID);
    assert_eq!((first.await.unwrap().status, second.await.unwrap().status), (200, 200));
}

#[tokio::test]
async fn a_model_that_a_tenant_may_not_use_is_forbidden_and_not_listed() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let other = TenantSettings { models: vec!["other".to_owned()], ..tenant("other") };
    let house = house(&url, 8, vec![other, tenant("any")]).await;
    assert_eq!(house.post_as("other", CHAT, ASK).await.code(), (403, "model_forbidden".to_owned()));
    let list = |who| house.call(Method::GET, who, "/v1/models", "");
    assert_eq!(list("other").await.json()["data"], serde_json::json!([]));
    assert_eq!(list("any").await.json()["data"][0]["id"], "m");
    assert_eq!(house.call(Method::GET, "any", "/v1/models/m", "").await.json()["object"], "model");
    assert_eq!(house.call(Method::GET, "other", "/v1/models/m", "").await.status, 403);
    assert_eq!(house.call(Method::GET, "any", "/v1/models/x/y", "").await.code().0, 404);
    assert_eq!(house.call(Method::GET, "nobody", "/v1/models", "").await.status, 401);
}

#[tokio::test]
async fn tokens_per_minute_are_taken_as_guessed_and_settled_as_used() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let house = house(&url, 8, vec![TenantSettings { tpm: Some(400), ..tenant("a") }]).await;
    let asks = r#"{"model":"m","max_tokens":390,"messages":[]}"#;
    // Each is thought to take nearly all at first, and takes 7.
    for _ in 0..3 {
        assert_eq!(house.post_as("a", CHAT, asks).await.status, 200);
    }
    let long = format!(
        r#"{{"model":"m","max_tokens":1,"messages":[{{"role":"user","content":"{}"}}]}}"#,
        "word ".repeat(312)
    );
    let refused = house.post_as("a", CHAT, &long).await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (429, &"tokens".into()), "{refused:?}");
    assert_ne!(refused.header("retry-after"), "none");
    let page = house.registry.render();
    let line = r#"evenkeel_rejected_total{pool="llm",tenant="a",reason="rate_limited"} 1"#;
    assert!(page.lines().any(|found| found == line), "{page}");
}

#[tokio::test]
async fn what_was_never_answered_is_given_back_to_the_minute() {
    let url = Engine::always(|heard| heard.reply(400, &[("content-type", "application/json")], "{}")).await;
    let house = house(&url, 8, vec![TenantSettings { tpm: Some(400), ..tenant("a") }]).await;
    let asks = r#"{"model":"m","max_tokens":390,"messages":[]}"#;
    for _ in 0..5 {
        assert_eq!(house.post_as("a", CHAT, asks).await.status, 400);
    }
}
