//! Requests that are served.

use evenkeel_llm::{LlmOptions, PassOptions};
use http::{HeaderName, Method};

use super::engine::{Engine, event, events};
use super::harness::{CHAT, CHAT_BODY, CHAT_STREAM_BODY, COMPLETION, Gateway, next_chunk, node, tenant};

const DELTA: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi"}}]}"#;
const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":2}}"#;

#[tokio::test]
async fn a_non_streaming_chat_is_passed_through_with_the_query_parameters_of_the_api() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let (response, ()) = tokio::join!(gateway.post("/v1/chat/completions?x=1&beta=true", CHAT_BODY), async {
        let received = engine.next_request().await;
        assert_eq!(
            (received.path.as_str(), &received.body[..]),
            ("/v1/chat/completions?beta=true", CHAT_BODY.as_bytes())
        );
        received.reply(
            200,
            &[("content-type", "application/json"), ("openai-processing-ms", "7")],
            COMPLETION,
        );
    });
    assert_eq!((response.status, response.body.as_str()), (200, COMPLETION));
    assert_eq!((response.header("x-queue-wait-ms"), response.header("openai-processing-ms")), ("0", "7"));
    assert!(response.header("x-request-id").starts_with("req-"));
    let status = gateway.status().await;
    assert_eq!(status["tenants"][0]["served_cost"], 3 + 2 * 4);
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn headers_that_speak_for_a_proxy_reach_nodes_only_if_configured() {
    let sent = [
        ("authorization", "Bearer ek-acme"),
        ("forwarded", "for=192.0.2.1"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-forwarded-host", "evil.example"),
        ("x-real-ip", "192.0.2.1"),
        ("x-http-method-override", "DELETE"),
        ("openai-organization", "org"),
    ];
    for passed in [vec![], vec![HeaderName::from_static("x-forwarded-for")]] {
        let mut engine = Engine::start().await;
        let pass = PassOptions { headers: passed.clone(), ..PassOptions::default() };
        let nodes = vec![node("a", &engine.url, 1)];
        let gateway =
            Gateway::start_with(LlmOptions { nodes, pass, ..LlmOptions::default() }, vec![tenant("acme")])
                .await;
        let (response, ()) = tokio::join!(gateway.post_with(CHAT, &sent, CHAT_BODY), async {
            let received = engine.next_request().await;
            assert_eq!(received.headers["openai-organization"], "org");
            for (name, _) in &sent[1..6] {
                let is_passed = passed.iter().any(|passed| passed == name);
                assert_eq!(received.headers.contains_key(*name), is_passed, "{name}");
            }
            received.reply(200, &[("content-type", "application/json")], COMPLETION);
        });
        assert_eq!(response.status, 200);
    }
}

#[tokio::test]
async fn a_stream_passes_through_and_its_usage_is_hidden_unless_requested() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let mut client = gateway.client().await;
    let (response, sender) = tokio::join!(client.send(Method::POST, "none", CHAT, CHAT_STREAM_BODY), async {
        let received = engine.next_request().await;
        let body: serde_json::Value = serde_json::from_slice(&received.body).unwrap();
        assert_eq!(body["stream_options"]["include_usage"], true);
        let (sender, _) = received.stream();
        event(&sender, DELTA);
        sender
    });
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    assert_eq!(next_chunk(&mut body).await, Some(format!("data: {DELTA}\n\n")));
    event(&sender, DELTA);
    assert_eq!(next_chunk(&mut body).await, Some(format!("data: {DELTA}\n\n")));
    event(&sender, USAGE);
    event(&sender, "[DONE]");
    drop(sender);
    assert_eq!(next_chunk(&mut body).await, Some("data: [DONE]\n\n".to_owned()));
    assert_eq!(next_chunk(&mut body).await, None);
    let status = gateway.status().await;
    assert_eq!((&status["in_flight"], &status["tenants"][0]["served_cost"]), (&0.into(), &7.into()));
    assert_eq!(status["counts"]["finished"], 1);
}

#[tokio::test]
async fn requested_usage_is_not_hidden() {
    let url = Engine::reply_always_with(|received| {
        let (sender, _) = received.stream();
        events(&sender, &[DELTA, USAGE, "[DONE]"]);
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let body = r#"{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}"#;
    let response = gateway.post(CHAT, body).await;
    assert_eq!(response.body, format!("data: {DELTA}\n\ndata: {USAGE}\n\ndata: [DONE]\n\n"));
}

#[tokio::test]
async fn a_node_gets_its_own_key_and_never_the_clients() {
    let mut engine = Engine::start().await;
    let keyed = evenkeel_llm::NodeOptions {
        api_key: Some("node-key".to_owned().into()),
        ..node("keyed", &engine.url, 1)
    };
    let gateway = Gateway::with_nodes(vec![keyed]).await;
    let (response, ()) = tokio::join!(gateway.post_as("secret", CHAT, CHAT_BODY), async {
        let received = engine.next_request().await;
        assert_eq!(received.headers["authorization"], "Bearer node-key");
        assert!(!format!("{:?}", received.headers).contains("ek-secret"));
        assert_eq!(received.headers["host"], engine.url.trim_start_matches("http://"));
        assert!(received.headers.contains_key("x-request-id"));
        received.reply_json(COMPLETION);
    });
    assert_eq!(response.status, 200);
}

#[tokio::test]
async fn a_node_without_a_key_gets_none() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let (_, ()) = tokio::join!(gateway.post_as("secret", CHAT, CHAT_BODY), async {
        let received = engine.next_request().await;
        assert!(!received.headers.contains_key("authorization"));
        received.reply_json(COMPLETION);
    });
}

#[tokio::test]
async fn a_client_error_is_passed_through_and_costs_nothing() {
    let url = Engine::reply_always_with(|received| {
        received.reply(422, &[("content-type", "application/json")], r#"{"error":{"code":"of the engine"}}"#);
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    for _ in 0..10 {
        assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status_and_code(), (422, "of the engine".to_owned()));
    }
    let status = gateway.status().await;
    assert_eq!(
        (&status["tenants"][0]["served_cost"], &status["nodes"][0]["breaker"]),
        (&0.into(), &"closed".into())
    );
}

#[tokio::test]
async fn other_v1_requests_are_routed_by_model() {
    let url = Engine::reply_always_with(|received| {
        assert_eq!(received.path, "/v1/pooling");
        received.reply(200, &[("content-type", "application/octet-stream")], "any bytes");
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let response = gateway.post("/v1/pooling", r#"{"model":"m","input":"q"}"#).await;
    assert_eq!((response.status, response.body.as_str()), (200, "any bytes"));
    gateway.wait_until_idle().await;
}

#[tokio::test]
async fn a_path_traversal_out_of_v1_reaches_no_node() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    let response = gateway.post("/v1/../metrics", r#"{"model":"m"}"#).await;
    assert_eq!(response.status_and_code(), (404, "unknown_url".to_owned()));
    assert!(!engine.has_request());
}

#[tokio::test]
async fn a_small_json_response_is_buffered_and_a_large_one_is_streamed() {
    let huge = "x".repeat(300_000);
    let reply = huge.clone();
    let url = Engine::reply_always_with(move |received| {
        let times = if received.body.len() == CHAT_BODY.len() { 1 } else { 9 };
        let (sender, _) = received.begin(&[("content-type", "application/json")]);
        let write = |text: &str| sender.send(Ok(text.to_owned().into())).unwrap();
        write(r#"{"text":""#);
        (0..times).for_each(|_| write(&reply));
        write(r#"","usage":{"prompt_tokens":5,"completion_tokens":1}}"#);
    })
    .await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    let buffered = gateway.post(CHAT, CHAT_BODY).await;
    assert_eq!(buffered.json()["text"].as_str().unwrap().len(), 300_000);
    assert_eq!(buffered.header("content-length"), buffered.body.len().to_string());
    let streamed = gateway.post(CHAT, &format!(" {CHAT_BODY}")).await;
    assert_eq!(streamed.json()["text"].as_str().unwrap().len(), 9 * 300_000);
    gateway.wait_until_idle().await;
    assert_eq!(gateway.status().await["tenants"][0]["served_cost"], 14);
}

#[tokio::test]
async fn invalid_requests_reach_no_node() {
    let mut engine = Engine::start().await;
    let gateway = Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await;
    assert_eq!(gateway.post(CHAT, "{").await.status_and_code(), (400, "invalid_request".to_owned()));
    let unknown = gateway.post(CHAT, r#"{"model":"other","messages":[]}"#).await;
    assert_eq!(unknown.status_and_code(), (404, "model_not_found".to_owned()));
    assert_eq!(unknown.header("x-queue-wait-ms"), "0");
    assert!(!engine.has_request());
    assert_eq!(gateway.call(Method::GET, "none", CHAT, "").await.status, 405);
}

#[tokio::test]
async fn a_served_request_is_counted_at_each_pipeline_stage() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = Gateway::with_nodes(vec![node("a", &url, 1)]).await;
    gateway.post(CHAT, CHAT_BODY).await;
    let metrics = gateway.registry.render();
    for line in [
        r#"evenkeel_accepted_total{pool="llm",tenant="open"} 1"#,
        r#"evenkeel_admitted_total{pool="llm",tenant="open"} 1"#,
        r#"evenkeel_dispatched_total{pool="llm",node="a"} 1"#,
        r#"evenkeel_finished_total{pool="llm",tenant="open",outcome="served"} 1"#,
        r#"llm_router_request_duration_seconds_count 1"#,
    ] {
        assert!(metrics.lines().any(|found| found == line), "no {line} in {metrics}");
    }
}
