//! What a request's trace tells, however the request ends.

use std::sync::Arc;

use evenkeel_server::tenant::TenantSettings;
use evenkeel_telemetry::trace::{Attribute, Span, SpanKind};
use http::Method;

use super::engine::{Engine, event, events};
use super::harness::{ASK, ASK_STREAM, CHAT, House, SAID, node, piece, tenant};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
const COUNTS: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":9}}"#;

#[tokio::test]
async fn every_node_that_was_asked_has_its_span() {
    let mut broken = Engine::start().await;
    let mut well = Engine::start().await;
    let house = Arc::new(House::traced(vec![node("broken", &broken.url, 1)], vec![]).await);
    let asking = house.ask("none", ASK);
    let heard = broken.hears().await;
    house.llm.add_node(node("well", &well.url, 1)).unwrap();
    let first = heard.headers["traceparent"].clone();
    heard.reply(500, &[], "");
    let heard = well.hears().await;
    let second = heard.headers["traceparent"].clone();
    heard.reply_json(SAID);
    assert_eq!(asking.await.unwrap().status, 200);
    let spans = ended(&house).await;
    let [failed, served, request] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(
        (failed.context.to_string().as_str(), served.context.to_string().as_str()),
        (first.to_str().unwrap(), second.to_str().unwrap())
    );
    assert_eq!(failed.error.as_deref(), Some("node answered 500 Internal Server Error"));
    assert_eq!((text(failed, "evenkeel.node"), text(served, "evenkeel.node")), ("broken", "well"));
    assert!(spans.iter().all(|span| span.context.trace == request.context.trace));
    assert_eq!((served.context.parent, request.kind), (Some(request.context.span), SpanKind::Server));
    assert_eq!(whole(request, "evenkeel.attempts"), 2);
    let told: Vec<_> = request.events.iter().map(|(_, name, _)| *name).collect();
    assert_eq!(told, ["queued", "dispatched", "failed", "dispatched", "first_byte"]);
    assert_eq!(request.error, None);
}

#[tokio::test]
async fn a_stream_is_traced_to_its_last_byte() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::traced(vec![node("a", &engine.url, 1)], vec![]).await);
    let mut client = house.client().await;
    let (response, pen) = tokio::join!(client.send(Method::POST, "none", CHAT, ASK_STREAM), async {
        let (pen, _) = engine.hears().await.stream();
        event(&pen, DELTA);
        pen
    });
    let mut body = response.into_body();
    piece(&mut body).await.unwrap();
    assert!(house.tracer().take(9).is_empty(), "it goes on");
    events(&pen, &[DELTA, COUNTS, "[DONE]"]);
    drop(pen);
    while piece(&mut body).await.is_some() {}
    let spans = ended(&house).await;
    let request = spans.last().unwrap();
    assert_eq!(text(request, "evenkeel.ending"), "served");
    assert_eq!(
        (whole(request, "gen_ai.usage.input_tokens"), whole(request, "gen_ai.usage.output_tokens")),
        (3, 9)
    );
}

#[tokio::test]
async fn whoever_leaves_and_whatever_breaks_off_is_told_apart() {
    let mut engine = Engine::start().await;
    let house = Arc::new(House::traced(vec![node("a", &engine.url, 1)], vec![]).await);
    let mut client = house.client().await;
    let (response, pen) = tokio::join!(client.send(Method::POST, "none", CHAT, ASK_STREAM), async {
        let (pen, _) = engine.hears().await.stream();
        event(&pen, DELTA);
        pen
    });
    drop((response, client));
    let spans = ended(&house).await;
    assert_eq!(text(spans.last().unwrap(), "evenkeel.ending"), "cancelled");
    drop(pen);
    let asking = house.ask("none", ASK_STREAM);
    event(&engine.hears().await.stream().0, DELTA);
    assert!(asking.await.unwrap().body.contains("bad_upstream"));
    let spans = ended(&house).await;
    assert_eq!(text(spans.last().unwrap(), "evenkeel.ending"), "broken");
    assert!(spans.iter().all(|span| span.error.is_some()));
}

#[tokio::test]
async fn a_refusal_is_told_with_its_code() {
    let url = Engine::always(|heard| heard.reply_json(SAID)).await;
    let narrow = TenantSettings { models: vec!["other".to_owned()], ..tenant("narrow") };
    let house = Arc::new(House::traced(vec![node("a", &url, 1)], vec![narrow]).await);
    assert_eq!(house.post_as("narrow", CHAT, ASK).await.status, 403);
    let spans = ended(&house).await;
    let [request] = &spans[..] else { panic!("{spans:?}") };
    assert_eq!(
        (text(request, "error.type"), text(request, "evenkeel.tenant")),
        ("model_forbidden", "narrow")
    );
    assert_eq!((text(request, "evenkeel.ending"), whole(request, "evenkeel.attempts")), ("refused", 0));
    assert_eq!(request.error, None, "the client's mistake is not ours");
}

/// The spans that have ended once a request has.
async fn ended(house: &House) -> Vec<Span> {
    let mut spans = Vec::new();
    while spans.last().is_none_or(|span: &Span| span.kind != SpanKind::Server) {
        spans.extend(house.tracer().take(9));
        tokio::task::yield_now().await;
    }
    spans
}

fn told<'a>(span: &'a Span, name: &str) -> &'a Attribute {
    &span
        .attributes
        .iter()
        .find(|(known, _)| *known == name)
        .unwrap_or_else(|| panic!("{name} of {span:?}"))
        .1
}

fn text<'a>(span: &'a Span, name: &str) -> &'a str {
    match told(span, name) {
        Attribute::Text(text) => text,
        other => panic!("{name} is {other:?}"),
    }
}

fn whole(span: &Span, name: &str) -> u64 {
    match told(span, name) {
        Attribute::Integer(number) => *number,
        other => panic!("{name} is {other:?}"),
    }
}
