//! Traces of requests, by their outcome.

use std::sync::Arc;

use evenkeel_server::tenant::TenantSettings;
use evenkeel_telemetry::trace::{Attribute, Span, SpanKind};
use http::Method;

use super::engine::{Engine, event, events};
use super::harness::{CHAT, CHAT_BODY, CHAT_STREAM_BODY, COMPLETION, Gateway, next_chunk, node, tenant};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}"#;

#[tokio::test]
async fn every_attempt_has_a_span() {
    let mut failing = Engine::start().await;
    let mut healthy = Engine::start().await;
    let gateway = Arc::new(Gateway::traced(vec![node("failing", &failing.url, 1)], vec![]).await);
    let pending = gateway.spawn_chat("none", CHAT_BODY);
    let received = failing.next_request().await;
    gateway.llm.add_node(node("healthy", &healthy.url, 1)).unwrap();
    let first = received.headers["traceparent"].clone();
    received.reply(500, &[], "");
    let received = healthy.next_request().await;
    let second = received.headers["traceparent"].clone();
    received.reply_json(COMPLETION);
    assert_eq!(pending.await.unwrap().status, 200);
    let spans = ended(&gateway).await;
    let [failed, served, request] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(
        (failed.context.to_string().as_str(), served.context.to_string().as_str()),
        (first.to_str().unwrap(), second.to_str().unwrap())
    );
    assert_eq!(failed.error.as_deref(), Some("node returned 500 Internal Server Error"));
    assert_eq!((text(failed, "evenkeel.node"), text(served, "evenkeel.node")), ("failing", "healthy"));
    assert!(spans.iter().all(|span| span.context.trace == request.context.trace));
    assert_eq!((served.context.parent, request.kind), (Some(request.context.span), SpanKind::Server));
    assert_eq!(whole(request, "evenkeel.attempts"), 2);
    let names: Vec<_> = request.events.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(names, ["queued", "dispatched", "failed", "dispatched", "first_byte"]);
    assert_eq!(request.error, None);
}

#[tokio::test]
async fn a_stream_is_traced_to_its_last_byte() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::traced(vec![node("a", &engine.url, 1)], vec![]).await);
    let mut client = gateway.client().await;
    let (response, sender) = tokio::join!(client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY), async {
        let (sender, _) = engine.next_request().await.stream();
        event(&sender, DELTA);
        sender
    });
    let mut body = response.into_body();
    next_chunk(&mut body).await.unwrap();
    assert!(gateway.tracer().take(9).is_empty(), "the span is still open");
    events(&sender, &[DELTA, USAGE, "[DONE]"]);
    drop(sender);
    while next_chunk(&mut body).await.is_some() {}
    let spans = ended(&gateway).await;
    let request = spans.last().unwrap();
    assert_eq!(text(request, "evenkeel.outcome"), "served");
    assert_eq!(
        (whole(request, "gen_ai.usage.input_tokens"), whole(request, "gen_ai.usage.output_tokens")),
        (3, 9)
    );
}

#[tokio::test]
async fn a_disconnect_and_a_mid_stream_failure_have_different_outcomes() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::traced(vec![node("a", &engine.url, 1)], vec![]).await);
    let mut client = gateway.client().await;
    let (response, sender) = tokio::join!(client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY), async {
        let (sender, _) = engine.next_request().await.stream();
        event(&sender, DELTA);
        sender
    });
    drop((response, client));
    let spans = ended(&gateway).await;
    assert_eq!(text(spans.last().unwrap(), "evenkeel.outcome"), "cancelled");
    drop(sender);
    let pending = gateway.spawn_chat("none", CHAT_STREAM_BODY);
    event(&engine.next_request().await.stream().0, DELTA);
    assert!(pending.await.unwrap().body.contains("bad_upstream"));
    let spans = ended(&gateway).await;
    assert_eq!(text(spans.last().unwrap(), "evenkeel.outcome"), "failed_mid_stream");
    assert!(spans.iter().all(|span| span.error.is_some()));
}

#[tokio::test]
async fn the_span_of_a_rejected_request_has_the_error_code() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let narrow = TenantSettings { models: vec!["other".to_owned()], ..tenant("narrow") };
    let gateway = Arc::new(Gateway::traced(vec![node("a", &url, 1)], vec![narrow]).await);
    assert_eq!(gateway.post_as("narrow", CHAT, CHAT_BODY).await.status, 403);
    let spans = ended(&gateway).await;
    let [request] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(
        (text(request, "error.type"), text(request, "evenkeel.tenant")),
        ("model_forbidden", "narrow")
    );
    assert_eq!((text(request, "evenkeel.outcome"), whole(request, "evenkeel.attempts")), ("refused", 0));
    assert_eq!(request.error, None, "a client error is not an error of the span");
}

/// Waits until the span of the request has ended, and returns all ended spans.
async fn ended(gateway: &Gateway) -> Vec<Span> {
    let mut spans = Vec::new();
    while spans.last().is_none_or(|span: &Span| span.kind != SpanKind::Server) {
        spans.extend(gateway.tracer().take(9));
        tokio::task::yield_now().await;
    }
    spans
}

fn attribute<'a>(span: &'a Span, name: &str) -> &'a Attribute {
    &span
        .attributes
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("{name} of {span:?}"))
        .1
}

fn text<'a>(span: &'a Span, name: &str) -> &'a str {
    match attribute(span, name) {
        Attribute::Text(text) => text,
        other => panic!("{name} is {other:?}"),
    }
}

fn whole(span: &Span, name: &str) -> u64 {
    match attribute(span, name) {
        Attribute::Integer(number) => *number,
        other => panic!("{name} is {other:?}"),
    }
}
