//! Nodes that are added, drained and removed while the gateway runs.

use std::sync::Arc;

use evenkeel_llm::{LlmApi, LlmError, LlmOptions, NodeError, NodeOptions};
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_telemetry::{MetricLimits, Observer, Registry, RequestLogLimits};
use evenkeel_upstream::{TlsRoots, Upstream};
use http::Method;

use super::engine::Engine;
use super::harness::{CHAT, CHAT_BODY, COMPLETION, Gateway, node};

#[tokio::test]
async fn a_draining_node_finishes_its_requests_and_gets_no_new_ones() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 2)]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    gateway.llm.drain_node("a").unwrap();
    assert_eq!(gateway.status().await["nodes"][0]["admin_state"], "draining");
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status_and_code(), (503, "unavailable".to_owned()));
    received.reply_json(COMPLETION);
    assert_eq!(first.await.unwrap().status, 200);
    gateway.llm.resume_node("a").unwrap();
    let again = gateway.spawn_chat("none", CHAT_BODY);
    engine.next_request().await.reply_json(COMPLETION);
    assert_eq!(again.await.unwrap().status, 200);
}

#[tokio::test]
async fn a_node_is_added_and_removed() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = Gateway::with_nodes(vec![]).await;
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status_and_code(), (404, "model_not_found".to_owned()));
    gateway.llm.add_node(node("gpu 1", &url, 3)).unwrap();
    assert_eq!(
        gateway.llm.add_node(node("gpu 1", &url, 3)),
        Err(NodeError::Twice { name: "gpu 1".to_owned() })
    );
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status, 200);
    let listed = gateway.call(Method::GET, "root", "/api/nodes", "").await.json();
    assert_eq!((&listed["nodes"][0]["name"], &listed["nodes"][0]["slots"]), (&"gpu 1".into(), &3.into()));
    assert_eq!(listed["nodes"][0]["urls"][0].as_str().unwrap(), url);
    gateway.llm.remove_node("gpu 1").unwrap();
    assert_eq!(gateway.llm.remove_node("gpu 1"), Err(NodeError::Unknown { name: "gpu 1".to_owned() }));
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status, 404);
    assert_eq!(
        gateway.call(Method::GET, "root", "/v1/models", "").await.json()["data"],
        serde_json::json!([])
    );
}

#[tokio::test]
async fn metric_series_of_removed_nodes_are_dropped() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = Gateway::with_nodes(vec![]).await;
    let render = || {
        gateway.llm.update_gauges();
        gateway.registry.render()
    };
    let empty = render().lines().count();
    for number in 0..1_000 {
        let name = format!("gpu-{number}");
        gateway.llm.add_node(node(&name, &url, 1)).unwrap();
        if number % 100 == 99 {
            assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status, 200);
            gateway.wait_until_idle().await;
            let page = render();
            let dispatched = format!("evenkeel_dispatched_total{{pool=\"llm\",node=\"{name}\"}} 1");
            assert!(page.contains(&dispatched), "no series of {name}");
            assert!(page.contains("evenkeel_dispatched_total{pool=\"llm\",node=\"other\"} 0"));
        }
        gateway.llm.remove_node(&name).unwrap();
    }
    // The series of the tenant remain.
    let remaining: Vec<String> =
        render().lines().filter(|line| line.contains("gpu-")).map(str::to_owned).collect();
    assert_eq!(remaining, Vec::<String>::new());
    assert!(render().lines().count() < empty + 200, "{} lines, {empty} before", render().lines().count());
}

#[tokio::test]
async fn only_administrators_can_list_nodes() {
    let gateway = Gateway::with_nodes(vec![]).await;
    for path in ["/api/load-status", "/api/nodes"] {
        assert_eq!(gateway.call(Method::GET, "none", path, "").await.status, 403, "{path}");
    }
}

#[tokio::test]
async fn requests_of_a_conversation_go_to_the_same_node() {
    let mut one = Engine::start().await;
    let mut two = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("1", &one.url, 8), node("2", &two.url, 8)]).await);
    let mut picked = Vec::new();
    for _ in 0..4 {
        let pending = gateway.spawn_chat("none", CHAT_BODY);
        let (number, received) = tokio::select! {
            received = one.next_request() => (1, received),
            received = two.next_request() => (2, received),
        };
        received.reply_json(COMPLETION);
        assert_eq!(pending.await.unwrap().status, 200);
        picked.push(number);
    }
    assert!(picked.iter().all(|number| *number == picked[0]), "{picked:?}");
    let cache = &gateway.status().await["cache"];
    assert_eq!((&cache["hits"], &cache["misses"], &cache["size"]), (&3.into(), &1.into(), &1.into()));
}

#[tokio::test]
async fn a_node_with_several_paths_is_reached_over_the_working_paths() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed_url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let paths = vec![closed_url, url];
    let gateway = Gateway::with_nodes(vec![NodeOptions { paths, ..node("a", "", 4) }]).await;
    for _ in 0..10 {
        assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status, 200);
    }
    let status = gateway.status().await;
    assert_eq!(status["nodes"][0]["breaker"], "closed", "a failing path does not count against its node");
    assert_eq!(status["nodes"][0]["paths"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn the_models_of_a_node_without_a_configured_list_are_discovered() {
    let url = Engine::reply_always_with(|received| received.reply_json(COMPLETION)).await;
    let gateway = Gateway::with_nodes(vec![NodeOptions { models: vec![], ..node("a", &url, 1) }]).await;
    let body = r#"{"model":"found","messages":[]}"#;
    loop {
        let response = gateway.post(CHAT, body).await;
        if response.status == 200 {
            break;
        }
        assert_eq!(response.status_and_code(), (503, "not_ready".to_owned()));
        assert_eq!(response.header("retry-after"), "1");
    }
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status_and_code(), (404, "model_not_found".to_owned()));
}

#[tokio::test]
async fn a_model_that_an_unreachable_node_may_serve_is_unavailable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let closed_url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let gateway =
        Gateway::with_nodes(vec![NodeOptions { models: vec![], ..node("a", &closed_url, 1) }]).await;
    while gateway.post(CHAT, CHAT_BODY).await.status_and_code().1 == "not_ready" {
        tokio::task::yield_now().await;
    }
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status_and_code(), (503, "unavailable".to_owned()));
}

#[tokio::test]
async fn an_api_that_is_shutting_down_rejects_new_requests() {
    let mut engine = Engine::start().await;
    let gateway = Arc::new(Gateway::with_nodes(vec![node("a", &engine.url, 1)]).await);
    let first = gateway.spawn_chat("none", CHAT_BODY);
    let received = engine.next_request().await;
    gateway.llm.shutdown();
    assert_eq!(gateway.post(CHAT, CHAT_BODY).await.status_and_code(), (503, "shutting_down".to_owned()));
    received.reply_json(COMPLETION);
    assert_eq!(first.await.unwrap().status, 200);
}

#[tokio::test]
async fn an_invalid_node_is_rejected_with_its_name() {
    let rejection = |nodes: Vec<NodeOptions>| {
        let observer =
            Observer::new(&Registry::new(), "llm", MetricLimits::default(), RequestLogLimits::default())
                .unwrap();
        let upstream = Upstream::new(ConnectionPoolConfig::default(), TlsRoots::public());
        let options = LlmOptions { nodes, ..LlmOptions::default() };
        LlmApi::new(options, upstream, Arc::new(observer)).unwrap_err().to_string()
    };
    let url = "http://engine";
    assert_eq!(rejection(vec![node("", url, 1)]), "a node has no name");
    assert_eq!(rejection(vec![node("a", url, 1), node("a", url, 1)]), r#"two nodes are named "a""#);
    assert_eq!(rejection(vec![node("a", url, 0)]), r#"node "a": max_concurrency must be at least 1"#);
    assert_eq!(rejection(vec![NodeOptions { paths: vec![], ..node("a", url, 1) }]), r#"node "a" has no URL"#);
    assert!(rejection(vec![node("a", "engine", 1)]).starts_with(r#"node "a": "#));
    let api_key = Some("a\nb".to_owned().into());
    assert_eq!(
        rejection(vec![NodeOptions { api_key, ..node("a", url, 1) }]),
        r#"the API key of node "a" cannot be sent in a header"#
    );
    let models = (0..1_001).map(|n| n.to_string()).collect();
    assert_eq!(rejection(vec![NodeOptions { models, ..node("a", url, 1) }]), "more than 1000 models");
    let unknown = LlmError::Node(NodeError::Unknown { name: "b".to_owned() });
    assert_eq!(unknown.to_string(), r#"no node is named "b""#);
}
